//! Peers that are many, slow, endless or gone, while the server stops: each is bounded and counted, and nothing hangs.
#![cfg(feature = "axum")]

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use winddown::Phase;

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use rig::{Client, MS, Rig, SOON, budget, cuts, drained_in, get_request, soon};

/// What a busy machine may add to limits of a second and less, with many peers.
const SLACK: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_heads_that_come_a_byte_at_a_time_are_bounded_and_counted() {
    const PEERS: usize = 1000;
    let rig = Rig::with(budget(), |server| server.head_grace(500 * MS)).await;
    let mut peers = JoinSet::new();
    for _ in 0..PEERS {
        let mut peer = rig.connect().await;
        peer.send("GET / HTTP/1.1\r\nslow: ").await;
        peers.spawn(async move {
            let stream = peer.into_stream();
            let (mut reads, mut writes) = stream.into_split();
            let slow = async {
                while writes.write_all(b"a").await.is_ok() {
                    tokio::time::sleep(100 * MS).await;
                }
                std::future::pending::<()>().await;
            };
            let mut answer = Vec::new();
            tokio::select! {
                () = slow => unreachable!(),
                read = reads.read_to_end(&mut answer) => drop(read),
            }
            assert!(answer.starts_with(b"HTTP/1.1 408 "), "{:?}", String::from_utf8_lossy(&answer));
        });
    }
    let mut good = rig.connect().await;
    good.send_at_once(&get_request("/"));
    rig.stop();
    assert_eq!(good.answer().await.status, 200);
    soon(peers.join_all()).await;
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("head".to_owned(), PEERS)], "{report}");
    assert!(drained_in(&report) < SLACK, "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_never_stop_asking_are_told_once_and_that_answer_is_the_last() {
    const PEERS: usize = 8;
    // Some ask without reading as fast as they are answered, some with a head that never ends.
    let rig = Rig::new(budget().unready(100 * MS)).await;
    let (mut asking, mut endless) = (JoinSet::new(), JoinSet::new());
    for _ in 0..PEERS {
        asking.spawn(ask_for_ever(rig.connect().await));
        endless.spawn(never_finish_a_head(rig.connect().await));
    }
    tokio::time::sleep(200 * MS).await;
    rig.stop();
    let report = rig.report().await;
    assert!(drained_in(&report) < SLACK, "{report}");
    for answers in soon(asking.join_all()).await {
        let (last, before) = answers.split_last().unwrap();
        assert!(*last && !before.iter().any(|says_close| *says_close), "after {}", before.len());
    }
    for status in soon(endless.join_all()).await {
        assert_eq!(status, 431);
    }
    assert!(cuts(&report).is_empty(), "{report}");
}

/// Whether each answer says that it is the last.
async fn ask_for_ever(client: Client) -> Vec<bool> {
    let (mut reads, mut writes) = client.into_stream().into_split();
    let asks = tokio::spawn(async move {
        let requests = get_request("/").repeat(100);
        while writes.write_all(requests.as_bytes()).await.is_ok() {}
    });
    let mut all = Vec::new();
    // Endless as it is, it may see a reset after the last answer.
    let _ = reads.read_to_end(&mut all).await;
    asks.abort();
    let all = String::from_utf8(all).unwrap().to_ascii_lowercase();
    let answers: Vec<&str> = all.split("http/1.1 200 ok").skip(1).collect();
    assert!(answers.iter().all(|answer| answer.ends_with("\r\n\r\nok")), "each is whole");
    answers.iter().map(|answer| answer.contains("connection: close")).collect()
}

async fn never_finish_a_head(client: Client) -> u16 {
    let (mut reads, mut writes) = client.into_stream().into_split();
    let sends = tokio::spawn(async move {
        let _ = writes.write_all(b"GET / HTTP/1.1\r\n").await;
        while writes.write_all(b"endless: header\r\n").await.is_ok() {}
    });
    let mut all = Vec::new();
    let _ = reads.read_to_end(&mut all).await;
    sends.abort();
    String::from_utf8(all).unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_peer_that_resets_leaves_nothing_in_flight() {
    let rig = Rig::with(budget(), |server| server.hang_up(SOON)).await;
    let post = "POST /read HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nab";
    let mut streams: Vec<TcpStream> = Vec::new();
    for request in ["", "GET / HT", &get_request("/slow"), &get_request("/deaf"), &get_request("/big"), post]
    {
        let mut client = rig.connect().await;
        client.send(request).await;
        streams.push(client.into_stream());
    }
    for _ in 0..2 {
        rig.scene.entered().await;
    }
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    for stream in streams {
        stream.set_zero_linger().unwrap();
        drop(stream);
    }
    soon(rig.scene.dropped.acquire()).await.unwrap().forget();
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
    assert!(drained_in(&report) < SLACK, "{report}");
}
