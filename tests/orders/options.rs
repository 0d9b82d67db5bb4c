//! The command line.

use std::time::Duration;

use winddown::testing::process::Exit;

use crate::service::{Place, bare};

async fn run<'a>(args: impl IntoIterator<Item = &'a str>) -> Exit {
    bare(args).start().await.expect("started").wait().await
}

/// Refused before anything is opened: exit 2, and nothing on standard output.
#[track_caller]
fn assert_refused(exit: &Exit, says: &[&str]) {
    exit.assert_code(2);
    assert_eq!(exit.stdout, "", "{exit}");
    let first = exit.stderr.lines().next().unwrap_or_default();
    assert!(first.starts_with("orders: "), "{exit}");
    for words in says {
        assert!(first.contains(words), "{words}: {exit}");
    }
}

#[tokio::test]
async fn a_bad_value_is_refused_in_one_line_with_option_value_and_bound() {
    for (args, says) in [
        (["--listen", "nonsense"], ["--listen", "nonsense", "127.0.0.1:8080"]),
        (["--listen", "127.0.0.1:65536"], ["--listen", "127.0.0.1:65536", "address"]),
        (["--listen", "127.0.0.1"], ["--listen", "127.0.0.1", "address"]),
        (["--listen", "unix:"], ["--listen", "\"unix:\"", "1 to 103 bytes"]),
        (["--listen", "Systemd"], ["--listen", "\"Systemd\"", "unix:/path or systemd"]),
        (["--listen", ""], ["--listen", "\"\"", "127.0.0.1:8080"]),
        (["--listen=unix:o.sock", "--reuse-port"], ["--reuse-port", "--listen", "127.0.0.1:8080"]),
        (["--reuse-port=no", "--help"], ["--reuse-port", "\"no\"", "no value"]),
        (["--admin", "9090"], ["--admin", "\"9090\"", "127.0.0.1:9090"]),
        (["--database", "postgres://db"], ["--database", "postgres://db", "sqlite:orders.db"]),
        (["--database", "sqlite:"], ["--database", "\"sqlite:\"", "sqlite:orders.db"]),
        (["--database", ""], ["--database", "\"\"", "sqlite:orders.db"]),
        (["--database", "sqlite:o.db?mode=nonsense"], ["--database", "nonsense", "mode"]),
        (["--queue", "http://localhost"], ["--queue", "\"http://localhost\"", "redis://, redis+unix://"]),
        (["--queue", "localhost:6379"], ["--queue", "\"localhost:6379\"", "redis+sentinel://"]),
        (["--queue", "redis://user:secret@host:port"], ["--queue", "\"redis://host:port\"", "redis://"]),
        (["--queue", "redis+sentinel://one,two"], ["--queue", "\"redis+sentinel://one,two\"", "master"]),
        (["--queue", ""], ["--queue", "\"\"", "redis://"]),
        (["--workers", "0"], ["--workers", "\"0\"", "1 to 1024"]),
        (["--workers", "1025"], ["--workers", "1025", "1 to 1024"]),
        (["--workers", "-1"], ["--workers", "-1", "1 to 1024"]),
        (["--workers", "many"], ["--workers", "many", "1 to 1024"]),
        (["--workers", "99999999999999999999"], ["--workers", "99999999999999999999", "1 to 1024"]),
        (["--grace", "30"], ["--grace", "`30`", "30s or 30ms"]),
        (["--grace", "soon"], ["--grace", "`soon`", "500ms, 8s"]),
        (["--grace", "-3s"], ["--grace", "`-3s`", "500ms, 8s"]),
        (["--grace", ""], ["--grace", "missing", "500ms, 8s"]),
        (["--unready", "1x"], ["--unready", "`x`", "h, m, s and ms"]),
        (["--drain", "1s2m"], ["--drain", "`1s2m`", "m"]),
        (["--requeue", "1.2.3s"], ["--requeue", "1.2.3", "no number"]),
        (["--close", "99999999999999999999s"], ["--close", "99999999999999999999s", "long"]),
        (["--lease", "999ms"], ["--lease", "999ms", "1s to 24h"]),
        (["--lease", "25h"], ["--lease", "25h", "1s to 24h"]),
        (
            ["--report", "/nowhere/at/all/report.json"],
            ["--report", "/nowhere/at/all/report.json", "No such file"],
        ),
        (["--report", ""], ["--report", "\"\"", "file"]),
        (["--colour", "red"], ["--colour", "no option", "--help"]),
        (["red", "--plan"], ["\"red\"", "no option", "--help"]),
        (["--plan=yes", "--help"], ["--plan", "\"yes\"", "no value"]),
    ] {
        let exit = run(args).await;
        assert_refused(&exit, &says);
        assert_eq!(exit.stderr.lines().count(), 1, "{exit}");
        assert!(!exit.stderr.contains("secret"), "{exit}");
        // Also where it is written as one.
        if says[0] == args[0] {
            let joined = format!("{}={}", args[0], args[1]);
            assert_refused(&run([joined.as_str()]).await, &says);
        }
    }
    for option in
        ["--listen", "--database", "--queue", "--workers", "--grace", "--unready", "--drain", "--requeue"]
            .into_iter()
            .chain(["--close", "--lease", "--report"])
    {
        let exit = run([option]).await;
        assert_refused(&exit, &[option, "needs a value"]);
        assert_eq!(exit.stderr.lines().count(), 1, "{exit}");
    }
}

#[tokio::test]
async fn a_budget_that_does_not_fit_is_refused_with_the_ladder_and_the_rung() {
    for (args, rung) in [
        (["--grace", "3s", "--drain", "10s"], "drain is 10 s"),
        (["--grace", "2s", "--drain", "4s"], "drain is 4 s"),
        (["--grace", "3s", "--close", "5s"], "close is 5 s"),
        (["--grace", "3s", "--requeue", "3s"], "requeue is 3 s"),
        (["--grace", "3s", "--unready", "1m30s"], "unready is 1 m 30 s"),
    ] {
        let exit = run(args).await;
        assert_refused(&exit, &[rung]);
        for phase in ["unready", "drain", "requeue", "close", "kill"] {
            assert!(exit.stderr.lines().skip(1).any(|line| line.contains(phase)), "{phase}: {exit}");
        }
    }
    let exit = bare(["--plan"]).env("WINDDOWN_GRACE", "soon").start().await.expect("started").wait().await;
    assert_refused(&exit, &["WINDDOWN_GRACE", "`soon`"]);
}

#[tokio::test]
async fn plan_and_help_are_printed_and_nothing_is_opened() {
    let place = Place::new();
    let help = place.fails(["--help"]).await;
    help.assert_code(0);
    assert_eq!(help.stderr, "");
    for option in
        ["listen", "database", "queue", "workers", "lease", "grace", "unready", "drain", "requeue", "close"]
            .into_iter()
            .chain(["reuse-port", "admin", "report", "plan", "help"])
    {
        assert!(help.stdout.lines().any(|line| line.contains(&format!("--{option} "))), "{option}: {help}");
    }
    assert!(help.stdout.lines().all(|line| line.chars().count() <= 80), "{help}");
    for (grace, kill) in [("10s", "10 s"), ("3s", "3 s")] {
        let plan = place.fails(["--plan", "--grace", grace]).await;
        plan.assert_code(0);
        assert_eq!(plan.stderr, "");
        assert!(plan.stdout.lines().any(|line| line.contains("kill") && line.ends_with(kill)), "{plan}");
    }
    assert!(!place.path("orders.db").exists());
}

#[tokio::test]
async fn what_is_said_goes_to_the_right_stream() {
    let place = Place::new();
    let service = place.start([]).await;
    let address = service.address;
    let exit = service.term().await;
    exit.assert_code(0);
    assert_eq!(exit.stdout, format!("listening on http://{address}\nready\n"));
    let plan = exit.stderr.find("unready").expect("the plan");
    let report = exit.stderr.find("stopped: SIGTERM").expect("the report");
    assert!(plan < report, "{exit}");
}

#[tokio::test]
async fn a_port_in_use_is_told_and_what_was_opened_is_closed() {
    let place = Place::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let orders = bare(["--listen", &address, "--database", &place.url()]);
    let exit = orders.start().await.expect("started").wait().await;
    exit.assert_code(1).assert_within(Duration::from_secs(10));
    exit.assert_line(&address).assert_line("in use");
    assert_eq!(exit.stdout, "", "{exit}");
    // Closed well: a write-ahead log is gone with the last connection.
    assert!(place.path("orders.db").exists() && !place.path("orders.db-wal").exists(), "{exit}");
}

#[tokio::test]
async fn the_report_is_json_that_adds_up() {
    let place = Place::new();
    let file = place.path("report.json").display().to_string();
    std::fs::write(&file, "x".repeat(100_000)).expect("an older report");
    let service = place.start(["--report", &file, "--grace", "5s"]).await;
    service.place("a1", 0).await;
    service.until("a1", "done").await;
    let exit = service.term().await;
    exit.assert_code(0);
    let report = place.report("report.json");
    assert_eq!((&report["reason"], &report["exit_code"]), (&"SIGTERM".into(), &0.into()), "{report}");
    let phases: Vec<_> =
        report["phases"].as_array().expect("phases").iter().map(|phase| &phase["phase"]).collect();
    assert_eq!(phases, ["unready", "stop intake", "drain", "requeue", "close"], "{report}");
    assert_eq!(report["grace_ms"], 5_000.0);
    let number = |key: &str| report[key].as_f64().unwrap_or_else(|| panic!("{key}: {report}"));
    assert!((number("took_ms") + number("unused_ms") - 5_000.0).abs() < 0.01, "{report}");
}
