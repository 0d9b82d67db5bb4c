//! What is in flight, in lines for people.

use super::Control;
use crate::budget::Human;
use crate::gate::Gate;

/// How many items of an intake, or units of a gate, are named.
const NAMED: usize = 100;

impl Control {
    /// What is in flight, a line each: work first, then the hooks and tasks around it.
    pub(crate) fn in_flight(&self) -> Vec<String> {
        let mut lines = self.items();
        lines.extend(self.units_in_flight());
        lines
    }

    /// Gates, with their units where they keep these, hooks and tasks. It waits for no lock that work could hold for long.
    pub(super) fn units_in_flight(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for gate in self.gates() {
            let count = gate.in_flight();
            if count > 0 {
                lines.push(format!("gate {}: {count} in flight", gate.name()));
            }
            lines.extend(still_in_flight(&gate));
        }
        let units = self.units();
        let running = units.iter().filter(|unit| unit.is_running());
        lines
            .extend(running.map(|unit| format!("{} {}, for {:.3}", unit.kind, unit.name, Human(unit.ran()))));
        lines
    }

    /// The items of intakes, by name: to make it is the user's code, and may block.
    pub(super) fn items(&self) -> Vec<String> {
        let names = |gate: &Gate| gate.seat().returns().into_iter().flat_map(|returns| returns.names(NAMED));
        self.gates().iter().flat_map(names).collect()
    }
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
