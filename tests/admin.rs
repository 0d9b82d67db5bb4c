//! The admin listener answers from the first moment to the last, and holds nothing up.
#![cfg(feature = "axum")]

use std::time::{Duration, Instant};

use winddown::{Budget, Phase, ShutdownCoordinator, server, signal};

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use rig::{Answer, Client, MS, soon};

async fn ask(addr: std::net::SocketAddr, method: &str, path: &str) -> Answer {
    let mut client = Client::to(addr).await;
    client.send(&format!("{method} {path} HTTP/1.1\r\nhost: test\r\n\r\n")).await;
    client.answer().await
}

#[tokio::test]
async fn it_answers_through_every_phase_and_closes_last() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let budget = Budget::given(Duration::from_secs(10), "test").unready(50 * MS).drain(1500 * MS);
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    // Registered first, and by its rank the last to close all the same.
    shutdown.add(server::admin("admin", listener));
    let gate = shutdown.gate("work");
    let stuck = gate.enter().unwrap();
    for phase in [Phase::Unready, Phase::StopIntake, Phase::Drain, Phase::Requeue, Phase::Close] {
        shutdown.on(phase, "asks", async move |_| {
            let ready = ask(addr, "GET", "/readyz").await;
            assert_eq!((ready.status, ready.text()), (503, "not ready: stopping\n"), "{phase}");
            assert_eq!(ask(addr, "GET", "/livez").await.status, 200, "{phase}");
            let status = ask(addr, "GET", "/status").await;
            assert!(
                status.text().contains("not ready") && status.text().contains("asks"),
                "{phase}: {}",
                status.text()
            );
        });
    }
    let handle = shutdown.handle();
    let run = tokio::spawn(shutdown.run());
    assert_eq!(ask(addr, "GET", "/readyz").await.text(), "ready\n");
    let mut idle = Client::to(addr).await;
    assert_eq!(idle.ask("/livez").await.status, 200);
    let mut half = Client::to(addr).await;
    half.send("GET /liv").await;
    let status = ask(addr, "GET", "/status").await;
    assert!(status.text().starts_with("ready\n") && status.text().contains("work"), "{}", status.text());

    handle.trigger("test");
    soon(handle.reached(Phase::Drain)).await;
    assert!(ask(addr, "GET", "/status").await.text().contains("work"));
    drop(stuck);
    let freed = Instant::now();
    let report = soon(run).await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert!(freed.elapsed() < Duration::from_secs(1), "nobody waits for its clients: {report}");
    assert!(report.gates().iter().all(|gate| gate.name != "admin"), "{report}");
    assert!(tokio::net::TcpStream::connect(addr).await.is_err());
}

#[tokio::test]
async fn it_pauses_and_resumes_what_pulls_until_the_stop_begins() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let budget = Budget::given(Duration::from_secs(10), "test").unready(Duration::ZERO);
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    shutdown.add(server::admin("admin", listener));
    let pulled = shutdown.gate("pulled").pulled();
    let holds = shutdown.gate("requests");
    let handle = shutdown.handle();
    let run = tokio::spawn(shutdown.run());
    assert_eq!(ask(addr, "POST", "/pause").await.text(), "paused\n");
    assert!(pulled.enter().unwrap_err().is_paused());
    assert!(ask(addr, "GET", "/status").await.text().starts_with("ready\npaused\n"));
    assert_eq!(ask(addr, "POST", "/resume").await.text(), "resumed\n");
    assert!(pulled.enter().is_ok());
    for (method, path, status, allows) in [
        ("GET", "/pause", 405, "allow: post"),
        ("POST", "/status", 405, "allow: get, head"),
        ("DELETE", "/livez", 405, "allow: get, head"),
        ("GET", "/orders", 404, ""),
    ] {
        let answer = ask(addr, method, path).await;
        assert!(answer.status == status && answer.head.contains(allows), "{method} {path}: {}", answer.head);
    }
    let held = holds.enter().unwrap();
    handle.trigger("test");
    soon(handle.reached(Phase::Drain)).await;
    assert_eq!(ask(addr, "POST", "/pause").await.status, 409);
    drop(held);
    assert!(soon(run).await.unwrap().is_clean());
}
