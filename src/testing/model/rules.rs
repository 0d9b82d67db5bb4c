//! The rules of budget and escalation: any settings, any signals.

use std::time::Duration;

use super::Choices;
use crate::budget::{Budget, Grace, Human, Plan, parse_duration};
use crate::escalation::{Escalation, Step};
use crate::overrun::Overrun;
use crate::phase::Phase;
use crate::trigger::Signal;

/// A budget's settings, to be tried with more than one grace.
#[derive(Debug)]
struct Settings {
    given: bool,
    balancer: bool,
    prestop: Option<Duration>,
    unready: Option<Duration>,
    drain: Option<Duration>,
    requeue: Option<Duration>,
    close: Option<Duration>,
    margin: Option<Duration>,
    forced: Option<Duration>,
}

/// Any budget: never panics, is refused only with a reason, and its plan keeps its promises.
pub fn budget(data: &[u8]) {
    let mut choices = Choices(data);
    let settings = Settings::choose(&mut choices);
    let (grace, more) = (choices.duration(), choices.duration());
    let less = match settings.budget(grace).plan() {
        Ok(plan) => plan,
        Err(refused) => {
            assert!(refused.to_string().contains(refused.setting()));
            assert!(
                !refused.to_string().contains("is 0 s:") || grace.is_zero(),
                "zero is never too long: {refused}"
            );
            return;
        }
    };
    settings.check_fit(&less);
    check_plan(&less, &mut choices);
    if let Ok(more) = settings.budget(grace.saturating_add(more)).plan() {
        assert!(
            more.drain_limit() >= less.drain_limit(),
            "more grace drains less: {settings:?}\n{less}{more}"
        );
        assert!(more.kill() >= less.kill());
    }
}

/// Any text: never panics, and what is read comes out as it was written.
pub fn duration(data: &[u8]) {
    match parse_duration(&String::from_utf8_lossy(data)) {
        // What is below a millisecond is written in units that nobody sets anything in.
        Ok(read) if read >= Duration::from_millis(1) || read.is_zero() => {
            assert_eq!(parse_duration(&Human(read).to_string()), Ok(read));
        }
        Ok(_) => {}
        Err(wrong) => assert!(!wrong.to_string().is_empty()),
    }
}

/// Any signals at any times: each step is taken at most once, in its order, and a double never counts.
pub fn escalation(data: &[u8]) {
    let mut choices = Choices(data);
    let options = choices.byte();
    let [forces, exits, repeats] = [1, 2, 4].map(|bit| options & bit != 0);
    let window = Duration::from_millis(u64::from(choices.byte()) * 2);
    let mut escalation =
        Escalation::new().window(window).forces(forces).exits(exits).terminate_repeats(repeats);
    let (mut taken, mut counted_at, mut forced_by) = (None, Duration::ZERO, None);
    let mut at = Duration::ZERO;
    while !choices.0.is_empty() {
        let signal = Signal::ALL[usize::from(choices.byte()) % Signal::ALL.len()];
        at += Duration::from_millis(u64::from(choices.byte()) * 2);
        let step = escalation.see(signal, at);
        let doubled = taken.is_some() && at - counted_at <= window;
        assert_eq!(step == Step::Doubled, doubled, "doubles are counted from the last signal that counted");
        match step {
            Step::Begin => assert_eq!(taken, None, "a stop begins once, with the first signal"),
            Step::Force => {
                assert!(forces && taken == Some(Step::Begin));
                forced_by = Some(signal);
            }
            Step::Exit => assert!(exits && taken == Some(if forces { Step::Force } else { Step::Begin })),
            Step::Doubled => continue,
            Step::Repeated => {
                let last = if exits {
                    Step::Exit
                } else if forces {
                    Step::Force
                } else {
                    Step::Begin
                };
                assert!(taken == Some(last) || (repeats && taken.is_some() && signal == Signal::Terminate));
                continue;
            }
        }
        assert!(step == Step::Begin || !repeats || signal != Signal::Terminate, "SIGTERM escalated");
        (taken, counted_at) = (Some(step), at);
        assert_eq!(escalation.forced_by(), forced_by);
    }
}

fn check_plan(plan: &Plan, choices: &mut Choices<'_>) {
    let planned = Phase::ALL.map(|phase| plan.deadline(phase, None, None));
    assert!(planned.is_sorted(), "phases end in their order: {plan}");
    assert_eq!(planned[4], plan.kill() - plan.margin());
    assert!((planned[4]..=plan.kill()).contains(&plan.watchdog_at()));
    assert!(plan.stop_intake_limit() <= plan.drain_limit() / 4);
    assert!((planned[2]..=planned[3]).contains(&plan.hand_back_at(None, None)));

    let (first, second) = (choices.duration(), choices.duration());
    let (sooner, later) = (first.min(second), first.max(second));
    let ended = choices.maybe().map(|after| sooner.saturating_add(after));
    let forced = Phase::ALL.map(|phase| plan.deadline(phase, Some(sooner), ended));
    for (at, phase) in Phase::ALL.into_iter().enumerate() {
        assert!(forced[at] <= planned[at], "{phase} ends later when forced: {plan}");
        assert!(
            forced[at] <= plan.deadline(phase, Some(later), ended),
            "{phase} ends later when forced sooner: {plan}"
        );
    }
    assert!(
        forced[2..].is_sorted() && (ended.is_some() || forced.is_sorted()),
        "forced phases end in their order"
    );
    assert!(forced[0] <= sooner && forced[1] <= sooner.saturating_add(Duration::from_millis(250)));
    assert!(forced[4] - forced[2] <= plan.forced_limit().max(planned[4] - planned[2]));
    assert!((forced[2]..=forced[3]).contains(&plan.hand_back_at(Some(sooner), ended)));

    let hooks = usize::from(choices.byte());
    let mut left = choices.duration();
    for hooks_left in (0..=hooks).rev() {
        let share = plan.hook_share(left, hooks_left);
        assert!(share <= left);
        left -= share;
    }
    assert!(left.is_zero() || hooks == 0, "the last hook gets what is left");

    let limit = choices.duration();
    assert_eq!(plan.check_task("orders", limit, Overrun::Finish).is_ok(), limit <= plan.drain_limit());
    assert!(plan.check_task("orders", limit, Overrun::Requeue).is_ok());
    assert!(plan.to_string().lines().count() >= 9);
}

// === impl Settings ===

impl Settings {
    fn choose(choices: &mut Choices<'_>) -> Self {
        let flags = choices.byte();
        Self {
            given: flags & 1 != 0,
            balancer: flags & 2 != 0,
            prestop: choices.maybe(),
            unready: choices.maybe(),
            drain: choices.maybe(),
            requeue: choices.maybe(),
            close: choices.maybe(),
            margin: choices.maybe(),
            forced: choices.maybe(),
        }
    }

    fn budget(&self, grace: Duration) -> Budget {
        let budget =
            if self.given { Budget::given(grace, "a model") } else { Budget::assumed(grace, "a model") };
        let set = |budget: Budget, with: fn(Budget, Duration) -> Budget, value: Option<Duration>| match value
        {
            Some(value) => with(budget, value),
            None => budget,
        };
        let budget = set(budget.balancer(self.balancer), Budget::prestop, self.prestop);
        let budget = set(budget, Budget::unready, self.unready);
        let budget = set(budget, Budget::drain, self.drain);
        let budget = set(budget, Budget::requeue, self.requeue);
        let budget = set(budget, Budget::close, self.close);
        let budget = set(budget, Budget::margin, self.margin);
        set(budget, Budget::forced, self.forced)
    }

    /// What was set stays, and is all in all no more than the grace; or else there is a warning.
    fn check_fit(&self, plan: &Plan) {
        let set = [self.unready, self.drain, self.requeue, self.close, self.margin];
        let sum = set.into_iter().flatten().fold(Duration::ZERO, Duration::saturating_add);
        if sum > plan.kill() {
            assert!(
                matches!(plan.grace(), Grace::Assumed { .. }),
                "it does not fit and was not refused: {plan}"
            );
            assert!(!plan.warnings().is_empty());
        }
        if plan.warnings().is_empty() {
            assert_eq!(
                self.unready.unwrap_or(plan.deadline(Phase::Unready, None, None)),
                plan.deadline(Phase::Unready, None, None)
            );
            assert_eq!(self.drain.unwrap_or(plan.drain_limit()), plan.drain_limit());
            assert_eq!(self.margin.unwrap_or(plan.margin()), plan.margin());
        }
    }
}
