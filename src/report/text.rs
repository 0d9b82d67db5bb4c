//! The report as an operator reads it at night: a timeline, and below it what became of the work.

use std::fmt;
use std::time::Duration;

use super::{GateReport, Report};
use crate::trigger::Reason;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let facts = self.facts();
        writeln!(
            f,
            "stopped: {} | {} of {}, {} unused | exit code {}",
            facts.reason,
            Seconds(facts.took),
            Seconds(facts.grace),
            Seconds(self.unused()),
            self.code()
        )?;
        for fault in self.faults() {
            writeln!(f, "  exit code 1: {fault}")?;
        }
        // The signal that forced stands in a line of its own.
        let forced = facts.forced.map(|(at, signal)| (at, Reason::Signal(signal)));
        for (at, reason) in facts.later.iter().filter(|later| forced.as_ref() != Some(later)) {
            writeln!(f, "  {:>9}  {reason}", Since(*at))?;
        }
        if let Some((at, signal)) = facts.forced {
            writeln!(f, "  {:>9}  forced by {signal}", Since(at))?;
        }
        for phase in &facts.phases {
            writeln!(
                f,
                "  {:>9}  {:<12} {:<9} after {}, had until {}",
                Since(phase.began),
                phase.phase,
                phase.outcome,
                Seconds(phase.took),
                Since(phase.deadline)
            )?;
            for hook in facts.hooks.iter().filter(|hook| hook.phase == phase.phase) {
                write!(f, "  {:>9}    {} {} after {}", "", hook.name, hook.outcome, Seconds(hook.took))?;
                writeln!(f, "{}", Because(&hook.error))?;
            }
        }
        for task in &facts.tasks {
            let stuck = if task.stuck { ", and would not stop" } else { "" };
            write!(f, "  task {}: {}, ran for {}{stuck}", task.name, task.outcome, Seconds(task.took))?;
            writeln!(f, "{}", Because(&task.error))?;
        }
        for gate in &facts.gates {
            gate.fmt(f)?;
        }
        for item in &facts.lost {
            writeln!(f, "  LOST {} of {}: {}", item.item, item.gate, item.why)?;
        }
        for line in &facts.warnings {
            writeln!(f, "  warning: {line}")?;
        }
        for line in &facts.advice {
            writeln!(f, "  advice: {line}")?;
        }
        Ok(())
    }
}

impl fmt::Display for GateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  gate {}: {} held", self.name, self.held)?;
        if self.let_in > 0 {
            write!(f, " + {} let in", self.let_in)?;
        }
        write!(f, " = {} finished + {} handed back", self.finished, self.handed_back)?;
        if self.still_running > 0 {
            write!(f, " ({} of them still running)", self.still_running)?;
        }
        if !self.cut.is_empty() {
            let states: Vec<String> =
                self.cut.iter().map(|(state, count)| format!("{count} {state}")).collect();
            write!(f, " + {} cut ({})", self.cut_in_all(), states.join(", "))?;
        }
        writeln!(f, " + {} lost", self.lost)?;
        for unit in &self.still_in_flight {
            writeln!(f, "    still in flight: {unit}")?;
        }
        Ok(())
    }
}

struct Seconds(Duration);
struct Since(Duration);
struct Because<'a>(&'a Option<String>);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.3} s", self.0.as_secs_f64()))
    }
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("+{:.3} s", self.0.as_secs_f64()))
    }
}

impl fmt::Display for Because<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}
