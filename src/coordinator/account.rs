//! Keeps what happened, and makes the report of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{ShutdownCoordinator, Task};
use crate::budget::Human;
use crate::gate::{Gate, Lost};
use crate::handle::control::{Control, still_in_flight};
use crate::handle::unit::Unit;
use crate::outcome::Outcome;
use crate::phase::Phase;
use crate::report::{Facts, GateReport, HookReport, LostItem, PhaseReport, Report, TaskReport};
use crate::trigger::Reason;

/// What happened so far.
#[derive(Default)]
pub(super) struct Log {
    phases: Vec<PhaseReport>,
    hooks: Vec<HookReport>,
}

/// What of a gate could not be handed back, for another reason than time.
struct Refused<'a> {
    ledger: &'a GateReport,
    first: Lost,
}

// === impl Log ===

impl Log {
    pub(super) fn phase(&mut self, control: &Control, phase: Phase, outcome: Outcome, began: Instant) {
        let triggered = control.triggered_at().unwrap_or(began);
        let deadline = control.deadline(phase).unwrap_or(began);
        self.phases.push(PhaseReport {
            phase,
            outcome,
            began: began.saturating_duration_since(triggered),
            took: began.elapsed(),
            deadline: deadline.saturating_duration_since(triggered),
        });
    }

    pub(super) fn hook(&mut self, control: &Control, unit: &Unit, phase: Phase, in_time: bool) {
        let (outcome, error) = match unit.ended() {
            Some((ended, _)) => ended.clone(),
            // It waits for the end of the stop, and was left out.
            None if in_time && !unit.gone.is_fired() => (Outcome::Finished, None),
            None if !unit.begun.is_fired() => (Outcome::NotStarted, None),
            // Not by us: it was done before its time was over.
            None if in_time => (Outcome::Failed, Some("it was dropped: its runtime has ended".to_owned())),
            None if control.forced.is_fired() => (Outcome::Forced, None),
            None => (Outcome::Overdue, None),
        };
        if outcome != Outcome::Finished {
            tracing::error!(target: "winddown", hook = unit.name, %phase, %outcome,
                error = error.as_deref().unwrap_or_default(), "hook.failed");
        }
        self.hooks.push(HookReport { name: unit.name.clone(), phase, outcome, error, took: unit.ran() });
    }
}

// === impl Refused ===

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GateReport { name, held, let_in, lost, .. } = self.ledger;
        let Lost { item, why, .. } = &self.first;
        let all = held + let_in;
        write!(
            f,
            "{lost} of {all} in gate {name} could be neither finished nor handed back, such as {item}: {why}"
        )
    }
}

// === impl ShutdownCoordinator ===

impl ShutdownCoordinator {
    pub(super) fn account(&self, log: Log) -> Report {
        let control = &self.control;
        let gates: Vec<Gate> = control.gates();
        let took = control.triggered_at().map_or(Duration::ZERO, |at| at.elapsed());
        let ledgers: Vec<GateReport> = gates.iter().map(ledger).collect();
        let lost = gates
            .iter()
            .flat_map(|gate| {
                gate.seat().lost_items().into_iter().map(|lost| LostItem {
                    gate: gate.name().to_owned(),
                    item: lost.item,
                    why: lost.why,
                })
            })
            .collect();
        let tasks: Vec<TaskReport> = self.tasks.iter().map(|task| task_report(control, task)).collect();
        let overdue = gates.iter().zip(&ledgers).map(|(gate, ledger)| overdue(gate, ledger)).sum();
        let refused: Vec<Refused> =
            gates.iter().zip(&ledgers).filter_map(|(gate, ledger)| refused(gate, ledger)).collect();
        let advice = advice(control, &log.phases, &tasks, &ledgers, overdue, &refused);
        let facts = Facts {
            reason: control.reason().unwrap_or(Reason::Dropped),
            later: control.later(),
            forced: control.forced_by(),
            phases: log.phases,
            hooks: log.hooks,
            tasks,
            gates: ledgers,
            lost,
            took,
            grace: control.plan.kill(),
            warnings: control.plan.warnings().to_vec(),
            advice,
        };
        Report::new(facts)
    }
}

/// Counts what a gate held when it closed, and what became of that.
fn ledger(gate: &Gate) -> GateReport {
    let seat = gate.seat();
    let (kept, late) = seat.keepers();
    // The sum first: a guard that was made a keeper in the moment of the close may be taken for a late one.
    let in_all = (gate.held_at_close() + gate.children_after_close()).saturating_sub(kept + late);
    let let_in = gate.children_after_close().saturating_sub(late).min(in_all);
    let held = in_all - let_in;
    let cut = seat.cuts();
    let cut_in_all: usize = cut.iter().map(|(_, count)| count).sum();
    let handed_back = seat.handed_back_count();
    let in_flight = gate.in_flight().saturating_sub(seat.accounted_count());
    // A unit that was cut and has no item and no peer is lost, and so is one that would not end.
    let lost = in_flight + gate.cut_count() + seat.lost_items().len();
    // While work still runs the counts are not of one moment: no more is lost than there was.
    let lost = lost.min(in_all.saturating_sub(handed_back + cut_in_all));
    let still_running = seat.still_running();
    GateReport {
        name: gate.name().to_owned(),
        held,
        let_in,
        finished: in_all.saturating_sub(handed_back + cut_in_all + lost),
        handed_back,
        cut,
        lost,
        still_running: still_running.len(),
        still_in_flight: still_in_flight(gate)
            .into_iter()
            .filter(|_| in_flight > 0)
            .chain(still_running)
            .collect(),
    }
}

fn task_report(control: &Control, task: &Task) -> TaskReport {
    let unit: &Arc<Unit> = &task.unit;
    let (outcome, error) = match unit.ended() {
        Some((ended, _)) => ended.clone(),
        None if unit.began().is_none() => (Outcome::NotStarted, None),
        None if unit.is_done() && !unit.gone.is_fired() => {
            (Outcome::Finished, Some("waits for the end of the stop".to_owned()))
        }
        None if control.forced.is_fired() => (Outcome::Forced, None),
        None => (Outcome::Overdue, None),
    };
    let stuck = unit.is_running() && !unit.is_done();
    let serves = task.serves.as_deref().map(str::to_owned);
    TaskReport { name: unit.name.clone(), outcome, error, took: unit.ran(), stuck, serves }
}

/// How much of a gate's work was under way when the drain ended, and was cut by that or would not end.
fn overdue(gate: &Gate, ledger: &GateReport) -> usize {
    let seat = gate.seat();
    let in_flight = gate.in_flight().saturating_sub(seat.accounted_count());
    (seat.overdue() + gate.cut_count() + in_flight).min(ledger.held + ledger.let_in)
}

/// What of a gate was lost although there was time, since the callback said an error.
fn refused<'a>(gate: &Gate, ledger: &'a GateReport) -> Option<Refused<'a>> {
    let first = gate.seat().lost_items().into_iter().find(|lost| lost.refused)?;
    Some(Refused { ledger, first })
}

/// What to change so that the next stop goes better.
fn advice(
    control: &Control,
    phases: &[PhaseReport],
    tasks: &[TaskReport],
    gates: &[GateReport],
    unfinished: usize,
    refused: &[Refused<'_>],
) -> Vec<String> {
    let mut advice = Vec::new();
    let overdue =
        |phase| phases.iter().any(|report| report.phase == phase && report.outcome == Outcome::Overdue);
    if overdue(Phase::Drain) && unfinished > 0 {
        let held: usize = gates.iter().map(|gate| gate.held + gate.let_in).sum();
        advice.push(format!(
            "the drain of {:.1} was too short for {unfinished} of {held}: grant a longer grace period, make work \
             shorter, or let it end when it is told: jobs between steps with checkpoint(), with Overrun::Step where \
             steps are long; requests and streams at stopping()",
            Human(control.plan.drain_limit())
        ));
    }
    advice.extend(refused.iter().map(Refused::to_string));
    let on_its_own = |task: &&TaskReport| task.outcome == Outcome::Overdue && !task.is_held_up_by(gates);
    for task in tasks.iter().filter(on_its_own) {
        advice.push(format!(
            "task {} did not end when it was told: let it wait with handle.sleep(), or select on handle.triggered()",
            task.name
        ));
    }
    // Where handlers would not stop it was for them that the time was used, and more of it would not help.
    let stuck = gates.iter().any(|gate| gate.still_running > 0);
    // And where the callback said an error, it is that.
    let lost = gates
        .iter()
        .any(|gate| gate.lost > 0 && !refused.iter().any(|refused| std::ptr::eq(refused.ledger, gate)));
    if overdue(Phase::Requeue) && (lost || !stuck && refused.is_empty()) {
        advice.push(
            "not everything could be handed back in time: hand back in batches, or reserve more with requeue"
                .into(),
        );
    }
    if stuck {
        advice.push(
            "handlers that block their thread cannot be stopped: use spawn_blocking and await it".into(),
        );
    }
    advice
}
