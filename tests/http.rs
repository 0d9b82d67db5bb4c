//! No request that a client sent in good faith fails at a stop: told in bytes, over real sockets, in real time.
#![cfg(feature = "axum")]

use std::time::{Duration, Instant};

use winddown::{Outcome, Phase};

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/h2.rs"]
mod h2;
#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use rig::{BIG, Client, MS, Rig, SOON, budget, cuts, drained_in, get_request, read_slowly, soon};

/// What a busy machine may add; less than the limits that it has to be told apart from.
const SLACK: Duration = Duration::from_secs(1);

/// An HTTP/2 stream that is not wanted any more.
const CANCEL: u32 = 8;

#[tokio::test]
async fn i01_an_idle_keep_alive_connection_is_closed_within_its_grace() {
    for grace in [50 * MS, 1200 * MS] {
        let rig = Rig::with(budget(), |server| server.idle_grace(grace)).await;
        let mut idle = rig.connect().await;
        assert!(!idle.ask("/").await.says_close());
        let stopped = Instant::now();
        rig.stop();
        assert!(idle.ends_cleanly().await);
        assert!((grace..grace + SLACK).contains(&stopped.elapsed()), "{:?}", stopped.elapsed());
        let report = rig.report().await;
        assert!(report.is_clean(), "{report}");
        assert!(drained_in(&report) < grace + SLACK, "{report}");
    }
}

#[tokio::test]
async fn i01_a_busy_connection_gets_its_answer_and_is_closed_after_it() {
    let rig = Rig::new(budget()).await;
    let mut busy = rig.connect().await;
    for _ in 0..20 {
        assert_eq!(busy.ask("/").await.status, 200);
    }
    busy.send(&get_request("/slow")).await;
    rig.scene.entered().await;
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    rig.scene.release.add_permits(1);
    let last = busy.answer().await;
    assert_eq!((last.text(), last.says_close()), ("slow", true));
    assert!(busy.ends_cleanly().await);
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn i02_an_endless_stream_ends_with_its_final_chunk() {
    let rig = Rig::new(budget().unready(300 * MS)).await;
    let mut early = rig.connect().await;
    early.send(&get_request("/events")).await;
    early.head().await.unwrap();
    assert_eq!(early.chunk().await, Some(Some(b"data: 1\n\n".to_vec())));
    rig.stop();
    // One that attaches while the stop is under way, and one right before intake stops.
    let mut late = rig.connect().await;
    late.send(&get_request("/events")).await;
    for client in [&mut early, &mut late] {
        if let Some(first) = client.chunk_or_head().await {
            assert_eq!(first, b"data: 1\n\n");
            assert_eq!(client.chunk().await, Some(None), "the final chunk");
        }
        assert!(client.ends_cleanly().await);
    }
    let report = rig.report().await;
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn i02_a_stream_that_ignores_the_stop_is_cut_and_counted() {
    let rig = Rig::new(budget().drain(200 * MS)).await;
    let mut deaf = rig.connect().await;
    deaf.send(&get_request("/deaf")).await;
    deaf.head().await.unwrap();
    rig.stop();
    assert_eq!(deaf.chunk().await, None, "cut, and without a final chunk that would be a lie");
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("body".to_owned(), 1)], "{report}");
    assert_eq!(report.phase(Phase::Drain).unwrap().outcome, Outcome::Overdue);
    assert!(report.gate("http").unwrap().lost == 0, "{report}");
}

#[tokio::test]
async fn i03_an_upgraded_connection_is_counted_until_it_is_dropped() {
    const REQUEST: &str = "GET /echo HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let rig = Rig::new(budget().unready(50 * MS).drain(300 * MS)).await;
    let (mut leaves, mut stays) = (rig.connect().await, rig.connect().await);
    leaves.send(REQUEST).await;
    leaves.head().await.unwrap();
    rig.scene.entered().await;
    rig.stop();
    // During *unready* too; and `Connection: close` would undo the upgrade.
    stays.send(REQUEST).await;
    assert!(stays.head().await.unwrap().to_ascii_lowercase().contains("connection: upgrade"));
    rig.scene.entered().await;
    soon(rig.handle.reached(Phase::Drain)).await;
    for client in [&mut leaves, &mut stays] {
        client.send("hello").await;
        let mut buf = [0; 5];
        assert_eq!((client.read(&mut buf).await, &buf), (5, b"hello"), "it lives while the drain does");
    }
    drop(leaves);
    assert!(stays.ends_cleanly().await, "its reads see the end when the drain is over");
    let scene = std::sync::Arc::clone(&rig.scene);
    let report = rig.report().await;
    assert_eq!(scene.dropped.available_permits(), 2, "nothing of it lives when run has returned");
    assert_eq!(cuts(&report), [("upgraded".to_owned(), 1)], "{report}");
}

#[tokio::test]
async fn i05_readiness_turns_first_and_the_listener_closes_last() {
    for unready in [300 * MS, 700 * MS] {
        let rig = Rig::new(budget().unready(unready)).await;
        let mut kept = rig.connect().await;
        assert_eq!(kept.ask("/").await.status, 200);
        let triggered = Instant::now();
        rig.stop();
        let mut served = 0;
        while triggered.elapsed() < unready - 100 * MS {
            let ready = rig.connect().await.ask("/readyz").await;
            assert_eq!((ready.status, ready.text()), (503, "not ready: stopping\n"));
            let live = rig.connect().await.ask("/livez").await;
            assert_eq!((live.status, live.text()), (200, "live\n"));
            let ordinary = rig.connect().await.ask("/").await;
            assert_eq!((ordinary.status, ordinary.says_close()), (200, true));
            served += 1;
            tokio::time::sleep(10 * MS).await;
        }
        assert!(served > 0);
        let last = kept.ask("/").await;
        assert_eq!((last.status, last.says_close()), (200, true));
        assert!(kept.ends_cleanly().await);
        soon(rig.handle.reached(Phase::Drain)).await;
        assert!(triggered.elapsed() >= unready);
        let refused = tokio::net::TcpStream::connect(rig.addr).await;
        assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ConnectionRefused);
        let report = rig.report().await;
        assert!(report.is_clean(), "{report}");
    }
}

#[tokio::test]
async fn i11_a_client_that_hangs_up_leaves_nothing_in_flight() {
    let rig = Rig::new(budget()).await;
    let mut client = rig.connect().await;
    client.send(&get_request("/slow")).await;
    rig.scene.entered().await;
    drop(client);
    soon(rig.scene.dropped.acquire()).await.unwrap().forget();
    rig.stop();
    let report = rig.report().await;
    assert!(report.is_clean(), "{report}");
    assert!(drained_in(&report) < SLACK, "{report}");
}

#[tokio::test]
async fn a_handler_that_panics_ends_its_own_connection_and_no_other() {
    let rig = Rig::new(budget()).await;
    let mut other = rig.connect().await;
    assert_eq!(other.ask("/").await.status, 200);
    let mut client = rig.connect().await;
    client.send(&get_request("/panic")).await;
    assert!(client.try_answer().await.is_none());
    assert_eq!(other.ask("/").await.status, 200);
    rig.stop();
    let report = rig.report().await;
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn i11_a_handler_that_panics_during_the_stop_shows_in_the_report() {
    let rig = Rig::new(budget()).await;
    let (mut other, mut client) = (rig.connect().await, rig.connect().await);
    let mut h2 = h2::Peer::connect(rig.addr, &[]).await;
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    other.send_at_once(&get_request("/"));
    client.send_at_once(&get_request("/panic"));
    h2.get(1, "/panic").await;
    assert_eq!(h2.body(1).await, Err(CANCEL));
    h2.get(3, "/").await;
    assert_eq!(h2.body(3).await.unwrap(), b"ok", "its other streams go on");
    h2.acknowledge().await;
    while h2.next().await.is_some() {}
    assert!(client.try_answer().await.is_none());
    assert_eq!(other.answer().await.status, 200);
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("panicked".to_owned(), 2)], "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i26_an_answer_is_in_flight_until_a_slow_reader_has_its_last_byte() {
    // Without an idle grace, so that the drain is as long as the answer.
    let rig = Rig::with(budget(), |server| server.idle_grace(Duration::ZERO)).await;
    let mut client = rig.connect_with_small_buffer().await;
    client.send(&get_request("/big")).await;
    client.head().await.unwrap();
    rig.stop();
    let stream = client.into_stream().into_std().unwrap();
    let read = tokio::task::spawn_blocking(move || read_slowly(stream, 100_000, 10 * MS));
    assert_eq!(soon(read).await.unwrap(), BIG);
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
    assert!(drained_in(&report) > 100 * MS, "it was waited for: {report}");
}

#[tokio::test]
async fn the_longest_limits_are_no_panic() {
    let rig = Rig::with(budget(), |server| {
        let longest = Duration::MAX;
        server
            .head_limit(longest)
            .keep_alive(longest)
            .ping(longest)
            .write_stall(longest)
            .cancel_grace(longest)
    })
    .await;
    let mut client = rig.connect().await;
    for _ in 0..2 {
        assert_eq!(client.ask("/").await.status, 200);
    }
    rig.stop();
    assert!(rig.report().await.is_clean());
}

#[tokio::test]
async fn all_in_the_backlog_are_answered() {
    let rig = Rig::new(budget()).await;
    // The server has no turn between the first of these and the trigger.
    let clients: Vec<Client> = (0..20).map(|_| rig.connect_at_once(&get_request("/"))).collect();
    rig.stop();
    let mut answered = 0;
    for mut client in clients {
        answered += usize::from(client.try_answer().await.is_some_and(|answer| answer.says_close()));
    }
    assert_eq!(answered, 20);
    assert!(rig.report().await.is_clean());
}

#[tokio::test]
async fn a_connection_is_one_in_the_ledger_however_many_requests_it_brings() {
    let rig = Rig::with(budget(), |server| server.max_connections(1)).await;
    let mut first = rig.connect().await;
    assert_eq!(first.ask("/").await.status, 200);
    let clients: Vec<Client> = (0..10).map(|_| rig.connect_at_once(&get_request("/"))).collect();
    rig.stop();
    for mut client in clients {
        assert_eq!(client.answer().await.status, 200);
    }
    assert!(first.ends_cleanly().await);
    let report = rig.report().await;
    let ledger = report.gate("http").unwrap();
    assert_eq!((ledger.held, ledger.let_in, ledger.finished), (1, 10, 11), "{report}");
}

#[tokio::test]
async fn all_idle_connections_whose_request_comes_with_the_trigger_are_answered() {
    for round in 0..4 {
        let rig = Rig::new(budget()).await;
        let mut clients = Vec::new();
        for _ in 0..50 {
            let mut client = rig.connect().await;
            assert_eq!(client.ask("/").await.status, 200);
            clients.push(client);
        }
        // Sent before the trigger, and after it while the connections are idle.
        if round % 2 == 0 {
            clients.iter_mut().for_each(|client| client.send_at_once(&get_request("/")));
        }
        rig.stop();
        if round % 2 == 1 {
            soon(rig.handle.reached(Phase::Drain)).await;
            clients.iter_mut().for_each(|client| client.send_at_once(&get_request("/")));
        }
        let mut answered = 0;
        for client in &mut clients {
            answered += usize::from(client.try_answer().await.is_some_and(|answer| answer.says_close()));
        }
        assert_eq!(answered, 50);
        let report = rig.report().await;
        assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
    }
}

#[tokio::test]
async fn a_partial_head_that_is_completed_is_answered() {
    let rig = Rig::new(budget()).await;
    let (mut fresh, mut reused) = (rig.connect().await, rig.connect().await);
    assert_eq!(reused.ask("/").await.status, 200);
    for client in [&mut fresh, &mut reused] {
        client.send_at_once("GET / HTTP/1.1\r\nhos");
    }
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    tokio::time::sleep(300 * MS).await;
    for client in [&mut fresh, &mut reused] {
        client.send("t: test\r\n\r\n").await;
        let answer = client.answer().await;
        assert_eq!((answer.status, answer.says_close()), (200, true));
        assert!(client.ends_cleanly().await);
    }
    assert!(rig.report().await.is_clean());
}

#[tokio::test]
async fn a_partial_head_that_is_never_completed_is_answered_408() {
    for grace in [200 * MS, 1300 * MS] {
        let rig = Rig::with(budget(), |server| server.head_grace(grace)).await;
        let (mut fresh, mut reused, mut h2) = (rig.connect().await, rig.connect().await, rig.connect().await);
        assert_eq!(reused.ask("/").await.status, 200);
        fresh.send("G").await;
        reused.send("GET / HTTP/1.1\r\nhos").await;
        h2.send("PRI * HTTP").await;
        let stopped = Instant::now();
        rig.stop();
        for client in [&mut fresh, &mut reused] {
            let answer = client.answer().await;
            assert_eq!((answer.status, answer.says_close()), (408, true));
            assert!(client.ends_cleanly().await);
        }
        assert!(h2.ends_cleanly().await, "408 is not a frame");
        assert!((grace..grace + SLACK).contains(&stopped.elapsed()), "{:?}", stopped.elapsed());
        let report = rig.report().await;
        assert_eq!(report.phase(Phase::Drain).unwrap().outcome, Outcome::Finished, "{report}");
        assert_eq!(cuts(&report), [("head".to_owned(), 3)], "{report}");
    }
}

#[tokio::test]
async fn a_half_body_is_waited_for_and_answered_503_at_the_deadline() {
    let rig = Rig::new(budget().drain(400 * MS)).await;
    let half = "POST /count HTTP/1.1\r\nhost: test\r\ncontent-length: 4\r\n\r\nab";
    let (mut completes, mut never) = (rig.connect().await, rig.connect().await);
    completes.send_at_once(half);
    never.send_at_once(half);
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    tokio::time::sleep(100 * MS).await;
    completes.send("cd").await;
    assert_eq!(completes.answer().await.text(), "4");
    let answer = never.answer().await;
    assert_eq!((answer.status, answer.says_close()), (503, true), "not 400: it is not the client's fault");
    let report = rig.report().await;
    assert!(cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn a_peer_that_stops_reading_is_cut_at_the_deadline_and_nothing_else_waits_for_it() {
    let rig = Rig::new(budget().drain(1500 * MS)).await;
    let (mut stalled, mut other) = (rig.connect().await, rig.connect().await);
    stalled.send(&get_request("/big")).await;
    stalled.head().await.unwrap();
    other.send(&get_request("/slow")).await;
    rig.scene.entered().await;
    let stopped = Instant::now();
    rig.stop();
    rig.scene.release.add_permits(1);
    assert_eq!(other.answer().await.text(), "slow");
    assert!(other.ends_cleanly().await);
    assert!(stopped.elapsed() < SLACK, "{:?}", stopped.elapsed());
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("body".to_owned(), 1)], "{report}");
    assert!(stopped.elapsed() < SOON / 2);
}

#[tokio::test]
async fn a_peer_that_stalls_or_sends_no_head_is_cut_by_its_own_limit_while_serving() {
    let options =
        |limit| move |server: winddown::server::Server<_>| server.head_limit(limit).write_stall(limit);
    let rig = Rig::with(budget(), options(200 * MS)).await;
    let began = Instant::now();
    let (mut silent, mut half, mut stalled) = (rig.connect().await, rig.connect().await, rig.connect().await);
    half.send("GET / HT").await;
    stalled.send(&get_request("/big")).await;
    assert!(silent.ends_cleanly().await);
    assert_eq!(half.answer().await.status, 408);
    assert!(began.elapsed() >= 200 * MS);
    tokio::time::sleep(200 * MS).await;
    let stream = stalled.into_stream().into_std().unwrap();
    let read = tokio::task::spawn_blocking(move || read_slowly(stream, BIG, Duration::ZERO));
    let read = soon(read).await.unwrap();
    assert!(read < BIG);
    rig.stop();
    assert!(rig.report().await.is_clean(), "what happened before the stop is not in its ledger");
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_and_are_served() {
    let rig = Rig::with(budget(), |server| server.max_connections(2)).await;
    let (mut first, mut second) = (rig.connect().await, rig.connect().await);
    assert_eq!(first.ask("/").await.status, 200);
    assert_eq!(second.ask("/").await.status, 200);
    let mut third = rig.connect().await;
    third.send(&get_request("/")).await;
    let waits = tokio::time::timeout(100 * MS, third.read(&mut [0; 1])).await;
    assert!(waits.is_err());
    drop(first);
    assert_eq!(third.answer().await.status, 200);
    let mut fourth = rig.connect().await;
    fourth.send(&get_request("/")).await;
    rig.stop();
    assert_eq!(fourth.answer().await.status, 200, "taken from the backlog at the stop");
    assert!(rig.report().await.is_clean());
}

#[tokio::test]
async fn a_stop_during_the_set_up_closes_the_listener_and_waits_for_nothing() {
    use winddown::{ShutdownCoordinator, server, signal};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let mut shutdown = ShutdownCoordinator::new(budget(), signal::none()).unwrap();
    shutdown.add(server::axum::serve("http", listener, axum::Router::new()));
    shutdown.handle().trigger("test");
    let report = soon(shutdown.run()).await;
    assert!(report.took() < SLACK, "{report}");
    assert!(std::net::TcpStream::connect(addr).is_err());
}

#[tokio::test]
async fn an_idle_connection_that_outlives_the_drain_is_counted() {
    let rig = Rig::with(budget().drain(100 * MS), |server| server.idle_grace(SOON)).await;
    let mut idle = rig.connect().await;
    assert_eq!(idle.ask("/").await.status, 200);
    let mut half = rig.connect().await;
    half.send("GET / HT").await;
    rig.stop();
    assert!(idle.ends_cleanly().await);
    assert_eq!(half.answer().await.status, 408);
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("head".to_owned(), 1), ("idle".to_owned(), 1)], "{report}");
}

/// The process that the next test starts with few file descriptors.
#[tokio::test]
#[ignore = "started by another test"]
async fn server_with_few_descriptors() {
    if !std::env::args().any(|arg| arg == "--exact") {
        return;
    }
    let rig = Rig::new(budget()).await;
    println!("\nlistening on {}", rig.addr);
    let asked = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    asked.await.unwrap().unwrap();
    rig.stop();
    assert!(rig.report().await.is_clean());
}

#[cfg(unix)]
#[tokio::test]
async fn a_shortage_of_descriptors_is_waited_out() {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    const CLIENTS: usize = 40;
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -n 32; exec \"$0\" --exact server_with_few_descriptors --ignored --nocapture"])
        .arg(std::env::current_exe().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let addr = lines.find_map(|line| line.strip_prefix("listening on ").map(str::to_owned)).unwrap();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = Client::to(&addr).await;
        client.send(&get_request("/")).await;
        clients.push(client);
    }
    // The first ones are answered and stay; the others wait until these are gone.
    let mut answered = 0;
    while let Ok(answer) = tokio::time::timeout(200 * MS, clients[answered].answer()).await {
        assert_eq!(answer.status, 200);
        answered += 1;
    }
    assert!((1..CLIENTS).contains(&answered), "{answered}");
    for mut waiting in clients.split_off(answered) {
        clients.pop();
        assert_eq!(waiting.answer().await.status, 200);
    }
    drop(clients);
    assert_eq!(Client::to(&addr).await.ask("/").await.status, 200, "it accepts as before");
    child.stdin.take().unwrap().write_all(b"stop\n").unwrap();
    assert!(tokio::task::spawn_blocking(move || child.wait().unwrap().success()).await.unwrap());
}

#[tokio::test]
async fn the_advice_counts_what_the_drain_was_too_short_for_and_no_peer_that_met_its_own_limit() {
    let rig = Rig::with(budget().drain(900 * MS), |server| server.head_grace(100 * MS)).await;
    let (mut stuck, mut half) = (rig.connect().await, rig.connect().await);
    stuck.send(&get_request("/slow")).await;
    rig.scene.entered().await;
    half.send("GET / HT").await;
    rig.stop();
    assert_eq!(half.answer().await.status, 408);
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("head".to_owned(), 1), ("request".to_owned(), 1)], "{report}");
    assert!(report.advice()[0].contains("too short for 1 of 2"), "{:?}", report.advice());
}

#[tokio::test]
async fn a_handler_that_does_not_answer_is_answered_for_when_the_drain_is_over() {
    for drain in [200 * MS, 900 * MS] {
        let rig = Rig::new(budget().drain(drain)).await;
        let mut stuck = rig.connect().await;
        stuck.send(&get_request("/slow")).await;
        rig.scene.entered().await;
        let stopped = Instant::now();
        rig.stop();
        let answer = stuck.answer().await;
        assert_eq!((answer.status, answer.says_close()), (503, true), "{}", answer.head);
        assert_eq!(answer.text(), "the server stopped before the answer was complete");
        assert!(answer.head.contains("retry-after: 1\r\n"), "{}", answer.head);
        assert!(stopped.elapsed() >= drain, "{:?}", stopped.elapsed());
        assert!(stuck.ends_cleanly().await);
        let scene = std::sync::Arc::clone(&rig.scene);
        let report = rig.report().await;
        assert_eq!(cuts(&report), [("request".to_owned(), 1)], "{report}");
        assert_eq!(scene.dropped.available_permits(), 1, "nothing of it lives");
    }
}
