//! For servers that are not ours: a layer that counts requests, tells their handlers of the stop, and ends what is stuck.
//!
//! It goes around any tower service of HTTP: plain `axum::serve`, tonic, hyper by hand. The server itself has to be told to
//! stop, and to be awaited:
//!
//! ```no_run
//! # async fn example(shutdown: &mut winddown::ShutdownCoordinator, router: axum::Router, listener: tokio::net::TcpListener) {
//! use winddown::server::tower::InFlightLayer;
//!
//! let app = router.layer(InFlightLayer::new(shutdown.gate("requests")));
//! let serving = axum::serve(listener, app).with_graceful_shutdown(shutdown.handle().stopping());
//! shutdown.spawn("http", async move { serving.await });
//! # }
//! ```
//!
//! Such a server has no deadline of its own. Spawned as above it is awaited in the drain, so that last bytes leave, and given up
//! when that is over. What it has spawned lives on, and is ended here: a handler that does not answer is dropped and 503 sent
//! for it, a body that does not end is ended with an error, which the server makes a reset.
//!
//! What a layer does not see:
//!
//! - **Connections.** Those that are idle, half a request, and peers that have stopped reading are the server's; a
//!   [server of ours](super::serve) has limits for each. An answer that its peer does not read is still in flight when the drain
//!   is over, and counts as lost.
//! - **Upgrades.** After a 101 the request is over for the layer. A handler that upgrades takes a
//!   [`child`](RequestCx::child) first, holds it as long as the upgraded connection, and ends that when it hears
//!   [`stopping`](RequestCx::stopping).
//! - **Flushing.** The last bytes of an answer are the server's when the body has ended; therefore it is spawned and awaited.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use tower_layer::Layer;
use tower_service::Service;

use super::RequestCx;
use super::refusal::Kind;
use crate::{BoxError, Gate};

mod answer;

pub use answer::{AnswerBody, Answering};

/// Lets requests in through a gate; see the [module](self).
///
/// A request is in flight until its answer's body is dropped. Its handler finds a [`RequestCx`] in the extensions.
///
/// Once the gate has closed, requests that still come on kept connections are answered with 503 and `Retry-After`, and those of
/// gRPC with the status *unavailable*. From the trigger on HTTP/1 answers carry `Connection: close`. When the drain is over a
/// handler that does not answer in the same moment is dropped and answered for in the same way, and a body is ended with an
/// error; both are counted as *cut*, in the state `request` or `body`.
///
/// Around routes of a [server of ours](super::serve) it does the same: what that server still takes after the close is refused
/// there, and answered beside it.
#[derive(Clone)]
pub struct InFlightLayer {
    gate: Gate,
    retry_after: u32,
}

/// A service whose requests are counted; made by [`InFlightLayer`].
///
/// It is ready when the service is; and once the gate has closed at all times, since then it refuses what comes.
pub struct Counted<S> {
    service: S,
    gate: Gate,
    retry_after: u32,
    /// Made when the service is not ready.
    stopping: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

/// What a client is told whose request came too late.
const CLOSED: &str = "the server is stopping: try again";

// === impl InFlightLayer ===

impl InFlightLayer {
    /// Lets requests in through this gate: one of a coordinator, which closes it.
    pub fn new(gate: Gate) -> Self {
        InFlightLayer { gate, retry_after: 1 }
    }

    /// After what time a client that is refused is to try again, in whole seconds and rounded up; 1 s when not given.
    ///
    /// Its next try shall reach another process: longer than a balancer takes to see that this one is not ready.
    pub fn retry_after(mut self, pause: Duration) -> Self {
        let seconds = pause.as_secs().saturating_add(u64::from(pause.subsec_nanos() > 0));
        self.retry_after = u32::try_from(seconds).unwrap_or(u32::MAX);
        self
    }
}

impl<S> Layer<S> for InFlightLayer {
    type Service = Counted<S>;

    fn layer(&self, service: S) -> Counted<S> {
        Counted { service, gate: self.gate.clone(), retry_after: self.retry_after, stopping: None }
    }
}

impl fmt::Debug for InFlightLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlightLayer").field("gate", &self.gate).finish_non_exhaustive()
    }
}

// === impl Counted ===

impl<S, B, RB> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<RB>>,
    RB: Body,
    RB::Data: From<&'static [u8]>,
    RB::Error: Into<BoxError>,
{
    type Response = Response<AnswerBody<RB>>;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        let ready = self.service.poll_ready(cx);
        if ready.is_pending() { self.poll_closed(cx).map(Ok) } else { ready }
    }

    #[inline]
    fn call(&mut self, mut request: Request<B>) -> Answering<S::Future> {
        let kind = Kind::of(&request, self.retry_after);
        let Ok((in_flight, keeper)) = self.gate.enter_kept() else {
            return Answering::refused(kind);
        };
        let extensions = request.extensions_mut();
        if let Some(outer) = extensions.insert(RequestCx::of_request(keeper)) {
            // A gate of its own for some of a server's routes: the peer stays the same.
            if let Some(cx) = extensions.get_mut::<RequestCx>() {
                cx.set_remote_addr(outer.remote_addr());
            }
        }
        Answering::new(self.service.call(request), in_flight, kind)
    }
}

impl<S> Counted<S> {
    /// Whether the service need not be ready, as it is called no more.
    #[cold]
    fn poll_closed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let stopping = self.stopping.get_or_insert_with(|| Box::pin(self.gate.stopping()));
        ready!(stopping.as_mut().poll(cx));
        if self.gate.is_closed() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl<S: Clone> Clone for Counted<S> {
    fn clone(&self) -> Self {
        let service = self.service.clone();
        Counted { service, gate: self.gate.clone(), retry_after: self.retry_after, stopping: None }
    }
}

impl<S: fmt::Debug> fmt::Debug for Counted<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counted")
            .field("service", &self.service)
            .field("gate", &self.gate)
            .finish_non_exhaustive()
    }
}
