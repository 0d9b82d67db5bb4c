//! What a client sends after its head, while the server stops and when it has to go.
#![cfg(feature = "axum")]

use std::time::{Duration, Instant};

use winddown::{Phase, Report};

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use rig::{Client, MS, Rig, SOON, budget, soon};

fn cuts(report: &Report) -> Vec<(String, usize)> {
    report.gate("http").unwrap().cut.clone()
}

fn half_post(path: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nab")
}

#[tokio::test]
async fn a_read_of_a_half_body_sees_the_end_when_the_drain_is_over_and_its_handler_answers() {
    for drain in [200 * MS, 900 * MS] {
        let rig = Rig::new(budget().drain(drain)).await;
        let mut chunked = rig.connect().await;
        let mut known = rig.connect().await;
        known.send(&half_post("/read")).await;
        chunked
            .send("POST /read HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n4\r\nab")
            .await;
        let stopped = Instant::now();
        rig.stop();
        for client in [&mut known, &mut chunked] {
            let answer = client.answer().await;
            let cancelled = "stopped before it was done: the drain is over";
            assert_eq!((answer.status, answer.text(), answer.says_close()), (507, cancelled, true));
            assert!(stopped.elapsed() >= drain, "{:?}", stopped.elapsed());
            assert!(client.ends_cleanly().await);
        }
        let report = rig.report().await;
        assert!(cuts(&report).is_empty(), "answered is not cut: {report}");
    }
}

#[tokio::test]
async fn a_handler_that_does_not_read_is_cut_and_counted_by_its_state() {
    let rig = Rig::with(budget().drain(200 * MS), |server| server.cancel_grace(300 * MS)).await;
    let mut deaf = rig.connect().await;
    deaf.send(&half_post("/slow")).await;
    rig.scene.entered().await;
    let stopped = Instant::now();
    rig.stop();
    assert!(deaf.try_answer().await.is_none());
    assert!(stopped.elapsed() >= 500 * MS, "it has the grace, too: {:?}", stopped.elapsed());
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("request".to_owned(), 1)], "{report}");
}

#[tokio::test]
async fn a_handler_with_a_whole_body_has_the_cancel_grace_to_answer() {
    let rig = Rig::with(budget().drain(100 * MS), |server| server.cancel_grace(SOON)).await;
    let mut client = rig.connect().await;
    client.send(&half_post("/slow")).await;
    client.send("cd").await;
    rig.scene.entered().await;
    rig.stop();
    soon(rig.handle.reached(Phase::Requeue)).await;
    rig.scene.release.add_permits(1);
    assert_eq!(client.answer().await.text(), "slow");
    let report = rig.report().await;
    assert!(cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn a_client_that_waits_to_be_told_to_continue_is_told_so_during_the_stop() {
    let rig = Rig::new(budget()).await;
    let (mut with_it, mut after_it) = (rig.connect().await, rig.connect().await);
    assert_eq!(after_it.ask("/").await.status, 200);
    let head = "POST /count HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
    with_it.send_at_once(head);
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    after_it.send_at_once(head);
    for client in [&mut with_it, &mut after_it] {
        assert!(client.head().await.unwrap().starts_with("HTTP/1.1 100 "));
        client.send("abcd").await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.text(), answer.says_close()), (200, "4", true));
        assert!(client.ends_cleanly().await);
    }
    let report = rig.report().await;
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn a_body_that_its_handler_did_not_read_is_not_taken_for_a_head() {
    let rig = Rig::with(budget(), |server| server.head_limit(200 * MS)).await;
    let mut client = rig.connect().await;
    client.send("POST /refuse HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\n").await;
    client.send("abcd").await;
    assert_eq!(client.answer().await.status, 413);
    tokio::time::sleep(400 * MS).await;
    // Kept or closed, as the pieces came: never told that it is late with something.
    let _ = client.try_send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").await;
    if let Some(next) = client.try_answer().await {
        assert_eq!(next.status, 200);
    }
    rig.stop();
    rig.report().await;
}
