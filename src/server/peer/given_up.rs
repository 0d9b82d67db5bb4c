//! Handlers that have not answered when the drain is over.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use super::Peer;
use crate::latch::FiredOwned;

#[derive(Default)]
pub(super) struct GivenUp {
    said: AtomicBool,
    /// HTTP/2: the requests whose handlers run beyond the drain.
    waiting: Mutex<Vec<Waker>>,
}

// === impl Peer ===

impl Peer {
    /// Handlers that have not answered will not: their clients are told.
    pub(in crate::server) fn give_up(&self) {
        let waiting = {
            let mut waiting = self.given_up.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            self.given_up.said.store(true, Relaxed);
            std::mem::take(&mut *waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Ready once the handler is given up. Over HTTP/1 the driver polls again after it has said so.
    pub(in crate::server) fn poll_given_up(
        &self,
        cancelled: &mut Option<FiredOwned>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        if let (true, Some(in_flight)) = (self.is_h2(), &self.in_flight) {
            // What it costs to be told is what `InFlight::run` costs; the lock is taken only when the drain is over.
            ready!(Pin::new(cancelled.get_or_insert_with(|| in_flight.cancelled_owned())).poll(cx));
            let mut waiting = self.given_up.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if !self.given_up.said.load(Relaxed) {
                waiting.push(cx.waker().clone());
            }
        }
        if self.given_up.said.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }
}
