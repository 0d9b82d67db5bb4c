//! Queues whose jobs outlive the process that holds them.
//!
//! [`Queue`] is the port: what a queue has to promise so that a stop loses no job, runs none twice at once and uses up no
//! attempt. [`memory`] keeps the promises within one process, `sql` (feature `sqlx-sqlite`) in a table of SQLite, and `redis` (feature
//! `redis`) in a server that many processes share.
//!
//! # The rules, the same for every technology
//!
//! - A claim has an [`Owner`] and an epoch that is larger on every claim of a job. Every later call must match both: who lost
//!   the lease is told so ([`Held`]) and changes nothing, not one byte.
//! - The queue's clock counts, not ours: callers give lengths of time, never moments.
//! - *Attempts* are used by [`nack`](Queue::nack) and [`dead_letter`](Queue::dead_letter) alone. A job handed back, or held by a
//!   process that had said that it was ending, was *interrupted*; one whose lease ran out otherwise has *crashed* its holder.
//! - A lease that ran out is still its holder's to settle until it is *reclaimed*: by a claim of that job, or by any worker that
//!   puts what ran out back into its place before somebody claims it.
//! - Jobs are claimed by priority (a stream of Redis has none), then in the order in which they were first enqueued. A job handed back
//!   keeps its place in that order, so it stands at the head again. Where more delays are over than one claim takes, those that
//!   ended first go first.

use std::future::Future;
use std::time::Duration;

mod job;
pub mod memory;
#[cfg(any(feature = "redis", feature = "sqlx-sqlite"))]
mod millis;
mod name;
mod outage;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sqlx-sqlite")]
pub mod sql;
mod strict;
mod worker;

pub use job::{
    Claimed, Counts, DeadLetter, Enqueued, HandBack, Held, JobState, Lease, LeaseLost, NewJob, QueueError,
    Standing, Stepped,
};
pub use name::{InvalidName, JobId, Owner};
pub use strict::Strict;
pub use worker::{Handler, HandlerFn, Leased, Work, work};

/// Crashes a job may cause before it becomes a dead letter, unless the queue was told otherwise.
pub const MAX_CRASHES: u32 = 5;

/// A queue that jobs are claimed from, for a time, by one owner each.
///
/// Calls may be repeated after an error: none counts anything twice, and [`Held`] tells what had happened already.
///
/// # Cancel safety
///
/// Only [`ready`](Queue::ready) may be dropped at any time. Any other call that is dropped half-way may still take effect at
/// the queue; a [`claim`](Queue::claim) dropped so may leave its jobs held by nobody until their lease ends, and they then
/// count a crash. (The queues in Redis put them back with the next claim of that owner.) Await them, or spawn them.
///
/// ```
/// use std::time::Duration;
/// use winddown::queue::{memory::Memory, Held, NewJob, Owner, Queue};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let jobs = Memory::new();
/// jobs.enqueue(NewJob::new("order-1".parse()?, "tea"));
///
/// let me = Owner::unique("worker");
/// let claimed = jobs.claim(&me, 16, Duration::from_secs(30)).await?;
/// assert_eq!(claimed[0].item, "tea");
/// assert_eq!(jobs.ack(&[claimed[0].lease.clone()]).await?, [Held::Yours]);
/// # Ok(()) }
/// ```
pub trait Queue: Send + Sync + 'static {
    /// What a job carries.
    type Item: Send + Sync + 'static;

    /// Claims up to `max` jobs for `owner`, each for `lease` from now, those first in line first; waits for none.
    ///
    /// Nothing for an owner that is ending. A job whose lease ran out is claimed like any other, and counts what happened to it;
    /// one that crashed too often, or that cannot be read, becomes a dead letter instead and does not disturb the others.
    ///
    /// # Errors
    ///
    /// The queue could not be asked. Nothing is known then: what was claimed becomes free when its lease ends, if not sooner.
    fn claim(
        &self,
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Vec<Claimed<Self::Item>>, QueueError>> + Send;

    /// Waits until there may be something to claim: a job came, a delay is over, a lease ran out.
    ///
    /// A hint: it may return when there is nothing, also because the queue could not be asked; the next
    /// [`claim`](Queue::claim) tells. A delay or a lease that ends wakes at that moment, a job enqueued by the same process at
    /// once, one of another process within three seconds at the latest, and where the technology tells of it within milliseconds.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time: it takes nothing.
    fn ready(&self) -> impl Future<Output = ()> + Send;

    /// Ends what [`ready`](Queue::ready) may have left waiting at the server, and returns when that is over.
    ///
    /// For when nothing more is to be claimed, or not for a while: a [worker](work) calls it at the trigger and when it is paused,
    /// asks [`ready`](Queue::ready) no more until it has returned, and ends only after it. Calls about jobs go on beside it. What
    /// such a wait still brings is passed on, so that no other waiter misses it. A queue whose `ready` leaves nothing behind has
    /// nothing to do here.
    ///
    /// Where the server does not answer it may take as long as it likes: it holds up nothing but the worker's end, and is dropped
    /// when the time for handing back is over.
    fn stop_waiting(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Makes leases end `length` from now, and says which of them are still their holder's, in the order given.
    ///
    /// For an owner that is ending not beyond its kill: see [`begin_drain`](Queue::begin_drain).
    ///
    /// # Errors
    ///
    /// The queue could not be asked; the leases end when they would have, or as asked for.
    fn extend(
        &self,
        leases: &[Lease],
        length: Duration,
    ) -> impl Future<Output = Result<Vec<Held>, QueueError>> + Send;

    /// Says that jobs are done, and removes them; answers in the order given.
    ///
    /// Where a reply was lost, the repeated call says [`Held::Gone`].
    ///
    /// # Errors
    ///
    /// The queue could not be asked.
    fn ack(&self, leases: &[Lease]) -> impl Future<Output = Result<Vec<Held>, QueueError>> + Send;

    /// Says that a job was tried and failed: an attempt is used, and it is free again after `delay`.
    ///
    /// # Errors
    ///
    /// The queue could not be asked.
    fn nack(
        &self,
        lease: &Lease,
        delay: Duration,
        reason: &str,
    ) -> impl Future<Output = Result<Held, QueueError>> + Send;

    /// Says that a job was tried and failed for the last time: an attempt is used, and it is kept aside with the reason.
    ///
    /// # Errors
    ///
    /// The queue could not be asked.
    fn dead_letter(
        &self,
        lease: &Lease,
        reason: &str,
    ) -> impl Future<Output = Result<Held, QueueError>> + Send;

    /// Hands back jobs that were not finished: no attempt is used, and they stand in their old place at once.
    ///
    /// All or none of those still held are handed back, of up to a thousand; answers in the order given. Repeated, it says
    /// [`Held::Already`] and counts nothing.
    ///
    /// # Errors
    ///
    /// The queue could not be asked.
    fn requeue(&self, jobs: &[HandBack]) -> impl Future<Output = Result<Vec<Held>, QueueError>> + Send;

    /// Marks the owner as ending: it claims nothing from here on, and what it still holds `kill_in` from now is free at that
    /// moment, not at the end of its lease, and counts as interrupted.
    ///
    /// Repeated with less time it shortens further; it never lengthens. `None` is for a process that does not know when it will
    /// be gone: nothing more is claimed, and leases keep their full length.
    ///
    /// # Errors
    ///
    /// The queue could not be asked.
    fn begin_drain(
        &self,
        owner: &Owner,
        kill_in: Option<Duration>,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Takes the mark of [`begin_drain`](Queue::begin_drain) away: the owner may claim again, and renew in full what it holds.
    ///
    /// Also the last call of an owner that has settled everything, so that its mark is not kept for long.
    ///
    /// # Errors
    ///
    /// The queue could not be asked.
    fn end_drain(&self, owner: &Owner) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// How many jobs there are of each kind, and what happened to all that ever were.
    ///
    /// # Errors
    ///
    /// The queue could not be asked.
    fn counts(&self) -> impl Future<Output = Result<Counts, QueueError>> + Send;

    /// Up to `max` of the jobs that were given up, the oldest first.
    ///
    /// # Errors
    ///
    /// The queue could not be asked.
    fn dead_letters(&self, max: usize) -> impl Future<Output = Result<Vec<DeadLetter>, QueueError>> + Send;

    /// Puts a dead letter back into its old place, its attempts and crashes at zero; `false` when there is none of that id.
    ///
    /// # Errors
    ///
    /// The queue could not be asked.
    fn retry(&self, id: &JobId) -> impl Future<Output = Result<bool, QueueError>> + Send;

    /// Of how many queues this one is made: 1, unless there are several that may fail each by itself, as in a [`Strict`].
    ///
    /// A call about leases of several of them fails as a whole. So a [worker](work) renews and hands back what is of each apart, side by
    /// side: an outage of one takes nothing from the others.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use winddown::queue::{NewJob, Owner, Queue, Strict, memory::Memory};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let jobs = Strict::new([Memory::new(), Memory::new()]);
    /// jobs.queues()[1].enqueue(NewJob::new("mail-1".parse()?, "news"));
    ///
    /// let claimed = jobs.claim(&Owner::unique("web"), 1, Duration::from_secs(30)).await?;
    /// assert_eq!(jobs.members(), 2);
    /// assert_eq!(jobs.member(&claimed[0].lease), 1);
    /// # Ok(()) }
    /// ```
    fn members(&self) -> usize {
        1
    }

    /// The number of the queue that a lease is from, of these: from 0 on, and below [`members`](Queue::members). The same each time for a
    /// lease, also for one that is from none of them.
    fn member(&self, _lease: &Lease) -> usize {
        0
    }

    /// How many calls of one worker, each an [`ack`](Queue::ack), a [`claim`](Queue::claim) or a [`step`](Queue::step), may be under way at
    /// once, where one alone takes long; 1 unless said otherwise. Renewals, failures and hand-backs go on beside these.
    ///
    /// More than one is for a queue whose calls go on beside each other, such as a server at the end of a slow line. Where they wait for
    /// each other, as for a lock or the one connection that there is, they would only become more, and smaller. Nothing else can
    /// tell the two apart: both are slow.
    ///
    /// ```
    /// use winddown::queue::{Queue, memory::Memory};
    ///
    /// // A second call would only wait for the first.
    /// assert_eq!(Memory::<String>::new().calls_at_once(), 1);
    /// ```
    fn calls_at_once(&self) -> usize {
        1
    }

    /// [`ack`](Queue::ack) and then [`claim`](Queue::claim), in one go where the technology can.
    ///
    /// # Errors
    ///
    /// The queue could not be asked. Repeated, what had been acked says [`Held::Gone`].
    fn step(
        &self,
        done: &[Lease],
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> impl Future<Output = Result<Stepped<Self::Item>, QueueError>> + Send {
        async move {
            let held = if done.is_empty() { Vec::new() } else { self.ack(done).await? };
            Ok(Stepped { held, claimed: self.claim(owner, max, lease).await? })
        }
    }
}
