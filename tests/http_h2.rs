//! HTTP/2 while the server stops, told in frames.
#![cfg(feature = "axum")]

use std::time::{Duration, Instant};

use winddown::server::Server;
use winddown::{Outcome, Phase};

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/h2.rs"]
mod h2;
#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use h2::{ANY, DATA, END_STREAM, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, PING, Peer, WINDOW_UPDATE};
use rig::{BIG, MS, Rig, SOON, budget, cuts, drained_in, soon};

const REFUSED_STREAM: u32 = 7;
const CANCEL: u32 = 8;

#[tokio::test]
async fn i04_an_http2_peer_is_told_to_go_away_and_finishes_its_stream() {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Empty};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let rig = Rig::new(budget()).await;
    let io = TokioIo::new(rig.connect().await.into_stream());
    let (mut send, connection) =
        hyper::client::conn::http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    let request =
        |path: &str| http::Request::get(format!("http://test{path}")).body(Empty::<Bytes>::new()).unwrap();
    let running = tokio::spawn(send.send_request(request("/slow")));
    rig.scene.entered().await;
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    // Refused once the GOAWAY has come; until then served, since it was sent in good faith.
    let refused = loop {
        match soon(send.send_request(request("/"))).await {
            Ok(answer) => assert_eq!(answer.status(), 200),
            Err(error) => break error,
        }
    };
    assert!(
        refused.is_canceled() || refused.is_closed() || refused.to_string().contains("http2"),
        "{refused:?}"
    );
    rig.scene.release.add_permits(1);
    let answer = soon(running).await.unwrap().unwrap();
    assert!(!answer.headers().contains_key("connection"), "HTTP/2 knows no such header");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "slow");
    soon(connection).await.unwrap().unwrap();
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn an_http2_peer_that_is_silent_after_the_goaway_is_cut() {
    let rig = Rig::with(budget(), |server| server.head_grace(150 * MS)).await;
    let mut silent = rig.connect().await;
    // Preface and empty SETTINGS; it never answers the PING that goes with the GOAWAY.
    silent.send(h2::START).await;
    assert!(silent.read(&mut [0; 9]).await > 0);
    rig.stop();
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("idle".to_owned(), 1)], "{report}");
    assert!(drained_in(&report) < SOON / 4, "{report}");
}

#[tokio::test]
async fn i04_a_stream_after_the_goaway_is_refused_so_that_it_can_be_sent_again_elsewhere() {
    let rig = Rig::new(budget()).await;
    let mut peer = Peer::connect(rig.addr, &[]).await;
    peer.get(1, "/slow").await;
    rig.scene.entered().await;
    rig.stop();
    let first = peer.expect(|frame| frame.kind == GOAWAY).await;
    assert_eq!(first.number(), ANY, "nobody can know yet what it was sent after");
    // Sent in good faith: served.
    peer.get(3, "/").await;
    assert_eq!(peer.body(3).await.unwrap(), b"ok");
    peer.acknowledge().await;
    let last = peer.goes_away_after().await;
    assert_eq!(last, 3);
    // Above the last one, so that a client knows that nobody has seen it; it may be told so again.
    peer.get(5, "/").await;
    rig.scene.release.add_permits(1);
    assert_eq!(peer.body(1).await.unwrap(), b"slow");
    while let Some(frame) = peer.next().await {
        match frame.kind {
            h2::RST_STREAM => assert_eq!((frame.stream, frame.number()), (5, REFUSED_STREAM)),
            kind => assert!(![DATA, HEADERS].contains(&kind) && frame.stream != 5, "{frame:?}"),
        }
    }
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn a_peer_that_is_silent_to_the_ping_has_its_stream_finished_and_is_cut() {
    for grace in [150 * MS, 1200 * MS] {
        let rig = Rig::with(budget(), |server| server.head_grace(grace)).await;
        let mut silent = Peer::connect(rig.addr, &[]).await;
        let mut unsettled = rig.connect().await;
        unsettled.send(h2::PREFACE).await;
        silent.get(1, "/slow").await;
        rig.scene.entered().await;
        let mut other = rig.connect().await;
        other.send_at_once(&rig::get_request("/"));
        rig.stop();
        assert_eq!(other.answer().await.status, 200);
        tokio::time::sleep(2 * grace).await;
        rig.scene.release.add_permits(1);
        let released = Instant::now();
        assert_eq!(silent.body(1).await.unwrap(), b"slow", "a running stream waits for no PING");
        while silent.next().await.is_some() {}
        assert!((grace..grace + SOON / 4).contains(&released.elapsed()), "{:?}", released.elapsed());
        let report = rig.report().await;
        assert_eq!(cuts(&report), [("idle".to_owned(), 2)], "{report}");
        assert_eq!(report.phase(Phase::Drain).unwrap().outcome, Outcome::Finished);
    }
}

#[tokio::test]
async fn an_upload_that_is_half_there_at_the_deadline_is_answered() {
    let rig = Rig::new(budget().drain(300 * MS)).await;
    let mut peer = Peer::connect(rig.addr, &[]).await;
    for stream in [1, 3] {
        peer.post(stream, "/read").await;
        peer.send(DATA, 0, stream, b"ab").await;
    }
    rig.stop();
    peer.acknowledge().await;
    peer.goes_away_after().await;
    peer.send(DATA, END_STREAM, 3, b"cd").await;
    assert_eq!(peer.body(3).await.unwrap(), b"4");
    assert_eq!(peer.body(1).await.unwrap(), b"stopped before it was done: the drain is over");
    while peer.next().await.is_some() {}
    let report = rig.report().await;
    assert!(cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn a_stream_that_is_cut_is_answered_for_or_reset_and_the_connection_is_not_broken() {
    let words = b"the server stopped before the answer was complete";
    for (path, ends) in [("/slow", Ok(words.to_vec())), ("/deaf", Err(CANCEL))] {
        let rig = Rig::new(budget().drain(200 * MS)).await;
        let mut peer = Peer::connect(rig.addr, &[]).await;
        peer.get(1, path).await;
        rig.scene.entered().await;
        rig.stop();
        peer.acknowledge().await;
        peer.goes_away_after().await;
        assert_eq!(peer.body(1).await, ends);
        while peer.next().await.is_some() {}
        let report = rig.report().await;
        let state = if path == "/slow" { "request" } else { "body" };
        assert_eq!(cuts(&report), [(state.to_owned(), 1)], "{report}");
    }
}

#[tokio::test]
async fn an_answer_is_in_flight_until_a_slow_reader_has_let_its_last_byte_come() {
    let rig = Rig::with(budget(), |server| server.head_grace(200 * MS)).await;
    let mut peer = Peer::connect(rig.addr, &[(INITIAL_WINDOW_SIZE, 1000)]).await;
    peer.get(1, "/big").await;
    let first = peer.expect(|frame| frame.kind == DATA).await;
    rig.stop();
    peer.acknowledge().await;
    peer.goes_away_after().await;
    // Longer than a silent peer is waited for.
    tokio::time::sleep(Duration::from_secs(1)).await;
    for stream in [0, 1] {
        peer.send(WINDOW_UPDATE, 0, stream, &u32::try_from(BIG).unwrap().to_be_bytes()).await;
    }
    assert_eq!(first.payload.len() + peer.body(1).await.unwrap().len(), BIG);
    while peer.next().await.is_some() {}
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn a_peer_that_does_not_let_its_answer_come_is_cut_and_counted_at_the_deadline() {
    let rig = Rig::new(budget().drain(400 * MS)).await;
    let mut peer = Peer::connect(rig.addr, &[(INITIAL_WINDOW_SIZE, 1000)]).await;
    peer.get(1, "/big").await;
    peer.expect(|frame| frame.kind == DATA).await;
    rig.stop();
    peer.acknowledge().await;
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("body".to_owned(), 1)], "{report}");
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_while_serving_is_cut_by_that_limit() {
    let rig = Rig::with(budget(), |server| server.ping(Duration::from_secs(1))).await;
    let mut peer = Peer::connect(rig.addr, &[]).await;
    peer.get(1, "/deaf").await;
    rig.scene.entered().await;
    peer.expect(|frame| frame.kind == PING).await;
    let asked = Instant::now();
    while peer.next().await.is_some() {}
    assert!(asked.elapsed() >= 500 * MS, "{:?}", asked.elapsed());
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    assert!(rig.report().await.is_clean());
}

#[tokio::test]
async fn a_tunnel_is_in_flight_until_it_is_closed_and_cut_and_counted_at_the_deadline() {
    let rig = Rig::with(budget().drain(1500 * MS), |server| server.head_grace(50 * MS)).await;
    let (mut leaves, mut stays) = (Peer::connect(rig.addr, &[]).await, Peer::connect(rig.addr, &[]).await);
    for peer in [&mut leaves, &mut stays] {
        peer.connect_through(1).await;
        rig.scene.entered().await;
    }
    rig.stop();
    for peer in [&mut leaves, &mut stays] {
        peer.acknowledge().await;
        assert_eq!(peer.goes_away_after().await, 1);
    }
    // Longer than a peer that has nothing in progress is waited for.
    tokio::time::sleep(500 * MS).await;
    for peer in [&mut leaves, &mut stays] {
        peer.send(DATA, 0, 1, b"hello").await;
        assert_eq!(peer.expect(|frame| frame.kind == DATA).await.payload, b"hello");
    }
    leaves.send(DATA, END_STREAM, 1, &[]).await;
    while leaves.next().await.is_some() {}
    let scene = std::sync::Arc::clone(&rig.scene);
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("upgraded".to_owned(), 1)], "{report}");
    while stays.next().await.is_some() {}
    soon(scene.dropped.acquire_many(2)).await.unwrap().forget();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_stream_that_the_last_goaway_lets_in_is_answered_whole() {
    const PEERS: usize = 10;
    for round in 0..5 {
        let rig = Rig::new(budget()).await;
        let mut peers = tokio::task::JoinSet::new();
        for _ in 0..PEERS {
            peers.spawn(ask_for_ever(Peer::connect(rig.addr, &[]).await));
        }
        tokio::time::sleep((50 + 7 * round) * MS).await;
        rig.stop();
        for answered in soon(peers.join_all()).await {
            assert!(answered > 0);
        }
        let report = rig.report().await;
        assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
    }
}

/// Asks, some requests at a time, until the end, and counts the answers.
async fn ask_for_ever(mut peer: Peer) -> usize {
    let (mut next, mut last, mut open, mut answered) = (1, ANY, Vec::new(), 0);
    loop {
        while open.len() < 4 && last == ANY {
            peer.get(next, "/").await;
            open.push(next);
            next += 2;
        }
        let Some(frame) = peer.next().await else { break };
        match frame.kind {
            PING if frame.flags == 0 => peer.send(PING, h2::ACK, 0, &frame.payload).await,
            GOAWAY => {
                last = frame.number();
                open.retain(|stream| *stream <= last);
            }
            h2::RST_STREAM => assert!(frame.stream > last, "{frame:?}"),
            DATA if frame.flags & END_STREAM != 0 => {
                open.retain(|stream| *stream != frame.stream);
                answered += 1;
            }
            _ => {}
        }
    }
    assert!(last != ANY && open.is_empty(), "{last} let in, and these are not answered: {open:?}");
    answered
}

#[tokio::test]
async fn a_peer_whose_stream_runs_and_that_answers_no_ping_is_cut_and_counted_and_one_that_leaves_is_not() {
    let rig = Rig::with(budget(), |server| server.ping(Duration::from_secs(1))).await;
    let (mut silent, mut leaves) = (Peer::connect(rig.addr, &[]).await, Peer::connect(rig.addr, &[]).await);
    for peer in [&mut silent, &mut leaves] {
        peer.get(1, "/slow").await;
        rig.scene.entered().await;
    }
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    drop(leaves);
    // It reads, and says nothing any more.
    while silent.next().await.is_some() {}
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("request".to_owned(), 1)], "{report}");
    assert_eq!(report.phase(Phase::Drain).unwrap().outcome, Outcome::Finished, "{report}");
}

#[tokio::test]
async fn an_idle_peer_that_answers_no_ping_is_counted_as_idle() {
    let options = |server: Server<_>| server.ping(Duration::from_secs(1)).head_grace(SOON);
    let rig = Rig::with(budget(), options).await;
    let (mut fresh, mut used) = (Peer::connect(rig.addr, &[]).await, Peer::connect(rig.addr, &[]).await);
    used.get(1, "/").await;
    assert_eq!(used.body(1).await.unwrap(), b"ok");
    rig.stop();
    for peer in [&mut fresh, &mut used] {
        while peer.next().await.is_some() {}
    }
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("idle".to_owned(), 2)], "{report}");
}
