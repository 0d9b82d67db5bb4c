//! The jobs that a worker holds, and until when.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use pin_project_lite::pin_project;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::latch::slab::Slab;
use crate::queue::{Claimed, HandBack, Lease};

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
    Told = 1,
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

/// All that is held: claimed, and neither settled nor handed back.
pub(super) struct Flights {
    table: Mutex<Table>,
    clock: Clock,
    /// One was settled.
    pub(super) changed: Notify,
    /// One was added that ends before `Table::looks_at`.
    sooner: Notify,
    any_kept: AtomicBool,
}

struct Table {
    held: Slab<Arc<Flight>>,
    count: usize,
    /// When it is looked next for what was not renewed in time.
    looks_at: u64,
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

    fn lost(&self) -> Option<Loss> {
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

// === impl Flights ===

impl Flights {
    pub(super) fn new() -> Flights {
        Flights {
            table: Mutex::new(Table { held: Slab::new(), count: 0, looks_at: u64::MAX }),
            clock: Clock(Instant::now()),
            changed: Notify::new(),
            sooner: Notify::new(),
            any_kept: AtomicBool::new(false),
        }
    }

    /// Holds a job; the key is where.
    pub(super) fn add(&self, lease: Lease, until: Instant) -> (usize, Arc<Flight>) {
        let until = self.clock.number(until);
        let flight = Arc::new(Flight {
            lease,
            clock: self.clock,
            until: AtomicU64::new(until),
            stage: AtomicU8::new(Stage::Claimed as u8),
            lost: AtomicU8::new(0),
            handler: AtomicWaker::new(),
        });
        let mut table = lock(&self.table);
        let key = table.held.insert(Arc::clone(&flight));
        table.count += 1;
        let sooner = until < table.looks_at;
        table.looks_at = table.looks_at.min(until);
        drop(table);
        if sooner {
            self.sooner.notify_one();
        }
        (key, flight)
    }

    /// The job is not ours to care for any more.
    pub(super) fn settled<T>(&self, job: &Leased<T>) {
        self.settled_all([job]);
        self.changed.notify_one();
    }

    /// The same for many, by who waits for the change itself.
    pub(super) fn settled_all<'a, T: 'a>(&self, jobs: impl IntoIterator<Item = &'a Leased<T>>) {
        let mut table = lock(&self.table);
        for job in jobs {
            // Once: by then the key is another's.
            if job.flight.reach(Stage::Settled) {
                table.held.remove(job.key);
                table.count -= 1;
            }
        }
    }

    /// The job will not stop: it keeps its lease for as long as the process lives.
    pub(super) fn kept<T>(&self, job: &Leased<T>) {
        self.any_kept.store(true, Ordering::Release);
        self.settled(job);
    }

    pub(super) fn any_kept(&self) -> bool {
        self.any_kept.load(Ordering::Acquire)
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.table).count
    }

    pub(super) fn all(&self) -> Vec<Arc<Flight>> {
        lock(&self.table).held.iter().map(Arc::clone).collect()
    }

    /// Cuts what is not renewed in time at that moment, for ever. Leases of jobs that come later last for `usable` or less.
    ///
    /// One timer for all of them: a timer each would cost more than all else that is done for a job.
    pub(super) async fn watch(&self, usable: Duration) {
        loop {
            let next = self.lose_late(usable);
            tokio::select! {
                () = sleep_until(next) => {}
                () = self.sooner.notified() => {}
            }
        }
    }

    /// Says when to look again.
    fn lose_late(&self, usable: Duration) -> Instant {
        let now = Instant::now();
        let mut next = now + usable;
        let mut late = Vec::new();
        let mut table = lock(&self.table);
        for flight in table.held.iter().filter(|flight| flight.is_running() && flight.lost().is_none()) {
            let until = self.clock.instant(flight.until.load(Ordering::Acquire));
            if until <= now {
                late.push(Arc::clone(flight));
            } else {
                next = next.min(until);
            }
        }
        table.looks_at = self.clock.number(next);
        drop(table);
        late.iter().for_each(|flight| flight.lose(Loss::Late));
        next
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
