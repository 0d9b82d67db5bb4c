//! The jobs that a worker holds, and until when.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::queue::{Claimed, HandBack, Lease};

/// A job that this worker has claimed, as its handler gets it. Reads as [`Claimed`].
pub struct Leased<T> {
    claimed: Claimed<T>,
    flight: Arc<Flight>,
    saved: Mutex<Option<String>>,
}

/// What the renewal knows of a job.
pub(super) struct Flight {
    key: u64,
    pub(super) lease: Lease,
    /// From here on somebody else may have the job; counted from before the call that claimed or renewed it.
    until: Mutex<Instant>,
    stage: AtomicU8,
    /// The queue says that it is not ours any more.
    lost: CancellationToken,
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

/// All that is held: claimed, and neither settled nor handed back.
pub(super) struct Flights {
    held: Mutex<Held>,
    /// One was settled, or is done and to be acked.
    pub(super) changed: Notify,
    any_kept: AtomicBool,
}

struct Held {
    next_key: u64,
    by_key: HashMap<u64, Arc<Flight>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing behind these locks is ever half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Leased ===

impl<T> Leased<T> {
    pub(super) fn new(claimed: Claimed<T>, flight: Arc<Flight>) -> Leased<T> {
        Leased { claimed, flight, saved: Mutex::new(None) }
    }

    /// Notes how far the job has come. Where it is handed back unfinished, that goes with it, and is its
    /// [`checkpoint`](Claimed::checkpoint) when it is claimed next; otherwise it is forgotten.
    ///
    /// It is kept in memory until then: what has to survive a crash is written with the effect itself.
    pub fn save(&self, checkpoint: impl Into<String>) {
        *lock(&self.saved) = Some(checkpoint.into());
    }

    pub(super) fn flight(&self) -> &Arc<Flight> {
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

    pub(super) fn reach(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
    }

    pub(super) fn until(&self) -> Instant {
        *lock(&self.until)
    }

    pub(super) fn renewed(&self, until: Instant) {
        *lock(&self.until) = until;
    }

    pub(super) fn lose(&self) {
        self.lost.cancel();
    }

    /// Waits until somebody else may have the job, and says how that came.
    pub(super) async fn lost(&self) -> &'static str {
        loop {
            let until = self.until();
            if Instant::now() >= until {
                return "it could not be renewed in time";
            }
            tokio::select! {
                biased;
                () = self.lost.cancelled() => return "the queue says so",
                // It may have been renewed meanwhile.
                () = sleep_until(until) => {}
            }
        }
    }
}

// === impl Flights ===

impl Flights {
    pub(super) fn new() -> Flights {
        Flights {
            held: Mutex::new(Held { next_key: 0, by_key: HashMap::new() }),
            changed: Notify::new(),
            any_kept: AtomicBool::new(false),
        }
    }

    pub(super) fn add(&self, lease: Lease, until: Instant) -> Arc<Flight> {
        let mut held = lock(&self.held);
        let key = held.next_key;
        held.next_key += 1;
        let flight = Arc::new(Flight {
            key,
            lease,
            until: Mutex::new(until),
            stage: AtomicU8::new(Stage::Claimed as u8),
            lost: CancellationToken::new(),
        });
        held.by_key.insert(key, Arc::clone(&flight));
        flight
    }

    /// The job is not ours to care for any more.
    pub(super) fn settled(&self, flight: &Flight) {
        flight.reach(Stage::Settled);
        lock(&self.held).by_key.remove(&flight.key);
        self.changed.notify_one();
    }

    /// The job will not stop: it keeps its lease for as long as the process lives.
    pub(super) fn kept(&self, flight: &Flight) {
        self.any_kept.store(true, Ordering::Release);
        self.settled(flight);
    }

    pub(super) fn any_kept(&self) -> bool {
        self.any_kept.load(Ordering::Acquire)
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.held).by_key.len()
    }

    pub(super) fn all(&self) -> Vec<Arc<Flight>> {
        lock(&self.held).by_key.values().map(Arc::clone).collect()
    }
}
