//! The report as JSON.

use std::time::Duration;

use serde_json::{Value, json};

use super::Report;

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

pub(super) fn report(report: &Report) -> Value {
    let facts = report.facts();
    json!({
        "reason": facts.reason.to_string(),
        "later_reasons": facts.later.iter()
            .map(|(at, reason)| json!({"at_ms": ms(*at), "reason": reason.to_string()})).collect::<Vec<_>>(),
        "forced": facts.forced.map(|(at, signal)| json!({"at_ms": ms(at), "signal": signal.to_string()})),
        "took_ms": ms(facts.took),
        "grace_ms": ms(facts.grace),
        "unused_ms": ms(report.unused()),
        "exit_code": report.code(),
        "phases": facts.phases.iter().map(|phase| json!({
            "phase": phase.phase.as_str(), "outcome": phase.outcome.as_str(), "began_ms": ms(phase.began),
            "took_ms": ms(phase.took), "deadline_ms": ms(phase.deadline),
        })).collect::<Vec<_>>(),
        "hooks": facts.hooks.iter().map(|hook| json!({
            "name": hook.name, "phase": hook.phase.as_str(), "outcome": hook.outcome.as_str(),
            "error": hook.error, "took_ms": ms(hook.took),
        })).collect::<Vec<_>>(),
        "tasks": facts.tasks.iter().map(|task| json!({
            "name": task.name, "outcome": task.outcome.as_str(), "error": task.error,
            "took_ms": ms(task.took), "stuck": task.stuck,
        })).collect::<Vec<_>>(),
        "gates": facts.gates.iter().map(|gate| json!({
            "name": gate.name, "held": gate.held, "let_in": gate.let_in, "finished": gate.finished,
            "handed_back": gate.handed_back, "still_running": gate.still_running, "lost": gate.lost,
            "cut": gate.cut.iter().map(|(state, count)| (state.clone(), json!(count)))
                .collect::<serde_json::Map<_, _>>(),
            "still_in_flight": gate.still_in_flight,
        })).collect::<Vec<_>>(),
        "lost": facts.lost.iter()
            .map(|item| json!({"gate": item.gate, "item": item.item, "why": item.why})).collect::<Vec<_>>(),
        "warnings": facts.warnings,
        "advice": facts.advice,
    })
}
