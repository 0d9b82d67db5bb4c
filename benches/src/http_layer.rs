//! What a layer costs a request, in process: over one that does nothing.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Mutex;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{Empty, Full};
use pin_project_lite::pin_project;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower_layer::Layer;
use tower_service::Service;
use winddown::server::tower::InFlightLayer;
use winddown::{Budget, ShutdownCoordinator, signal};

use crate::measure::{Op, Row, Run};

type Asked = Request<Empty<Bytes>>;

/// Answers at once.
#[derive(Clone)]
struct Hello;

/// A layer that keeps something until the end of the answer's body, and may add to the request.
#[derive(Clone)]
struct Keep<S, M> {
    service: S,
    make: M,
}

pin_project! {
    struct Keeping<F, K> {
        #[pin]
        answer: F,
        kept: Option<K>,
    }
}

pin_project! {
    struct Kept<B, K> {
        #[pin]
        body: B,
        kept: K,
    }
}

/// What ours may cost.
const TARGET: f64 = 60.0;

/// A request as servers hand it on: with the peer's address in its extensions.
pub fn row() -> Row {
    Row {
        title: "A layer around a request, in process (added to one that does nothing)",
        times: 50_000,
        added: true,
        target: |_, _| TARGET,
        ops: vec![
            op("http-nothing", || run(nothing, true)),
            Op { ours: true, ..op("http-layer", || run(layer, true)) },
            op("http-extension", || run(extension, true)),
            op("http-tracker", || run(tracker, true)),
            op("http-tracker-child-guard", || run(tracker_child_guard, true)),
        ],
    }
}

/// The first extension costs one more allocation, for the table that it lies in.
pub fn empty() -> Row {
    Row {
        title: "The same with a request that has no extension yet",
        ops: vec![
            op("http-nothing-empty", || run(nothing, false)),
            Op { ours: true, ..op("http-layer-empty", || run(layer, false)) },
            op("http-extension-empty", || run(extension, false)),
            op("http-tracker-empty", || run(tracker, false)),
            op("http-tracker-child-guard-empty", || run(tracker_child_guard, false)),
        ],
        ..row()
    }
}

fn op(name: &'static str, make: fn() -> Box<Run>) -> Op {
    Op { name, make, bytes: None, ours: false }
}

/// One service for each thread, as each connection has one.
fn run<S, B>(make: impl FnOnce() -> S, extension: bool) -> Box<Run>
where
    S: Service<Asked, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    B: Body,
{
    let service = Mutex::new(make());
    Box::new(move |times| {
        let mut service = service.lock().expect("no panics").clone();
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..times {
            let mut request = Request::new(Empty::new());
            if extension {
                request.extensions_mut().insert(SocketAddr::from(([127, 0, 0, 1], 80)));
            }
            let _ = black_box(service.poll_ready(&mut cx)).is_ready();
            let answer = pin!(service.call(black_box(request)));
            if let Poll::Ready(Ok(answer)) = answer.poll(&mut cx) {
                let mut body = pin!(black_box(answer).into_body());
                while !body.is_end_stream() {
                    let _ = black_box(body.as_mut().poll_frame(&mut cx).is_ready());
                }
            }
        }
    })
}

fn nothing() -> impl Service<Asked, Response = Response<impl Body>, Error = Infallible> + Clone + Send {
    Keep { service: Hello, make: |_: &mut Asked| () }
}

fn layer() -> impl Service<Asked, Response = Response<impl Body>, Error = Infallible> + Clone + Send {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _here = runtime.enter();
    let mut shutdown =
        ShutdownCoordinator::new(Budget::default(), signal::none()).expect("the default budget fits");
    let layer = InFlightLayer::new(shutdown.gate("bench"));
    // Dropped, it would close the gate; nothing of it runs.
    std::mem::forget(shutdown);
    layer.layer(Hello)
}

/// What it costs to tell a handler anything at all.
fn extension() -> impl Service<Asked, Response = Response<impl Body>, Error = Infallible> + Clone + Send {
    let make = |request: &mut Asked| {
        request.extensions_mut().insert([0_u64; 5]);
    };
    Keep { service: Hello, make }
}

fn tracker() -> impl Service<Asked, Response = Response<impl Body>, Error = Infallible> + Clone + Send {
    let tracker = TaskTracker::new();
    Keep { service: Hello, make: move |_: &mut Asked| tracker.token() }
}

/// With a handle for the handler, as ours has: cancelled also when the answer is dropped.
fn tracker_child_guard()
-> impl Service<Asked, Response = Response<impl Body>, Error = Infallible> + Clone + Send {
    let (tracker, token) = (TaskTracker::new(), CancellationToken::new());
    let make = move |request: &mut Asked| -> (TaskTrackerToken, DropGuard) {
        let child = token.child_token();
        request.extensions_mut().insert(child.clone());
        (tracker.token(), child.drop_guard())
    };
    Keep { service: Hello, make }
}

// === impl Hello ===

impl Service<Asked> for Hello {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    #[inline(never)]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    #[inline(never)]
    fn call(&mut self, request: Asked) -> Self::Future {
        drop(black_box(request));
        ready(Ok(Response::new(Full::new(Bytes::from_static(b"hello")))))
    }
}

// === impl Keep ===

impl<S, M, K, RB> Service<Asked> for Keep<S, M>
where
    S: Service<Asked, Response = Response<RB>>,
    M: Fn(&mut Asked) -> K,
{
    type Response = Response<Kept<RB, K>>;
    type Error = S::Error;
    type Future = Keeping<S::Future, K>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: Asked) -> Self::Future {
        let kept = Some((self.make)(&mut request));
        Keeping { answer: self.service.call(request), kept }
    }
}

impl<F, K, RB, E> Future for Keeping<F, K>
where
    F: Future<Output = Result<Response<RB>, E>>,
{
    type Output = Result<Response<Kept<RB, K>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let answer = ready!(this.answer.poll(cx))?;
        let kept = this.kept.take().expect("not polled again after it was ready");
        Poll::Ready(Ok(answer.map(|body| Kept { body, kept })))
    }
}

// === impl Kept ===

impl<B: Body, K> Body for Kept<B, K> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
