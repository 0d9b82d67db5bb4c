//! The layer where much comes at once, and where services and bodies do what they should not: each request is answered by its
//! handler or refused, never both, and what is counted is what happened.
#![cfg(all(feature = "axum-ws", feature = "tower"))]

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, Response, Version};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tower_layer::Layer;
use tower_service::Service;
use winddown::server::RequestCx;
use winddown::server::tower::InFlightLayer;
use winddown::{BoxError, Gate, GateReport, Report, ShutdownCoordinator, signal};

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "http/rig.rs"]
mod rig;

use rig::{Client, MS, budget, soon};

fn ledger(report: &Report) -> &GateReport {
    assert!(report.gates().iter().all(GateReport::adds_up), "{report}");
    report.gate("requests").unwrap()
}

fn request(path: &str, version: Version) -> Request<Body> {
    Request::get(path).version(version).body(Body::empty()).unwrap()
}

/// What the clients of a flood saw, each until it was refused.
#[derive(Default)]
struct Seen {
    answered: AtomicUsize,
    refused: AtomicUsize,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_thousands_that_race_the_close_each_is_answered_by_its_handler_or_refused_and_none_both() {
    const CLIENTS: usize = 16;
    for _ in 0..20 {
        let mut shutdown = ShutdownCoordinator::new(budget(), signal::none()).unwrap();
        let handle = shutdown.handle();
        let handled = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&handled);
        let app = Router::new().route(
            "/",
            get(async move |cx: RequestCx| {
                let another = cx.clone();
                tokio::task::yield_now().await;
                counts.fetch_add(1, Ordering::SeqCst);
                drop(cx);
                tokio::task::yield_now().await;
                drop(another);
                "ok"
            }),
        );
        let service = InFlightLayer::new(shutdown.gate("requests")).layer(app);
        let seen = Arc::new(Seen::default());
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (mut service, seen) = (service.clone(), Arc::clone(&seen));
            clients.spawn(async move {
                loop {
                    poll_fn(|cx| Service::<Request<Body>>::poll_ready(&mut service, cx)).await.unwrap();
                    let answer = service.call(request("/", Version::HTTP_11)).await.unwrap();
                    let status = answer.status();
                    let body = answer.into_body().collect().await.unwrap().to_bytes();
                    match status.as_u16() {
                        200 => assert_eq!(body, "ok"),
                        503 => break seen.refused.fetch_add(1, Ordering::SeqCst),
                        other => panic!("{other}"),
                    };
                    seen.answered.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        let run = tokio::spawn(shutdown.run());
        while handled.load(Ordering::SeqCst) < 500 {
            tokio::task::yield_now().await;
        }
        handle.trigger("test");
        let report = soon(run).await.unwrap();
        soon(clients.join_all()).await;
        assert_eq!(seen.refused.load(Ordering::SeqCst), CLIENTS);
        assert_eq!(handled.load(Ordering::SeqCst), seen.answered.load(Ordering::SeqCst));
        let ledger = ledger(&report);
        assert!(report.is_clean() && ledger.held <= CLIENTS && ledger.let_in == 0, "{report}");
        assert_eq!(ledger.finished, ledger.held, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_kept_connections_a_flood_at_the_close_is_answered_or_refused_to_the_last_request() {
    const CLIENTS: usize = 64;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut shutdown = ShutdownCoordinator::new(budget().unready(100 * MS), signal::none()).unwrap();
    let handle = shutdown.handle();
    let handled = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&handled);
    let app = Router::new().route(
        "/",
        get(async move || {
            counts.fetch_add(1, Ordering::SeqCst);
            "ok"
        }),
    );
    let app = app.layer(InFlightLayer::new(shutdown.gate("requests")));
    // Not told: what comes after the close gets to the layer.
    tokio::spawn(async move { axum::serve(listener, app).await });
    let run = tokio::spawn(shutdown.run());
    let seen = Arc::new(Seen::default());
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let seen = Arc::clone(&seen);
        clients.spawn(async move {
            'refused: loop {
                let mut client = Client::to(addr).await;
                loop {
                    let answer = client.ask("/").await;
                    match answer.status {
                        200 => assert_eq!(answer.text(), "ok"),
                        503 => {
                            assert!(answer.says_close() && client.ends_cleanly().await);
                            seen.refused.fetch_add(1, Ordering::SeqCst);
                            break 'refused;
                        }
                        other => panic!("{other}"),
                    }
                    seen.answered.fetch_add(1, Ordering::SeqCst);
                    if answer.says_close() {
                        assert!(client.ends_cleanly().await);
                        break;
                    }
                }
            }
        });
    }
    while handled.load(Ordering::SeqCst) < 1_000 {
        tokio::time::sleep(MS).await;
    }
    handle.trigger("test");
    let report = soon(run).await.unwrap();
    soon(clients.join_all()).await;
    assert_eq!(seen.refused.load(Ordering::SeqCst), CLIENTS);
    assert_eq!(handled.load(Ordering::SeqCst), seen.answered.load(Ordering::SeqCst));
    let ledger = ledger(&report);
    assert!(report.is_clean() && ledger.held <= CLIENTS && ledger.finished == ledger.held, "{report}");
}

/// Takes one request at a time, as services that are limited do: the place is taken when it says that it is ready.
struct OneAtATime {
    places: Arc<Semaphore>,
    waits: Option<Pin<Box<dyn Future<Output = OwnedSemaphorePermit> + Send>>>,
    place: Option<OwnedSemaphorePermit>,
}

// === impl OneAtATime ===

impl Clone for OneAtATime {
    fn clone(&self) -> Self {
        OneAtATime { places: Arc::clone(&self.places), waits: None, place: None }
    }
}

impl Service<Request<Body>> for OneAtATime {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        if self.place.is_none() {
            let places = Arc::clone(&self.places);
            let acquire = || Box::pin(async move { places.acquire_owned().await.unwrap() }) as Pin<Box<_>>;
            let waits = self.waits.get_or_insert_with(acquire);
            self.place = Some(std::task::ready!(waits.as_mut().poll(cx)));
            self.waits = None;
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let place = self.place.take().expect("asked whether it is ready");
        let stuck = request.uri().path() == "/stuck";
        Box::pin(async move {
            if stuck {
                pending::<()>().await;
            }
            drop(place);
            Ok(Response::new(Body::from("ok")))
        })
    }
}

async fn ready<S: Service<Request<Body>>>(service: &mut S) -> Result<(), S::Error> {
    poll_fn(|cx| service.poll_ready(cx)).await
}

#[tokio::test]
async fn who_waits_for_a_place_in_a_service_is_refused_when_the_gate_closes_and_after_that() {
    let gate = Gate::standalone("requests");
    let one = OneAtATime { places: Arc::new(Semaphore::new(1)), waits: None, place: None };
    let mut service = InFlightLayer::new(gate.clone()).layer(one);
    ready(&mut service).await.unwrap();
    let mut stuck = pin!(service.call(request("/stuck", Version::HTTP_11)));
    assert!(stuck.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let mut waits = service.clone();
    let waiting = tokio::spawn(async move {
        ready(&mut waits).await.unwrap();
        waits.call(request("/", Version::HTTP_11)).await.unwrap().status()
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    gate.close();
    assert_eq!(soon(waiting).await.unwrap(), 503);
    let mut late = service.clone();
    soon(ready(&mut late)).await.unwrap();
    assert_eq!(late.call(request("/", Version::HTTP_11)).await.unwrap().status(), 503);
    assert_eq!(gate.in_flight(), 1);
}

/// A body that ends as it is told to.
#[derive(Clone, Copy)]
enum Fault {
    Fails,
    Panics,
    Hangs,
}

impl http_body::Body for Fault {
    type Data = bytes::Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, BoxError>>> {
        match *self {
            Fault::Fails => Poll::Ready(Some(Err("its own fault".into()))),
            Fault::Panics => panic!("its own fault"),
            Fault::Hangs => Poll::Pending,
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[tokio::test]
async fn whatever_becomes_of_a_handler_or_a_body_its_request_is_over_and_counted_once() {
    let mut shutdown = ShutdownCoordinator::new(budget(), signal::none()).unwrap();
    let (handle, gate) = (shutdown.handle(), shutdown.gate("requests"));
    let run = tokio::spawn(shutdown.run());
    let layer = InFlightLayer::new(gate.clone());
    let handler = tower_service_fn(async |request: Request<Body>| match request.uri().path() {
        "/panic" => panic!("its own fault"),
        "/pending" => pending().await,
        "/error" => Err(BoxError::from("its own fault")),
        "/fails" => Ok(Response::new(Fault::Fails)),
        "/panics" => Ok(Response::new(Fault::Panics)),
        _ => Ok(Response::new(Fault::Hangs)),
    });
    let mut service = layer.layer(handler);
    let mut at_call = layer.layer(PanicsAtCall);
    // All begun before the close, and ended after it.
    let unpolled = service.call(request("/pending", Version::HTTP_11));
    let polled = tokio::spawn(service.call(request("/pending", Version::HTTP_11)));
    let panics = service.call(request("/panic", Version::HTTP_11));
    let errs = service.call(request("/error", Version::HTTP_11));
    let mut bodies = Vec::new();
    for path in ["/fails", "/panics", "/hangs", "/hangs"] {
        bodies.push(service.call(request(path, Version::HTTP_11)).await.unwrap().into_body());
    }
    tokio::spawn(async move { drop(at_call.call(request("/", Version::HTTP_11))) }).await.unwrap_err();
    assert_eq!(
        gate.in_flight(),
        8 + 4,
        "what panicked in the call is over; four handlers have their RequestCx"
    );
    handle.trigger("test");
    soon(handle.reached(winddown::Phase::Drain)).await;
    drop(unpolled);
    polled.abort();
    assert!(tokio::spawn(panics).await.unwrap_err().is_panic());
    assert!(errs.await.is_err());
    let [fails, panics, hangs, unpolled] = <[_; 4]>::try_from(bodies).unwrap_or_else(|_| unreachable!());
    drop(unpolled);
    assert!(fails.collect().await.is_err());
    assert!(tokio::spawn(panics.collect()).await.unwrap_err().is_panic());
    let mut hangs = Box::pin(hangs);
    assert!(hangs.as_mut().poll_frame(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(hangs);
    let report = soon(run).await.unwrap();
    assert_eq!((ledger(&report).held, ledger(&report).finished), (8, 8), "{report}");
    assert!(report.is_clean(), "{report}");
}

#[derive(Clone)]
struct PanicsAtCall;

impl Service<Request<Body>> for PanicsAtCall {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        panic!("its own fault")
    }
}

#[derive(Clone)]
struct ServiceFn<F>(F);

fn tower_service_fn<F>(handler: F) -> ServiceFn<F> {
    ServiceFn(handler)
}

impl<F, R, B> Service<Request<Body>> for ServiceFn<F>
where
    F: Fn(Request<Body>) -> R,
    R: Future<Output = Result<Response<B>, BoxError>> + Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin((self.0)(request))
    }
}

/// Twice around one handler it counts twice, and refuses once.
#[tokio::test]
async fn a_layer_that_was_added_twice_answers_and_refuses_as_one_does() {
    let mut shutdown = ShutdownCoordinator::new(budget(), signal::none()).unwrap();
    let (handle, gate) = (shutdown.handle(), shutdown.gate("requests"));
    let run = tokio::spawn(shutdown.run());
    let layer = InFlightLayer::new(gate.clone()).retry_after(std::time::Duration::MAX);
    let release = Arc::new(Semaphore::new(0));
    let released = Arc::clone(&release);
    let handler = tower_service_fn(move |request: Request<Body>| {
        let released = Arc::clone(&released);
        async move {
            drop(request);
            released.acquire_owned().await?.forget();
            Ok(Response::new(Body::from("ok")))
        }
    });
    let mut service = layer.layer(layer.layer(handler));
    let answer = tokio::spawn(service.call(request("/", Version::HTTP_11)));
    tokio::task::yield_now().await;
    handle.trigger("test");
    soon(handle.reached(winddown::Phase::Drain)).await;
    let refused = service.call(request("/", Version::HTTP_11)).await.unwrap();
    assert_eq!((refused.status().as_u16(), refused.headers().get_all("connection").iter().count()), (503, 1));
    assert_eq!(refused.headers()["retry-after"], "4294967295");
    assert_eq!(refused.into_body().collect().await.unwrap().to_bytes(), "the server is stopping: try again");
    release.add_permits(1);
    let answer = soon(answer).await.unwrap().unwrap();
    assert_eq!(answer.headers().get_all("connection").iter().count(), 1);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "ok");
    let report = soon(run).await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!((ledger(&report).held, ledger(&report).finished), (2, 2), "{report}");
}

/// In a server of ours, whose ledger counts connections, and the layer's requests of some routes.
#[tokio::test]
async fn in_a_server_of_ours_the_layer_refuses_from_its_own_close_on_and_each_ledger_counts_its_own() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut shutdown = ShutdownCoordinator::new(budget(), signal::none()).unwrap();
    let handle = shutdown.handle();
    let layered = Router::new().route("/", get(async |cx: RequestCx| format!("{:?}", cx.remote_addr())));
    let layered = layered.layer(InFlightLayer::new(shutdown.gate("requests")));
    let app = layered.route("/plain", get(async || "plain"));
    shutdown.add(winddown::server::axum::serve("http", listener, app));
    let run = tokio::spawn(shutdown.run());
    let mut kept = Vec::new();
    for _ in 0..10 {
        let mut client = Client::to(addr).await;
        let seen = client.ask("/").await;
        assert_eq!(seen.text(), format!("{:?}", Some(client.addr())));
        kept.push(client);
    }
    for (number, client) in kept.iter_mut().enumerate() {
        let path = if number < 5 { "/" } else { "/plain" };
        client.send_at_once(&format!("GET {path} HTTP/1.1\r\n"));
    }
    handle.trigger("test");
    soon(handle.reached(winddown::Phase::Drain)).await;
    for client in &mut kept {
        client.send_at_once("host: test\r\n\r\n");
    }
    let mut statuses = Vec::new();
    for client in &mut kept {
        statuses.push(client.answer().await.status);
    }
    let report = soon(run).await.unwrap();
    assert!(report.gates().iter().all(GateReport::adds_up), "{report}");
    let http = report.gate("http").unwrap();
    assert_eq!((http.held, http.let_in, http.finished), (10, 0, 10), "{report}");
    assert_eq!((ledger(&report).held, ledger(&report).let_in), (0, 0), "{report}");
    assert_eq!(statuses, [[503; 5], [200; 5]].concat());
}
