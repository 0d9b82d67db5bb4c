//! How a grace period is divided, laid out and refused.

use std::error::Error as _;
use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use winddown::platform::Found;
use winddown::{Budget, Grace, Overrun, Phase, Plan, parse_duration};

#[path = "snapshots/check.rs"]
mod snapshot;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn s(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn found(grace: Option<&str>, prestop: Option<&str>, kubernetes: bool, terminal: bool) -> Found {
    let mut found = Found::default();
    found.grace = grace.map(str::to_owned);
    found.prestop = prestop.map(str::to_owned);
    (found.kubernetes, found.terminal) = (kubernetes, terminal);
    found
}

/// Unready, drain, requeue, close and margin, in milliseconds.
fn parts(plan: &Plan) -> [u128; 5] {
    let end = |phase| plan.deadline(phase, None, None);
    [
        end(Phase::Unready),
        plan.drain_limit(),
        end(Phase::Requeue) - end(Phase::Drain),
        end(Phase::Close) - end(Phase::Requeue),
        plan.margin(),
    ]
    .map(|part| part.as_millis())
}

// === the division ===

#[test]
fn each_row_of_the_table_is_divided_as_it_says() {
    let divided =
        |seconds, balancer| parts(&Budget::from_grace_period(s(seconds)).balancer(balancer).plan().unwrap());
    assert_eq!(divided(5, false), [0, 3_500, 700, 500, 300]);
    assert_eq!(divided(10, false), [0, 8_000, 1_000, 500, 500]);
    assert_eq!(divided(30, true), [5_000, 19_000, 3_000, 2_000, 1_000]);
    assert_eq!(divided(30, false), [0, 24_000, 3_000, 2_000, 1_000]);
    assert_eq!(divided(45, false), [0, 37_000, 4_000, 3_000, 1_000]);
}

#[test]
fn below_five_seconds_all_reserves_shrink_alike() {
    let plan = Budget::from_grace_period(s(1)).plan().unwrap();
    assert_eq!(parts(&plan), [0, 700, 140, 100, 60]);
}

#[test]
fn every_division_is_a_line_of_the_table() {
    let mut table = String::new();
    for balancer in [false, true] {
        writeln!(table, "behind a balancer: {balancer}").unwrap();
        writeln!(
            table,
            "{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
            "grace", "unready", "drain", "requeue", "close", "margin"
        )
        .unwrap();
        for grace in
            [1, 100, 1_000, 3_000, 5_000, 7_500, 10_000, 20_000, 30_000, 37_500, 45_000, 90_000, 3_600_000]
        {
            write!(table, "{grace:>9}").unwrap();
            for part in parts(&Budget::from_grace_period(ms(grace)).balancer(balancer).plan().unwrap()) {
                write!(table, "{part:>9}").unwrap();
            }
            writeln!(table).unwrap();
        }
        writeln!(table).unwrap();
    }
    snapshot::check("budget_division", &table);
}

#[test]
fn more_grace_never_drains_less() {
    for balancer in [false, true] {
        let drain = |nanos| {
            let budget = Budget::from_grace_period(Duration::from_nanos(nanos)).balancer(balancer);
            budget.plan().unwrap().drain_limit()
        };
        // To the nanosecond around the rows and between them, where rounding could take one back.
        for around in [
            1_u64,
            5_000_000_000,
            7_777_777_777,
            10_000_000_000,
            29_999_999_000,
            30_000_000_000,
            45_000_000_000,
        ] {
            for nanos in around..around + 1_000 {
                assert!(drain(nanos) <= drain(nanos + 1), "at {nanos} ns");
                assert!(drain(nanos.saturating_sub(1_000).max(1)) <= drain(nanos), "at {nanos} ns");
            }
        }
    }
}

#[test]
fn what_is_set_stays_and_the_drain_gets_the_rest() {
    for close in [s(1), s(4)] {
        let plan = Budget::from_grace_period(s(30)).unready(s(2)).close(close).plan().unwrap();
        assert_eq!(parts(&plan), [2_000, 24_000 - close.as_millis(), 3_000, close.as_millis(), 1_000]);
    }
}

#[test]
fn a_shorter_drain_leaves_its_time_to_the_requeue() {
    let plan = Budget::from_grace_period(s(3)).drain(s(1)).plan().unwrap();
    assert_eq!(plan.deadline(Phase::Drain, None, None), s(1));
    assert_eq!(plan.deadline(Phase::Requeue, None, None), ms(2_520));
}

// === what does not fit ===

/// I25: limits share one budget, and their sum is checked before anything runs.
#[test]
fn limits_that_add_up_to_more_than_a_given_grace_are_refused() {
    let budget = |grace| {
        Budget::from_grace_period(grace).unready(s(1)).drain(s(1)).requeue(s(1)).close(ms(500)).margin(ms(0))
    };
    assert!(budget(ms(3_500)).plan().is_ok());
    let refused = budget(ms(3_499)).plan().unwrap_err();
    assert_eq!((refused.value(), refused.bound()), (Some(s(1)), Some(ms(999))));
}

/// I25: a platform's grace that is only assumed gives a warning instead.
#[test]
fn limits_that_add_up_to_more_than_an_assumed_grace_are_cut_with_a_warning() {
    let plan = Budget::assumed(s(10), "a guess").drain(s(25)).plan().unwrap();
    assert_eq!(plan.deadline(Phase::Drain, None, None), s(8));
    assert_eq!(
        plan.warnings(),
        [
            "drain is 25 s: at most 8 s fit into the grace of 10 s, assumed (a guess); the rest is cut: set WINDDOWN_GRACE to \
         what the platform grants"
        ]
    );
    assert!(Budget::assumed(s(10), "a guess").drain(s(8)).plan().unwrap().warnings().is_empty());
}

#[test]
fn every_refusal_names_setting_value_and_bound() {
    let refused = [
        Budget::from_grace_period(s(10)).drain(s(9)),
        Budget::from_grace_period(s(30)).unready(s(5)).drain(s(40)).close(s(2)),
        Budget::from_grace_period(s(3)).unready(ms(2_500)),
        Budget::from_grace_period(s(1)).drain(ms(700)).requeue(ms(700)).close(ms(700)).unready(ms(700)),
        Budget::given(s(20), "WINDDOWN_GRACE").prestop(s(5)).requeue(s(20)),
        Budget::from_grace_period(s(0)),
        Budget::given(s(0), "WINDDOWN_GRACE"),
        Budget::from_grace_period(Duration::MAX),
        Budget::from_grace_period(s(10)).drain(Duration::MAX).close(Duration::MAX),
        Budget::from_grace_period(s(10)).prestop(s(10)),
        found(Some("30"), None, false, false).budget(),
        found(Some("0s"), None, false, false).budget(),
        found(None, Some("soon"), true, false).budget(),
        found(None, Some("30s"), true, false).budget(),
        found(Some("never"), Some("soon"), true, false).budget().grace(s(10)),
    ];
    let mut text = String::new();
    for budget in refused {
        let error = budget.plan().unwrap_err();
        writeln!(text, "{error}").unwrap();
        if let Some(source) = error.source() {
            writeln!(text, "  because {source}").unwrap();
        }
        writeln!(text).unwrap();
    }
    snapshot::check("budget_refusals", &text);
}

#[test]
fn nothing_left_for_the_drain_is_worth_a_warning() {
    let plan = Budget::from_grace_period(s(2))
        .unready(s(1))
        .requeue(ms(500))
        .close(ms(250))
        .margin(ms(250))
        .plan()
        .unwrap();
    assert_eq!(plan.warnings(), ["nothing of the grace is left for the drain"]);
    let plan = Budget::from_grace_period(s(2)).margin(ms(0)).plan().unwrap();
    assert_eq!(plan.warnings(), ["margin is 0 s: nothing is left between the end of close and the kill"]);
}

#[test]
fn the_longest_durations_are_no_panic() {
    let longest = Duration::MAX;
    let budget =
        Budget::assumed(s(10), "a guess").unready(longest).drain(longest).requeue(longest).close(longest);
    let plan = budget.margin(longest).forced(longest).plan().unwrap();
    for phase in Phase::ALL {
        assert_eq!(plan.deadline(phase, None, None), s(0));
        assert_eq!(plan.deadline(phase, Some(longest), Some(longest)), s(0));
    }
    assert_eq!(plan.watchdog_at(), s(5));
    assert!(plan.to_string().contains("warning: "));
}

// === the plan ===

#[test]
fn the_ladder_shows_each_end_the_kill_and_where_the_grace_comes_from() {
    let plans = [
        Budget::default(),
        Budget::from_grace_period(s(30)).unready(s(5)),
        Budget::from_grace_period(s(3)).drain(s(1)),
        Budget::given(s(90), "WINDDOWN_GRACE").prestop(s(5)).balancer(true),
        Budget::assumed(s(10), "a guess").drain(s(25)),
    ];
    let text: String = plans.map(|budget| format!("{}\n", budget.plan().unwrap())).concat();
    snapshot::check("plan_ladders", &text);
}

#[test]
fn force_moves_deadlines_and_every_move_is_a_line_of_the_table() {
    let plan = Budget::from_grace_period(s(30)).unready(s(5)).plan().unwrap();
    let mut table = String::new();
    writeln!(
        table,
        "{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}{:>9}",
        "forced", "intake", "unready", "stop", "drain", "requeue", "close"
    )
    .unwrap();
    let moments = [
        (None, None),
        (None, Some(5_001)),
        (Some(0), None),
        (Some(0), Some(10)),
        (Some(4_900), None),
        (Some(5_900), None),
        (Some(5_900), Some(5_950)),
        (Some(12_000), Some(5_001)),
        (Some(25_000), Some(5_001)),
        (Some(28_000), Some(5_001)),
        (Some(29_500), Some(5_001)),
        (Some(99_000), Some(5_001)),
    ];
    for (forced, ended) in moments {
        for moment in [forced, ended] {
            write!(table, "{:>9}", moment.map_or("-".to_owned(), |at: u64| at.to_string())).unwrap();
        }
        for phase in Phase::ALL {
            write!(table, "{:>9}", plan.deadline(phase, forced.map(ms), ended.map(ms)).as_millis()).unwrap();
        }
        writeln!(table).unwrap();
    }
    snapshot::check("plan_deadlines", &table);
}

#[test]
fn forced_hand_back_and_close_share_two_seconds_as_planned() {
    let plan = Budget::from_grace_period(s(30)).plan().unwrap();
    for at in [s(1), s(7)] {
        assert_eq!(plan.deadline(Phase::Requeue, Some(at), Some(ms(20))), at + ms(1_200));
        assert_eq!(plan.deadline(Phase::Close, Some(at), Some(ms(20))), at + s(2));
    }
}

#[test]
fn forced_hand_back_and_close_get_no_more_than_planned() {
    let plan = Budget::from_grace_period(s(10)).plan().unwrap();
    assert_eq!(plan.deadline(Phase::Requeue, Some(s(3)), Some(ms(20))), s(4));
    assert_eq!(plan.deadline(Phase::Close, Some(s(3)), Some(ms(20))), ms(4_500));
}

#[test]
fn stop_intake_has_a_second_or_a_quarter_of_the_drain() {
    for (grace, limit) in [(s(30), s(1)), (s(5), ms(875)), (s(1), ms(175))] {
        assert_eq!(Budget::from_grace_period(grace).plan().unwrap().stop_intake_limit(), limit);
    }
}

#[test]
fn the_watchdog_leaves_at_half_of_the_margin() {
    for (margin, at) in [(s(1), ms(9_500)), (s(4), s(8))] {
        assert_eq!(Budget::from_grace_period(s(10)).margin(margin).plan().unwrap().watchdog_at(), at);
    }
}

#[test]
fn shields_last_until_half_of_the_requeue() {
    let plan = Budget::from_grace_period(s(30)).plan().unwrap();
    assert_eq!(plan.hand_back_at(None, None), ms(25_500));
    assert_eq!(plan.hand_back_at(Some(s(2)), Some(s(1))), ms(2_600));
}

#[test]
fn a_hook_gets_the_time_left_by_the_hooks_left() {
    let plan = Budget::default().plan().unwrap();
    assert_eq!(plan.hook_share(s(3), 3), s(1));
    assert_eq!(plan.hook_share(s(3), 1), s(3));
    assert_eq!(plan.hook_share(s(3), 0), s(3));
    assert_eq!(plan.hook_share(s(3), usize::MAX), s(0));
}

// === limits of tasks ===

#[test]
fn work_that_must_finish_has_to_fit_into_the_drain() {
    let plan = Budget::from_grace_period(s(10)).plan().unwrap();
    assert!(plan.check_task("orders", s(8), Overrun::Finish).is_ok());
    let refused = plan.check_task("orders", ms(8_001), Overrun::Finish).unwrap_err();
    assert_eq!(
        refused.to_string().lines().next(),
        Some(r#"task_limit of gate "orders" is 8.001 s: it must fit into the drain of 8 s"#)
    );
    assert!(refused.to_string().contains("kill"), "the ladder is printed");
}

#[test]
fn of_work_in_steps_only_a_step_has_to_fit() {
    let plan = Budget::from_grace_period(s(10)).plan().unwrap();
    assert!(plan.check_task("orders", s(600), Overrun::Step(s(8))).is_ok());
    let refused = plan.check_task("orders", s(600), Overrun::Step(s(9))).unwrap_err();
    assert_eq!((refused.setting(), refused.bound()), (r#"step of gate "orders""#, Some(s(8))));
    let refused = plan.check_task("orders", s(2), Overrun::Step(s(3))).unwrap_err();
    assert_eq!((refused.value(), refused.bound()), (Some(s(3)), Some(s(2))));
}

#[test]
fn work_that_is_handed_back_may_take_as_long_as_it_likes() {
    let plan = Budget::from_grace_period(s(10)).plan().unwrap();
    assert!(plan.check_task("orders", Duration::MAX, Overrun::default()).is_ok());
}

// === where it runs ===

#[test]
fn the_grace_is_what_the_place_says() {
    let plan = |found: Found| found.budget().plan().unwrap();
    let kubernetes = plan(found(None, None, true, true));
    assert_eq!(parts(&kubernetes), [5_000, 19_000, 3_000, 2_000, 1_000]);
    assert!(matches!(kubernetes.grace(), Grace::Assumed { why } if why.contains("Kubernetes")));
    let terminal = plan(found(None, None, false, true));
    assert_eq!(terminal.kill(), s(10));
    assert!(matches!(terminal.grace(), Grace::Assumed { why } if why.contains("terminal")));
    assert_eq!(plan(found(None, None, false, false)).kill(), s(10));
    for grace in ["20s", "1m"] {
        let given = plan(found(Some(grace), None, false, true));
        assert_eq!(given.kill(), parse_duration(grace).unwrap());
        assert_eq!(given.grace(), Grace::Given { by: "WINDDOWN_GRACE" });
    }
    // That the grace is given does not take the balancer away.
    let given = plan(found(Some("30s"), None, true, false));
    assert_eq!(parts(&given), [5_000, 19_000, 3_000, 2_000, 1_000]);
}

#[test]
fn a_prestop_hook_is_subtracted_and_takes_the_place_of_unready() {
    let plan = found(Some("30s"), Some("5s"), true, false).budget().plan().unwrap();
    assert_eq!(plan.kill(), s(25));
    assert_eq!(plan.deadline(Phase::Unready, None, None), s(0));
    let both = found(Some("30s"), Some("5s"), true, false).budget().unready(s(2)).plan().unwrap();
    assert_eq!(both.deadline(Phase::Unready, None, None), s(2));
}

#[test]
fn a_grace_set_in_code_is_divided_anew() {
    let plan = found(None, None, true, false).budget().grace(s(10)).plan().unwrap();
    assert_eq!(parts(&plan), [0, 8_000, 1_000, 500, 500]);
    assert_eq!(plan.grace(), Grace::Given { by: "code" });
}

/// The environment is that of a child, since one's own is shared by all tests.
#[test]
fn the_environment_is_read() {
    if std::env::var_os("WINDDOWN_TEST_CHILD").is_some() {
        println!(
            "{}",
            Budget::detect().plan().map_or_else(|refused| refused.to_string(), |plan| plan.to_string())
        );
        return;
    }
    let says = |settings: &[(&str, &str)]| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["the_environment_is_read", "--exact", "--nocapture"]).env("WINDDOWN_TEST_CHILD", "1");
        for name in ["WINDDOWN_GRACE", "WINDDOWN_PRESTOP", "KUBERNETES_SERVICE_HOST"] {
            child.env_remove(name);
        }
        let output = child.envs(settings.iter().copied()).stdin(Stdio::null()).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(says(&[]).contains("grace 10 s, assumed (nothing says otherwise)"));
    assert!(
        says(&[("KUBERNETES_SERVICE_HOST", "10.0.0.1")]).contains("grace 30 s, assumed (what Kubernetes")
    );
    let both = says(&[("WINDDOWN_GRACE", "20s"), ("WINDDOWN_PRESTOP", "3s")]);
    assert!(both.contains("grace 20 s less 3 s of preStop, given by WINDDOWN_GRACE"), "{both}");
    assert!(says(&[("WINDDOWN_GRACE", "soon")]).contains("WINDDOWN_GRACE is `soon`: it must be a duration"));
}

// === durations ===

#[test]
fn durations_are_read_as_people_write_them() {
    let texts = [
        "500ms",
        "8s",
        "1m30s",
        "1.5s",
        "2h",
        "0s",
        " 1 m 30 s ",
        "0.25ms",
        "1.0000000009s",
        "1h1m1s1ms",
        "18446744073709551615s",
        "0.1234567890123456789h",
        "",
        "  ",
        "8",
        "1.5",
        "s",
        "8x",
        "-8s",
        "+8s",
        "8s1m",
        "8s8s",
        "1..5s",
        ".5s",
        "5.s",
        "8 s 3",
        "٨s",
        "8µs",
        "8s\n9",
        "1e3s",
        "infinity",
        "18446744073709551616s",
        "18446744073709551615h",
        "99999999999999999999999ms",
    ];
    let mut table = String::new();
    for text in texts {
        match parse_duration(text) {
            Ok(read) => writeln!(table, "{text:?}: {} ns", read.as_nanos()).unwrap(),
            Err(wrong) => writeln!(table, "{text:?}: {wrong}").unwrap(),
        }
    }
    snapshot::check("durations", &table);
}
