//! The examples of servers that are not ours: real processes, real requests, a real SIGTERM.
#![cfg(all(unix, feature = "axum", feature = "tower", feature = "test-util"))]

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use winddown::testing::process::{Exit, Process, Running};

#[path = "support/within.rs"]
mod within;

/// Far more than any of it takes on a slow machine.
const SOON: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(20);
/// Far less than the drain that the grace period allows, and than actix's own 30 s.
const AT_ONCE: Duration = Duration::from_secs(9);

async fn start(example: &str) -> (Running, SocketAddr) {
    let running = Process::example(example)
        .arg("127.0.0.1:0")
        .env("WINDDOWN_GRACE", "20s")
        .ready_line("ready on")
        .start()
        .await
        .unwrap();
    let stdout = running.stdout();
    let ready = stdout.lines().find_map(|line| line.strip_prefix("ready on ")).unwrap();
    let addr = ready.trim().parse().unwrap();
    (running, addr)
}

/// Stops it while a request is in flight, and returns its answer.
async fn stop_while_busy(example: &str) -> (String, Exit) {
    let (running, addr) = start(example).await;
    let mut client = TcpStream::connect(addr).await.unwrap();
    client.write_all(b"GET /slow HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    running.wait_for_line("slow: begins").await.unwrap();
    let answer = async {
        let mut answer = String::new();
        // To the end of the connection, which the stop brings about.
        soon(client.read_to_string(&mut answer)).await.unwrap();
        answer
    };
    tokio::join!(answer, running.kubelet(GRACE))
}

fn check(answer: &str, exit: &Exit) {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("done\n"), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
    exit.assert_code(0).assert_within(AT_ONCE);
}

async fn soon<F: Future>(future: F) -> F::Output {
    within::within(SOON, future).await
}

#[tokio::test]
async fn plain_axum_serve_with_the_layer_finishes_a_request_and_what_follows_from_it() {
    let (answer, exit) = stop_while_busy("axum_serve").await;
    check(&answer, &exit);
    exit.assert_line("slow: written to the log");
}

#[tokio::test]
async fn hyper_by_hand_finishes_a_request() {
    let (answer, exit) = stop_while_busy("hyper").await;
    check(&answer, &exit);
}

#[tokio::test]
async fn actix_web_finishes_a_request_within_the_drain_and_leaves_the_signals_to_us() {
    let (answer, exit) = stop_while_busy("actix_web").await;
    check(&answer, &exit);
}

#[tokio::test]
async fn tonic_tells_watchers_of_its_health_and_ends_their_streams() {
    let (running, addr) = start("tonic").await;
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).unwrap();
    let mut client = HealthClient::new(soon(endpoint.connect()).await.unwrap());
    let mut watching = soon(client.watch(HealthCheckRequest::default())).await.unwrap().into_inner();
    assert_eq!(soon(watching.message()).await.unwrap().unwrap().status, 1, "serving");
    let told = async {
        let told = soon(watching.message()).await.unwrap().map(|answer| answer.status);
        (told, soon(watching.message()).await.unwrap().is_none())
    };
    let ((told, ended), exit) = tokio::join!(told, running.kubelet(GRACE));
    assert_eq!((told, ended), (Some(2), true), "not serving, and an end that is no error");
    exit.assert_code(0).assert_within(AT_ONCE);
}

#[tokio::test]
async fn a_process_that_stood_still_is_not_taken_for_one_that_hangs() {
    let limit = Duration::from_millis(300);
    let other = tokio::spawn(async {
        std::thread::sleep(Duration::from_millis(900));
        tokio::time::sleep(Duration::from_millis(1)).await;
        tokio::task::yield_now().await;
    });
    within::within(limit, other).await.unwrap();
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "something hangs")]
async fn what_hangs_is_told_when_its_time_is_over() {
    within::within(SOON, std::future::pending::<()>()).await;
}
