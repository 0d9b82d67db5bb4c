//! Websockets are told why they close, and are gone when the stop is: on our server, and behind the layer on another.
#![cfg(all(feature = "axum-ws", feature = "tower"))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ws::{Message, WebSocketUpgrade};
use axum::routing::any;
use futures_util::SinkExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use winddown::server::tower::InFlightLayer;
use winddown::server::websocket::{self, Socket};
use winddown::server::{self, RequestCx};
use winddown::{Budget, Report, ShutdownCoordinator, ShutdownHandle, signal};

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use rig::{Client, MS, SOON, budget, cuts, drained_in, ended, soon};

const SLACK: Duration = Duration::from_secs(2);
const TEXT: u8 = 0x81;
const CLOSE: u8 = 0x88;
const GOING_AWAY: [u8; 2] = 1001_u16.to_be_bytes();

/// Who serves.
#[derive(Debug, Clone, Copy)]
enum By {
    Us,
    Axum,
}

const BOTH: [By; 2] = [By::Us, By::Axum];

struct Served {
    handle: ShutdownHandle,
    addr: std::net::SocketAddr,
    run: JoinHandle<Report>,
    /// Held by every handler.
    held: Arc<()>,
}

// === impl Served ===

impl Served {
    async fn start<H>(by: By, budget: Budget, handler: fn(Socket, RequestCx, Arc<()>) -> H) -> Served
    where
        H: Future<Output = ()> + Send + 'static,
    {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        let handle = shutdown.handle();
        let held = Arc::new(());
        let given = Arc::downgrade(&held);
        let upgrade = async move |upgrade: WebSocketUpgrade, cx: RequestCx| {
            let held = given.upgrade().unwrap();
            websocket::upgrade(upgrade, cx.clone(), move |socket| handler(socket, cx, held))
        };
        let router = Router::new().route("/", any(upgrade));
        match by {
            By::Us => drop(shutdown.add(server::axum::serve("http", listener, router))),
            By::Axum => {
                let layer = InFlightLayer::new(shutdown.gate("http"));
                let stopping = shutdown.handle().stopping();
                let serving = axum::serve(listener, router.layer(layer)).with_graceful_shutdown(stopping);
                shutdown.spawn("axum", async move { serving.await });
            }
        }
        Served { handle, addr, run: tokio::spawn(shutdown.run()), held }
    }

    async fn connect(&self) -> Peer {
        let mut client = Client::to(self.addr).await;
        client
            .send(
                "GET / HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                 sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
            )
            .await;
        assert!(client.head().await.unwrap().starts_with("HTTP/1.1 101"));
        Peer(client.into_stream())
    }

    /// Stops it; nothing that a handler had is left when `run` has returned.
    async fn stop(self) -> Report {
        self.handle.trigger("test");
        self.stopped().await
    }

    async fn stopped(self) -> Report {
        let report = ended(self.run).await;
        assert_eq!(Arc::strong_count(&self.held), 1, "nothing of it lives when run has returned");
        report
    }
}

/// What a client sees of a websocket, in frames.
struct Peer(TcpStream);

// === impl Peer ===

impl Peer {
    async fn send(&mut self, kind: u8, payload: &[u8]) {
        assert!(payload.len() < 126, "a longer one has another head");
        // A client masks; with zeros nothing changes.
        let mut frame = vec![kind, 0x80 | payload.len() as u8, 0, 0, 0, 0];
        frame.extend(payload);
        soon(self.0.write_all(&frame)).await.unwrap();
    }

    /// The next frame; `None` at the end, also at a hard one.
    async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        soon(self.0.read_exact(&mut head)).await.ok()?;
        let mut payload = vec![0; usize::from(head[1])];
        soon(self.0.read_exact(&mut payload)).await.ok()?;
        Some((head[0], payload))
    }

    async fn is_told_to_go(&mut self) {
        let (kind, payload) = self.frame().await.expect("a close");
        assert_eq!((kind, &payload[..2]), (CLOSE, &GOING_AWAY[..]));
    }

    /// An end without a reset.
    async fn ends_cleanly(&mut self) -> bool {
        matches!(soon(self.0.read(&mut [0; 1])).await, Ok(0))
    }
}

async fn echo(mut socket: Socket, _: RequestCx, _held: Arc<()>) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            break;
        }
    }
}

#[tokio::test]
async fn i03_a_websocket_is_closed_with_1001_and_nothing_of_it_lives() {
    for by in BOTH {
        let served = Served::start(by, budget(), echo).await;
        let mut peers = [served.connect().await, served.connect().await];
        for peer in &mut peers {
            peer.send(TEXT, b"hello").await;
            assert_eq!(peer.frame().await.unwrap(), (TEXT, b"hello".to_vec()));
        }
        served.handle.trigger("test");
        for peer in &mut peers {
            peer.is_told_to_go().await;
            peer.send(CLOSE, &GOING_AWAY).await;
            assert!(peer.ends_cleanly().await, "{by:?}");
        }
        let report = served.stopped().await;
        assert!(report.is_clean() && cuts(&report).is_empty(), "{by:?}: {report}");
        assert!(drained_in(&report) < SLACK, "{by:?}: {report}");
    }
}

#[tokio::test]
async fn what_the_peer_sent_before_its_answer_is_still_received() {
    async fn receives(mut socket: Socket, cx: RequestCx, _held: Arc<()>) {
        cx.stopping().await;
        let mut heard = Vec::new();
        while let Some(Ok(message)) = socket.recv().await {
            heard.push(message);
        }
        assert!(socket.send(Message::text("too late")).await.is_err());
        assert_eq!(heard[..2], [Message::text("one"), Message::text("two")]);
        assert!(matches!(heard[2..], [Message::Close(_)]), "{heard:?}");
        cx.child().cut("as expected");
    }
    for by in BOTH {
        let served = Served::start(by, budget(), receives).await;
        let mut peer = served.connect().await;
        peer.send(TEXT, b"one").await;
        served.handle.trigger("test");
        peer.is_told_to_go().await;
        peer.send(TEXT, b"two").await;
        peer.send(CLOSE, &GOING_AWAY).await;
        assert!(peer.ends_cleanly().await, "{by:?}");
        let report = served.stopped().await;
        assert_eq!(cuts(&report), [("as expected".to_owned(), 1)], "{by:?}: {report}");
    }
}

#[tokio::test]
async fn a_handler_that_does_not_look_at_its_socket_is_no_reason_not_to_close_it() {
    async fn deaf(socket: Socket, cx: RequestCx, _held: Arc<()>) {
        cx.cancelled().await;
        drop(socket);
        std::future::pending().await
    }
    for by in BOTH {
        for drain in [900 * MS, 1800 * MS] {
            let served = Served::start(by, budget().drain(drain), deaf).await;
            let mut peer = served.connect().await;
            let stopped = Instant::now();
            served.handle.trigger("test");
            peer.is_told_to_go().await;
            assert!(stopped.elapsed() < drain, "{by:?}");
            let report = served.stopped().await;
            assert_eq!(cuts(&report), [("upgraded".to_owned(), 1)], "{by:?}: {report}");
            assert!(stopped.elapsed() >= drain, "{by:?}");
        }
    }
}

#[tokio::test]
async fn a_peer_that_does_not_answer_the_close_is_left_after_its_grace() {
    for by in BOTH {
        let served = Served::start(by, budget(), echo).await;
        let mut peer = served.connect().await;
        served.handle.trigger("test");
        peer.is_told_to_go().await;
        let report = served.stopped().await;
        assert!(report.is_clean() && cuts(&report).is_empty(), "{by:?}: {report}");
        let took = drained_in(&report);
        assert!((900 * MS..SOON / 2).contains(&took), "{by:?}: {report}");
    }
}

#[tokio::test]
async fn a_handler_that_is_stuck_in_sending_hears_of_the_stop() {
    async fn pours(mut socket: Socket, _: RequestCx, _held: Arc<()>) {
        let block = vec![0; 1 << 16];
        while socket.send(Message::binary(block.clone())).await.is_ok() {}
    }
    for by in BOTH {
        let served = Served::start(by, budget(), pours).await;
        let peer = served.connect().await;
        // It reads nothing: sooner or later the server can write no more.
        tokio::time::sleep(200 * MS).await;
        let report = served.stop().await;
        assert!(report.is_clean() && cuts(&report).is_empty(), "{by:?}: {report}");
        assert!(drained_in(&report) < SOON / 2, "{by:?}: {report}");
        drop(peer);
    }
}

#[tokio::test]
async fn a_socket_that_was_given_to_another_task_hears_of_the_stop_there() {
    async fn gives_away(socket: Socket, cx: RequestCx, held: Arc<()>) {
        let (mut sink, stream) = futures_util::StreamExt::split(socket);
        let reads = cx.child();
        tokio::spawn(async move {
            let count = futures_util::StreamExt::count(stream).await;
            assert_eq!(count, 2, "a text and the answer to the close");
            drop(held);
            drop(reads);
        });
        cx.stopping().await;
        while sink.send(Message::text("tick")).await.is_ok() {
            tokio::time::sleep(MS).await;
        }
    }
    for by in BOTH {
        let served = Served::start(by, budget(), gives_away).await;
        let mut peer = served.connect().await;
        peer.send(TEXT, b"hello").await;
        served.handle.trigger("test");
        loop {
            match peer.frame().await.expect("a close") {
                (TEXT, tick) => assert_eq!(tick, b"tick"),
                (kind, payload) => {
                    assert_eq!((kind, &payload[..2]), (CLOSE, &GOING_AWAY[..]));
                    break;
                }
            }
        }
        peer.send(CLOSE, &GOING_AWAY).await;
        let report = served.stopped().await;
        assert!(report.is_clean(), "{by:?}: {report}");
    }
}

#[tokio::test]
async fn one_that_ends_before_the_stop_leaves_nothing() {
    for by in BOTH {
        let served = Served::start(by, budget(), echo).await;
        let mut peer = served.connect().await;
        peer.send(CLOSE, &1000_u16.to_be_bytes()).await;
        assert_eq!(peer.frame().await.unwrap(), (CLOSE, 1000_u16.to_be_bytes().to_vec()));
        assert!(peer.ends_cleanly().await, "{by:?}");
        drop(served.connect().await);
        let mut late = served.connect().await;
        served.handle.trigger("test");
        late.is_told_to_go().await;
        drop(late);
        let report = served.stopped().await;
        assert!(report.is_clean() && cuts(&report).is_empty(), "{by:?}: {report}");
        assert!(drained_in(&report) < SLACK, "{by:?}: {report}");
    }
}
