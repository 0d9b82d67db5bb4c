//! What a client sends after its head, for as long as there is time to read it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::peer::Peer;
use crate::{BoxError, Cancelled};

/// The body of a request; what comes of it in time is the client's, unchanged.
///
/// One that has not wholly come when the drain is over ends there with the error [`Cancelled`], so that its handler can
/// still answer. The fault is not the client's: an answer of 400 to that is sent as 503 (RFC 9110, 15.6.4), after which
/// clients try again.
///
/// The connection is in flight until the body is read to its end, has failed or is dropped.
pub struct RequestBody {
    /// Until the end is seen. Dropped before the body, which wakes who then looks at this.
    open: Option<Open>,
    body: Incoming,
}

struct Open {
    peer: Arc<Peer>,
    /// Made only where there is something to wait for.
    cancelled: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

// === impl RequestBody ===

impl RequestBody {
    pub(super) fn new(body: Incoming, peer: &Arc<Peer>) -> Self {
        let open = if body.is_end_stream() {
            peer.no_more();
            None
        } else {
            peer.open_body();
            Some(Open { peer: Arc::clone(peer), cancelled: None })
        };
        RequestBody { body, open }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let Some(open) = &mut this.open else { return Poll::Ready(None) };
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if this.body.is_end_stream() {
                    open.peer.body_read();
                    this.open = None;
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                this.open = None;
                Poll::Ready(Some(Err(error.into())))
            }
            Poll::Ready(None) => {
                open.peer.body_read();
                // In chunks, of which the last ends as a head does.
                open.peer.no_more();
                this.open = None;
                Poll::Ready(None)
            }
            Poll::Pending => {
                let Open { peer, cancelled } = open;
                ready!(cancelled.get_or_insert_with(|| Box::pin(peer.gate.cancelled())).as_mut().poll(cx));
                peer.withhold_body();
                this.open = None;
                Poll::Ready(Some(Err(Cancelled.into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.open.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        if self.open.is_some() { self.body.size_hint() } else { SizeHint::with_exact(0) }
    }
}

impl Drop for RequestBody {
    /// What follows a small body that nobody has read, and that has come all the same, is not taken for its rest.
    fn drop(&mut self) {
        let Some(Open { peer, .. }) = &self.open else { return };
        if peer.is_h2() {
            return;
        }
        let mut nobody = Context::from_waker(Waker::noop());
        let last = Pin::new(&mut self.body).poll_frame(&mut nobody);
        if matches!(last, Poll::Ready(Some(Ok(_)))) && self.body.is_end_stream() {
            peer.body_read();
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.peer.close_body();
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody").field("ended", &self.open.is_none()).finish_non_exhaustive()
    }
}
