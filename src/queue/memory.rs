//! A queue within one process, on tokio's clock: for tests, and for work that need not survive the process.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use self::state::{FOREVER, Kind, State};
use super::{
    Claimed, Counts, DeadLetter, Enqueued, HandBack, Held, JobId, Lease, MAX_CRASHES, NewJob, Owner, Queue,
    QueueError,
};

mod state;

/// A queue in memory, with the rules of those that outlive the process; a clone is the same queue.
///
/// Items are cloned when they are claimed, so that a job whose lease ran out can be claimed again.
pub struct Memory<T> {
    shared: Arc<Shared<T>>,
    max_crashes: u32,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    // Counts the changes that may have made something claimable; a waiter looks at the state only after subscribing.
    changes: watch::Sender<u64>,
}

// === impl Memory ===

impl<T: Clone + Send + Sync + 'static> Memory<T> {
    /// An empty queue.
    pub fn new() -> Memory<T> {
        let shared = Shared { state: Mutex::new(State::new()), changes: watch::Sender::new(0) };
        Memory { shared: Arc::new(shared), max_crashes: MAX_CRASHES }
    }

    /// Crashes a job may cause before it becomes a dead letter; [`MAX_CRASHES`] unless said otherwise.
    pub fn max_crashes(mut self, max: u32) -> Memory<T> {
        self.max_crashes = max;
        self
    }

    /// Adds a job, unless the queue holds one of that name, dead letters included.
    pub fn enqueue(&self, job: NewJob<T>) -> Enqueued {
        let now = Instant::now();
        let enqueued = self.state().enqueue(job, now);
        self.changed();
        enqueued
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // A panic cannot come half-way through a change, except from the user's `Clone`, before anything has changed.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.shared.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }
}

impl<T> Clone for Memory<T> {
    fn clone(&self) -> Memory<T> {
        Memory { shared: self.shared.clone(), max_crashes: self.max_crashes }
    }
}

impl<T: fmt::Debug> fmt::Debug for Memory<T> {
    /// All that is in it, for tests that compare.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Memory").field("state", &*state).field("max_crashes", &self.max_crashes).finish()
    }
}

impl<T: Clone + Send + Sync + 'static> Default for Memory<T> {
    fn default() -> Memory<T> {
        Memory::new()
    }
}

impl<T: Clone + Send + Sync + 'static> Queue for Memory<T> {
    type Item = T;

    async fn claim(&self, owner: &Owner, max: usize, lease: Duration) -> Result<Vec<Claimed<T>>, QueueError> {
        Ok(self.state().claim(owner, max, lease, self.max_crashes))
    }

    async fn ready(&self) {
        let mut changes = self.shared.changes.subscribe();
        loop {
            let next = self.state().next();
            match next {
                Some(due) if due <= Instant::now() => return,
                Some(due) => {
                    tokio::select! {
                        () = sleep_until(due) => {}
                        _ = changes.changed() => {}
                    }
                }
                // The sender is ours, so this ends only with a change.
                None => drop(changes.changed().await),
            }
        }
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Held>, QueueError> {
        let until = Instant::now() + length.min(FOREVER);
        let held = {
            let mut state = self.state();
            let mut extend = |lease| state.settle(lease, |state, order| state.move_lease(order, until, None));
            leases.iter().map(&mut extend).collect()
        };
        // A lease may be made to end sooner than a waiter expects.
        self.changed();
        Ok(held)
    }

    async fn ack(&self, leases: &[Lease]) -> Result<Vec<Held>, QueueError> {
        let mut state = self.state();
        Ok(leases.iter().map(|lease| state.settle(lease, State::remove)).collect())
    }

    async fn nack(&self, lease: &Lease, delay: Duration, _reason: &str) -> Result<Held, QueueError> {
        let due = Instant::now() + delay.min(FOREVER);
        let then = if delay.is_zero() { Kind::Pending } else { Kind::Scheduled { due } };
        let held = self.state().fail(lease, then);
        self.changed();
        Ok(held)
    }

    async fn dead_letter(&self, lease: &Lease, reason: &str) -> Result<Held, QueueError> {
        let reason = reason.to_owned();
        Ok(self.state().fail(lease, Kind::Dead { at: Instant::now(), reason }))
    }

    async fn requeue(&self, jobs: &[HandBack]) -> Result<Vec<Held>, QueueError> {
        let held = {
            let mut state = self.state();
            jobs.iter().map(|job| state.requeue(job)).collect()
        };
        self.changed();
        Ok(held)
    }

    async fn begin_drain(&self, owner: &Owner, kill_in: Option<Duration>) -> Result<(), QueueError> {
        let kill = Instant::now() + kill_in.map_or(FOREVER, |kill_in| kill_in.min(FOREVER));
        self.state().begin_drain(owner, kill);
        self.changed();
        Ok(())
    }

    async fn end_drain(&self, owner: &Owner) -> Result<(), QueueError> {
        self.state().end_drain(owner);
        Ok(())
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        Ok(self.state().counts())
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, QueueError> {
        Ok(self.state().dead_letters(max))
    }

    async fn retry(&self, id: &JobId) -> Result<bool, QueueError> {
        let retried = self.state().retry(id);
        self.changed();
        Ok(retried)
    }
}
