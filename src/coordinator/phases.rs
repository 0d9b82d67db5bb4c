//! What each phase does. Each returns whether it was done before its deadline.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use super::account::Log;
use super::{ShutdownCoordinator, Task};
use crate::budget::Human;
use crate::gate::Gate;
use crate::handle::control::Control;
use crate::handle::unit::Unit;
use crate::hook::{Hook, HookCx, Place, in_order};
use crate::phase::Phase;
use crate::trigger::Reason;

/// How long a hook or a task may take to be polled for the first time although its deadline has passed.
const FIRST_POLL: Duration = Duration::from_millis(20);
/// How long work that was cut may take to see that.
const LAST_STEP: Duration = Duration::from_millis(20);
/// For how long nothing may end of what was cut, while there is time: a thread may be kept from its work by others.
const STANDSTILL: Duration = Duration::from_millis(200);
/// How long a task may take to end by itself after the hard signal before it is dropped.
const TASK_END: Duration = Duration::from_millis(50);
const PROGRESS: Duration = Duration::from_secs(1);

/// A hook that runs, or waits for others to run first.
struct Started {
    unit: Arc<Unit>,
    phase: Phase,
    limit: Option<Instant>,
    /// How many hooks come one after another from here on, itself included: each has its share of the time.
    left: usize,
    /// Whether the limit is that of a forced stop already.
    forced: bool,
}

impl ShutdownCoordinator {
    /// A wait, not a race: balancers need this time to notice, whatever else is done.
    pub(super) async fn unready(&mut self, log: &mut Log) -> bool {
        let control = Arc::clone(&self.control);
        // A gate that was made after the trigger, in a set-up that was under way, closes here.
        control.gates().iter().filter(|gate| gate.is_pulled()).for_each(|gate| {
            gate.close();
        });
        let hooks = self.side_by_side(Phase::Unready, log);
        tokio::join!(hooks, with_progress(&control, control.passed(Phase::Unready, None)));
        !control.forced.is_fired()
    }

    pub(super) async fn stop_intake(&mut self, log: &mut Log) -> bool {
        let control = Arc::clone(&self.control);
        let done = self.side_by_side(Phase::StopIntake, log).await;
        control.intake_stopped();
        tracing::info!(target: "winddown", "intake.stopped");
        done
    }

    pub(super) async fn drain(&mut self, log: &mut Log) -> bool {
        let control = Arc::clone(&self.control);
        let tasks = self.units(|task| task.until == Phase::Drain);
        let work = async {
            for gate in control.gates() {
                gate.drained().await;
            }
            all_done(&tasks).await;
        };
        let work = async {
            tokio::select! {
                biased;
                () = work => true,
                () = control.passed(Phase::Drain, None) => false,
            }
        };
        let hooks = self.side_by_side(Phase::Drain, log);
        let (work, hooks) = with_progress(&control, async { tokio::join!(work, hooks) }).await;
        work && hooks
    }

    /// Cancels what is overdue, awaits it, hands it back; what will not end is given up by name.
    pub(super) async fn requeue(&mut self, log: &mut Log) -> bool {
        let control = Arc::clone(&self.control);
        control.cancel();
        let overdue = self.units(|task| task.until == Phase::Drain && !task.part);
        let cooperative = self.units(|task| task.until == Phase::Drain && task.cooperative);
        let later = self.units(|task| task.until == Phase::Requeue || task.part);
        let hooks = self.side_by_side(Phase::Requeue, log);
        let work = hand_back(&control, &overdue, &cooperative, &later);
        let (work, hooks) = with_progress(&control, async { tokio::join!(work, hooks) }).await;
        work && hooks
    }

    /// One after another: by rank, then in reverse order of registration.
    pub(super) async fn close(&mut self, log: &mut Log) -> bool {
        let control = Arc::clone(&self.control);
        let hooks = self.take_hooks(Phase::Close);
        let one_by_one = async {
            let mut in_time = true;
            let mut left = hooks.len();
            for (hook, _) in hooks {
                let started = start_hook(&control, &self.runtime, hook, left);
                left -= 1;
                in_time &= judge(&control, started, log).await;
            }
            in_time
        };
        let in_time = with_progress(&control, one_by_one).await;
        let tasks = self.units(|task| task.until == Phase::Close);
        let ended = tokio::select! {
            biased;
            () = all_done(&tasks) => true,
            () = control.passed(Phase::Close, None) => false,
        };
        tasks.iter().for_each(|unit| unit.give_up());
        if !ended {
            // So that the report does not call stuck what goes at once.
            let _ = tokio::time::timeout(LAST_STEP, all_done(&tasks)).await;
        }
        in_time && ended
    }

    /// Takes the hooks of a phase in the order in which they start, with the places of those that each waits for.
    fn take_hooks(&mut self, phase: Phase) -> Vec<(Hook, Vec<usize>)> {
        let (hooks, others): (Vec<Hook>, Vec<Hook>) =
            std::mem::take(&mut self.hooks).into_iter().partition(|hook| hook.phase == phase);
        self.hooks = others;
        let places: Vec<Place<'_>> = hooks
            .iter()
            .map(|hook| Place { name: &hook.name, rank: hook.rank, after: &hook.after })
            .collect();
        // Start-up was refused where they cannot be put in order; they run all the same, without their wishes.
        let order = in_order(phase, &places).unwrap_or_else(|_| {
            let places: Vec<Place<'_>> =
                hooks.iter().map(|hook| Place { name: &hook.name, rank: hook.rank, after: &[] }).collect();
            in_order(phase, &places).unwrap_or_default()
        });
        let mut place = vec![0; hooks.len()];
        for (at, (index, _)) in order.iter().enumerate() {
            place[*index] = at;
        }
        let mut hooks: Vec<Option<Hook>> = hooks.into_iter().map(Some).collect();
        let waits = |waits: Vec<usize>| waits.into_iter().map(|index| place[index]).collect();
        order.into_iter().filter_map(|(index, after)| Some((hooks[index].take()?, waits(after)))).collect()
    }

    /// Runs the hooks of a phase side by side; one that is `after` others starts when these have ended.
    fn side_by_side<'l>(
        &mut self,
        phase: Phase,
        log: &'l mut Log,
    ) -> impl Future<Output = bool> + Send + use<'l> {
        let hooks = self.take_hooks(phase);
        let control = Arc::clone(&self.control);
        let runtime = self.runtime.clone();
        async move {
            let ends: Vec<crate::latch::Latch> = hooks.iter().map(|_| crate::latch::Latch::new()).collect();
            let left = chains(&hooks);
            let shared = tokio::sync::Mutex::new(log);
            let all: FuturesUnordered<_> = hooks
                .into_iter()
                .enumerate()
                .map(|(index, (hook, after))| {
                    let left = left[index];
                    let (control, runtime, ends, shared) = (&control, &runtime, &ends, &shared);
                    async move {
                        for other in after {
                            ends[other].fired().await;
                        }
                        let started = start_hook(control, runtime, hook, left);
                        let in_time = wait(control, &started).await;
                        ends[index].fire();
                        shared.lock().await.hook(control, &started.unit, started.phase, in_time);
                        in_time
                    }
                })
                .collect();
            all.fold(true, |all, in_time| std::future::ready(all && in_time)).await
        }
    }

    fn units(&self, which: impl Fn(&Task) -> bool) -> Vec<Arc<Unit>> {
        self.tasks.iter().filter(|task| which(task)).map(|task| Arc::clone(&task.unit)).collect()
    }
}

fn start_hook(control: &Arc<Control>, runtime: &tokio::runtime::Handle, hook: Hook, left: usize) -> Started {
    // Asked before the share is: a force that comes in between shortens it again.
    let forced = control.forced.is_fired();
    let now = Instant::now();
    let phase = hook.phase;
    let own = hook.limit.map(|limit| now + limit.min(control.plan.kill()));
    let intake = (phase == Phase::StopIntake).then(|| now + control.plan.stop_intake_limit());
    let limit = [own, share(control, phase, left), intake].into_iter().flatten().min();
    let deadline = control.deadline(phase).unwrap_or(now);
    let deadline = limit.map_or(deadline, |limit| limit.min(deadline));
    let cx = HookCx::new(phase, control.reason().unwrap_or(Reason::Dropped), deadline);
    let unit = Unit::new("hook", hook.name.clone());
    control.add_unit(Arc::clone(&unit));
    let work = hook.start(cx);
    unit.start(runtime, work, |_| {});
    Started { unit, phase, limit, left, forced }
}

/// When the share of a hook ends that has others behind it.
fn share(control: &Control, phase: Phase, left: usize) -> Option<Instant> {
    let now = Instant::now();
    let time_left = control.deadline(phase)?.saturating_duration_since(now);
    Some(now + control.plan.hook_share(time_left, left))
}

/// How many hooks come one after another from each on, itself included.
fn chains(hooks: &[(Hook, Vec<usize>)]) -> Vec<usize> {
    let mut left = vec![1; hooks.len()];
    // Whoever waits stands behind those that it waits for.
    for (place, (_, after)) in hooks.iter().enumerate().rev() {
        for &other in after {
            left[other] = left[other].max(left[place] + 1);
        }
    }
    left
}

/// Waits for a hook within its limits; past them it is aborted. Whether it was in time.
async fn wait(control: &Control, started: &Started) -> bool {
    let unit = &started.unit;
    let (mut limit, mut forced) = (started.limit, started.forced);
    let in_time = loop {
        tokio::select! {
            biased;
            () = unit.done() => break true,
            // Less time is left for this hook and for those behind it: it is shared anew.
            () = control.forced.fired(), if !forced => {
                forced = true;
                limit = [limit, share(control, started.phase, started.left)].into_iter().flatten().min();
            }
            () = control.passed(started.phase, limit) => break false,
        }
    };
    if in_time {
        return true;
    }
    // Every hook is polled at least once, also where its time was over before it began; one that is done by that is in time, however
    // long its thread took for it.
    let _ = tokio::time::timeout(FIRST_POLL, unit.polled.fired()).await;
    tokio::task::yield_now().await;
    unit.abort();
    unit.ended().is_some()
}

async fn judge(control: &Control, started: Started, log: &mut Log) -> bool {
    let in_time = wait(control, &started).await;
    log.hook(control, &started.unit, started.phase, in_time);
    in_time
}

async fn all_done(units: &[Arc<Unit>]) {
    // Again, since one that had waited for the end of the stop may have gone on while others were waited for.
    while units.iter().any(|unit| unit.began().is_some() && !unit.is_done()) {
        for unit in units.iter().filter(|unit| unit.began().is_some()) {
            unit.done().await;
        }
    }
}

/// Awaits what was cancelled, hands it back, and gives up what will not go; whether all of it went.
async fn hand_back(
    control: &Control,
    overdue: &[Arc<Unit>],
    cooperative: &[Arc<Unit>],
    later: &[Arc<Unit>],
) -> bool {
    let now = Instant::now();
    let time_left = control.deadline(Phase::Requeue).unwrap_or(now).saturating_duration_since(now);
    let (window, latest) = (now + control.plan.cancel_window(time_left), now + time_left / 2);
    let last_step = || control.passed(Phase::Close, Some(Instant::now() + LAST_STEP));
    let gates = control.gates();
    let returns: Vec<_> = gates.iter().flat_map(|gate| gate.seat().returns()).collect();
    let gone = async {
        for gate in &gates {
            gate.drained().await;
        }
        all_done(overdue).await;
    };
    let mut gone = std::pin::pin!(gone);
    // Within the window: everything may end by itself; tasks that nothing shields are dropped soon.
    let drop_tasks = async {
        tokio::time::sleep_until(window.min(Instant::now() + TASK_END)).await;
        while shields(&gates) > 0 {
            tokio::time::sleep(LAST_STEP).await;
        }
        for unit in overdue.iter().filter(|unit| !cooperative.iter().any(|other| Arc::ptr_eq(unit, other))) {
            unit.give_up();
        }
        std::future::pending::<()>().await;
    };
    let mut all_gone = tokio::select! {
        biased;
        () = &mut gone => true,
        () = drop_tasks => false,
        () = control.passed(Phase::Requeue, Some(window)) => false,
    };
    // An early drain leaves more time than was planned: it goes to what is shielded, and to what still comes back.
    if !all_gone {
        let goes_on = while_it_ends(control, &gates, latest, STANDSTILL, || shields(&gates) > 0);
        all_gone = tokio::select! { biased; () = &mut gone => true, () = goes_on => false };
    }
    if !all_gone {
        // The window is over: shields fall, and what does not even see that is taken away.
        gates.iter().for_each(Gate::cut);
        let goes_on = while_it_ends(control, &gates, latest + time_left / 4, LAST_STEP, || false);
        all_gone = tokio::select! { biased; () = &mut gone => true, () = goes_on => false };
    }
    if !all_gone && overdue.iter().any(|unit| !unit.is_done()) {
        // Only now, so that a task whose job was cut may end by itself.
        overdue.iter().for_each(|unit| unit.give_up());
        all_gone = tokio::select! { biased; () = &mut gone => true, () = last_step() => false };
    }
    let taken = async {
        let stuck: Vec<_> = returns.iter().map(|returns| Arc::clone(returns).still_running()).collect();
        join_all(stuck).await;
        join_all(returns.iter().map(|returns| returns.settled())).await;
        all_done(later).await;
    };
    let mut taken = std::pin::pin!(taken);
    let in_time = tokio::select! {
        biased;
        () = &mut taken => true,
        () = control.passed(Phase::Requeue, None) => false,
    };
    if !in_time {
        returns.iter().for_each(|returns| returns.give_up());
        later.iter().for_each(|unit| unit.give_up());
        // Polled on: it holds the *still running* callbacks too, which name what they did not take over.
        tokio::select! { biased; () = taken => {}, () = last_step() => {} }
    }
    // What went after the window, but before the phase's end, is not overdue.
    (all_gone || futures_util::poll!(&mut gone).is_ready()) && in_time
}

/// Returns at `latest`, or when nothing has ended for as long as `standstill`, and nothing is `excused`.
async fn while_it_ends(
    control: &Control,
    gates: &[Gate],
    latest: Instant,
    standstill: Duration,
    excused: impl Fn() -> bool,
) {
    let (mut left, mut until) = (in_flight(gates), Instant::now() + standstill);
    let end = |until: Instant| until.min(latest).min(control.deadline(Phase::Requeue).unwrap_or(latest));
    while Instant::now() < end(until) {
        // Not beyond the end: of a small budget a step is much.
        tokio::time::sleep_until(end(until).min(Instant::now() + LAST_STEP)).await;
        let now_left = in_flight(gates);
        if now_left < left || excused() {
            until = Instant::now() + standstill;
        }
        left = now_left;
    }
}

fn shields(gates: &[Gate]) -> usize {
    gates.iter().map(|gate| gate.seat().shields.load(Ordering::SeqCst)).sum()
}

fn in_flight(gates: &[Gate]) -> usize {
    gates.iter().map(Gate::in_flight).sum()
}

/// One line a second while it takes: what is left, and for how long.
async fn with_progress<F: Future>(control: &Control, work: F) -> F::Output {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(PROGRESS) => {}
        }
        let phase = control.phase();
        let left = phase.and_then(|phase| control.deadline(phase));
        let left = left.map_or(Duration::ZERO, |end| end.saturating_duration_since(Instant::now()));
        tracing::info!(target: "winddown", phase = phase.map(Phase::as_str), time_left = %format_args!("{:.3}", Human(left)),
            left = some_of(control.in_flight()), "drain.progress");
    }
}

/// On one line, as long as somebody would read it.
fn some_of(mut lines: Vec<String>) -> String {
    const SHOWN: usize = 12;
    let more = lines.len().saturating_sub(SHOWN);
    lines.truncate(SHOWN);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    lines.join("; ")
}
