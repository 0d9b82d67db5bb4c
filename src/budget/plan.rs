//! A budget laid out on the one clock: every deadline from the trigger, counted back from the kill.

use std::fmt;
use std::time::Duration;

use super::duration::Human;
use super::error::BudgetError;
use super::grace::{Grace, Granted};
use super::table::Rungs;
use crate::overrun::Overrun;
use crate::phase::Phase;

/// How long `StopIntake` still has once it is forced.
const FORCED_STOP_INTAKE: Duration = Duration::from_millis(250);

/// The most that `StopIntake` has for itself; a short drain gives it less.
const STOP_INTAKE: Duration = Duration::from_secs(1);

/// Deadlines of a stop, from the trigger: what [`Budget::plan`](crate::Budget::plan) makes of a budget.
///
/// It is fixed once made, and knows no clock: what happened is given to its functions, as time since the trigger. Its
/// `Display` is the ladder that an operator reads.
///
/// ```
/// use std::time::Duration;
/// use winddown::{Budget, Phase};
///
/// let plan = Budget::from_grace_period(Duration::from_secs(10)).plan()?;
/// assert_eq!(plan.deadline(Phase::Drain, None, None), Duration::from_secs(8));
/// assert_eq!(plan.kill(), Duration::from_secs(10));
/// # Ok::<(), winddown::BudgetError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Plan {
    granted: Granted,
    kill: Duration,
    // Ends of phases, planned.
    unready: Duration,
    drain: Duration,
    requeue: Duration,
    close: Duration,
    // What is kept for the two phases that always get their time.
    for_requeue: Duration,
    for_close: Duration,
    forced: Duration,
    warnings: Vec<String>,
}

// === impl Plan ===

impl Plan {
    /// Counts back from the kill; what does not fit is cut from the top, so the ends never pass the kill or each other.
    pub(super) fn new(granted: Granted, rungs: Rungs, forced: Duration) -> Self {
        let kill = granted.left();
        let close = kill.saturating_sub(rungs.margin);
        let requeue = close.saturating_sub(rungs.close);
        let latest = requeue.saturating_sub(rungs.requeue);
        Self {
            granted,
            kill,
            unready: rungs.unready.min(latest),
            drain: rungs.unready.saturating_add(rungs.drain).min(latest),
            requeue,
            close,
            for_requeue: requeue - latest,
            for_close: close - requeue,
            forced,
            warnings: Vec::new(),
        }
    }

    pub(super) fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    /// The latest end of a phase, from the trigger.
    ///
    /// `forced_at` is when the stop was forced, `stop_intake_ended` when [`Phase::StopIntake`] was done, both from the
    /// trigger and `None` as long as they have not come. Force moves deadlines, never phases, and never to later: it
    /// ends `Unready` and `Drain` at once, leaves 250 ms to `StopIntake`, and then to `Requeue` and `Close` together
    /// what they planned or `forced`, whichever is less, split as planned.
    ///
    /// `StopIntake` has a limit of its own besides, from its own beginning: [`stop_intake_limit`](Self::stop_intake_limit).
    pub fn deadline(
        &self,
        phase: Phase,
        forced_at: Option<Duration>,
        stop_intake_ended: Option<Duration>,
    ) -> Duration {
        let planned = self.planned(phase);
        let Some(forced_at) = forced_at else { return planned };
        let stop_intake = self.planned(Phase::StopIntake).min(forced_at.saturating_add(FORCED_STOP_INTAKE));
        // A drain that has not begun has no deadline before its beginning: it would be late through no fault of its own.
        let from = forced_at.max(stop_intake_ended.unwrap_or(stop_intake));
        let (for_requeue, for_both) = self.forced_shares();
        planned.min(match phase {
            Phase::Unready => forced_at,
            Phase::StopIntake => stop_intake,
            Phase::Drain => from,
            Phase::Requeue => from.saturating_add(for_requeue),
            Phase::Close => from.saturating_add(for_both),
        })
    }

    /// When the platform kills, from the trigger: the grace, less what a preStop hook used.
    pub fn kill(&self) -> Duration {
        self.kill
    }

    /// What is kept free between the end of [`Phase::Close`] and the kill.
    pub fn margin(&self) -> Duration {
        self.kill - self.close
    }

    /// When the watchdog leaves the process, from the trigger: half of the margin before the kill.
    pub fn watchdog_at(&self) -> Duration {
        self.kill - self.margin() / 2
    }

    /// Where the grace period comes from.
    pub fn grace(&self) -> Grace {
        self.granted.source
    }

    /// The most that [`Phase::StopIntake`] may take from its beginning: the lesser of 1 s and a quarter of the drain.
    pub fn stop_intake_limit(&self) -> Duration {
        STOP_INTAKE.min(self.drain_limit() / 4)
    }

    /// How long the drain is when `Unready` takes all of its time; `StopIntake` is part of it.
    pub fn drain_limit(&self) -> Duration {
        self.drain - self.unready
    }

    /// The most that `Requeue` and `Close` get together once forced, from the end of `StopIntake`.
    pub fn forced_limit(&self) -> Duration {
        self.forced_shares().1
    }

    /// How long overdue work may take to end once it is cancelled: half of what is planned for [`Phase::Requeue`], or of
    /// the time left to it at its beginning where that is less, so that as much is left for handing back.
    pub fn cancel_window(&self, time_left: Duration) -> Duration {
        time_left.min(self.for_requeue) / 2
    }

    /// When `Requeue` has to hand back at the latest, from the trigger; a shield may last until then.
    pub fn hand_back_at(&self, forced_at: Option<Duration>, stop_intake_ended: Option<Duration>) -> Duration {
        let drain = self.deadline(Phase::Drain, forced_at, stop_intake_ended);
        let requeue = self.deadline(Phase::Requeue, forced_at, stop_intake_ended);
        drain + self.cancel_window(requeue.saturating_sub(drain))
    }

    /// The share of one of the hooks that come one after another: the time left by the hooks left, itself included.
    pub fn hook_share(&self, time_left: Duration, hooks_left: usize) -> Duration {
        time_left / u32::try_from(hooks_left).unwrap_or(u32::MAX).max(1)
    }

    /// Whether work that takes up to `limit` can be stopped as `overrun` says.
    ///
    /// # Errors
    ///
    /// Names the limit that does not fit and the drain that it has to fit into, also where the grace is only assumed:
    /// the promise to finish cannot be kept there.
    pub fn check_task(&self, name: &str, limit: Duration, overrun: Overrun) -> Result<(), BudgetError> {
        let drain = self.drain_limit();
        let (setting, value) = match overrun {
            Overrun::Requeue => return Ok(()),
            Overrun::Finish => ("task_limit", limit),
            Overrun::Step(step) if step > limit => {
                let why = format!("it must fit into the task_limit of {}", Human(limit));
                return Err(BudgetError::bounded(format!("step of gate \"{name}\""), step, limit, why));
            }
            Overrun::Step(step) => ("step", step),
        };
        if value <= drain {
            return Ok(());
        }
        let hint = match self.granted.source {
            Grace::Given { .. } => "",
            Grace::Assumed { .. } => "; set WINDDOWN_GRACE if the platform grants more",
        };
        let why = format!("it must fit into the drain of {}{hint}", Human(drain));
        Err(BudgetError::bounded(format!("{setting} of gate \"{name}\""), value, drain, why)
            .with_ladder(self.to_string()))
    }

    /// What does not fit, or leaves nothing, and is no reason to refuse; one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn planned(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Unready => self.unready,
            Phase::StopIntake => self.unready + self.stop_intake_limit(),
            Phase::Drain => self.drain,
            Phase::Requeue => self.requeue,
            Phase::Close => self.close,
        }
    }

    /// What `Requeue` gets of a forced stop, and what it gets together with `Close`.
    fn forced_shares(&self) -> (Duration, Duration) {
        let planned = self.for_requeue + self.for_close;
        let both = self.forced.min(planned);
        (scale(both, self.for_requeue.as_nanos(), planned.as_nanos()), both)
    }
}

/// The ladder: the latest end of each phase, from the trigger.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "grace {}", self.granted)?;
        let mut begin = Duration::ZERO;
        for phase in Phase::ALL {
            let end = self.planned(phase);
            // StopIntake is part of the drain: it takes its time from it and not before it.
            let takes = match phase {
                Phase::StopIntake => self.stop_intake_limit(),
                Phase::Drain => self.drain_limit(),
                _ => end - begin,
            };
            write!(f, "  {:<11}  until {:>9.3}   at most {:.3}", phase.as_str(), Human(end), Human(takes))?;
            match phase {
                Phase::Drain => f.write_str(", stop intake included")?,
                Phase::Requeue => {
                    write!(f, "; what is cut has ended by {:.3}", Human(self.hand_back_at(None, None)))?
                }
                _ => {}
            }
            writeln!(f)?;
            begin = end;
        }
        writeln!(f, "  {:<11}  at    {:>9.3}", "watchdog", Human(self.watchdog_at()))?;
        writeln!(f, "  {:<11}  at    {:>9.3}", "kill", Human(self.kill))?;
        writeln!(f, "  {:<11}  requeue and close in {:.3}", "forced", Human(self.forced_limit()))?;
        for warning in &self.warnings {
            writeln!(f, "  warning: {warning}")?;
        }
        Ok(())
    }
}

/// `whole` times `part` by `of`, nothing of nothing.
fn scale(whole: Duration, part: u128, of: u128) -> Duration {
    let nanos = (whole.as_nanos() * part).checked_div(of).unwrap_or(0);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
