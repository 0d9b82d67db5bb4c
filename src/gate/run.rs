//! Work that ends with the drain.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use super::InFlight;
use crate::error::Cancelled;
use crate::latch::Fired;

pin_project! {
    /// Polls the work in place until it is done or the hard signal has fired.
    #[must_use = "futures do nothing unless polled"]
    pub(super) struct Run<'a, F> {
        in_flight: &'a InFlight,
        // Before `work`, so that the place in the list is free when the work's own drop runs.
        cancelled: Fired<'a>,
        #[pin]
        work: Option<F>,
    }
}

// === impl Run ===

impl<'a, F> Run<'a, F> {
    #[inline]
    pub(super) fn new(in_flight: &'a InFlight, work: F) -> Self {
        Run { in_flight, cancelled: in_flight.hard_signal(), work: Some(work) }
    }

    #[cold]
    fn cut(self: Pin<&mut Self>) -> Poll<Cancelled> {
        let mut this = self.project();
        if this.work.is_some() {
            this.in_flight.note_cut();
            this.work.set(None);
        }
        Poll::Ready(Cancelled)
    }
}

impl<F: Future> Future for Run<'_, F> {
    type Output = Result<F::Output, Cancelled>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.as_mut().project();
        // Only work that has begun is asked once more whether it is done.
        if this.cancelled.is_registered() || !this.cancelled.is_fired() {
            if let Some(work) = this.work.as_mut().as_pin_mut() {
                if let Poll::Ready(done) = work.poll(cx) {
                    return Poll::Ready(Ok(done));
                }
                if Pin::new(this.cancelled).poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        }
        self.cut().map(Err)
    }
}

// === impl InFlight ===

#[cfg(feature = "tower")]
impl InFlight {
    /// The hard signal by a future that has a name and borrows nothing: for what owns the guard and must not allocate to wait.
    pub(crate) fn hard_signal_owned(&self) -> crate::latch::FiredOwned {
        self.block().cancelled.fired_owned()
    }
}
