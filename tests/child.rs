//! Child processes that stop with the program: real ones, with real signals.
#![cfg(all(unix, feature = "process"))]

use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::Command;
use tokio::sync::oneshot;
use winddown::{Budget, Outcome, Phase, Report, ShutdownCoordinator, ShutdownHandle, process, signal};

const MS: Duration = Duration::from_millis(1);

/// A shell script whose standard output comes back line by line through a pipe of its own.
fn script(text: &str) -> (Command, Lines<BufReader<tokio::net::unix::pipe::Receiver>>) {
    let (sender, receiver) = tokio::net::unix::pipe::pipe().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", text]).stdout(Stdio::from(sender.into_blocking_fd().unwrap())).stderr(Stdio::null());
    (command, BufReader::new(receiver).lines())
}

fn coordinator(drain: Duration) -> ShutdownCoordinator {
    let budget = Budget::given(drain + 1500 * MS, "test").drain(drain).requeue(300 * MS).close(300 * MS);
    ShutdownCoordinator::new(budget, signal::none()).unwrap()
}

/// Runs with one child and triggers once it has said `ready`; the report, and what it said after that until its pipe closed.
async fn stop_when_ready(drain: Duration, text: &str, until: Phase) -> (Report, Vec<String>) {
    let (command, mut lines) = script(text);
    let mut shutdown = coordinator(drain);
    let handle: ShutdownHandle = shutdown.handle();
    shutdown.add(process::child("helper", command).until(until));
    let (said, hears) = oneshot::channel();
    tokio::spawn(async move {
        assert_eq!(lines.next_line().await.unwrap().as_deref(), Some("ready"));
        handle.trigger("test");
        let mut rest = Vec::new();
        while let Ok(Some(line)) = lines.next_line().await {
            rest.push(line);
        }
        let _ = said.send(rest);
    });
    let report = shutdown.run().await;
    let rest = tokio::time::timeout(Duration::from_secs(5), hears)
        .await
        .expect("no process holds the pipe")
        .unwrap();
    (report, rest)
}

#[tokio::test]
async fn a_child_is_told_and_may_end_by_itself() {
    let text = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.05; done";
    let (report, said) = stop_when_ready(5000 * MS, text, Phase::Drain).await;
    assert_eq!(said, ["told"]);
    assert!(report.is_clean(), "{report}");
    assert!(report.took() < 4000 * MS, "{report}");
}

#[tokio::test]
async fn a_child_that_will_not_end_is_killed_with_all_that_it_started() {
    // The grandchild holds the pipe too: it closes only when both are gone.
    let text = "trap '' TERM; (trap '' TERM; while :; do sleep 0.05; done) & echo ready; while :; do sleep 0.05; done";
    for (phase, drain) in [(Phase::Drain, 300 * MS), (Phase::Close, 100 * MS)] {
        let (report, _) = stop_when_ready(drain, text, phase).await;
        let task = report.task("helper").unwrap();
        assert_ne!(task.outcome, Outcome::Finished, "{report}");
        assert_eq!(report.code(), 1, "{report}");
    }
}

#[tokio::test]
async fn a_child_that_ends_before_the_stop_triggers_it_with_its_exit_code() {
    let (command, _lines) = script("exit 3");
    let mut shutdown = coordinator(1000 * MS);
    shutdown.add(process::child("helper", command));
    let report = shutdown.run().await;
    assert_eq!(report.reason().to_string(), "task \"helper\" failed: it ended with exit status: 3");
    assert_eq!(report.code(), 1);
}
