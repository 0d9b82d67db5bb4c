//! The harness judged by programs of one line each: what it says of a process is so.
#![cfg(all(unix, feature = "test-util"))]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use winddown::testing::process::{Process, ProcessErrorKind, Running, Signal, Stream, Supervisor};

/// Far more than anything here takes on a slow machine.
const SOON: Duration = Duration::from_secs(20);

const NEVER_ENDING: &str = "while :; do sleep 0.01; done";

fn shell(script: impl AsRef<str>) -> Process {
    Process::new("sh").args(["-c", script.as_ref()]).patience(SOON)
}

async fn ready(script: &str) -> Running {
    shell(format!("{script}; echo ready; {NEVER_ENDING}")).ready_line("ready").start().await.unwrap()
}

fn exists(pid: u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn a_process_that_leaves_by_itself_is_judged_by_its_code() {
    for code in [0, 3] {
        let exit = shell(format!("exit {code}")).start().await.unwrap().wait().await;
        exit.assert_code(code);
        assert_eq!((exit.signal, exit.shell_code(), exit.was_killed()), (None, code, false));
    }
}

#[tokio::test]
async fn a_signal_that_nothing_caught_is_in_the_exit() {
    for (signal, number) in [(Signal::Term, 15), (Signal::Int, 2), (Signal::Usr1, 10)] {
        let running = ready("true").await;
        assert!(running.signal(signal));
        let exit = running.wait().await;
        assert_eq!((exit.code, exit.signal, exit.shell_code()), (None, Some(number), 128 + number));
        assert!(!exit.was_killed());
    }
}

#[tokio::test]
async fn the_time_is_counted_from_the_first_signal_also_when_nobody_waits_yet() {
    let running = ready("trap 'sleep 0.2; exit 0' TERM").await;
    running.signal(Signal::Term);
    while !running.has_ended() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let late = Duration::from_millis(700);
    tokio::time::sleep(late).await;
    let exit = running.wait().await;
    exit.assert_code(0);
    assert!(exit.took >= Duration::from_millis(200), "{exit}");
    assert!(exit.took < Duration::from_millis(200) + late, "{exit}");
}

#[tokio::test]
async fn both_streams_are_read_though_the_test_is_busy_elsewhere() {
    // Several times what a pipe takes, while the only thread of the runtime is blocked.
    let script = "i=0; while [ $i -lt 5000 ]; do echo 'a line of forty characters, give or take'; \
                  echo 'the same again for the other of the two' >&2; i=$((i+1)); done; exit 7";
    let running = shell(script).start().await.unwrap();
    let began = Instant::now();
    while !running.has_ended() && began.elapsed() < SOON {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(running.has_ended());
    let exit = running.wait().await;
    exit.assert_code(7);
    assert_eq!(exit.stdout.lines().count(), 5000);
    assert_eq!(exit.stderr.lines().count(), 5000);
    assert_eq!(exit.lines.len(), 10_000);
}

#[tokio::test]
async fn a_line_without_an_end_is_a_line_once_the_stream_is_over() {
    let exit = shell("printf 'one\\ntwo'; printf 'three' >&2").start().await.unwrap().wait().await;
    let of = |stream| {
        let lines = exit.lines.iter().filter(move |line| line.stream == stream);
        lines.map(|line| line.text.as_str()).collect::<Vec<_>>()
    };
    assert_eq!(of(Stream::Stdout), ["one", "two"]);
    assert_eq!(of(Stream::Stderr), ["three"]);
    assert_eq!(exit.stdout, "one\ntwo");
}

#[tokio::test]
async fn ready_is_a_line_that_starts_so_and_not_one_that_contains_it() {
    let script =
        format!("echo 'not ready'; echo 'ready' >&2; sleep 0.2; echo 'ready, after all'; {NEVER_ENDING}");
    let running = shell(script).ready_line("ready").start().await.unwrap();
    assert_eq!(running.stdout(), "not ready\nready, after all\n");
}

#[tokio::test]
async fn a_process_that_ends_before_it_is_ready_is_an_error_with_its_output() {
    let error = shell("echo 'no database' >&2; exit 4").ready_line("ready").start().await.unwrap_err();
    assert_eq!(error.kind(), ProcessErrorKind::Exited);
    assert_eq!(error.to_string(), "`sh` ended (exit status: 4) before the line `ready`");
    assert!(format!("{error:?}").contains("err | no database"), "{error:?}");
}

#[tokio::test]
async fn a_process_that_is_never_ready_is_given_up_and_killed() {
    let patience = Duration::from_millis(300);
    let script = format!("echo $$; {NEVER_ENDING}");
    let error = shell(script).ready_line("ready").patience(patience).start().await.unwrap_err();
    assert_eq!(error.kind(), ProcessErrorKind::TimedOut);
    let pid = error.output().trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(!exists(pid));
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error_with_a_source() {
    let error = Process::new("/no/such/program").start().await.unwrap_err();
    assert_eq!(error.kind(), ProcessErrorKind::NotStarted);
    assert_eq!(error.to_string(), "`/no/such/program` could not be started");
    assert!(std::error::Error::source(&error).is_some());
}

#[tokio::test]
async fn ready_is_the_first_200_of_an_address() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/readyz", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let mut asked = 0;
        for status in ["503 Service Unavailable", "404 Not Found", "200 OK"] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).unwrap();
            assert!(request[..read].starts_with(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:"));
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
            asked += 1;
        }
        asked
    });
    let running = shell(NEVER_ENDING).ready_url(url).start().await.unwrap();
    assert!(!running.has_ended());
    assert_eq!(server.join().unwrap(), 3);

    let refused = shell(NEVER_ENDING).ready_url("https://localhost/").start().await.unwrap_err();
    assert_eq!(refused.kind(), ProcessErrorKind::NotStarted);
}

#[tokio::test]
async fn the_first_byte_is_seen_before_its_line_is_complete() {
    let running = shell(format!("printf x; {NEVER_ENDING}")).start().await.unwrap();
    running.first_output().await.unwrap();
    assert_eq!(running.stdout(), "x");
    assert_eq!(running.lines(), []);
}

#[tokio::test]
async fn a_line_is_found_whether_it_came_before_or_comes_later() {
    let running = ready("trap 'echo \"stopping now\" >&2; exit 0' TERM").await;
    assert_eq!(running.wait_for_line("ready").await.unwrap().stream, Stream::Stdout);
    running.signal(Signal::Term);
    let line = running.wait_for_line("stopping").await.unwrap();
    assert_eq!((line.text.as_str(), line.stream), ("stopping now", Stream::Stderr));
    let error = running.wait_for_line("never said").await.unwrap_err();
    assert_eq!(error.kind(), ProcessErrorKind::Exited);
}

#[tokio::test]
async fn kubelet_asks_waits_out_the_grace_and_kills() {
    let grace = Duration::from_millis(400);
    let exit = ready("trap 'echo asked' TERM").await.kubelet(grace).await;
    assert!(exit.was_killed(), "{exit}");
    assert!(exit.took >= grace, "{exit}");
    exit.assert_line("asked");

    let exit = ready("trap 'exit 0' TERM").await.kubelet(SOON).await;
    exit.assert_code(0).assert_within(SOON / 2);
    assert!(!exit.was_killed());
}

#[tokio::test]
async fn a_prestop_hook_runs_before_the_first_signal() {
    let prestop = Duration::from_millis(400);
    let began = Instant::now();
    let exit = ready("trap 'exit 0' TERM").await.stop(Supervisor::kubelet(SOON).prestop(prestop)).await;
    exit.assert_code(0);
    assert!(began.elapsed() >= prestop && exit.took < began.elapsed() - prestop / 2, "{exit}");
}

#[tokio::test]
async fn systemd_thaws_what_it_asks_to_stop() {
    let running = ready("trap 'exit 0' TERM").await;
    running.signal(Signal::Stop);
    let exit = running.systemd(SOON).await;
    exit.assert_code(0);

    let running = ready("trap 'exit 0' TERM").await;
    running.signal(Signal::Stop);
    let exit = running.docker_stop(Duration::from_millis(300)).await;
    assert!(exit.was_killed(), "a frozen process takes no SIGTERM: {exit}");
}

#[tokio::test]
async fn a_process_and_its_children_are_gone_when_it_is_dropped() {
    let running = ready("sleep 1000 & echo child $!").await;
    let line = running.wait_for_line("child").await.unwrap();
    let child = line.text.rsplit(' ').next().unwrap().parse().unwrap();
    let pid = running.id();
    assert!(exists(pid) && exists(child));
    drop(running);
    assert!(!exists(pid));
    gone(child).await;
}

#[tokio::test]
async fn what_a_process_leaves_behind_goes_with_it() {
    let running = shell("sleep 1000 & echo child $!; exit 0").start().await.unwrap();
    let exit = running.wait().await;
    exit.assert_code(0).assert_within(SOON / 2);
    gone(exit.stdout.trim().rsplit(' ').next().unwrap().parse().unwrap()).await;
}

#[tokio::test]
async fn a_process_does_not_outlive_a_test_that_is_killed() {
    // The test that is killed is this binary again, with the name of the test below.
    let exe = std::env::current_exe().unwrap();
    let args = ["--ignored", "--exact", "--nocapture", "waits_to_be_killed_with_a_process_of_its_own"];
    let test = Process::new(exe).args(args).patience(SOON).start().await.unwrap();
    let line = test.wait_for_line("grandchild ").await.unwrap();
    let pid = line.text.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(exists(pid));
    test.signal(Signal::Kill);
    assert!(test.wait().await.was_killed());
    gone(pid).await;
}

#[tokio::test]
#[ignore = "only as the child of another test"]
async fn waits_to_be_killed_with_a_process_of_its_own() {
    if std::env::args().any(|arg| arg == "--exact") {
        let running = ready("true").await;
        println!("grandchild {}", running.id());
        running.wait().await;
    }
}

#[tokio::test]
async fn a_wait_that_outlasts_the_patience_kills() {
    let patience = Duration::from_millis(300);
    let exit = shell(NEVER_ENDING).patience(patience).start().await.unwrap().wait().await;
    assert!(exit.was_killed() && exit.took >= patience, "{exit}");
}

#[tokio::test]
async fn a_process_that_has_ended_takes_no_signal() {
    let running = shell("exit 0").start().await.unwrap();
    while !running.has_ended() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(!running.signal(Signal::Term));
    assert!(!exists(running.id()));
}

#[tokio::test]
async fn the_environment_and_the_directory_are_as_given() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo \"$WINDDOWN_TEST_A\"; echo \"${HOME-none}\"; pwd -P; cat";
    let process = shell(script).env("WINDDOWN_TEST_A", "a b").env_remove("HOME").current_dir(dir.path());
    let exit = process.start().await.unwrap().wait().await;
    let dir = dir.path().canonicalize().unwrap();
    assert_eq!(exit.stdout, format!("a b\nnone\n{}\n", dir.display()));
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_stalled_standard_error_holds_whoever_writes_to_it() {
    let script = "trap 'echo before; echo to nobody >&2; echo after' TERM";
    let process = shell(format!("{script}; echo ready; {NEVER_ENDING}")).ready_line("ready");

    let running = process.clone().stalled_stderr().start().await.unwrap();
    running.fill_stderr().unwrap();
    let exit = running.kubelet(Duration::from_millis(500)).await;
    assert_eq!((exit.was_killed(), exit.stdout.as_str()), (true, "ready\nbefore\n"));

    let running = process.start().await.unwrap();
    assert!(running.fill_stderr().is_err());
    let exit = running.kubelet(Duration::from_millis(500)).await;
    assert_eq!(exit.stdout, "ready\nbefore\nafter\n");
}

#[tokio::test]
#[should_panic(expected = "should have left with code 0, but it left with code 3")]
async fn a_wrong_code_fails_the_test() {
    shell("exit 3").start().await.unwrap().wait().await.assert_code(0);
}

#[tokio::test]
#[should_panic(expected = "should have ended within 100ms, but it left with code 0")]
async fn a_late_end_fails_the_test() {
    let running = ready("trap 'sleep 0.2; exit 0' TERM").await;
    running.kubelet(SOON).await.assert_within(Duration::from_millis(100));
}

/// A grandchild is reaped by whoever adopts it, a moment after it was killed.
async fn gone(pid: u32) {
    let ended = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.is_empty() || stat.contains(") Z ")
    };
    let began = Instant::now();
    while !ended() {
        assert!(began.elapsed() < SOON, "{pid} is still there");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
