//! Takes jobs from a queue and runs a handler on each.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::{HandBack, Held, Owner, Queue, QueueError};
use crate::backoff::Backoff;
use crate::budget::{Human, LONGEST};
use crate::catch::with_sources;
use crate::{BoxError, Component, Intake, Overrun, Phase, ShutdownCoordinator, Unfinished};

mod appetite;
mod attempt;
mod calls;
mod claims;
mod crew;
mod desk;
mod flight;
mod handler;
mod pull;
mod renew;

pub use flight::Leased;
pub use handler::{Handler, HandlerFn};

use desk::Desk;
use flight::{Loss, Stage};

/// A worker that claims jobs from a [`Queue`] and runs a [`Handler`] on each; made by [`work`].
///
/// Add it to a coordinator: `shutdown.add(queue::work("orders", jobs, fulfil).concurrency(16))`.
#[must_use = "a worker does nothing until it is added to a coordinator"]
pub struct Work<Q, H> {
    name: Cow<'static, str>,
    queue: Q,
    handler: H,
    options: Options,
}

#[derive(Debug, Clone)]
struct Options {
    owner: Option<Owner>,
    concurrency: usize,
    prefetch: usize,
    lease: Duration,
    attempts: u32,
    backoff: Backoff,
    task_limit: Option<Duration>,
    overrun: Overrun,
}

/// How many jobs run side by side when nothing is said.
const CONCURRENCY: usize = 8;
const LEASE: Duration = Duration::from_secs(30);
/// Below this no renewal could be relied upon.
const SHORTEST_LEASE: Duration = Duration::from_millis(50);
const ATTEMPTS: u32 = 3;

/// Claims jobs from the queue, each under a lease, and runs the handler on them until the program stops.
///
/// At most [`concurrency`](Work::concurrency) jobs are claimed at once, and nothing is claimed that does not run at once, unless
/// there is a [`prefetch`](Work::prefetch). At the trigger no new claim begins; what comes of one that is under way goes back
/// untouched. What runs may finish in the drain; what does not is cut and handed back with no attempt used, to where it stood.
///
/// - `Ok` from the handler: the job is acked.
/// - An error, a panic or an [overrun](Work::task_limit): an attempt is used, and the job comes again after a
///   [back-off](Work::backoff), or is kept as a dead letter when its [attempts](Work::attempts) are used up.
/// - Leases are renewed by one task of their own until the last job is settled. A job whose lease is lost, or could not be
///   renewed in time, is cut before somebody else can have it; what the queue has given to somebody else counts as handed back.
/// - Where the queue is [several](Queue::members), one that is away ends only the leases of its own jobs.
/// - Where [exiting is ours](crate::ShutdownHandle::may_exit), leases are shortened to the kill at the trigger: a job that even then
///   would not stop is free again the moment the process is dead.
///
/// A queue that cannot be reached ends nothing: the worker tries again, ever more slowly.
///
/// ```
/// use winddown::queue::{self, Leased, NewJob, memory::Memory};
/// use winddown::{Budget, Cx, ShutdownCoordinator, signal};
///
/// async fn fulfil(order: &Leased<String>, cx: &Cx) -> Result<(), winddown::BoxError> {
///     let done: usize = order.checkpoint.as_deref().map_or(Ok(0), str::parse)?;
///     for (step, name) in ["reserve", "charge", "ship"].into_iter().enumerate().skip(done) {
///         cx.checkpoint()?;                                       // between steps: hand back now rather than be cut later
///         cx.shield(async { println!("{name} {}", order.item) }).await;
///         order.save((step + 1).to_string());                     // goes back with the job
///     }
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), winddown::BoxError> {
/// let jobs = Memory::new();
/// jobs.enqueue(NewJob::new("order-1".parse()?, "tea".to_owned()));
///
/// let mut shutdown = ShutdownCoordinator::new(Budget::default(), signal::none())?;
/// shutdown.add(queue::work("orders", jobs, fulfil).concurrency(16));
/// # shutdown.handle().trigger("the example is over");
/// let report = shutdown.run().await;
/// # Ok(()) }
/// ```
pub fn work<Q, H>(name: impl Into<Cow<'static, str>>, queue: Q, handler: H) -> Work<Q, H>
where
    Q: Queue,
    H: Handler<Q::Item>,
{
    Work { name: name.into(), queue, handler, options: Options::default() }
}

// === impl Work ===

impl<Q, H> Work<Q, H> {
    /// How many jobs are claimed and run side by side; 8 when not given, at least 1.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.options.concurrency = jobs.max(1);
        self
    }

    /// How many more jobs are claimed, each under a lease, to wait for a place among those that run; 0 when not given.
    ///
    /// For short jobs over a slow link: the next one begins without asking the queue first. At a stop or a pause those that wait go
    /// back untouched, which counts as no interruption; until then no other worker has them, although it may be idle.
    pub fn prefetch(mut self, jobs: usize) -> Self {
        self.options.prefetch = jobs;
        self
    }

    /// For how long a job is claimed at a time; 30 s when not given, from 50 ms to a year. It is renewed after a third of that, so that it
    /// says how soon a job is free again whose process has crashed, not how long a job may take.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease.clamp(SHORTEST_LEASE, LONGEST);
        self
    }

    /// How often a job may fail before it becomes a dead letter; 3 when not given, at least 1. Interruptions do not count.
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.options.attempts = attempts.max(1);
        self
    }

    /// How long a job waits that has failed: about `first`, twice that each time, `longest` at the most; 1 s and 5 min when not
    /// given. Up to half of it is left out at random, so that what failed together does not come again together.
    pub fn backoff(mut self, first: Duration, longest: Duration) -> Self {
        self.options.backoff = Backoff::new(first, longest);
        self
    }

    /// How long one run of the handler may take. Beyond it the run is cut and counts as failed.
    pub fn task_limit(mut self, limit: Duration) -> Self {
        self.options.task_limit = Some(limit);
        self
    }

    /// What is to happen at a stop when a run is longer than the drain; [`Overrun::Requeue`] when not given.
    pub fn overrun(mut self, overrun: Overrun) -> Self {
        self.options.overrun = overrun;
        self
    }

    /// Who claims; [`Owner::unique`] with the worker's name when not given. It must be unique among all processes and restarts.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.options.owner = Some(owner);
        self
    }
}

impl<Q, H> fmt::Debug for Work<Q, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("name", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<Q, H> Component for Work<Q, H>
where
    Q: Queue,
    H: Handler<Q::Item>,
{
    type Handle = ();

    fn register(self, shutdown: &mut ShutdownCoordinator) {
        let Work { name, queue, handler, options } = self;
        let owner = options.owner.clone().unwrap_or_else(|| Owner::unique(&name));
        let desk = Arc::new(Desk::new(name.to_string(), queue, owner, options.clone(), shutdown.handle()));
        let intake = shutdown
            .gate(name.clone())
            .pulled()
            .requeue_batch_with(Arc::clone(&desk), hand_back)
            .still_running(Arc::clone(&desk), keep)
            .named(|job: &Leased<Q::Item>| job.lease.id.to_string())
            .overrun(options.overrun);
        let intake = if desk.queue.members() > 1 {
            let desk = Arc::clone(&desk);
            intake.apart(move |job: &Leased<Q::Item>| desk.queue.member(&job.lease))
        } else {
            intake
        };
        let intake: Intake<Leased<Q::Item>> = match options.task_limit {
            Some(limit) => intake.task_limit(limit),
            None => intake,
        };
        // Both serve the work until the last of it is settled, which may be after the drain; leases first, since they must be
        // renewed from the first claim on.
        let over = tokio_util::sync::CancellationToken::new();
        shutdown
            .spawn(format!("{name} leases"), renew::run(Arc::clone(&desk), over.clone()))
            .until(Phase::Requeue)
            .serving(name.clone());
        shutdown
            .spawn(name.clone(), pull::run(desk, intake, handler, over.drop_guard()))
            .until(Phase::Requeue)
            .serving(name);
    }
}

/// The re-enqueue callback: brings back what was not finished, with how far it had come.
async fn hand_back<Q: Queue>(
    desk: Arc<Desk<Q>>,
    jobs: Vec<Unfinished<Leased<Q::Item>>>,
) -> Result<(), BoxError> {
    // One whose handler was done all the same, after a refused checkpoint or with its task aborted, is not to run again.
    let (done, unfinished): (Vec<_>, Vec<_>) =
        jobs.iter().partition(|job| job.flight().stage() == Stage::Done);
    if !done.is_empty() {
        let leases: Vec<_> = done.iter().map(|job| job.lease.clone()).collect();
        let held = in_time(&desk, desk.queue.ack(&leases)).await?;
        // Gone is no news: this may be called again after an answer that was lost.
        for (job, _) in done.iter().zip(held).filter(|(_, held)| *held == Held::Lost) {
            desk.tell_lost(&job.lease, "when it was done");
        }
    }
    // What somebody else has by the queue's own word is where it should be.
    let unfinished: Vec<_> =
        unfinished.into_iter().filter(|job| job.flight().lost() != Some(Loss::Told)).collect();
    if !unfinished.is_empty() {
        let back: Vec<HandBack> = unfinished.iter().map(|job| job.to_hand_back()).collect();
        let held = in_time(&desk, desk.queue.requeue(&back)).await?;
        for (job, held) in unfinished.iter().zip(held) {
            if !held.is_yours() {
                desk.tell_lost(&job.lease, "when it was handed back");
            }
        }
    }
    for job in &jobs {
        desk.flights.settled(job);
    }
    Ok(())
}

/// What the queue says, or why it says nothing: at a stop there is an end to waiting for it.
async fn in_time<Q: Queue, A>(
    desk: &Desk<Q>,
    call: impl Future<Output = Result<A, QueueError>>,
) -> Result<A, BoxError> {
    let over = async {
        desk.handle.triggered().await;
        match desk.handle.deadline(Phase::Requeue) {
            // Some time before those that call this give up, or they would not hear why.
            Some(deadline) => sleep(deadline.remaining() * 9 / 10).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        answer = call => answer.map_err(|error| format!("{}; {}", with_sources(&error), desk.when_free()).into()),
        // Dropped half-way it may still be done, and may be repeated.
        () = over => Err(format!("the queue did not answer; {}", desk.when_free()).into()),
    }
}

/// For a job that will not stop: its lease is to last for as long as this process may live.
async fn keep<Q: Queue>(desk: Arc<Desk<Q>>, job: Unfinished<Leased<Q::Item>>) -> Result<(), BoxError> {
    match job.flight().stage() {
        Stage::Settled => return Ok(()),
        // The handler is gone; it is the queue that has not confirmed yet. The intake repeats this until its time is over.
        Stage::Done => return Err(desk.unconfirmed(&job.lease, "was done").into()),
        Stage::Failed => return Err(desk.unconfirmed(&job.lease, "failed").into()),
        Stage::Claimed | Stage::Begun => {}
    }
    let length = match desk.handle.kill() {
        Some(kill) if desk.handle.may_exit() => kill.remaining(),
        _ => desk.options.lease,
    };
    let held = desk.queue.extend(std::slice::from_ref(&job.lease), length).await?;
    if held.iter().any(|held| !held.is_yours()) {
        desk.tell_lost(&job.lease, "while it would not stop");
    }
    tracing::warn!(target: "winddown", queue = desk.name, job = %job.lease.id, lease = %Human(length), "job.still_running");
    desk.flights.kept(&job);
    Ok(())
}

// === impl Options ===

impl Default for Options {
    fn default() -> Self {
        Options {
            owner: None,
            concurrency: CONCURRENCY,
            prefetch: 0,
            lease: LEASE,
            attempts: ATTEMPTS,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(300)),
            task_limit: None,
            overrun: Overrun::default(),
        }
    }
}
