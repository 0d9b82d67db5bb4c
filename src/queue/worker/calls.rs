//! The loop's calls to the queue: how many are under way, what each is about, and when the next may begin.

use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use super::claims::Claim;
use super::desk::Desk;
use super::flight::Leased;
use crate::Job;
use crate::queue::{HandBack, Lease, Queue, QueueError, Stepped};

/// How many jobs one call claims or acks.
const BATCH: usize = 1000;
/// Where calls overlap, what may be held is divided among them, but not into smaller parts than this.
const LEAST: usize = 8;
/// While calls take less than this, one after the other is faster: what is done meanwhile goes with the next.
const SLOW: Duration = Duration::from_micros(500);
/// A call that takes longer than this holds up no other, however little there is to do.
const LONG: Duration = Duration::from_millis(100);

/// All calls that are under way. They are polled together, and with them nothing else is awaited that the queue answers: a call that
/// is not polled may be half-way through asking, and hold what the others wait for.
pub(super) struct Calls<'a, Q: Queue> {
    desk: &'a Desk<Q>,
    under_way: FuturesUnordered<Call<'a, Q>>,
    /// How many jobs may be held.
    most: usize,
    at_once: usize,
    /// Those that ack or claim.
    steps: usize,
    claims: usize,
    /// Places for what the claims under way may bring beyond those of the jobs that they ack.
    reserved: usize,
    /// Those that hand back.
    returns: usize,
    last_began: Instant,
    /// How long calls take, by and large.
    usual: Duration,
    trouble: Option<Trouble>,
}

type Call<'a, Q> = Pin<Box<dyn Future<Output = Came<'a, Q>> + Send + 'a>>;

/// What has come of a call.
pub(super) enum Came<'a, Q: Queue> {
    Answer(Step<'a, Q>, Result<Stepped<Q::Item>, QueueError>),
    HandedBack,
}

/// A call that acks and claims, or does one of the two.
pub(super) struct Step<'a, Q: Queue> {
    /// What is acked.
    pub(super) jobs: Vec<Job<Leased<Q::Item>>>,
    /// So many of them, the first, were acked before, by calls that have failed.
    pub(super) repeated: usize,
    pub(super) max: usize,
    pub(super) asked: Instant,
    pub(super) claim: Option<Claim<'a>>,
}

/// What is to be said next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) acks: usize,
    pub(super) max: usize,
}

/// The queue does not answer.
struct Trouble {
    failures: u32,
    /// Calls that began before failed for the same reason as the one that failed then.
    since: Instant,
    /// It is left alone until then.
    until: Instant,
    /// So that the beginning of the stop ends that.
    stopping: bool,
    /// A call is under way that began after that: one at a time tells how it is now.
    probed: bool,
}

/// Names what could not be handed back before its time was over.
struct Returning<'a>(&'a str, Vec<HandBack>);

// === impl Calls ===

impl<'a, Q: Queue> Calls<'a, Q> {
    pub(super) fn new(desk: &'a Desk<Q>) -> Calls<'a, Q> {
        Calls {
            desk,
            under_way: FuturesUnordered::new(),
            most: desk.options.concurrency.saturating_add(desk.options.prefetch),
            at_once: desk.queue.calls_at_once().max(1),
            steps: 0,
            claims: 0,
            reserved: 0,
            returns: 0,
            last_began: Instant::now(),
            usual: Duration::ZERO,
            trouble: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether the queue may be asked for a hint. Beside a claim it is not: that tells more, and takes the hint for its own.
    pub(super) fn leave_room_for_ready(&self) -> bool {
        self.claims == 0 && (self.under_way.is_empty() || self.at_once > 1)
    }

    /// Whether a claim may begin now, where there is an appetite.
    ///
    /// The second only where the first answers have brought all that was asked for; and none while something goes back that stands before
    /// what it would bring.
    pub(super) fn may_claim(&self, plenty: bool) -> bool {
        self.returns == 0 && (self.claims == 0 || plenty)
    }

    /// How many more may be claimed, besides one for each that is acked with it.
    pub(super) fn room(&self, held: usize) -> usize {
        self.most.saturating_sub(held).saturating_sub(self.reserved)
    }

    /// What to say now, with so many done, and room for so many, or for none but in place of those, where something is to be claimed; nothing
    /// where it is better to wait.
    pub(super) fn next(&self, done: usize, room: Option<usize>, plenty: bool) -> Option<Next> {
        let enough = self.enough()?;
        let size = if plenty && room.is_some() && self.overlap() { self.part() } else { BATCH };
        let acks = done.min(size);
        let max = room.map_or(0, |room| room.saturating_add(acks).min(size));
        (acks.max(max) >= enough).then_some(Next { acks, max })
    }

    /// How many jobs a call must ack or claim to be worth beginning, as things are; nothing where none may begin, however many they are.
    pub(super) fn enough(&self) -> Option<usize> {
        if self.left_alone_until().is_some() {
            return None;
        }
        match (self.steps, &self.trouble) {
            (0, _) => Some(1),
            (steps, _) if steps >= self.at_once => None,
            // Beside those that began before it, and may hang for much longer.
            (_, Some(trouble)) => (!trouble.probed).then_some(1),
            _ if self.last_began.elapsed() >= LONG => Some(1),
            // Not a whole part: some of what has come with one answer may still run, and would wait for the next answer.
            _ => self.overlap().then(|| self.part().div_ceil(2)),
        }
    }

    /// When to look again, whatever else happens: a call may begin then that may not begin now.
    pub(super) fn look_again(&self) -> Option<Instant> {
        let overdue = || Some(self.last_began + LONG).filter(|at| *at > Instant::now());
        match self.left_alone_until() {
            Some(until) => Some(until),
            None if self.steps > 0 && self.steps < self.at_once => overdue(),
            None => None,
        }
    }

    fn left_alone_until(&self) -> Option<Instant> {
        let trouble = self.trouble.as_ref()?;
        // There is no time to wait for long once the program stops.
        let waits = trouble.stopping || !self.desk.handle.is_triggered();
        (waits && Instant::now() < trouble.until).then_some(trouble.until)
    }

    fn overlap(&self) -> bool {
        self.at_once > 1 && self.usual > SLOW
    }

    fn part(&self) -> usize {
        self.most.div_ceil(self.at_once).clamp(LEAST, BATCH)
    }

    /// Begins a call about these jobs, the first of which were `repeated`; its end is told by [`came`](Self::came).
    pub(super) async fn begin(&mut self, jobs: Vec<Job<Leased<Q::Item>>>, repeated: usize, max: usize) {
        let (desk, asked) = (self.desk, Instant::now());
        let claim = (max > 0).then(|| desk.claims.begin());
        let step = Step { jobs, repeated, max, asked, claim };
        self.steps += 1;
        self.claims += usize::from(max > 0);
        self.reserved += step.reserves();
        self.last_began = asked;
        if let Some(trouble) = &mut self.trouble {
            trouble.probed = true;
        }
        let mut call: Call<'a, Q> = Box::pin(async move {
            let leases: Vec<Lease> = step.jobs.iter().map(|job| job.lease.clone()).collect();
            let answer = match max {
                0 => desk.queue.ack(&leases).await.map(|held| Stepped { held, claimed: Vec::new() }),
                _ => desk.queue.step(&leases, &desk.owner, max, desk.options.lease).await,
            };
            Came::Answer(step, answer)
        });
        // Sent before any more answers are seen to that are there already: what came together would for ever go and come together, and
        // the server and we would wait for each other by turns.
        match poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await {
            Poll::Ready(came) => self.under_way.push(Box::pin(ready(came))),
            Poll::Pending => self.under_way.push(call),
        }
    }

    /// Hands back what came too late, until it is heard; the claim that brought it counts as under way until then.
    pub(super) fn give_back(&mut self, jobs: Vec<HandBack>, claim: Claim<'a>) {
        let desk = self.desk;
        self.returns += 1;
        self.under_way.push(Box::pin(async move {
            let _claim = claim;
            let mut returning = Returning(&desk.name, jobs);
            let (held, _) = desk.until_heard(|| desk.queue.requeue(&returning.1)).await;
            for (job, held) in returning.1.drain(..).zip(held) {
                if !held.is_yours() {
                    desk.tell_lost(&job.lease, "when it was handed back");
                }
            }
            Came::HandedBack
        }));
    }

    /// Waits for the end of a call; nothing where none is under way.
    ///
    /// # Cancel safety
    ///
    /// May be dropped: the calls stay under way.
    pub(super) async fn came(&mut self) -> Option<Came<'a, Q>> {
        let came = self.under_way.next().await?;
        match &came {
            Came::Answer(step, answer) => {
                self.steps -= 1;
                self.claims -= usize::from(step.max > 0);
                self.reserved -= step.reserves();
                match answer {
                    Ok(_) => self.heard(step.asked),
                    Err(_) => self.failed(step.asked),
                }
            }
            Came::HandedBack => self.returns -= 1,
        }
        Some(came)
    }

    fn heard(&mut self, asked: Instant) {
        self.usual = (self.usual * 3 + asked.elapsed()) / 4;
        // An answer to what was asked before tells nothing of how it is now.
        if self.trouble.as_ref().is_some_and(|trouble| asked >= trouble.since) {
            self.trouble = None;
        }
    }

    fn failed(&mut self, asked: Instant) {
        let now = Instant::now();
        let failures = match &self.trouble {
            None => 0,
            Some(trouble) if asked < trouble.since => return,
            Some(trouble) => trouble.failures + 1,
        };
        let until = now + self.desk.pause(failures);
        let stopping = self.desk.handle.is_triggered();
        self.trouble = Some(Trouble { failures, since: now, until, stopping, probed: false });
    }
}

// === impl Step ===

impl<Q: Queue> Step<'_, Q> {
    fn reserves(&self) -> usize {
        self.max.saturating_sub(self.jobs.len())
    }
}

// === impl Returning ===

impl Drop for Returning<'_> {
    fn drop(&mut self) {
        for job in &self.1 {
            tracing::error!(target: "winddown", queue = self.0, job = %job.lease.id,
                why = "it could not be handed back in time, and is free when its lease ends", "job.left");
        }
    }
}
