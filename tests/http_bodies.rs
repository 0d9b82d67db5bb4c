//! What a client sends after its head, while the server stops and when it has to go.
#![cfg(feature = "axum")]

use std::time::{Duration, Instant};

use winddown::Phase;

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/h2.rs"]
mod h2;
#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use rig::{BIG, Client, MS, Rig, SOON, budget, cuts, drained_in, get_request, read_slowly, soon};

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
        chunked.send("POST /read HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n4\r\nab").await;
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
async fn a_handler_that_does_not_read_is_answered_for_and_counted_by_its_state() {
    let rig = Rig::with(budget().drain(200 * MS), |server| server.cancel_grace(300 * MS)).await;
    let mut deaf = rig.connect().await;
    deaf.send(&half_post("/slow")).await;
    rig.scene.entered().await;
    let stopped = Instant::now();
    rig.stop();
    assert_eq!(deaf.answer().await.status, 503);
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
    drop(client);
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

/// Far more than all buffers in between hold.
const UPLOAD: usize = 5_000_000;

/// Sends what nobody reads, to its end, and then reads the answer.
async fn upload(client: &mut Client, start: &str, before_the_rest: impl AsyncFnOnce()) -> rig::Answer {
    client.send(start).await;
    client.send(&"a".repeat(1000)).await;
    before_the_rest().await;
    for _ in 0..UPLOAD / 10_000 {
        let sent = client.try_send(&"a".repeat(10_000)).await;
        sent.unwrap_or_else(|error| panic!("{start}: the client is interrupted by a reset: {error}"));
    }
    let answer = client.answer().await;
    assert!(client.ends_cleanly().await);
    answer
}

fn big_post() -> String {
    format!("POST /refuse HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", UPLOAD + 1000)
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_is_read_whole_by_a_client_that_still_sends() {
    let rig = Rig::with(budget(), |server| server.head_limit(300 * MS)).await;
    let malformed = "BAD REQUEST\r\n\r\n".to_owned();
    let endless = "GET / HTTP/1.1\r\nhost: test\r\nendless: ".to_owned();
    for (start, status) in [(big_post(), 413), (malformed, 400), (endless, 431)] {
        let mut client = rig.connect().await;
        let answer = upload(&mut client, &start, async || tokio::time::sleep(50 * MS).await).await;
        assert_eq!(answer.status, status);
    }
    // Too late with the head, and not ended yet.
    let mut late = rig.connect().await;
    let answer = upload(&mut late, "GET / HTTP/1.1\r\nlate: ", async || {
        tokio::time::sleep(600 * MS).await;
    })
    .await;
    assert_eq!(answer.status, 408);
    rig.stop();
    assert!(rig.report().await.is_clean());
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_is_read_whole_also_during_the_stop() {
    let rig = Rig::new(budget()).await;
    let (mut posts, mut gets) = (rig.connect().await, rig.connect().await);
    assert_eq!(gets.ask("/").await.status, 200);
    let stop = async || {
        rig.stop();
        soon(rig.handle.reached(Phase::Drain)).await;
    };
    let answer = upload(&mut posts, &big_post(), stop).await;
    assert_eq!((answer.status, answer.text()), (413, "too large"));
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn what_is_pipelined_after_the_last_answer_does_not_destroy_it() {
    let rig = Rig::new(budget().unready(SOON / 4)).await;
    let mut client = rig.connect().await;
    rig.stop();
    // More than is read at once.
    let all = get_request("/").repeat(20_000);
    client.try_send(&all).await.expect("the client is not interrupted by a reset");
    let first = client.answer().await;
    assert_eq!((first.status, first.says_close()), (200, true));
    assert!(client.ends_cleanly().await, "and nothing after it");
    assert!(rig.report().await.is_clean());
}

#[tokio::test]
async fn a_connection_with_nothing_unread_is_not_held_until_its_client_closes_it() {
    let rig = Rig::with(budget(), |server| server.idle_grace(Duration::ZERO)).await;
    let (mut idle, mut busy, mut h2) = (rig.connect().await, rig.connect().await, rig.connect().await);
    assert_eq!(idle.ask("/").await.status, 200);
    h2.send(h2::START).await;
    busy.send("POST /count HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nab").await;
    drop(h2);
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    busy.send("cd").await;
    assert_eq!(busy.answer().await.text(), "4");
    let report = rig.report().await;
    assert!(drained_in(&report) < 900 * MS, "{report}");
}

#[tokio::test]
async fn a_body_that_only_the_close_ends_does_not_look_whole_when_it_is_cut() {
    let rig = Rig::new(budget().drain(200 * MS)).await;
    let (mut cut, mut whole) = (rig.connect().await, rig.connect().await);
    cut.send("GET /deaf HTTP/1.0\r\n\r\n").await;
    whole.send("GET /events HTTP/1.0\r\n\r\n").await;
    for client in [&mut cut, &mut whole] {
        assert!(!client.head().await.unwrap().to_ascii_lowercase().contains("content-length"));
    }
    rig.stop();
    assert_eq!(whole.rest().await.unwrap(), b"data: 1\n\n");
    assert_eq!(cut.rest().await.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("body".to_owned(), 1)], "{report}");
}

#[tokio::test]
async fn a_client_that_has_no_more_to_send_is_answered() {
    let rig = Rig::with(budget(), |server| server.hang_up(SOON)).await;
    let (mut get, mut post, mut early) = (rig.connect().await, rig.connect().await, rig.connect().await);
    get.send(&get_request("/slow")).await;
    early.send(&get_request("/")).await;
    post.send(&half_post("/count")).await;
    post.send("cd").await;
    for client in [&mut get, &mut post, &mut early] {
        client.half_close().await;
    }
    rig.scene.entered().await;
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    rig.scene.release.add_permits(1);
    for (client, text) in [(&mut get, "slow"), (&mut post, "4"), (&mut early, "ok")] {
        assert_eq!(client.answer().await.text(), text);
        assert!(client.ends_cleanly().await);
    }
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn a_client_that_has_no_more_to_send_gets_its_answer_for_as_long_as_it_reads() {
    let rig = Rig::with(budget(), |server| server.hang_up(50 * MS)).await;
    let mut client = rig.connect_with_small_buffer().await;
    client.send(&get_request("/big")).await;
    client.half_close().await;
    client.head().await.unwrap();
    let stream = client.into_stream().into_std().unwrap();
    let read = tokio::task::spawn_blocking(move || read_slowly(stream, 50_000, 2 * MS));
    assert_eq!(soon(read).await.unwrap(), BIG);
    rig.stop();
    assert!(rig.report().await.is_clean());
}

#[tokio::test]
async fn a_client_that_hangs_up_is_taken_for_one_that_waits_until_its_limit() {
    for limit in [100 * MS, 1200 * MS] {
        let rig = Rig::with(budget(), |server| server.hang_up(limit)).await;
        let mut client = rig.connect().await;
        client.send(&get_request("/slow")).await;
        rig.scene.entered().await;
        let left = Instant::now();
        drop(client);
        soon(rig.scene.dropped.acquire()).await.unwrap().forget();
        assert!((limit..limit + Duration::from_secs(1)).contains(&left.elapsed()), "{:?}", left.elapsed());
        rig.stop();
        assert!(rig.report().await.is_clean());
    }
}

#[tokio::test]
async fn a_request_is_told_of_its_peer_and_of_the_stop() {
    let rig = Rig::new(budget()).await;
    let mut client = rig.connect().await;
    let peer = format!("{:?}", Some(client.addr()));
    assert_eq!(client.ask("/peer").await.text(), format!("{peer}, stopping: false"));
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    assert_eq!(client.ask("/peer").await.text(), format!("{peer}, stopping: true"));
    assert!(rig.report().await.is_clean());
}

#[tokio::test]
async fn a_connection_whose_request_is_read_after_its_answer_is_busy_until_then_and_idle_afterwards() {
    let rig = Rig::with(budget(), |server| server.idle_grace(200 * MS).head_limit(100 * MS)).await;
    let mut client = rig.connect().await;
    client.send(&half_post("/later")).await;
    assert_eq!(client.answer().await.text(), "later");
    // Longer than a head may take: these bytes are none.
    tokio::time::sleep(300 * MS).await;
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    tokio::time::sleep(500 * MS).await;
    client.send("cd").await;
    assert!(client.ends_cleanly().await);
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}
