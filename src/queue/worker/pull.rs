//! The loop that claims and acks, and what is done with one job.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::DropGuard;

use super::desk::Desk;
use super::flight::{Leased, Stage};
use super::handler::Handler;
use super::renew::usable;
use crate::backoff::Backoff;
use crate::budget::Human;
use crate::catch::{panic_message, with_sources};
use crate::queue::{Claimed, HandBack, Held, Lease, Queue};
use crate::{Cx, Done, Intake, Job};

/// How many jobs one call claims or acks.
const BATCH: usize = 1000;
/// Handed back that often, a job is longer than the drain.
const INTERRUPTED_OFTEN: u32 = 3;
/// How long to leave a queue alone that says that it has something, and then has nothing.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(250));

/// How a handler came to its end.
enum End {
    Done,
    Failed(String),
    Lost(&'static str),
}

/// Names what could not be handed back before its time was over.
struct Returning<'a>(&'a str, Vec<HandBack>);

/// When to claim: not before the queue has hinted at something, and not again and again where it hints at nothing.
struct Appetite {
    hinted: bool,
    empty: u32,
    not_before: Instant,
}

/// Claims, runs and acks until the stop has begun and the last job is settled.
///
/// One call to the queue is under way at a time; what is done meanwhile is acked with the next claim. A call is awaited in any case:
/// what comes of a claim that was begun before the stop goes back untouched.
pub(super) async fn run<Q, H>(
    desk: Arc<Desk<Q>>,
    intake: Intake<Leased<Q::Item>>,
    handler: Arc<H>,
    _over: DropGuard,
) where
    Q: Queue,
    H: Handler<Q::Item>,
{
    let (to_ack, mut acks) = unbounded_channel();
    let mut running = JoinSet::new();
    let mut done: Vec<Job<Leased<Q::Item>>> = Vec::new();
    let mut appetite = Appetite { hinted: true, empty: 0, not_before: Instant::now() };
    let mut failures = 0;
    loop {
        while running.try_join_next().is_some() {}
        while let Ok(job) = acks.try_recv() {
            done.push(job);
        }
        let stopping = desk.handle.is_triggered();
        let pulls = !stopping && !desk.handle.is_paused();
        let free = (desk.options.concurrency + done.len()).saturating_sub(desk.flights.len());
        let max = if pulls && appetite.is_due() { free.min(BATCH) } else { 0 };
        if done.is_empty() && max == 0 {
            if stopping && desk.flights.len() == 0 {
                return;
            }
            let hungry = pulls && free > 0;
            tokio::select! {
                Some(job) = acks.recv() => done.push(job),
                () = desk.flights.changed.notified() => {}
                () = desk.handle.triggered(), if !stopping => {}
                () = desk.handle.resumed(), if !stopping && !pulls => {}
                // Made anew each time, and never kept unpolled: it may be half-way through asking the queue, and hold the
                // connection that a handler, a hand-back or the step below waits for.
                () = desk.queue.ready(), if hungry && !appetite.hinted => appetite.hinted = true,
                () = sleep_until(appetite.not_before), if hungry && appetite.hinted => {}
            }
            continue;
        }

        let acked = done.len().min(BATCH);
        let leases: Vec<Lease> = done[..acked].iter().map(|job| job.lease.clone()).collect();
        let asked = Instant::now();
        let answer = match max {
            0 => desk.queue.ack(&leases).await.map(|held| (held, Vec::new())),
            _ => {
                desk.claiming.store(true, Ordering::SeqCst);
                let stepped = desk.queue.step(&leases, &desk.owner, max, desk.options.lease).await;
                stepped.map(|stepped| (stepped.held, stepped.claimed))
            }
        };
        let Some((held, claimed)) = desk.heard(answer) else {
            desk.claiming.store(false, Ordering::SeqCst);
            desk.wait(failures).await;
            failures += 1;
            continue;
        };
        for (job, held) in done.drain(..acked).zip(held) {
            // Gone, asked again: it was acked by the call whose answer was lost.
            if !(held.is_yours() || held == Held::Gone && failures > 0) {
                desk.tell_lost(&job.lease, "when it was done");
            }
            finish(&desk, job);
        }
        failures = 0;
        if max > 0 {
            appetite.had(claimed.len(), max);
        }
        take_in(&desk, &intake, &handler, &mut running, &to_ack, claimed, asked).await;
        desk.claiming.store(false, Ordering::SeqCst);
    }
}

/// Starts a handler for each, and hands back at once what comes too late to be let in.
async fn take_in<Q, H>(
    desk: &Arc<Desk<Q>>,
    intake: &Intake<Leased<Q::Item>>,
    handler: &Arc<H>,
    running: &mut JoinSet<()>,
    to_ack: &UnboundedSender<Job<Leased<Q::Item>>>,
    claimed: Vec<Claimed<Q::Item>>,
    asked: Instant,
) where
    Q: Queue,
    H: Handler<Q::Item>,
{
    let until = asked + usable(desk);
    let mut back = Vec::new();
    for claimed in claimed {
        if Instant::now() >= until {
            // The claim took as long as its lease: somebody else may have it already.
            back.push(HandBack::untouched(claimed.lease));
            continue;
        }
        if claimed.interruptions >= INTERRUPTED_OFTEN {
            tracing::warn!(target: "winddown", queue = desk.name, job = %claimed.lease.id,
                interruptions = claimed.interruptions, "job.interrupted_often");
        }
        if claimed.crashes > 0 {
            tracing::info!(target: "winddown", queue = desk.name, job = %claimed.lease.id,
                crashes = claimed.crashes, "job.after_crash");
        }
        let flight = desk.flights.add(claimed.lease.clone(), until);
        match intake.admit(Leased::new(claimed, Arc::clone(&flight))) {
            Ok(job) => {
                let work = one(Arc::clone(desk), Arc::clone(handler), job, to_ack.clone());
                running.spawn(work);
            }
            Err(refused) => {
                back.push(refused.into_inner().to_hand_back());
                desk.flights.settled(&flight);
            }
        }
    }
    if back.is_empty() {
        return;
    }
    let mut returning = Returning(&desk.name, back);
    let (held, _) = desk.until_heard(|| desk.queue.requeue(&returning.1)).await;
    for (job, held) in returning.1.drain(..).zip(held) {
        if !held.is_yours() {
            desk.tell_lost(&job.lease, "when it was handed back");
        }
    }
}

/// Runs the handler on one job, and sees to what becomes of it.
async fn one<Q, H>(
    desk: Arc<Desk<Q>>,
    handler: Arc<H>,
    job: Job<Leased<Q::Item>>,
    to_ack: UnboundedSender<Job<Leased<Q::Item>>>,
) where
    Q: Queue,
    H: Handler<Q::Item>,
{
    // Always an error, since the job is to be held, and waited for by the drain, until the queue has confirmed what became of it.
    let ended =
        job.run(async |job, cx| -> Result<Infallible, End> { Err(handle(&*handler, job, cx).await) }).await;
    match ended {
        Done::Finished(never) => match never {},
        // Dropped here because the receiver is gone, it goes back as done; see `hand_back`.
        Done::Failed(job, End::Done) => drop(to_ack.send(job)),
        Done::Failed(job, End::Failed(reason)) => fail(&desk, job, &reason).await,
        Done::Failed(job, End::Lost(when)) => {
            desk.tell_lost(&job.lease, when);
            finish(&desk, job);
        }
        Done::Overran(job) => {
            let limit = Human(desk.options.task_limit.unwrap_or_default());
            fail(&desk, job, &format!("it took longer than its task_limit of {limit}")).await;
        }
        // The intake brings it back, and the flight ends there.
        Done::HandedBack(_) => {}
        Done::TooLate(_) => {
            tracing::warn!(target: "winddown", queue = desk.name, "job.ended_too_late");
        }
    }
}

/// The handler itself, cut when its lease is lost.
async fn handle<T, H>(handler: &H, job: &Leased<T>, cx: &Cx) -> End
where
    T: Send + Sync + 'static,
    H: Handler<T>,
{
    let flight = job.flight();
    flight.reach(Stage::Begun);
    // Its error is put into words here, where a panic in them is caught too.
    let work = async { handler.handle(job, cx).await.map_err(|error| with_sources(&*error.into())) };
    let ended = tokio::select! {
        biased;
        why = flight.lost() => return End::Lost(why),
        ended = AssertUnwindSafe(work).catch_unwind() => ended,
    };
    match ended {
        Ok(Ok(())) => {
            flight.reach(Stage::Done);
            End::Done
        }
        Ok(Err(reason)) => End::Failed(reason),
        // While the program stops it may be the stop that it fell over: it goes back, and no attempt is used.
        Err(panic) if cx.is_stopping() => std::panic::resume_unwind(panic),
        Err(panic) => End::Failed(format!("it panicked: {}", panic_message(panic))),
    }
}

/// Uses an attempt: the job comes again later, or not at all.
async fn fail<Q: Queue>(desk: &Desk<Q>, job: Job<Leased<Q::Item>>, reason: &str) {
    let lease = &job.lease;
    job.flight().reach(Stage::Failed);
    let attempts = job.attempts.saturating_add(1);
    let (held, repeated) = if attempts >= desk.options.attempts {
        tracing::error!(target: "winddown", queue = desk.name, job = %lease.id, attempts, reason, "job.dead");
        desk.until_heard(|| desk.queue.dead_letter(lease, reason)).await
    } else {
        let delay = desk.options.backoff.scattered(job.attempts);
        tracing::warn!(target: "winddown", queue = desk.name, job = %lease.id, attempts, reason, delay = %Human(delay), "job.failed");
        desk.until_heard(|| desk.queue.nack(lease, delay, reason)).await
    };
    // Repeated, it is lost also where the call before had been done and only its answer was lost.
    if !held.is_yours() && !repeated {
        desk.tell_lost(lease, "when it had failed");
    }
    finish(desk, job);
}

/// The queue knows what became of it: nobody waits for it any more.
fn finish<Q: Queue>(desk: &Desk<Q>, job: Job<Leased<Q::Item>>) {
    desk.flights.settled(job.flight());
    // Too late is no news: it was kept as still running, and the callback for that has seen that it is settled.
    let _ = job.finish();
}

// === impl Appetite ===

impl Appetite {
    fn is_due(&self) -> bool {
        self.hinted && Instant::now() >= self.not_before
    }

    fn had(&mut self, claimed: usize, max: usize) {
        self.hinted = claimed == max;
        if claimed > 0 {
            self.empty = 0;
            return;
        }
        // The first may have been taken by somebody else; a queue that goes on saying so is not to be asked in a circle.
        let pause = match self.empty {
            0 => Duration::ZERO,
            empty => PAUSE.after(empty - 1),
        };
        self.empty = self.empty.saturating_add(1);
        self.not_before = Instant::now() + pause;
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
