//! Ends what would never end by itself.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::Stream;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::ShutdownHandle;

pin_project! {
    /// A stream, or a body, that ends when intake stops; made by [`until_stopping`].
    #[must_use = "streams do nothing unless polled"]
    pub struct UntilStopping<S> {
        #[pin]
        inner: S,
        stopping: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
        ended: bool,
    }
}

/// Ends a stream of events, or a body, when intake stops: server-sent events then end with their final chunk, rather than
/// hold the drain and be cut.
///
/// What is ready is still handed on before the end. One that attaches after intake has stopped gets what is ready, and ends.
///
/// ```
/// # use winddown::{ShutdownHandle, server::until_stopping};
/// # fn example<S: futures_util::Stream<Item = String> + Send + 'static>(changes: S, handle: &ShutdownHandle) {
/// let events = until_stopping(changes, handle);   // for `axum::response::Sse::new`
/// # drop(events);
/// # }
/// ```
pub fn until_stopping<S>(inner: S, handle: &ShutdownHandle) -> UntilStopping<S> {
    UntilStopping { inner, stopping: Box::pin(handle.stopping()), ended: false }
}

// === impl UntilStopping ===

impl<S> UntilStopping<S> {
    fn poll_end<T>(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        next: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<Option<T>>,
    ) -> Poll<Option<T>> {
        let this = self.project();
        if *this.ended {
            return Poll::Ready(None);
        }
        let next = match next(this.inner, cx) {
            Poll::Pending => this.stopping.as_mut().poll(cx).map(|()| None),
            ready => ready,
        };
        *this.ended = matches!(next, Poll::Ready(None));
        next
    }
}

impl<S: Stream> Stream for UntilStopping<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.poll_end(cx, |inner, cx| inner.poll_next(cx))
    }
}

impl<B: Body> Body for UntilStopping<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.poll_end(cx, |inner, cx| inner.poll_frame(cx))
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.inner.is_end_stream()
    }

    /// Without a size: a body that may end early must not promise one.
    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl<S> fmt::Debug for UntilStopping<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UntilStopping").field("ended", &self.ended).finish_non_exhaustive()
    }
}
