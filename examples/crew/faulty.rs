//! A queue with places to die at, which also counts what the queue has confirmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use winddown::queue::{
    Claimed, Counts, DeadLetter, HandBack, Held, JobId, Lease, Owner, Queue, QueueError, Stepped,
};

use crate::points::Points;

pub struct Faulty<Q> {
    queue: Q,
    points: Points,
    ledger: Arc<Ledger>,
}

/// What the queue has confirmed, each job once.
#[derive(Default)]
pub struct Ledger {
    claimed: AtomicU64,
    acked: AtomicU64,
    interrupted: AtomicU64,
    untouched: AtomicU64,
    /// Answers that said that somebody else had the job.
    lost: AtomicU64,
    /// Answers that said that it was done, as one may hear who asks again.
    gone: AtomicU64,
    errors: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::SeqCst);
}

// === impl Ledger ===

impl Ledger {
    pub fn to_json(&self) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        json!({
            "claimed": of(&self.claimed), "acked": of(&self.acked), "interrupted": of(&self.interrupted),
            "untouched": of(&self.untouched), "lost": of(&self.lost), "gone": of(&self.gone), "errors": of(&self.errors),
        })
        .to_string()
    }

    fn acked(&self, held: &[Held]) {
        add(&self.acked, held.iter().filter(|held| **held == Held::Yours).count());
        self.lost(held);
    }

    fn lost(&self, held: &[Held]) {
        add(&self.lost, held.iter().filter(|held| **held == Held::Lost).count());
        add(&self.gone, held.iter().filter(|held| **held == Held::Gone).count());
    }

    fn error<T>(&self, answer: Result<T, QueueError>) -> Result<T, QueueError> {
        add(&self.errors, usize::from(answer.is_err()));
        answer
    }
}

// === impl Faulty ===

impl<Q: Queue> Faulty<Q> {
    pub fn new(queue: Q, points: Points) -> Faulty<Q> {
        Faulty { queue, points, ledger: Arc::default() }
    }

    pub fn ledger(&self) -> Arc<Ledger> {
        Arc::clone(&self.ledger)
    }

    fn had(&self, claimed: &[Claimed<Q::Item>]) {
        add(&self.ledger.claimed, claimed.len());
        if claimed.iter().any(|job| job.crashes + job.interruptions > 0) {
            self.points.pass("reclaim.after");
        }
        if !claimed.is_empty() {
            self.points.pass("claim.after");
        }
    }
}

impl<Q: Queue> Queue for Faulty<Q> {
    type Item = Q::Item;

    async fn claim(
        &self,
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Claimed<Q::Item>>, QueueError> {
        self.points.pass("claim.before");
        let claimed = self.ledger.error(self.queue.claim(owner, max, lease).await)?;
        self.had(&claimed);
        Ok(claimed)
    }

    async fn ready(&self) {
        self.queue.ready().await;
    }

    async fn stop_waiting(&self) {
        self.queue.stop_waiting().await;
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Held>, QueueError> {
        if !leases.is_empty() {
            self.points.pass("extend.before");
        }
        let held = self.ledger.error(self.queue.extend(leases, length).await)?;
        if !leases.is_empty() {
            self.points.pass("extend.after");
        }
        Ok(held)
    }

    async fn ack(&self, leases: &[Lease]) -> Result<Vec<Held>, QueueError> {
        self.points.pass("ack.before");
        let held = self.ledger.error(self.queue.ack(leases).await)?;
        self.ledger.acked(&held);
        self.points.pass("ack.after");
        Ok(held)
    }

    async fn nack(&self, lease: &Lease, delay: Duration, reason: &str) -> Result<Held, QueueError> {
        self.points.pass("nack.before");
        let held = self.ledger.error(self.queue.nack(lease, delay, reason).await)?;
        self.ledger.lost(&[held]);
        self.points.pass("nack.after");
        Ok(held)
    }

    async fn dead_letter(&self, lease: &Lease, reason: &str) -> Result<Held, QueueError> {
        let held = self.ledger.error(self.queue.dead_letter(lease, reason).await)?;
        self.ledger.lost(&[held]);
        Ok(held)
    }

    async fn requeue(&self, jobs: &[HandBack]) -> Result<Vec<Held>, QueueError> {
        self.points.pass("requeue.before");
        let held = self.ledger.error(self.queue.requeue(jobs).await)?;
        let yours = |begun| {
            jobs.iter().zip(&held).filter(|(job, held)| job.begun == begun && **held == Held::Yours).count()
        };
        add(&self.ledger.interrupted, yours(true));
        add(&self.ledger.untouched, yours(false));
        self.ledger.lost(&held);
        self.points.pass("requeue.after");
        Ok(held)
    }

    async fn begin_drain(&self, owner: &Owner, kill_in: Option<Duration>) -> Result<(), QueueError> {
        self.points.pass("begin_drain.before");
        self.ledger.error(self.queue.begin_drain(owner, kill_in).await)?;
        self.points.pass("begin_drain.after");
        Ok(())
    }

    async fn end_drain(&self, owner: &Owner) -> Result<(), QueueError> {
        self.ledger.error(self.queue.end_drain(owner).await)
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        self.queue.counts().await
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, QueueError> {
        self.queue.dead_letters(max).await
    }

    async fn retry(&self, id: &JobId) -> Result<bool, QueueError> {
        self.queue.retry(id).await
    }

    async fn step(
        &self,
        done: &[Lease],
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Stepped<Q::Item>, QueueError> {
        if !done.is_empty() {
            self.points.pass("ack.before");
        }
        self.points.pass("claim.before");
        let stepped = self.ledger.error(self.queue.step(done, owner, max, lease).await)?;
        self.ledger.acked(&stepped.held);
        if !done.is_empty() {
            self.points.pass("ack.after");
        }
        self.had(&stepped.claimed);
        Ok(stepped)
    }
}
