//! Queues of which one goes strictly before the next.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use super::outage::Outages;
use super::{Claimed, Counts, DeadLetter, HandBack, Held, JobId, Lease, Owner, Queue, QueueError, Stepped};

/// Several queues as one: nothing is claimed from a queue while one before it has a job that may be claimed.
///
/// Each queue sees the owner with its own number behind (`web-1/0`, `web-1/1`), and so do the leases: that is how every later call
/// finds the queue that a job is from. A name is a job's own within its queue alone.
///
/// - A claim asks the queues in turn, and those further back only for what it still lacks.
/// - Where a queue cannot be asked, those behind it are not asked in its stead. What was claimed before that is not lost; that it could
///   not be asked is logged (`queue.unreachable`, with the owner as that queue sees it) where the call itself does not fail.
/// - A call about jobs of several queues fails as a whole where one of them cannot be asked, and what was done already is told when it is
///   repeated, as everywhere. A [worker](super::work) renews and hands back what is of each queue apart: where one is away, only its own
///   leases end, and only its own jobs cannot go back.
/// - A clone is the same queues. A `Strict` of `Strict`s is of no use: name all queues in one.
///
/// ```
/// use std::time::Duration;
/// use winddown::queue::{NewJob, Owner, Queue, Strict, memory::Memory};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (urgent, bulk) = (Memory::new(), Memory::new());
/// bulk.enqueue(NewJob::new("mail-1".parse()?, "news"));
/// urgent.enqueue(NewJob::new("order-1".parse()?, "tea"));
///
/// let jobs = Strict::new([urgent, bulk]); // for `queue::work("jobs", jobs, handler)`
/// let claimed = jobs.claim(&Owner::unique("web"), 1, Duration::from_secs(30)).await?;
/// assert_eq!(claimed[0].item, "tea");
/// # Ok(()) }
/// ```
pub struct Strict<Q> {
    queues: Arc<[Q]>,
    outages: Arc<Outages>,
}

/// What one of the queues has said.
#[derive(Debug)]
struct AtQueue {
    number: usize,
    error: QueueError,
}

/// What a call is about, by queue; each with its place in the call.
struct Parts<T>(BTreeMap<usize, (Vec<usize>, Vec<T>)>);

/// Names the queue that an error is of.
fn at(number: usize) -> impl Fn(QueueError) -> QueueError {
    move |error| QueueError::new("ask one of the queues", AtQueue { number, error })
}

// === impl Strict ===

impl<Q> Strict<Q> {
    /// The first goes before all others.
    pub fn new(queues: impl IntoIterator<Item = Q>) -> Strict<Q> {
        Strict { queues: queues.into_iter().collect(), outages: Arc::new(Outages::new()) }
    }

    /// The queues themselves, the first in line first.
    pub fn queues(&self) -> &[Q] {
        &self.queues
    }
}

impl<Q: Queue> Strict<Q> {
    /// The owner as the queue of that number sees it.
    fn inner(owner: &Owner, number: usize) -> Result<Owner, QueueError> {
        format!("{owner}/{number}")
            .parse()
            .map_err(|error| QueueError::new("name the owner at its queue", error))
    }

    /// The queue that the owner of a lease is of; none where the lease is not from here.
    fn number(&self, owner: &Owner) -> Option<usize> {
        let (_, number) = owner.as_str().rsplit_once('/')?;
        number.parse().ok().filter(|number| *number < self.queues.len())
    }

    fn queue(&self, lease: &Lease) -> Option<&Q> {
        self.number(&lease.owner).map(|number| &self.queues[number])
    }

    fn parts<T: Clone>(&self, all: &[T], lease: impl Fn(&T) -> &Lease) -> Parts<T> {
        let mut parts: BTreeMap<usize, (Vec<usize>, Vec<T>)> = BTreeMap::new();
        for (place, one) in all.iter().enumerate() {
            if let Some(number) = self.number(&lease(one).owner) {
                let (places, part) = parts.entry(number).or_default();
                places.push(place);
                part.push(one.clone());
            }
        }
        Parts(parts)
    }

    /// Asks all queues side by side, and hears all of them out; the first error is the whole's.
    async fn each<R, Fut>(&self, call: impl Fn(usize) -> Fut) -> Result<Vec<R>, QueueError>
    where
        Fut: Future<Output = Result<R, QueueError>>,
    {
        let answers = join_all((0..self.queues.len()).map(call)).await;
        answers.into_iter().enumerate().map(|(number, answer)| answer.map_err(at(number))).collect()
    }

    /// Gives back what a call has claimed that could not be done as a whole.
    async fn give_back(&self, claimed: Vec<Claimed<Q::Item>>) {
        let back: Vec<HandBack> = claimed.into_iter().map(|job| HandBack::untouched(job.lease)).collect();
        if let Err(error) = self.requeue(&back).await {
            let error = crate::catch::with_sources(&error);
            tracing::error!(target: "winddown", jobs = back.len(), error,
                why = "they could not be handed back, and are free when their leases end", "job.left");
        }
    }
}

impl<Q> Clone for Strict<Q> {
    fn clone(&self) -> Strict<Q> {
        Strict { queues: Arc::clone(&self.queues), outages: Arc::clone(&self.outages) }
    }
}

impl<Q: fmt::Debug> fmt::Debug for Strict<Q> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Strict").field(&self.queues).finish()
    }
}

impl<Q: Queue> Queue for Strict<Q> {
    type Item = Q::Item;

    async fn claim(
        &self,
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Claimed<Q::Item>>, QueueError> {
        Ok(self.step(&[], owner, max, lease).await?.claimed)
    }

    async fn ready(&self) {
        match self.queues.len() {
            0 => pending().await,
            _ => drop(select_all(self.queues.iter().map(|queue| Box::pin(queue.ready()))).await),
        }
    }

    fn members(&self) -> usize {
        self.queues.len()
    }

    fn member(&self, lease: &Lease) -> usize {
        // What is from nowhere is lost at any of them.
        self.number(&lease.owner).unwrap_or_default()
    }

    async fn stop_waiting(&self) {
        join_all(self.queues.iter().map(Q::stop_waiting)).await;
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Held>, QueueError> {
        self.parts(leases, |lease| lease)
            .settle(leases.len(), |number, part| self.queues[number].extend(part, length))
            .await
    }

    async fn ack(&self, leases: &[Lease]) -> Result<Vec<Held>, QueueError> {
        self.parts(leases, |lease| lease)
            .settle(leases.len(), |number, part| self.queues[number].ack(part))
            .await
    }

    async fn nack(&self, lease: &Lease, delay: Duration, reason: &str) -> Result<Held, QueueError> {
        match self.queue(lease) {
            Some(queue) => queue.nack(lease, delay, reason).await,
            None => Ok(Held::Lost),
        }
    }

    async fn dead_letter(&self, lease: &Lease, reason: &str) -> Result<Held, QueueError> {
        match self.queue(lease) {
            Some(queue) => queue.dead_letter(lease, reason).await,
            None => Ok(Held::Lost),
        }
    }

    /// All or none of each queue's.
    async fn requeue(&self, jobs: &[HandBack]) -> Result<Vec<Held>, QueueError> {
        self.parts(jobs, |job| &job.lease)
            .settle(jobs.len(), |number, part| self.queues[number].requeue(part))
            .await
    }

    async fn begin_drain(&self, owner: &Owner, kill_in: Option<Duration>) -> Result<(), QueueError> {
        self.each(async |number| self.queues[number].begin_drain(&Self::inner(owner, number)?, kill_in).await)
            .await
            .map(drop)
    }

    async fn end_drain(&self, owner: &Owner) -> Result<(), QueueError> {
        self.each(async |number| self.queues[number].end_drain(&Self::inner(owner, number)?).await)
            .await
            .map(drop)
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        let all = self.each(|number| self.queues[number].counts()).await?;
        Ok(all.into_iter().fold(Counts::default(), |sum, one| Counts {
            pending: sum.pending + one.pending,
            scheduled: sum.scheduled + one.scheduled,
            active: sum.active + one.active,
            dead: sum.dead + one.dead,
            interruptions: sum.interruptions + one.interruptions,
            crashes: sum.crashes + one.crashes,
            oldest: sum.oldest.max(one.oldest),
        }))
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, QueueError> {
        let all = self.each(|number| self.queues[number].dead_letters(max)).await?;
        let mut all: Vec<DeadLetter> = all.into_iter().flatten().collect();
        // Stable: what is of one queue stays in its order.
        all.sort_by_key(|dead| std::cmp::Reverse(dead.age));
        all.truncate(max);
        Ok(all)
    }

    /// Of the first queue that has one of that id.
    async fn retry(&self, id: &JobId) -> Result<bool, QueueError> {
        let mut failed = None;
        for queue in self.queues.iter() {
            match queue.retry(id).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(false), Err)
    }

    async fn step(
        &self,
        done: &[Lease],
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Stepped<Q::Item>, QueueError> {
        let mut parts = self.parts(done, |lease| lease);
        let mut held = vec![Held::Lost; done.len()];
        let mut claimed = Vec::new();
        let mut numbers = 0..self.queues.len();
        // Acks and claims in one as long as nothing is claimed: an error here loses nothing.
        while claimed.is_empty() && max > 0 {
            let Some(number) = numbers.next() else { break };
            let (places, part) = parts.0.remove(&number).unwrap_or_default();
            let inner = Self::inner(owner, number)?;
            let stepped = self.queues[number].step(&part, &inner, max, lease).await.map_err(at(number))?;
            places.into_iter().zip(stepped.held).for_each(|(place, answer)| held[place] = answer);
            claimed = stepped.claimed;
        }
        // No answer can be given for part of the acks: for the next try to get all, it must begin with nothing claimed.
        let rest: Vec<usize> = parts.0.values().flat_map(|(places, _)| places.iter().copied()).collect();
        match parts.settle(done.len(), |number, part| self.queues[number].ack(part)).await {
            Ok(answers) => rest.into_iter().for_each(|place| held[place] = answers[place]),
            Err(error) => {
                self.give_back(claimed).await;
                return Err(error);
            }
        }
        for number in numbers {
            if claimed.len() >= max {
                break;
            }
            // What was claimed is to be worked on, whatever the others say; a name that is too long for one is told once there is nothing.
            let Ok(inner) = Self::inner(owner, number) else { break };
            let more = self.queues[number].claim(&inner, max - claimed.len(), lease).await;
            match self.outages.heard(&inner, Some(number), more) {
                Some(more) => claimed.extend(more),
                None => break,
            }
        }
        Ok(Stepped { held, claimed })
    }
}

// === impl AtQueue ===

impl fmt::Display for AtQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "number {}", self.number)
    }
}

impl Error for AtQueue {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

// === impl Parts ===

impl<T> Parts<T> {
    /// Asks the queues side by side, and answers in the order of the call; [`Held::Lost`] for what is of no queue.
    async fn settle<'a, Fut>(
        &'a self,
        count: usize,
        call: impl Fn(usize, &'a [T]) -> Fut,
    ) -> Result<Vec<Held>, QueueError>
    where
        Fut: Future<Output = Result<Vec<Held>, QueueError>>,
    {
        let mut held = vec![Held::Lost; count];
        let answers = join_all(self.0.iter().map(|(number, (_, part))| call(*number, part))).await;
        for ((number, (places, _)), answers) in self.0.iter().zip(answers) {
            let answers = answers.map_err(at(*number))?;
            places.iter().zip(answers).for_each(|(place, answer)| held[*place] = answer);
        }
        Ok(held)
    }
}
