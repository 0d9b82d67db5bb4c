//! What clients rarely do, at and around a stop.
#![cfg(feature = "axum")]

use std::time::{Duration, Instant};

use winddown::{Phase, Report};

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/h2.rs"]
mod h2;
#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use rig::{BIG, MS, Rig, budget, get_request, soon};

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

#[tokio::test]
async fn an_http2_answer_that_is_all_handed_over_is_in_flight_until_a_slow_reader_has_it() {
    const REST: usize = 500_000;
    const GRACE: Duration = Duration::from_secs(1);
    let rig = Rig::with(budget(), |server| server.head_grace(GRACE)).await;
    // All of it may come at once, as far as HTTP/2 says.
    let window = u32::try_from(2 * BIG).unwrap();
    let slow = rig.connect_with_small_buffer().await.into_stream();
    let mut peer = h2::Peer::over(slow, &[(h2::INITIAL_WINDOW_SIZE, window)]).await;
    peer.send(h2::WINDOW_UPDATE, 0, 0, &window.to_be_bytes()).await;
    peer.get(1, "/big").await;
    let (mut read, mut ended, mut stopped) = (0, false, false);
    while let Some(frame) = peer.next().await {
        match frame.kind {
            h2::DATA => read += frame.payload.len(),
            h2::PING if frame.flags == 0 => peer.send(h2::PING, h2::ACK, 0, &frame.payload).await,
            _ => {}
        }
        ended |= frame.kind == h2::DATA && frame.flags & h2::END_STREAM != 0;
        if read >= BIG - REST && !stopped {
            stopped = true;
            rig.stop();
            // The grace of a silent peer, and far less than that of one that reads nothing.
            tokio::time::sleep(2 * GRACE).await;
        }
    }
    assert_eq!((read, ended), (BIG, true));
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn a_partial_head_that_comes_after_another_request_is_answered_when_it_is_completed() {
    const GET: &str = "GET / HTTP/1.1\r\nhost: test\r\n\r\n";
    const UNREAD: &str = "POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 3\r\n\r\nabc";
    let (begun, rest) = GET.split_at(8);
    for (first, together) in [(GET, true), (UNREAD, false)] {
        for answered in [true, false] {
            let rig = Rig::new(budget()).await;
            let mut client = rig.connect().await;
            client.send(&if together { format!("{first}{begun}") } else { first.to_owned() }).await;
            assert!([200, 405].contains(&client.answer().await.status));
            if !together {
                client.send(begun).await;
            }
            rig.stop();
            soon(rig.handle.reached(Phase::Drain)).await;
            // Longer than the grace of an idle connection, and shorter than that of a head.
            tokio::time::sleep(400 * MS).await;
            if answered {
                client.send(rest).await;
            }
            let expected = if answered { 200 } else { 408 };
            assert_eq!(client.answer().await.status, expected, "{first:?}");
            let report = rig.report().await;
            assert_eq!(cuts(&report).is_empty(), answered, "{report}");
        }
    }
}
