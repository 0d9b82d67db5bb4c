//! The layer around a server that is not ours, plain `axum::serve`: over real sockets, in real time.
#![cfg(all(feature = "axum", feature = "tower"))]

use std::convert::Infallible;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use axum::routing::{any, get};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower_layer::Layer;
use tower_service::Service;
use winddown::server::RequestCx;
use winddown::server::tower::InFlightLayer;
use winddown::{Budget, Gate, Outcome, Phase, Report, ShutdownCoordinator, ShutdownHandle, signal};

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use rig::{Client, MS, budget, ended, get_request, read_slowly, soon};

/// What a busy machine may add; less than the limits that it has to be told apart from.
const SLACK: Duration = Duration::from_secs(2);
/// Together far more than a kernel keeps for one socket.
const PIECES: usize = 400;
const PIECE: usize = 1 << 16;

/// `axum::serve` with the layer around its router.
struct Foreign {
    addr: SocketAddr,
    handle: ShutdownHandle,
    gate: Gate,
    entered: Arc<Semaphore>,
    release: Arc<Semaphore>,
    followed: Arc<AtomicUsize>,
    report: JoinHandle<Report>,
}

#[derive(Clone, Copy, PartialEq)]
enum Told {
    /// As it should be.
    Stopping,
    /// A server that takes more requests on the connections that it has.
    Nothing,
}

// === impl Foreign ===

impl Foreign {
    async fn new(budget: Budget) -> Foreign {
        Self::with(budget, Told::Stopping, |layer| layer).await
    }

    async fn with(budget: Budget, told: Told, options: fn(InFlightLayer) -> InFlightLayer) -> Foreign {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        let (handle, gate) = (shutdown.handle(), shutdown.gate("requests"));
        let (entered, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let followed = Arc::new(AtomicUsize::new(0));
        let app = app(&entered, &release, &followed).layer(options(InFlightLayer::new(gate.clone())));
        let serving = axum::serve(listener, app);
        let stopping = handle.stopping();
        match told {
            Told::Stopping => {
                let serving = serving.with_graceful_shutdown(stopping);
                shutdown.spawn("http", async move { serving.await });
            }
            // Not a task of the coordinator's, which would wait for it.
            Told::Nothing => drop(tokio::spawn(async move { serving.await })),
        }
        let report = tokio::spawn(shutdown.run());
        let foreign = Foreign { addr, handle, gate, entered, release, followed, report };
        assert_eq!(foreign.connect().await.ask("/").await.text(), "ok");
        foreign
    }

    async fn connect(&self) -> Client {
        Client::to(self.addr).await
    }

    async fn entered(&self) {
        soon(self.entered.acquire()).await.unwrap().forget();
    }

    /// Waits until nothing is in flight any more.
    async fn empty(&self) {
        soon(async {
            while self.gate.in_flight() > 0 {
                tokio::time::sleep(MS).await;
            }
        })
        .await;
    }

    async fn report(self) -> Report {
        ended(self.report).await
    }
}

fn app(entered: &Arc<Semaphore>, release: &Arc<Semaphore>, followed: &Arc<AtomicUsize>) -> Router {
    let (entered, release, followed) = (Arc::clone(entered), Arc::clone(release), Arc::clone(followed));
    let (begun, may_follow) = (Arc::clone(&entered), Arc::clone(&release));
    let watched = Arc::clone(&entered);
    Router::new()
        .route("/", get(async || "ok"))
        .route(
            "/slow",
            any(async move || {
                entered.add_permits(1);
                release.acquire().await.unwrap().forget();
                "slow"
            }),
        )
        .route("/stuck", get(async || pending::<()>().await))
        .route(
            "/big",
            get(async || {
                let pieces = stream::repeat_with(|| Ok::<_, Infallible>(vec![b'x'; PIECE]));
                Body::from_stream(pieces.take(PIECES))
            }),
        )
        .route("/panic", get(async || -> &'static str { panic!("a handler's own fault") }))
        .route(
            "/deaf",
            get(async || {
                let first = stream::iter([Ok::<_, Infallible>("first")]);
                Body::from_stream(first.chain(stream::pending()))
            }),
        )
        .route(
            "/endless",
            get(async || Body::from_stream(stream::repeat_with(|| Ok::<_, Infallible>(vec![b'x'; 4096])))),
        )
        .route(
            "/follow",
            get(async move |cx: RequestCx| {
                let follow_up = cx.child();
                tokio::spawn(async move {
                    begun.add_permits(1);
                    may_follow.acquire().await.unwrap().forget();
                    // Work that follows may let in more, however late that is.
                    let child = follow_up.child();
                    drop(follow_up);
                    tokio::task::yield_now().await;
                    followed.fetch_add(1, Ordering::Relaxed);
                    drop(child);
                });
                "answered"
            }),
        )
        .route(
            "/told",
            get(async move |cx: RequestCx| {
                watched.add_permits(1);
                let before = cx.remaining().is_some();
                cx.stopping().await;
                let after = cx.remaining().is_some();
                let cut = cx.run(pending::<()>()).await.is_err();
                format!("{before} {after} {cut} {:?}", cx.remote_addr())
            }),
        )
        .route(
            "/upgrade",
            get(async || (StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "echo")])),
        )
}

fn gate(report: &Report) -> &winddown::GateReport {
    report.gate("requests").unwrap()
}

fn drain(report: &Report) -> &winddown::PhaseReport {
    report.phase(Phase::Drain).unwrap()
}

#[tokio::test]
async fn i26_a_request_is_in_flight_until_a_slow_reader_has_its_last_byte() {
    let foreign = Foreign::new(budget()).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1 << 16).unwrap();
    let mut stream = socket.connect(foreign.addr).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, get_request("/big").as_bytes()).await.unwrap();
    stream.readable().await.unwrap();
    foreign.handle.trigger("test");
    soon(foreign.handle.reached(Phase::Drain)).await;
    tokio::time::sleep(300 * MS).await;
    assert_eq!(foreign.handle.phase(), Some(Phase::Drain), "most of it is not sent");
    assert_eq!(foreign.gate.in_flight(), 1);
    let stream = stream.into_std().unwrap();
    let read = tokio::task::spawn_blocking(move || read_slowly(stream, 1 << 16, MS)).await.unwrap();
    assert!(read > PIECES * PIECE, "{read}");
    let report = foreign.report().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!((gate(&report).held, gate(&report).finished), (1, 1), "{report}");
}

#[tokio::test]
async fn a_request_that_comes_after_the_close_is_refused_retryably() {
    for (retry, says) in [(None, "retry-after: 1\r\n"), (Some(6500 * MS), "retry-after: 7\r\n")] {
        let foreign = Foreign::with(
            budget(),
            Told::Nothing,
            match retry {
                None => |layer| layer,
                Some(_) => |layer| layer.retry_after(6500 * MS),
            },
        )
        .await;
        let (mut kept, mut busy) = (foreign.connect().await, foreign.connect().await);
        assert!(!kept.ask("/").await.says_close());
        busy.send(&get_request("/slow")).await;
        foreign.entered().await;
        foreign.handle.trigger("test");
        soon(foreign.handle.reached(Phase::Drain)).await;
        let refused = kept.ask("/").await;
        assert_eq!(refused.status, 503, "{}", refused.head);
        assert!(refused.head.contains(says) && refused.says_close(), "{}", refused.head);
        assert_eq!(refused.text(), "the server is stopping: try again");
        assert!(kept.ends_cleanly().await);
        foreign.release.add_permits(1);
        let last = busy.answer().await;
        assert_eq!((last.text(), last.says_close()), ("slow", true));
        let report = foreign.report().await;
        assert!(report.is_clean(), "{report}");
        assert_eq!((gate(&report).held, gate(&report).finished), (1, 1), "{report}");
    }
}

#[tokio::test]
async fn from_the_trigger_on_http1_answers_say_close_and_upgrades_do_not() {
    let foreign = Foreign::new(budget().unready(500 * MS)).await;
    let (mut kept, mut upgraded) = (foreign.connect().await, foreign.connect().await);
    assert!(!kept.ask("/").await.says_close());
    foreign.handle.trigger("test");
    let last = kept.ask("/").await;
    assert_eq!((last.status, last.says_close()), (200, true), "served while not ready");
    assert!(kept.ends_cleanly().await);
    upgraded.send(&get_request("/upgrade")).await;
    let head = upgraded.head().await.unwrap().to_ascii_lowercase();
    assert!(head.contains("connection: upgrade") && !head.contains("close"), "{head}");
    assert!(foreign.report().await.is_clean());
}

#[tokio::test]
async fn what_says_close_is_decided_by_the_version_and_the_answer() {
    use http::{Method, Version};
    let router = Router::new()
        .route("/", any(async || "ok"))
        .route("/upgrade", any(async || StatusCode::SWITCHING_PROTOCOLS));
    for (version, method, path, close) in [
        (Version::HTTP_11, Method::GET, "/", true),
        (Version::HTTP_10, Method::POST, "/", true),
        (Version::HTTP_11, Method::CONNECT, "/nowhere", true),
        (Version::HTTP_11, Method::CONNECT, "/", false),
        (Version::HTTP_11, Method::GET, "/upgrade", false),
        (Version::HTTP_2, Method::GET, "/", false),
        (Version::HTTP_2, Method::CONNECT, "/", false),
    ] {
        let gate = Gate::standalone("requests");
        let mut service = InFlightLayer::new(gate.clone()).layer(router.clone());
        let request = || {
            let request = http::Request::builder().method(method.clone()).version(version).uri(path);
            request.body(Body::empty()).unwrap()
        };
        let before = service.call(request()).await.unwrap();
        assert!(before.headers().get("connection").is_none(), "not before the stop");
        let entered = service.call(request());
        gate.close();
        let says = entered.await.unwrap().headers().get("connection").is_some();
        assert_eq!(says, close, "{version:?} {method} {path}");
        let refused = service.call(request()).await.unwrap();
        assert_eq!(refused.status(), 503);
        assert_eq!(refused.headers().get("connection").is_some(), version < Version::HTTP_2);
    }
}

#[tokio::test]
async fn http2_answers_never_say_close() {
    use http_body_util::{BodyExt, Empty};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let foreign = Foreign::new(budget().unready(500 * MS)).await;
    let io = TokioIo::new(foreign.connect().await.into_stream());
    let (mut send, connection) =
        hyper::client::conn::http2::handshake::<_, _, Empty<Bytes>>(TokioExecutor::new(), io).await.unwrap();
    let connection = tokio::spawn(connection);
    foreign.handle.trigger("test");
    let request = http::Request::get("http://test/").body(Empty::<Bytes>::new()).unwrap();
    let answer = soon(send.send_request(request)).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(answer.headers().get("connection").is_none(), "{answer:?}");
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    drop(send);
    assert!(foreign.report().await.is_clean());
    let _ = soon(connection).await;
}

#[tokio::test]
async fn i11_a_client_that_hangs_up_and_a_handler_that_panics_leave_nothing_in_flight() {
    let foreign = Foreign::new(budget()).await;
    let mut gone = foreign.connect().await;
    gone.send(&get_request("/slow")).await;
    foreign.entered().await;
    assert_eq!(foreign.gate.in_flight(), 1);
    drop(gone);
    foreign.empty().await;
    let mut panics = foreign.connect().await;
    panics.send(&get_request("/panic")).await;
    assert!(panics.try_answer().await.is_none());
    foreign.empty().await;
    foreign.handle.trigger("test");
    let report = foreign.report().await;
    assert!(report.is_clean() && gate(&report).held == 0, "{report}");
    assert!(drain(&report).took < SLACK, "{report}");
}

#[tokio::test]
async fn i12_work_that_outlives_its_answer_is_waited_for() {
    let foreign = Foreign::new(budget()).await;
    let mut client = foreign.connect().await;
    assert_eq!(client.ask("/follow").await.text(), "answered");
    foreign.entered().await;
    foreign.handle.trigger("test");
    soon(foreign.handle.reached(Phase::Drain)).await;
    assert_eq!(foreign.followed.load(Ordering::Relaxed), 0);
    foreign.release.add_permits(1);
    let followed = Arc::clone(&foreign.followed);
    let report = foreign.report().await;
    assert_eq!(followed.load(Ordering::Relaxed), 1, "before the end of the drain");
    assert!(report.is_clean(), "{report}");
    assert_eq!((gate(&report).held, gate(&report).let_in), (1, 1), "{report}");
}

#[tokio::test]
async fn a_handler_is_told_and_may_still_answer_when_the_drain_is_over() {
    let foreign = Foreign::new(budget().drain(300 * MS)).await;
    let mut client = foreign.connect().await;
    client.send(&get_request("/told")).await;
    foreign.entered().await;
    foreign.handle.trigger("test");
    assert_eq!(client.answer().await.text(), "false true true None");
    let report = foreign.report().await;
    assert_eq!((gate(&report).cut.len(), gate(&report).lost), (0, 0), "{report}");
    assert_eq!((gate(&report).held, gate(&report).finished), (1, 1), "one request is one: {report}");
}

#[tokio::test]
async fn what_is_stuck_is_cut_at_the_deadline_and_counted_by_its_state() {
    for limit in [200 * MS, 2000 * MS] {
        let foreign = Foreign::new(budget().drain(limit)).await;
        let (mut stuck, mut deaf) = (foreign.connect().await, foreign.connect().await);
        stuck.send(&get_request("/stuck")).await;
        deaf.send(&get_request("/deaf")).await;
        deaf.head().await.unwrap();
        assert_eq!(deaf.chunk().await, Some(Some(b"first".to_vec())));
        let mut endless = foreign.connect().await.into_stream();
        tokio::io::AsyncWriteExt::write_all(&mut endless, get_request("/endless").as_bytes()).await.unwrap();
        let endless = tokio::spawn(async move {
            let mut buf = vec![0; 1 << 16];
            let mut last = Vec::new();
            while let Ok(read @ 1..) = tokio::io::AsyncReadExt::read(&mut endless, &mut buf).await {
                last = buf[..read].to_vec();
            }
            last
        });
        soon(async {
            while foreign.gate.in_flight() < 3 {
                tokio::time::sleep(MS).await;
            }
        })
        .await;
        let stopped = Instant::now();
        foreign.handle.trigger("test");
        let refused = stuck.answer().await;
        assert_eq!((refused.status, refused.says_close()), (503, true));
        assert_eq!(refused.text(), "the server stopped before the answer was complete");
        assert_eq!(deaf.chunk().await, None, "cut, and without a final chunk that would be a lie");
        assert!(!soon(endless).await.unwrap().ends_with(b"0\r\n\r\n"), "the same");
        assert!((limit..limit + SLACK).contains(&stopped.elapsed()), "{:?}", stopped.elapsed());
        let report = foreign.report().await;
        let cut = [("body".to_owned(), 2), ("request".to_owned(), 1)];
        assert_eq!((gate(&report).cut.as_slice(), gate(&report).lost), (cut.as_slice(), 0), "{report}");
        assert_eq!(drain(&report).outcome, Outcome::Overdue);
        // Nothing holds the server any more: its task ends by itself, and the cancel window is not waited out.
        assert!(report.took() < limit + SLACK, "{report}");
    }
}

#[tokio::test]
async fn a_router_that_is_served_without_the_layer_says_what_is_missing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let app = Router::new().route("/", get(async |_: RequestCx| "never"));
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });
    let answer = Client::to(addr).await.ask("/").await;
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("no RequestCx") && answer.text().contains("layer"), "{}", answer.text());
    serving.abort();
}
