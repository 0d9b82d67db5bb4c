//! Programs that have servers of their own: started, asked, and stopped with a real SIGTERM.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use winddown::testing::process::{Exit, Process, Running};

use within::within;

#[path = "../support/within.rs"]
pub mod within;

/// Far more than any of it takes on a slow machine.
pub const SOON: Duration = Duration::from_secs(20);
pub const GRACE: Duration = Duration::from_secs(20);
/// Far less than the drain that the grace period allows, and than actix's own 30 s.
pub const AT_ONCE: Duration = Duration::from_secs(9);

pub async fn start(example: &str) -> (Running, SocketAddr) {
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
pub async fn stop_while_busy(example: &str) -> (String, Exit) {
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

pub fn check(answer: &str, exit: &Exit) {
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("done\n"), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
    exit.assert_code(0).assert_within(AT_ONCE);
}

pub async fn soon<F: Future>(future: F) -> F::Output {
    within(SOON, future).await
}
