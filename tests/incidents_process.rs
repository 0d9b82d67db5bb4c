//! Incidents that only a real process with real signals shows.
#![cfg(all(unix, feature = "test-util"))]

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;
use winddown::testing::process::{Process, Signal};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn victim(args: &str) -> Process {
    // A backtrace takes longer to print than some of these limits are.
    Process::example("victim").env("RUST_BACKTRACE", "0").args(args.split(' ')).ready_line("ready")
}

/// I06. A task that would sleep for a minute, jobs that never end, and a close hook of 300 ms; the second signal comes
/// 400 ms after the first. The drain of 8 s ends there, and items are handed back and the hook runs all the same.
#[tokio::test]
async fn a_second_signal_ends_the_waiting_and_neither_the_handing_back_nor_the_closing() {
    let running =
        victim("--grace 10000 --task sleep --jobs 3 --hook close:slow --then print").start().await.unwrap();
    running.signal(Signal::Term);
    sleep(400 * MS).await;
    running.signal(Signal::Term);
    let exit = running.wait().await;
    exit.assert_code(143)
        .assert_within(3 * SECOND)
        .assert_line("close hook done")
        .assert_line("forced by SIGTERM");
    assert_eq!(exit.stdout.matches("handed back").count(), 3, "{exit}");
}

/// I06. The third signal finds the stop in a hook that blocks its thread: out at once, with a code that says so and the
/// name of what was stuck.
#[tokio::test]
async fn a_third_signal_exits_at_once() {
    let running = victim("--grace 30000 --task end --hook close:block").start().await.unwrap();
    for signal in [Signal::Term, Signal::Int, Signal::Term] {
        running.signal(signal);
        sleep(400 * MS).await;
    }
    let exit = running.wait().await;
    exit.assert_code(143).assert_within(1600 * MS);
    exit.assert_line("SIGTERM again: leaving at once").assert_line("stuck: hook close block");
}

/// I06. The same signal twice, and then another kind, within 50 ms, as a platform and a terminal send it: it counts
/// once, and the drain is waited for.
#[tokio::test]
async fn a_doubled_signal_counts_once() {
    let running = victim("--grace 10000 --task end --hook drain:slow --then print").start().await.unwrap();
    running.signal(Signal::Term);
    sleep(20 * MS).await;
    running.signal(Signal::Term);
    sleep(20 * MS).await;
    running.signal(Signal::Int);
    let exit = running.wait().await;
    exit.assert_code(0).assert_line("drain hook done");
    assert!(!exit.stderr.contains("forced"), "{exit}");
}

/// I07. The signal comes after `signal::terminate` and before there is a coordinator, and again between the coordinator
/// and `run`: it is kept, nothing is started, and what was opened is closed.
#[tokio::test]
async fn a_signal_before_run_is_kept_and_stops_cleanly() {
    for (options, line) in [("--before-new 300", "in hand"), ("--before-run 300", "built")] {
        let running = victim(&format!("{options} --task sleep --hook close:ok --then print"))
            .ready_line(line)
            .start()
            .await
            .unwrap();
        running.signal(Signal::Term);
        let exit = running.wait().await;
        exit.assert_code(0).assert_within(2 * SECOND).assert_line("close hook done");
        exit.assert_line("stopped: SIGTERM").assert_line("sleep 0: not started");
        assert!(!exit.stdout.contains("ready"), "{exit}");
    }
}

/// I07. Two signals half a second apart, both before there is a coordinator: the second is no double of the first.
#[tokio::test]
async fn signals_before_the_coordinator_escalate_by_their_own_times() {
    let running =
        victim("--before-new 1000 --hook close:ok --then print").ready_line("in hand").start().await.unwrap();
    running.signal(Signal::Term);
    sleep(500 * MS).await;
    running.signal(Signal::Term);
    running.wait().await.assert_code(143).assert_line("forced by SIGTERM").assert_line("close hook done");
}

/// I08. As the first process of its own PID namespace, where a signal without a handler does nothing at all.
#[tokio::test]
async fn sigterm_stops_it_also_as_pid_1_with_no_init_beside_it() {
    let alone = ["--pid", "--fork", "--kill-child"];
    let may = Process::new("unshare").args(alone).arg("true").start().await;
    let allowed = match may {
        Ok(running) => running.wait().await.code == Some(0),
        Err(_) => false,
    };
    if !allowed {
        eprintln!("SKIPPED: no right to make a PID namespace here (unshare --pid): I08 is not shown");
        return;
    }
    let running = Process::new("unshare")
        .args(alone)
        .arg(victim_path())
        .args(["--task", "sleep", "--drain", "200", "--jobs", "1"])
        .ready_line("ready")
        .start()
        .await
        .unwrap();
    running.wait_for_line("in hand as 1").await.unwrap();
    let children = format!("/proc/{0}/task/{0}/children", running.id());
    let child = std::fs::read_to_string(children).unwrap();
    let kill = Process::new("kill").args(["-TERM", child.trim()]).start().await.unwrap();
    kill.wait().await.assert_code(0);
    let exit = running.wait().await;
    exit.assert_line("handed back 0").assert_code(1);
}

fn victim_path() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.ancestors().nth(2).unwrap().join("examples/victim")
}

/// I21. All done, a straggler, a hook that failed or panicked, a forced stop: each has its code, and is in the report.
#[tokio::test]
async fn the_exit_code_tells_clean_from_overdue_failed_and_forced() {
    for (args, code, line) in [
        ("--task end --jobs 2", 0, "2 handed back"),
        ("--task sleep", 1, "task sleep 0: overdue"),
        ("--task end --hook close:fail", 1, "close fail failed"),
        ("--task end --hook stop%intake:panic", 1, "stop intake panic panicked"),
        ("--task end --hook requeue:hang", 1, "requeue hang overdue"),
    ] {
        let args = args.split(' ').map(|arg| arg.replace('%', " "));
        let running = victim("--drain 200 --then print").args(args).start().await.unwrap();
        running.kubelet(10 * SECOND).await.assert_code(code).assert_line(line);
    }
}

/// I21. The task that is the program ends first, as soon as it is told; `run` returns only after the last hook.
#[tokio::test]
async fn a_main_task_that_ends_early_never_cuts_the_hooks() {
    let running = victim("--task end --hook drain:slow --hook close:slow").start().await.unwrap();
    let exit = running.kubelet(10 * SECOND).await;
    exit.assert_code(0);
    let order: Vec<_> = exit.stdout.lines().skip_while(|line| *line != "drain hook").collect();
    assert_eq!(
        order,
        ["drain hook", "drain hook done", "close hook", "close hook done", "run has returned with 0"],
        "{exit}"
    );
}

/// I22 (a). A blocking task of 30 s under a task that awaits it: the process ends before the kill, with the report's
/// code, and the report names it.
#[tokio::test]
async fn blocking_work_does_not_pin_the_exit() {
    let running = victim("--task blocking --then print").start().await.unwrap();
    let exit = running.kubelet(2 * SECOND).await;
    exit.assert_code(1).assert_within(2 * SECOND).assert_line("task blocking 0: overdue");
}

/// I22 (b). The only thread of the runtime sits in a hook that blocks: at the end of the grace the watchdog leaves.
#[tokio::test]
async fn a_blocked_runtime_is_left_before_the_kill_and_what_blocks_it_is_named() {
    let running = victim("--flavor current --task end --hook close:block").start().await.unwrap();
    let exit = running.kubelet(2 * SECOND).await;
    exit.assert_code(124).assert_within(2 * SECOND);
    exit.assert_line("the grace period is over: leaving").assert_line("stuck: hook close block");
}

/// I22 (b). The same with half a minute of grace and a second signal: who forces is not made to wait for the rest of it,
/// although no task sees the force.
#[tokio::test]
async fn a_second_signal_brings_the_watchdog_forward_where_the_runtime_is_blocked() {
    let running =
        victim("--flavor current --grace 30000 --task end --hook close:block").start().await.unwrap();
    running.signal(Signal::Term);
    running.wait_for_line("close hook").await.unwrap();
    sleep(400 * MS).await;
    running.signal(Signal::Term);
    let exit = running.wait().await;
    exit.assert_code(124).assert_within(5 * SECOND).assert_line("stuck: hook close block");
}

/// I22. Every worker is blocked by a task of its own, on both kinds of runtime.
#[tokio::test]
async fn with_every_worker_blocked_the_process_is_gone_before_the_kill() {
    for args in ["--workers 2 --task block --task block", "--flavor current --task block"] {
        let running = victim(args).ready_line("blocked").start().await.unwrap();
        let exit = running.kubelet(2 * SECOND).await;
        exit.assert_code(124).assert_within(2 * SECOND).assert_line("stuck: task block 0, for");
    }
}

/// I22. Nobody reads standard error, and its pipe is full: the last words are not waited for.
#[tokio::test]
async fn a_full_standard_error_does_not_hold_the_watchdog() {
    let running = victim("--workers 2 --task block --task block --then print")
        .ready_line("blocked")
        .stalled_stderr()
        .start()
        .await
        .unwrap();
    running.fill_stderr().unwrap();
    running.kubelet(2500 * MS).await.assert_code(124).assert_within(2500 * MS);
}

/// I22. `run` has returned, with a clean report, and the printing of it blocks for ever.
#[tokio::test]
async fn a_report_that_nobody_reads_does_not_hold_the_exit_and_its_code_is_kept() {
    let running = victim("--task end --then print").stalled_stderr().start().await.unwrap();
    running.fill_stderr().unwrap();
    let exit = running.kubelet(2500 * MS).await;
    exit.assert_code(0).assert_within(2 * SECOND).assert_line("run has returned with 0");
}

/// I22. A blocking task that nobody awaits outlives `main`: the runtime's drop waits for it, the watchdog does not, and
/// leaves with the report's code.
#[tokio::test]
async fn a_blocking_task_that_outlives_main_does_not_change_the_code() {
    for (hook, code) in [("close:ok", 0), ("close:fail", 1)] {
        let running = victim(&format!("--task detached --hook {hook}")).start().await.unwrap();
        let exit = running.kubelet(2 * SECOND).await;
        exit.assert_code(code).assert_within(2 * SECOND).assert_line("run has returned");
    }
}

/// I22. A thread holds the lock of standard output, as one does that writes to a full pipe: `exit` leaves at once.
#[tokio::test]
async fn exit_is_held_by_no_thread_that_holds_standard_output() {
    let running = victim("--grace 30000 --task detached --hold-stdout 1 --hook drain:quiet --then exit");
    let exit = running.start().await.unwrap().kubelet(30 * SECOND).await;
    exit.assert_code(0).assert_within(3 * SECOND);
}

/// I36. The host has a SIGTERM handler of its own and triggers by hand: it sees its signal, goes on after `run`, and
/// leaves with its own code.
#[tokio::test]
async fn a_host_keeps_its_signals_and_its_exit() {
    let running = victim("--signals host --task end --hook close:ok --then go-on").start().await.unwrap();
    let exit = running.kubelet(10 * SECOND).await;
    exit.assert_code(7).assert_line("the host saw SIGTERM").assert_line("close hook done");
    exit.assert_line("the host goes on");
}

/// I36. The same with a stop that is stuck beyond its grace: that is reported, and the process left alone.
#[tokio::test]
async fn the_process_of_a_host_is_never_left_not_even_when_stuck() {
    let running = victim("--signals host --grace 600 --hook close:block").start().await.unwrap();
    running.signal(Signal::Term);
    running.wait_for_line("close hook").await.unwrap();
    sleep(SECOND).await;
    assert!(!running.has_ended());
    running.signal(Signal::Kill);
    assert!(running.wait().await.was_killed());
}

/// SIGTSTP pauses and SIGCONT resumes, each as often as it comes; SIGUSR1 says what is in flight. None of them stops anything,
/// and after the trigger SIGCONT, which systemd sends, changes nothing.
#[tokio::test]
async fn stop_and_go_signals_pause_and_resume_and_usr1_says_what_is_in_flight() {
    let running =
        victim("--signals all --task pause --jobs 1 --drain 100 --then print").start().await.unwrap();
    for turn in 1..=2 {
        running.signal(Signal::Tstp);
        running.wait_for_line(&format!("paused {turn}")).await.unwrap();
        running.signal(Signal::Usr1);
        running.wait_for_line("winddown: in flight").await.unwrap();
        running.signal(Signal::Cont);
        running.wait_for_line(&format!("resumed {turn}")).await.unwrap();
    }
    running.wait_for_line("  task pause 0, for").await.unwrap();
    let exit = running.systemd(10 * SECOND).await;
    exit.assert_code(0).assert_line("stopped: SIGTERM").assert_line("1 handed back");
}
