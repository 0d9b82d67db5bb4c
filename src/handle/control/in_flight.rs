//! What is in flight, in lines for people.

use super::Control;
use crate::budget::Human;
use crate::gate::Gate;

/// How many items of an intake, or units of a gate, are named.
const NAMED: usize = 100;

impl Control {
    /// What is in flight, a line each: work first, then the hooks and tasks around it. It waits for no lock that work could
    /// hold for long.
    pub(crate) fn in_flight(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for gate in self.gates() {
            let count = gate.in_flight();
            if count > 0 {
                lines.push(format!("gate {}: {count} in flight", gate.name()));
            }
            lines.extend(gate_lines(&gate));
        }
        let units = self.units();
        for unit in units.iter().filter(|unit| unit.is_running()) {
            lines.push(format!("{} {}, for {:.3}", unit.kind, unit.name, Human(unit.ran())));
        }
        lines
    }
}

/// What a gate has in flight: its units where it keeps these, its items, by name.
fn gate_lines(gate: &Gate) -> Vec<String> {
    let mut lines = still_in_flight(gate);
    for returns in gate.seat().returns() {
        lines.extend(returns.names(NAMED));
    }
    lines
}

/// The units of a gate that keeps names, ages and places.
pub(crate) fn still_in_flight(gate: &Gate) -> Vec<String> {
    let units = gate.try_details().unwrap_or_default();
    let line = |unit: &crate::gate::UnitDetail| {
        let name = unit.name.as_deref().unwrap_or("a unit");
        let (file, line) = (unit.place.file(), unit.place.line());
        format!(
            "{name} of gate {}, for {:.3}, let in at {file}:{line}",
            gate.name(),
            Human(unit.since.elapsed())
        )
    };
    units.iter().take(NAMED).map(line).collect()
}
