//! What a handler knows of the stop.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use crate::{Cancelled, InFlight, Keeper};

/// What a request's handler is told of the stop; found in the request's extensions.
///
/// As long as one is held, also a clone, the drain waits: for work that follows from the request take a
/// [`child`](Self::child), which is counted as well.
///
/// ```
/// # use winddown::server::RequestCx;
/// # async fn write_to_log() {}
/// async fn handler(request: http::Request<String>) -> http::Response<String> {
///     if let Some(cx) = request.extensions().get::<RequestCx>() {
///         let follow_up = cx.child();        // before the answer: counted until it is dropped, also after the close
///         tokio::spawn(async move {
///             let _cut = follow_up.run(write_to_log()).await;
///         });
///     }
///     http::Response::new("done".into())
/// }
/// ```
///
/// With the feature `axum` it is an extractor, too.
pub struct RequestCx {
    /// Not work of its own, so that one request is one in the ledger, however many of these there are.
    keeper: Keeper,
    remote_addr: Option<SocketAddr>,
    /// Its server watches connections, also upgraded ones.
    watched: bool,
}

// === impl RequestCx ===

impl RequestCx {
    /// For a request that is in flight.
    #[cfg(feature = "tower")]
    #[inline]
    pub(super) fn of_request(keeper: Keeper) -> Self {
        RequestCx { keeper, remote_addr: None, watched: false }
    }

    /// For a request on a connection that is in flight.
    #[inline]
    pub(super) fn of_connection(in_flight: &InFlight, remote_addr: Option<SocketAddr>) -> Self {
        RequestCx { keeper: in_flight.keeper(), remote_addr, watched: true }
    }

    /// For a layer inside of a server that knows the peer.
    #[cfg(feature = "tower")]
    pub(super) fn set_remote_addr(&mut self, remote_addr: Option<SocketAddr>) {
        self.remote_addr = remote_addr;
    }

    /// Waits until requests are to come to an end of their own: end streams, start nothing long any more. It is ready when
    /// intake stops, after *unready*, and at once if asked later.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped; so it is with [`cancelled`](Self::cancelled).
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        self.keeper.in_flight().stopping_owned()
    }

    /// Whether requests are to come to an end of their own. One plain load.
    pub fn is_stopping(&self) -> bool {
        self.keeper.in_flight().is_stopping()
    }

    /// Waits until the drain is over: what has not ended is about to be cut, by our server after its
    /// [`cancel_grace`](super::Server::cancel_grace), by a layer in the same moment.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        self.keeper.in_flight().cancelled_owned()
    }

    /// Whether the drain is over. One plain load.
    pub fn is_cancelled(&self) -> bool {
        self.keeper.in_flight().is_cancelled()
    }

    /// The time until the drain is over; `None` as long as no stop has begun.
    pub fn remaining(&self) -> Option<Duration> {
        self.keeper.in_flight().remaining()
    }

    /// Lets in work that follows from the request and may outlive its answer; also after the gate has closed, since it is
    /// part of what was let in.
    #[track_caller]
    pub fn child(&self) -> InFlight {
        self.keeper.child()
    }

    /// Runs `work`, which is part of the answer, until it is done or the drain is over.
    ///
    /// As [`InFlight::run`]: if the drain is over before the first poll the work is not polled at all; later, a result that is
    /// ready in the same poll wins. The handler can then still say in its answer what was not done.
    ///
    /// # Errors
    ///
    /// [`Cancelled`] when the drain is over; the work has then been dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the work.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Cancelled> {
        if self.is_cancelled() {
            return Err(Cancelled);
        }
        // Dropped by the return, before the caller hears of it.
        let work = pin!(work);
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.cancelled() => Err(Cancelled),
        }
    }

    /// What an upgraded connection is counted by, where the server does not do it itself.
    #[cfg(feature = "axum-ws")]
    #[track_caller]
    pub(super) fn upgraded(&self) -> Option<InFlight> {
        (!self.watched).then(|| self.child())
    }

    /// The peer's address; `None` where it has none, as on Unix sockets, and under servers that are not ours, which have
    /// words of their own for it.
    pub fn remote_addr(&self) -> Option<SocketAddr> {
        self.remote_addr
    }
}

impl Clone for RequestCx {
    fn clone(&self) -> Self {
        RequestCx {
            keeper: self.keeper.in_flight().keeper(),
            remote_addr: self.remote_addr,
            watched: self.watched,
        }
    }
}

impl fmt::Debug for RequestCx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestCx")
            .field("gate", &self.keeper.in_flight().gate_name())
            .field("remote_addr", &self.remote_addr)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::Gate;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn it_goes_wherever_an_extension_does() {
        fn extension<T: Clone + Send + Sync + 'static>() {}
        extension::<RequestCx>();
    }

    #[test]
    fn it_lets_work_follow_after_the_answer_and_after_the_close() {
        let gate = Gate::standalone("http");
        let request = gate.enter().unwrap();
        let cx = RequestCx::of_connection(&request, None);
        drop(request);
        gate.close();
        assert!(cx.is_stopping() && !cx.is_cancelled());
        let (child, clone) = (cx.child(), cx.clone());
        let mut drained = pin!(gate.drained());
        drop(cx);
        drop(child);
        assert!(poll(drained.as_mut()).is_pending(), "a clone is held");
        drop(clone);
        assert!(poll(drained.as_mut()).is_ready());
        assert_eq!(gate.cut_count(), 0);
    }

    #[test]
    fn what_it_runs_ends_with_the_drain() {
        let gate = Gate::standalone("http");
        let request = gate.enter().unwrap();
        let cx = RequestCx::of_connection(&request, None);
        assert_eq!(poll(pin!(cx.run(async { 7 }))), Poll::Ready(Ok(7)));
        let mut run = pin!(cx.run(std::future::pending::<()>()));
        assert!(poll(run.as_mut()).is_pending());
        gate.cancel();
        assert_eq!(poll(run.as_mut()), Poll::Ready(Err(Cancelled)));
        let late = cx.run(async { unreachable!("polled after the drain") });
        assert_eq!(poll(pin!(late)), Poll::<Result<(), _>>::Ready(Err(Cancelled)));
    }
}
