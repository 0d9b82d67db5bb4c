//! A job that a worker holds, and until when.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use pin_project_lite::pin_project;
use tokio::time::Instant;

use crate::queue::{Claimed, HandBack, Lease};

mod flights;

pub(super) use flights::Flights;

/// A job that this worker has claimed, as its handler gets it. Reads as [`Claimed`].
pub struct Leased<T> {
    claimed: Claimed<T>,
    flight: Arc<Flight>,
    /// Where it is held; of no meaning once it is settled.
    key: usize,
    saved: Mutex<Option<String>>,
}

/// What the renewal knows of a job: not the item, so that this is dropped where its handler was.
pub(super) struct Flight {
    pub(super) lease: Lease,
    clock: Clock,
    /// From here on somebody else may have the job; counted from before the call that claimed or renewed it.
    until: AtomicU64,
    stage: AtomicU8,
    lost: AtomicU8,
    /// Of the task that runs the handler.
    handler: AtomicWaker,
}

/// How far a job has come. It only goes forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// No handler has seen it.
    Claimed,
    Begun,
    /// Its handler has failed, and the queue is being told.
    Failed,
    /// Its handler is done, and the queue is being told.
    Done,
    Settled,
}

/// Why a handler is to be cut, whatever it is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// The queue has said that it is somebody else's.
    Told = 1,
    /// It was not renewed in time: nobody knows.
    Late = 2,
}

pin_project! {
    /// Runs a handler for as long as the job is ours.
    pub(super) struct WhileHeld<'a, F> {
        flight: &'a Flight,
        #[pin]
        work: Option<F>,
    }

    impl<F> PinnedDrop for WhileHeld<'_, F> {
        fn drop(this: Pin<&mut Self>) {
            let mut work = this.project().work;
            // A handler that panics when it is cut is cut all the same: what is to become of its job was settled by why that was, and
            // where the panic went on it would be handed back instead, and come again at once and for ever.
            drop(catch_unwind(AssertUnwindSafe(|| work.set(None))));
        }
    }
}

/// Instants as a number that fits into an atomic.
#[derive(Clone, Copy)]
struct Clock(Instant);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing behind these locks is ever half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Leased ===

impl<T> Leased<T> {
    pub(super) fn new(claimed: Claimed<T>, (key, flight): (usize, Arc<Flight>)) -> Leased<T> {
        Leased { claimed, flight, key, saved: Mutex::new(None) }
    }

    /// Notes how far the job has come. Where it is handed back unfinished, that goes with it, and is its
    /// [`checkpoint`](Claimed::checkpoint) when it is claimed next; otherwise it is forgotten.
    ///
    /// It is kept in memory until then: what has to survive a crash is written with the effect itself.
    pub fn save(&self, checkpoint: impl Into<String>) {
        *lock(&self.saved) = Some(checkpoint.into());
    }

    pub(super) fn flight(&self) -> &Flight {
        &self.flight
    }

    pub(super) fn to_hand_back(&self) -> HandBack {
        HandBack {
            lease: self.claimed.lease.clone(),
            begun: self.flight.stage() > Stage::Claimed,
            checkpoint: lock(&self.saved).clone(),
        }
    }
}

impl<T> Deref for Leased<T> {
    type Target = Claimed<T>;

    fn deref(&self) -> &Claimed<T> {
        &self.claimed
    }
}

impl<T: fmt::Debug> fmt::Debug for Leased<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leased")
            .field("claimed", &self.claimed)
            .field("saved", &*lock(&self.saved))
            .finish_non_exhaustive()
    }
}

// === impl Flight ===

impl Flight {
    pub(super) fn stage(&self) -> Stage {
        const ALL: [Stage; 5] = [Stage::Claimed, Stage::Begun, Stage::Failed, Stage::Done, Stage::Settled];
        ALL[usize::from(self.stage.load(Ordering::Acquire))]
    }

    /// Says whether it was not there before.
    pub(super) fn reach(&self, stage: Stage) -> bool {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel) < stage as u8
    }

    /// What is being settled hears of a lost lease by the answer to that.
    pub(super) fn is_running(&self) -> bool {
        self.stage() <= Stage::Begun
    }

    pub(super) fn renewed(&self, until: Instant) {
        self.until.store(self.clock.number(until), Ordering::Release);
    }

    /// Has the handler cut, for the first reason that is given.
    pub(super) fn lose(&self, why: Loss) {
        let _ = self.lost.compare_exchange(0, why as u8, Ordering::AcqRel, Ordering::Acquire);
        self.handler.wake();
    }

    pub(super) fn lost(&self) -> Option<Loss> {
        match self.lost.load(Ordering::Acquire) {
            0 => None,
            told if told == Loss::Told as u8 => Some(Loss::Told),
            _ => Some(Loss::Late),
        }
    }

    /// Runs a handler until it is done, or until somebody else may have the job.
    pub(super) fn while_held<F: Future>(&self, work: F) -> WhileHeld<'_, F> {
        WhileHeld { flight: self, work: Some(work) }
    }
}

// === impl Loss ===

impl Loss {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Loss::Told => "the queue says so",
            Loss::Late => "it could not be renewed in time",
        }
    }
}

// === impl WhileHeld ===

impl<F: Future> Future for WhileHeld<'_, F> {
    type Output = Result<F::Output, Loss>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let flight = *this.flight;
        // The clock is asked each time: in a process that was frozen the handler's own timer may fire before any of ours.
        let late = || (flight.clock.now() >= flight.until.load(Ordering::Acquire)).then_some(Loss::Late);
        if let Some(loss) = flight.lost().or_else(late) {
            return Poll::Ready(Err(loss));
        }
        // It is there until this is dropped.
        if let Some(Poll::Ready(output)) = this.work.as_pin_mut().map(|work| work.poll(cx)) {
            return Poll::Ready(Ok(output));
        }
        flight.handler.register(cx.waker());
        // Looked at again, since it may have been lost before there was anybody to wake.
        flight.lost().map_or(Poll::Pending, |loss| Poll::Ready(Err(loss)))
    }
}

// === impl Clock ===

impl Clock {
    fn now(self) -> u64 {
        self.number(Instant::now())
    }

    fn number(self, at: Instant) -> u64 {
        // Enough for centuries, and a lease lasts for a year at the most.
        at.saturating_duration_since(self.0).as_nanos() as u64
    }

    fn instant(self, number: u64) -> Instant {
        self.0 + Duration::from_nanos(number)
    }
}
