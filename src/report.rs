//! What became of everything: for the operator at night, for a program, and for the exit code.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use crate::outcome::Outcome;
use crate::phase::Phase;
use crate::trigger::{Reason, Signal};
use crate::watchdog;

#[cfg(feature = "serde_json")]
mod json;
mod text;

/// What became of every piece of work, every hook and every task of a stop.
///
/// It is cheap to clone; all callers of the same stop get the same one.
#[derive(Clone)]
pub struct Report(Arc<Facts>);

/// What the coordinator found out.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) reason: Reason,
    pub(crate) later: Vec<(Duration, Reason)>,
    pub(crate) forced: Option<(Duration, Signal)>,
    pub(crate) phases: Vec<PhaseReport>,
    pub(crate) hooks: Vec<HookReport>,
    pub(crate) tasks: Vec<TaskReport>,
    pub(crate) gates: Vec<GateReport>,
    pub(crate) lost: Vec<LostItem>,
    pub(crate) took: Duration,
    pub(crate) grace: Duration,
    pub(crate) warnings: Vec<String>,
    pub(crate) advice: Vec<String>,
}

/// How a phase went.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PhaseReport {
    /// The phase.
    pub phase: Phase,
    /// Whether it was done, ran out of time, or was forced.
    pub outcome: Outcome,
    /// When it began, from the trigger.
    pub began: Duration,
    /// How long it took.
    pub took: Duration,
    /// When it had to end at the latest, from the trigger.
    pub deadline: Duration,
}

/// How a hook went.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HookReport {
    /// The hook's name.
    pub name: String,
    /// The phase in which it ran.
    pub phase: Phase,
    /// How it ended.
    pub outcome: Outcome,
    /// What its error or its panic said.
    pub error: Option<String>,
    /// How long it took.
    pub took: Duration,
}

/// How a task went.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TaskReport {
    /// The task's name.
    pub name: String,
    /// How it ended; [`Outcome::Overdue`] and [`Outcome::Forced`] when it had to be aborted.
    pub outcome: Outcome,
    /// What its error or its panic said.
    pub error: Option<String>,
    /// How long it ran.
    pub took: Duration,
    /// Whether its future is still there: aborted, but its thread has not come back.
    pub stuck: bool,
    /// The gate whose work it was there for.
    pub(crate) serves: Option<String>,
}

/// A gate's ledger: `held + let_in = finished + handed_back + cut + lost`.
///
/// `held` is what was in the gate when it closed, `let_in` what work that was in brought in after that.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GateReport {
    /// The gate's name.
    pub name: String,
    /// What was in the gate when it closed.
    pub held: usize,
    /// Children of work in flight that were let in after it closed.
    pub let_in: usize,
    /// What was finished.
    pub finished: usize,
    /// What was handed back through the re-enqueue callback; of a queue's worker also the jobs that the queue had given to somebody
    /// else by then.
    pub handed_back: usize,
    /// Peers that were cut, by the state they were in.
    pub cut: Vec<(String, usize)>,
    /// What was neither finished nor handed back.
    pub lost: usize,
    /// What is still in flight at the end, where names are kept: of what was lost, and the items counted under `still_running`.
    pub still_in_flight: Vec<String>,
    /// Items whose future would not end and that were given to the *still running* callback, counted under `handed_back`.
    pub still_running: usize,
}

/// An item that could not be handed back and went to the last-resort sink.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LostItem {
    /// The gate that let it in.
    pub gate: String,
    /// The item's name, or its number in order of admission.
    pub item: String,
    /// Why it could not be handed back.
    pub why: String,
}

// === impl TaskReport ===

impl TaskReport {
    /// Whether it was aborted over work that the ledger of its gate names as lost.
    pub(crate) fn is_held_up_by(&self, gates: &[GateReport]) -> bool {
        let serves = self.serves.as_deref();
        gates.iter().any(|gate| gate.lost > 0 && serves == Some(gate.name.as_str()))
    }
}

// === impl Report ===

impl Report {
    pub(crate) fn new(facts: Facts) -> Self {
        Report(Arc::new(facts))
    }

    fn facts(&self) -> &Facts {
        &self.0
    }

    /// Why the program stopped: the first reason.
    pub fn reason(&self) -> &Reason {
        &self.facts().reason
    }

    /// Reasons that came later, with the time since the trigger.
    pub fn later_reasons(&self) -> &[(Duration, Reason)] {
        &self.facts().later
    }

    /// The signal that forced the stop, with the time since the trigger.
    pub fn forced(&self) -> Option<(Duration, Signal)> {
        self.facts().forced
    }

    /// All five phases, in their order.
    pub fn phases(&self) -> &[PhaseReport] {
        &self.facts().phases
    }

    /// One phase.
    pub fn phase(&self, phase: Phase) -> Option<&PhaseReport> {
        self.phases().iter().find(|report| report.phase == phase)
    }

    /// All hooks, in the order in which they ended.
    pub fn hooks(&self) -> &[HookReport] {
        &self.facts().hooks
    }

    /// The first hook of that name.
    pub fn hook(&self, name: &str) -> Option<&HookReport> {
        self.hooks().iter().find(|hook| hook.name == name)
    }

    /// All tasks, in the order in which they were registered.
    pub fn tasks(&self) -> &[TaskReport] {
        &self.facts().tasks
    }

    /// The first task of that name.
    pub fn task(&self, name: &str) -> Option<&TaskReport> {
        self.tasks().iter().find(|task| task.name == name)
    }

    /// The ledgers of all gates, in the order in which they were made.
    pub fn gates(&self) -> &[GateReport] {
        &self.facts().gates
    }

    /// The ledger of the first gate of that name.
    pub fn gate(&self, name: &str) -> Option<&GateReport> {
        self.gates().iter().find(|gate| gate.name == name)
    }

    /// Items that could not be handed back, by name.
    pub fn lost(&self) -> &[LostItem] {
        &self.facts().lost
    }

    /// How long the stop took, from the trigger.
    pub fn took(&self) -> Duration {
        self.facts().took
    }

    /// What was left of the grace period.
    pub fn unused(&self) -> Duration {
        self.facts().grace.saturating_sub(self.facts().took)
    }

    /// What to change when the drain was too short, or a limit does not fit; and what it was where the time was not: why a callback
    /// could not hand back.
    pub fn advice(&self) -> &[String] {
        &self.facts().advice
    }

    /// Whether the exit code is 0: nothing was forced, failed or lost. Handed back is fine.
    pub fn is_clean(&self) -> bool {
        self.code() == 0
    }

    /// The exit code: 1 when a hook failed, work was lost, a task failed or had to be aborted, or the start-up failed;
    /// else 128 + n when signal n forced the stop; else 0.
    pub fn code(&self) -> u8 {
        if !self.faults().is_empty() {
            1
        } else if let Some((_, signal)) = self.facts().forced {
            128_u8.saturating_add(signal.number())
        } else {
            0
        }
    }

    /// What makes the exit code 1, a line each; empty where nothing does.
    pub fn faults(&self) -> Vec<String> {
        let facts = self.facts();
        let mut faults = Vec::new();
        if facts.reason.is_failure() {
            faults.push(facts.reason.to_string());
        }
        for hook in facts.hooks.iter().filter(|hook| hook.outcome != Outcome::Finished) {
            faults.push(format!("hook {} of phase {}: {}", hook.name, hook.phase, hook.outcome));
        }
        for task in &facts.tasks {
            match task.outcome {
                Outcome::Failed | Outcome::Panicked => {
                    faults.push(format!("task {}: {}", task.name, task.outcome))
                }
                Outcome::Overdue if !task.is_held_up_by(&facts.gates) => {
                    faults.push(format!("task {} did not end when it was told, and was aborted", task.name))
                }
                _ => {}
            }
        }
        for gate in facts.gates.iter().filter(|gate| gate.lost > 0) {
            faults.push(format!("gate {}: {} lost", gate.name, gate.lost));
        }
        let other =
            |item: &&LostItem| !facts.gates.iter().any(|gate| gate.name == item.gate && gate.lost > 0);
        faults.extend(
            facts.lost.iter().filter(other).map(|item| format!("{} of gate {}: lost", item.item, item.gate)),
        );
        faults
    }

    /// [`Report::code`], for `main` to return.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code())
    }

    /// Prints the report to standard error. A closed pipe or a full disk is passed over: there is nobody to tell.
    pub fn print(&self) {
        let text = self.to_string();
        let mut err = std::io::stderr().lock();
        let _ = err.write_all(text.as_bytes());
        let _ = err.flush();
    }

    /// Leaves the process with [`Report::code`] at once: no destructor, no thread and no blocking task can hold it.
    pub fn exit(&self) -> ! {
        watchdog::flush();
        watchdog::leave(self.code())
    }

    /// The report as one JSON object; times are in milliseconds from the trigger.
    #[cfg(feature = "serde_json")]
    pub fn to_json(&self) -> String {
        json::report(self).to_string()
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.facts().fmt(f)
    }
}

// === impl GateReport ===

impl GateReport {
    /// How many peers were cut, in whatever state.
    pub fn cut_in_all(&self) -> usize {
        self.cut.iter().map(|(_, count)| count).sum()
    }

    /// Whether the ledger adds up.
    pub fn adds_up(&self) -> bool {
        self.held + self.let_in == self.finished + self.handed_back + self.cut_in_all() + self.lost
    }
}
