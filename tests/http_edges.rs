//! What clients rarely do, at and around a stop.
#![cfg(feature = "axum")]

use std::time::{Duration, Instant};

use winddown::{Phase, Report};

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use rig::{MS, Rig, budget, get_request, soon};

fn cuts(report: &Report) -> Vec<(String, usize)> {
    report.gate("http").unwrap().cut.clone()
}

#[tokio::test]
async fn a_request_that_is_there_when_an_idle_connection_closes_is_answered() {
    const GRACE: Duration = Duration::from_millis(100);
    let rig = Rig::with(budget(), |server| server.idle_grace(GRACE)).await;
    let stopped = Instant::now();
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut client = rig.connect().await;
        assert_eq!(client.ask("/").await.status, 200);
        senders.spawn(async move {
            tokio::time::sleep_until((stopped + GRACE - 20 * MS).into()).await;
            client.send_at_once(&get_request("/"));
            client
        });
    }
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    tokio::time::sleep(20 * MS).await;
    // Whatever is due meanwhile becomes so in one turn of the runtime: the requests are sent when it has heard of none, and
    // of all the graces that are over.
    std::thread::sleep(2 * GRACE);
    for mut client in senders.join_all().await {
        assert_eq!(client.answer().await.status, 200);
    }
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}
