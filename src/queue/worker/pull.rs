//! The loop that claims and acks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::DropGuard;

use super::attempt;
use super::crew::{Crew, Tasks, behind_the_others};
use super::desk::Desk;
use super::flight::Leased;
use super::handler::Handler;
use super::renew::usable;
use crate::backoff::Backoff;
use crate::queue::{Claimed, HandBack, Held, Lease, Queue};
use crate::{Intake, Job};

/// How many jobs one call claims or acks.
const BATCH: usize = 1000;
/// Handed back that often, a job is longer than the drain.
const INTERRUPTED_OFTEN: u32 = 3;
/// How long to leave a queue alone that says that it has something, and then has nothing.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(250));

/// Names what could not be handed back before its time was over.
struct Returning<'a>(&'a str, Vec<HandBack>);

/// When to claim: not before the queue has hinted at something, and not again and again where it hints at nothing.
struct Appetite {
    hinted: bool,
    empty: u32,
    not_before: Instant,
}

/// Has the queue end what `ready` left waiting, beside the loop: acks are not held up by a server that does not answer to it.
struct Waits {
    begun: Sender<()>,
    /// Nothing waits, and nothing is to: `ready` was not asked since.
    over: bool,
}

/// Claims, runs and acks until the stop has begun, the last job is settled, and nothing waits at the server.
pub(super) async fn run<Q, H>(
    desk: Arc<Desk<Q>>,
    intake: Intake<Leased<Q::Item>>,
    handler: H,
    leases: DropGuard,
) where
    Q: Queue,
    H: Handler<Q::Item>,
{
    let (begun, waits) = channel(1);
    let crew = Arc::new(Crew::new(Arc::clone(&desk), handler));
    let pulling = async {
        pull(&crew, &intake, Waits { begun, over: false }).await;
        // What is left to wait for holds no lease.
        drop(leases);
    };
    // At once, though the loop may be waiting for an answer.
    let giving_back = async {
        desk.handle.triggered().await;
        crew.give_back();
    };
    tokio::join!(pulling, giving_back, end_waits(&desk, waits));
}

/// Until the loop is over and the last of them has ended. What does not end is for the coordinator to give up.
async fn end_waits<Q: Queue>(desk: &Desk<Q>, mut waits: Receiver<()>) {
    while waits.recv().await.is_some() {
        desk.queue.stop_waiting().await;
        desk.ending_waits.store(false, Ordering::SeqCst);
        // After a pause that was shorter the loop may wait for this before it asks again.
        desk.flights.changed.notify_one();
    }
}

/// Claims, runs and acks until the stop has begun and the last job is settled.
///
/// One call to the queue is under way at a time; what is done meanwhile is acked with the next claim. A call is awaited in any case:
/// what comes of a claim that was begun before the stop goes back untouched.
async fn pull<Q, H>(crew: &Arc<Crew<Q, H>>, intake: &Intake<Leased<Q::Item>>, mut waits: Waits)
where
    Q: Queue,
    H: Handler<Q::Item>,
{
    let desk = &*crew.desk;
    let mut tasks = Tasks::new(Arc::clone(crew));
    let mut done: Vec<Job<Leased<Q::Item>>> = Vec::new();
    let mut appetite = Appetite { hinted: true, empty: 0, not_before: Instant::now() };
    let mut failures = 0;
    loop {
        let waiting = tasks.take(&mut done);
        let stopping = desk.handle.is_triggered();
        let pulls = !stopping && !desk.handle.is_paused();
        if !pulls {
            waits.end(&desk.ending_waits);
            crew.give_back();
        } else if waiting > 0 {
            tasks.start(Vec::new(), attempt::work);
        }
        let held = desk.flights.len();
        let most = desk.options.concurrency.saturating_add(desk.options.prefetch);
        let free = most.saturating_add(done.len()).saturating_sub(held);
        let max = if pulls && appetite.is_due() { free.min(BATCH) } else { 0 };
        if done.is_empty() && max == 0 {
            if stopping && held == 0 {
                return;
            }
            let hungry = pulls && free > 0;
            let asks = hungry && !appetite.hinted && !desk.ending_waits.load(Ordering::SeqCst);
            waits.over &= !asks;
            tokio::select! {
                () = crew.done.notified() => {}
                () = desk.flights.changed.notified() => {}
                () = desk.handle.triggered(), if !stopping => {}
                () = desk.handle.paused(), if pulls => {}
                () = desk.handle.resumed(), if !stopping && !pulls => {}
                // Made anew each time, and never kept unpolled: it may be half-way through asking the queue, and hold the
                // connection that a handler, a hand-back or the step below waits for.
                () = desk.queue.ready(), if asks => appetite.hinted = true,
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
        let answer = desk.heard(answer);
        if max > 0 {
            // Of a queue that puts back what such a claim has brought, the next one does, or the mark at the stop.
            desk.unanswered.store(answer.is_none(), Ordering::SeqCst);
        }
        let Some((held, claimed)) = answer else {
            desk.claiming.store(false, Ordering::SeqCst);
            desk.wait(failures).await;
            failures += 1;
            continue;
        };
        desk.flights.settled_all(done[..acked].iter().map(|job| &**job));
        for (job, held) in done.drain(..acked).zip(held) {
            // Gone, asked again: it was acked by the call whose answer was lost.
            if !(held.is_yours() || held == Held::Gone && failures > 0) {
                desk.tell_lost(&job.lease, "when it was done");
            }
            // Too late is no news, as in `attempt::finish`.
            let _ = job.finish();
        }
        failures = 0;
        if max > 0 {
            appetite.had(claimed.len(), max);
        }
        let some = !claimed.is_empty();
        take_in(desk, intake, &mut tasks, claimed, asked).await;
        desk.claiming.store(false, Ordering::SeqCst);
        if some {
            // Handlers that need not wait are done by then, and acked in one call.
            behind_the_others().await;
        }
    }
}

/// Starts a handler for each, and hands back at once what comes too late to be let in.
async fn take_in<Q, H>(
    desk: &Desk<Q>,
    intake: &Intake<Leased<Q::Item>>,
    tasks: &mut Tasks<Q, H>,
    claimed: Vec<Claimed<Q::Item>>,
    asked: Instant,
) where
    Q: Queue,
    H: Handler<Q::Item>,
{
    let until = asked + usable(desk);
    // The claim took as long as its lease: somebody else may have the jobs already.
    let late = Instant::now() >= until;
    let (mut jobs, mut back) = (Vec::with_capacity(claimed.len()), Vec::new());
    for claimed in claimed {
        if late {
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
        match intake.admit(Leased::new(claimed, flight)) {
            Ok(job) => jobs.push(job),
            Err(refused) => {
                let job = refused.into_inner();
                back.push(job.to_hand_back());
                desk.flights.settled(&job);
            }
        }
    }
    tasks.start(jobs, attempt::work);
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

// === impl Waits ===

impl Waits {
    /// Not before `ready` was dropped: the loop is not in it when it calls this.
    fn end(&mut self, ending: &AtomicBool) {
        if !std::mem::replace(&mut self.over, true) {
            ending.store(true, Ordering::SeqCst);
            // There is room: since the one before has ended, or `ready` would not have been asked again.
            let _ = self.begun.try_send(());
        }
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
