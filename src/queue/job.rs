//! What is said of a job: how it is enqueued, claimed, settled and counted.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use super::name::{JobId, Owner};
use crate::error::BoxError;

/// A claim of one job, as every call that settles or renews it must show.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The job.
    pub id: JobId,
    /// Who claimed it.
    pub owner: Owner,
    /// Larger on every claim of the job, so that it also fences writes to elsewhere.
    pub epoch: u64,
}

/// A job to be enqueued.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewJob<T> {
    /// Its name.
    pub id: JobId,
    /// What it carries.
    pub item: T,
    /// Higher goes first; 0 unless said otherwise.
    pub priority: i32,
    /// How long it waits before it may be claimed.
    pub delay: Duration,
}

/// Whether enqueuing added the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// It is new.
    Added,
    /// The queue holds one of that name already, and left it as it is.
    Exists,
}

/// A job that was claimed, and what it went through before.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Claimed<T> {
    /// What it carries.
    pub item: T,
    /// The claim.
    pub lease: Lease,
    /// How often it was tried and failed.
    pub attempts: u32,
    /// How often it was handed back, or held by a process that ended.
    pub interruptions: u32,
    /// How often its lease ran out without a word.
    pub crashes: u32,
    /// How far it had come when it was last interrupted, in the words of its handler.
    pub checkpoint: Option<String>,
    /// Its priority.
    pub priority: i32,
    /// Its place by first enqueuing: smaller is earlier, and it stays the same.
    pub order: u64,
    /// How long ago it was first enqueued.
    pub age: Duration,
}

/// A job to be handed back unfinished.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HandBack {
    /// The claim.
    pub lease: Lease,
    /// Whether work on it had begun; one that was only claimed goes back without counting anything.
    pub begun: bool,
    /// How far it has come; `None` keeps what was said before.
    pub checkpoint: Option<String>,
}

/// What became of a call about one claimed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a lost lease says that somebody else has the job"]
pub enum Held {
    /// The lease held, and what was asked for is done.
    Yours,
    /// It had been handed back by this very claim before; nothing changed.
    Already,
    /// Somebody else has claimed it since, or it was settled in another way; nothing changed.
    Lost,
    /// There is no such job any more: it was acked, by this claim or a later one.
    Gone,
}

/// What came of one [`step`](super::Queue::step).
#[derive(Debug)]
pub struct Stepped<T> {
    /// What became of the jobs that were to be acked, in the order given.
    pub held: Vec<Held>,
    /// The jobs that were claimed.
    pub claimed: Vec<Claimed<T>>,
}

/// The job is somebody else's by now; what its old holder asked for was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseLost {
    id: JobId,
    gone: bool,
}

/// A job that was given up.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLetter {
    /// Its name.
    pub id: JobId,
    /// Why it was given up.
    pub reason: String,
    /// What it carries, as the queue stores it; `None` where the queue stores no text or it cannot be read.
    pub payload: Option<String>,
    /// How often it was tried and failed.
    pub attempts: u32,
    /// How often it was interrupted.
    pub interruptions: u32,
    /// How often it crashed its holder.
    pub crashes: u32,
    /// How long ago it was given up.
    pub age: Duration,
}

/// Where in its queue a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    /// Free to be claimed.
    Pending,
    /// Waiting for a delay to end.
    Scheduled,
    /// Claimed, also where the lease has run out since.
    Active,
    /// Given up.
    Dead,
}

/// How a job stands that is not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    /// Where in its queue it stands.
    pub state: JobState,
    /// How often it was tried and failed.
    pub attempts: u32,
    /// How often it was handed back, or held by a process that ended.
    pub interruptions: u32,
    /// How often its lease ran out without a word.
    pub crashes: u32,
}

/// How many jobs a queue holds, and what happened to all that it ever held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Free to be claimed.
    pub pending: u64,
    /// Waiting for a delay to end.
    pub scheduled: u64,
    /// Claimed, also where the lease has run out since.
    pub active: u64,
    /// Given up.
    pub dead: u64,
    /// Interruptions so far, those of jobs that are gone included: a ladder that fits keeps this from growing.
    pub interruptions: u64,
    /// Crashes so far, those of jobs that are gone included.
    pub crashes: u64,
    /// How long ago the oldest job that is neither done nor dead was first enqueued.
    pub oldest: Option<Duration>,
}

/// The queue could not do what it was asked for; [`source`](Error::source) says why.
#[derive(Debug)]
pub struct QueueError {
    doing: &'static str,
    source: BoxError,
}

/// Why a job that crashes its holders is given up, in the same words everywhere.
pub(super) fn crashed_too_often(crashes: u32) -> String {
    format!("its lease ran out {crashes} times without a word")
}

// === impl NewJob ===

impl<T> NewJob<T> {
    /// A job of ordinary priority that may be claimed at once.
    pub fn new(id: JobId, item: T) -> NewJob<T> {
        NewJob { id, item, priority: 0, delay: Duration::ZERO }
    }

    /// Higher goes first.
    pub fn priority(mut self, priority: i32) -> NewJob<T> {
        self.priority = priority;
        self
    }

    /// Waits before it may be claimed, from when it is enqueued.
    pub fn delay(mut self, delay: Duration) -> NewJob<T> {
        self.delay = delay;
        self
    }
}

// === impl Claimed ===

impl<T> Claimed<T> {
    /// A job that has only just been enqueued and claimed; a technology of your own fills in the rest.
    pub fn new(item: T, lease: Lease) -> Claimed<T> {
        Claimed {
            item,
            lease,
            attempts: 0,
            interruptions: 0,
            crashes: 0,
            checkpoint: None,
            priority: 0,
            order: 0,
            age: Duration::ZERO,
        }
    }
}

// === impl HandBack ===

impl HandBack {
    /// Work on it had begun: counts an interruption.
    pub fn interrupted(lease: Lease) -> HandBack {
        HandBack { lease, begun: true, checkpoint: None }
    }

    /// Nobody has touched it: counts nothing.
    pub fn untouched(lease: Lease) -> HandBack {
        HandBack { lease, begun: false, checkpoint: None }
    }

    /// Notes how far it has come, for who claims it next.
    pub fn checkpoint(mut self, checkpoint: impl Into<String>) -> HandBack {
        self.checkpoint = Some(checkpoint.into());
        self
    }
}

// === impl DeadLetter ===

impl DeadLetter {
    /// A job that has only just been given up, at its first attempt; a technology of your own fills in the rest.
    pub fn new(id: JobId, reason: impl Into<String>) -> DeadLetter {
        DeadLetter {
            id,
            reason: reason.into(),
            payload: None,
            attempts: 0,
            interruptions: 0,
            crashes: 0,
            age: Duration::ZERO,
        }
    }
}

// === impl Held ===

impl Held {
    /// Whether what was asked for is done, now or before.
    pub fn is_yours(self) -> bool {
        matches!(self, Held::Yours | Held::Already)
    }

    /// The same as a `Result`, for `?`.
    ///
    /// # Errors
    ///
    /// The lease was lost, or the job is gone.
    pub fn or_lost(self, lease: &Lease) -> Result<(), LeaseLost> {
        if self.is_yours() {
            return Ok(());
        }
        Err(LeaseLost { id: lease.id.clone(), gone: self == Held::Gone })
    }
}

// === impl LeaseLost ===

impl LeaseLost {
    /// The job.
    pub fn id(&self) -> &JobId {
        &self.id
    }

    /// Whether the job is done and gone, rather than in other hands.
    pub fn is_gone(&self) -> bool {
        self.gone
    }
}

impl fmt::Display for LeaseLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "lost the lease of job {}: it {}",
            self.id,
            if self.gone { "is gone" } else { "is in other hands" }
        )
    }
}

impl Error for LeaseLost {}

// === impl QueueError ===

impl QueueError {
    /// `doing` completes "could not …", as in "claim jobs".
    pub fn new(doing: &'static str, source: impl Into<BoxError>) -> QueueError {
        QueueError { doing, source: source.into() }
    }
}

impl fmt::Display for QueueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}", self.doing)
    }
}

impl Error for QueueError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}
