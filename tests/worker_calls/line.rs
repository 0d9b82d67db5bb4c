//! A queue at the end of a slow line: calls go on beside each other, and each takes its time there and back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use winddown::queue::{
    Claimed, Counts, DeadLetter, HandBack, Held, JobId, Lease, NewJob, Owner, Queue, QueueError, Stepped,
    memory::Memory,
};

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[derive(Clone)]
pub struct Line(Arc<State>);

pub struct State {
    pub jobs: Memory<u32>,
    at_once: usize,
    takes: Duration,
    began: Instant,
    /// What is to happen to the next calls that ack or claim, other than that they take their time.
    pub fates: Mutex<VecDeque<Fate>>,
    pub calls: Mutex<Vec<Call>>,
    /// Of the other calls, by name.
    pub others: Mutex<Vec<(Duration, String)>>,
    under_way: AtomicUsize,
    pub most_under_way: AtomicUsize,
    pub most_held: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
pub enum Fate {
    Takes(Duration),
    /// It is done, and its answer is lost.
    Lost,
    /// It never gets there.
    Fails,
}

#[derive(Debug, Clone)]
pub struct Call {
    pub at: Duration,
    pub acks: usize,
    pub max: usize,
}

impl std::ops::Deref for Line {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl Line {
    pub fn new(at_once: usize, takes: Duration, jobs: u32) -> Line {
        let line = Line(Arc::new(State {
            jobs: Memory::new(),
            at_once,
            takes,
            began: Instant::now(),
            fates: Mutex::default(),
            calls: Mutex::default(),
            others: Mutex::default(),
            under_way: AtomicUsize::new(0),
            most_under_way: AtomicUsize::new(0),
            most_held: AtomicUsize::new(0),
        }));
        (1..=jobs).for_each(|number| line.enqueue(number));
        line
    }

    pub fn enqueue(&self, number: u32) {
        self.jobs.enqueue(NewJob::new(format!("job-{number}").parse().unwrap(), number));
    }

    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    pub fn others(&self, of: &str) -> Vec<(Duration, String)> {
        self.others.lock().unwrap().iter().filter(|(_, name)| name.starts_with(of)).cloned().collect()
    }

    fn other(&self, name: impl Into<String>) {
        self.others.lock().unwrap().push((self.began.elapsed(), name.into()));
    }

    async fn call(
        &self,
        done: &[Lease],
        claim: Option<(&Owner, usize, Duration)>,
    ) -> Result<Stepped<u32>, QueueError> {
        let max = claim.map_or(0, |(_, max, _)| max);
        self.calls.lock().unwrap().push(Call { at: self.began.elapsed(), acks: done.len(), max });
        let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_under_way.fetch_max(now, Ordering::SeqCst);
        let fate = self.fates.lock().unwrap().pop_front().unwrap_or(Fate::Takes(self.takes));
        let takes = if let Fate::Takes(takes) = fate { takes } else { self.takes };
        pause(takes / 2).await;
        let mut stepped = Stepped { held: Vec::new(), claimed: Vec::new() };
        if !matches!(fate, Fate::Fails) {
            stepped.held = self.jobs.ack(done).await?;
            if let Some((owner, max, lease)) = claim {
                stepped.claimed = self.jobs.claim(owner, max, lease).await?;
            }
            self.most_held.fetch_max(self.jobs.counts().await?.active as usize, Ordering::SeqCst);
        }
        pause(takes - takes / 2).await;
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        match fate {
            Fate::Takes(_) => Ok(stepped),
            Fate::Lost | Fate::Fails => Err(QueueError::new("ask the queue", "the line is down")),
        }
    }
}

async fn pause(length: Duration) {
    if !length.is_zero() {
        sleep(length).await;
    }
}

impl Queue for Line {
    type Item = u32;

    fn calls_at_once(&self) -> usize {
        self.at_once
    }

    async fn claim(
        &self,
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Claimed<u32>>, QueueError> {
        self.call(&[], Some((owner, max, lease))).await.map(|stepped| stepped.claimed)
    }

    async fn ack(&self, leases: &[Lease]) -> Result<Vec<Held>, QueueError> {
        self.call(leases, None).await.map(|stepped| stepped.held)
    }

    async fn step(
        &self,
        done: &[Lease],
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Stepped<u32>, QueueError> {
        self.call(done, Some((owner, max, lease))).await
    }

    async fn ready(&self) {
        self.jobs.ready().await;
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Held>, QueueError> {
        self.jobs.extend(leases, length).await
    }

    async fn nack(&self, lease: &Lease, delay: Duration, reason: &str) -> Result<Held, QueueError> {
        self.jobs.nack(lease, delay, reason).await
    }

    async fn dead_letter(&self, lease: &Lease, reason: &str) -> Result<Held, QueueError> {
        self.jobs.dead_letter(lease, reason).await
    }

    async fn requeue(&self, jobs: &[HandBack]) -> Result<Vec<Held>, QueueError> {
        self.other(format!("requeue {}", jobs.len()));
        self.jobs.requeue(jobs).await
    }

    async fn begin_drain(&self, owner: &Owner, kill_in: Option<Duration>) -> Result<(), QueueError> {
        self.other("begin_drain");
        self.jobs.begin_drain(owner, kill_in).await
    }

    async fn end_drain(&self, owner: &Owner) -> Result<(), QueueError> {
        self.other("end_drain");
        self.jobs.end_drain(owner).await
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        self.jobs.counts().await
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, QueueError> {
        self.jobs.dead_letters(max).await
    }

    async fn retry(&self, id: &JobId) -> Result<bool, QueueError> {
        self.jobs.retry(id).await
    }
}
