//! What the first, the second and the third signal mean.

use std::fmt::Write as _;
use std::time::Duration;

use winddown::{Escalation, Signal, Step};

#[path = "snapshots/check.rs"]
mod snapshot;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Sees them all and says what they meant.
fn seen(mut escalation: Escalation, signals: &[(Signal, u64)]) -> Vec<Step> {
    signals.iter().map(|(signal, at)| escalation.see(*signal, ms(*at))).collect()
}

#[test]
fn every_transition_is_a_line_of_the_table() {
    let options = [
        (true, true, false),
        (true, false, false),
        (false, true, false),
        (false, false, false),
        (true, true, true),
    ];
    let mut table = String::new();
    for (forces, exits, repeats) in options {
        let new = || Escalation::new().forces(forces).exits(exits).terminate_repeats(repeats);
        writeln!(table, "forces {forces}, exits {exits}, SIGTERM repeats {repeats}").unwrap();
        writeln!(table, "  {:<24}{:<9}{:>10}   {:<10}forced by", "after", "signal", "ms later", "means")
            .unwrap();
        // Every level is reached by signals that count whatever the options: SIGINT, a second apart.
        for before in 0..=3 {
            for signal in [Signal::Terminate, Signal::Interrupt] {
                for later in [0, 250, 251, 1_000] {
                    let mut escalation = new();
                    let steps: Vec<_> = (0..before)
                        .map(|n| escalation.see(Signal::Interrupt, ms(n * 1_000)).as_str())
                        .collect();
                    let at = before.saturating_sub(1) * 1_000 + later;
                    // The last signal that counted may lie further back than the last that was seen.
                    let step = escalation.see(signal, ms(at)).as_str();
                    let after = if steps.is_empty() { "nothing".to_owned() } else { steps.join(", ") };
                    let by = escalation.forced_by().map_or("-", Signal::name);
                    writeln!(table, "  {after:<24}{:<9}{later:>10}   {step:<10}{by}", signal.name()).unwrap();
                }
            }
        }
        writeln!(table).unwrap();
    }
    snapshot::check("escalation", &table);
}

#[test]
fn every_signal_has_a_name_and_the_number_of_its_exit_code() {
    let table: String =
        Signal::ALL.iter().map(|signal| format!("{signal:<14}{:>3}\n", signal.number())).collect();
    snapshot::check("signals", &table);
}

#[test]
fn a_doubled_signal_counts_once() {
    let steps = seen(
        Escalation::new(),
        &[(Signal::Terminate, 0), (Signal::Interrupt, 250), (Signal::Terminate, 251)],
    );
    assert_eq!(steps, [Step::Begin, Step::Doubled, Step::Force]);
}

#[test]
fn a_hail_of_signals_still_escalates() {
    let hail: Vec<_> = (0..8).map(|n| (Signal::Interrupt, n * 100)).collect();
    let steps = seen(Escalation::new(), &hail);
    let counted: Vec<_> = steps.into_iter().filter(|step| *step != Step::Doubled).collect();
    assert_eq!(counted, [Step::Begin, Step::Force, Step::Exit]);
}

#[test]
fn a_platform_that_sends_sigterm_again_and_again_never_forces() {
    let mut signals: Vec<_> = (0..10).map(|n| (Signal::Terminate, n * 1_000)).collect();
    signals.push((Signal::Interrupt, 9_100));
    let steps = seen(Escalation::new().terminate_repeats(true), &signals);
    assert_eq!(steps[0], Step::Begin);
    assert!(steps[1..10].iter().all(|step| *step == Step::Repeated), "{steps:?}");
    // The repeats do not count, so a key pressed right after one is no double of it.
    assert_eq!(steps[10], Step::Force);
}

#[test]
fn where_nothing_is_forced_the_second_signal_exits() {
    let steps = seen(Escalation::new().forces(false), &[(Signal::Interrupt, 0), (Signal::Interrupt, 400)]);
    assert_eq!(steps, [Step::Begin, Step::Exit]);
}

#[test]
fn the_window_is_as_long_as_set() {
    for window in [0, 700] {
        let signals = [(Signal::Interrupt, 0), (Signal::Interrupt, window), (Signal::Interrupt, window + 1)];
        let steps = seen(Escalation::new().window(ms(window)), &signals);
        assert_eq!(steps, [Step::Begin, Step::Doubled, Step::Force]);
    }
}

#[test]
fn a_clock_that_goes_back_makes_a_double_and_no_panic() {
    let steps = seen(Escalation::new(), &[(Signal::Interrupt, 5_000), (Signal::Interrupt, 1)]);
    assert_eq!(steps, [Step::Begin, Step::Doubled]);
}

#[test]
fn the_signal_that_forced_is_kept() {
    let mut escalation = Escalation::new();
    for (signal, at) in [(Signal::Terminate, 0), (Signal::Interrupt, 1_000), (Signal::Quit, 2_000)] {
        escalation.see(signal, ms(at));
    }
    assert_eq!(escalation.forced_by(), Some(Signal::Interrupt));
}
