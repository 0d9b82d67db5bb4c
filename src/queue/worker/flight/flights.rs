//! All jobs that a worker holds, and the watch over their leases.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{Clock, Flight, Leased, Loss, Stage, lock};
use crate::latch::slab::Slab;
use crate::queue::Lease;

/// All that is held: claimed, and neither settled nor handed back.
pub(in crate::queue::worker) struct Flights {
    table: Mutex<Table>,
    clock: Clock,
    /// One was settled.
    pub(in crate::queue::worker) changed: Notify,
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

// === impl Flights ===

impl Flights {
    pub(in crate::queue::worker) fn new() -> Flights {
        Flights {
            table: Mutex::new(Table { held: Slab::new(), count: 0, looks_at: u64::MAX }),
            clock: Clock(Instant::now()),
            changed: Notify::new(),
            sooner: Notify::new(),
            any_kept: AtomicBool::new(false),
        }
    }

    /// Holds a job; the key is where.
    pub(in crate::queue::worker) fn add(&self, lease: Lease, until: Instant) -> (usize, Arc<Flight>) {
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
    pub(in crate::queue::worker) fn settled<T>(&self, job: &Leased<T>) {
        self.settled_all([job]);
        self.changed.notify_one();
    }

    /// The same for many, by who waits for the change itself.
    pub(in crate::queue::worker) fn settled_all<'a, T: 'a>(
        &self,
        jobs: impl IntoIterator<Item = &'a Leased<T>>,
    ) {
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
    pub(in crate::queue::worker) fn kept<T>(&self, job: &Leased<T>) {
        self.any_kept.store(true, Ordering::Release);
        self.settled(job);
    }

    pub(in crate::queue::worker) fn any_kept(&self) -> bool {
        self.any_kept.load(Ordering::Acquire)
    }

    /// Whether there is such a lease that has not ended yet.
    pub(in crate::queue::worker) fn any_in_time(&self, such: impl Fn(&Lease) -> bool) -> bool {
        let now = self.clock.now();
        let in_time = |flight: &Flight| now < flight.until.load(Ordering::Acquire);
        lock(&self.table).held.iter().any(|flight| such(&flight.lease) && in_time(flight))
    }

    pub(in crate::queue::worker) fn len(&self) -> usize {
        lock(&self.table).count
    }

    pub(in crate::queue::worker) fn all(&self) -> Vec<Arc<Flight>> {
        lock(&self.table).held.iter().map(Arc::clone).collect()
    }

    /// Cuts what is not renewed in time at that moment, for ever. Leases of jobs that come later last for `usable` or less.
    ///
    /// One timer for all of them: a timer each would cost more than all else that is done for a job.
    pub(in crate::queue::worker) async fn watch(&self, usable: Duration) {
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
