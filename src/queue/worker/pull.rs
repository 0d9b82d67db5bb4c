//! The loop that claims and acks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::DropGuard;

use super::appetite::Appetite;
use super::attempt;
use super::calls::{Calls, Came, Next};
use super::crew::{Crew, Tasks, behind_the_others};
use super::desk::Desk;
use super::flight::Leased;
use super::handler::Handler;
use super::renew::usable;
use crate::queue::{Claimed, HandBack, Held, Queue};
use crate::{Intake, Job};

/// Handed back that often, a job is longer than the drain.
const INTERRUPTED_OFTEN: u32 = 3;

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
/// Each turn takes what is done, and begins a call where that pays, which is the next turn's beginning. Otherwise it waits: for an answer,
/// for enough that is done, for a hint of the queue, for a moment, or for the stop. [`Calls`] knows when a call may begin, and
/// [`Appetite`] whether there may be something to claim. A call is awaited in any case: what comes of a claim that was begun before the
/// stop goes back untouched.
async fn pull<Q, H>(crew: &Arc<Crew<Q, H>>, intake: &Intake<Leased<Q::Item>>, mut waits: Waits)
where
    Q: Queue,
    H: Handler<Q::Item>,
{
    let desk = &*crew.desk;
    let mut tasks = Tasks::new(Arc::clone(crew));
    let mut done: Vec<Job<Leased<Q::Item>>> = Vec::new();
    // So many of those that are done, the first, were in a call that has failed.
    let mut repeated = 0;
    let mut appetite = Appetite::new();
    let mut calls = Calls::new(desk);
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
        let plenty = appetite.has_plenty();
        let room = (pulls && calls.may_claim(plenty)).then(|| calls.room(held));
        if let Some(Next { acks, max }) = calls.next(done.len(), room.filter(|_| appetite.is_due()), plenty) {
            let again = repeated.min(acks);
            repeated -= again;
            calls.begin(done.drain(..acks).collect(), again, max).await;
            continue;
        }
        if stopping && held == 0 && calls.is_empty() {
            return;
        }
        let hungry = room.is_some_and(|room| room > 0);
        let asks = hungry
            && !appetite.is_hinted()
            && calls.leave_room_for_ready()
            && !desk.ending_waits.load(Ordering::SeqCst);
        waits.over &= !asks;
        let due_later = appetite.due_later().filter(|_| hungry);
        let look_again = due_later.into_iter().chain(calls.look_again()).min();
        crew.tell_at(calls.enough().map_or(usize::MAX, |enough| enough.saturating_sub(done.len()).max(1)));
        tokio::select! {
            // Answers first: they tell most.
            biased;
            Some(came) = calls.came() => match came {
                Came::HandedBack => {}
                Came::Answer(mut step, Err(error)) => {
                    desk.heard::<()>(Err(error));
                    repeated += step.jobs.len();
                    done.splice(..0, step.jobs.drain(..));
                }
                Came::Answer(step, Ok(stepped)) => {
                    desk.heard(Ok(()));
                    settle(desk, step.jobs, step.repeated, stepped.held);
                    if let Some(mut claim) = step.claim {
                        claim.answered();
                        appetite.had(stepped.claimed.len(), step.max, step.asked);
                        let some = !stepped.claimed.is_empty();
                        let late = take_in(desk, intake, &mut tasks, stepped.claimed, step.asked);
                        if !late.is_empty() {
                            calls.give_back(late, claim);
                        }
                        if some {
                            // Handlers that need not wait are done by then, and acked in one call.
                            behind_the_others().await;
                        }
                    }
                }
            },
            () = crew.done.notified() => {}
            () = desk.flights.changed.notified() => {}
            () = desk.handle.triggered(), if !stopping => {}
            () = desk.handle.paused(), if pulls => {}
            () = desk.handle.resumed(), if !stopping && !pulls => {}
            // Made anew each time, and never kept unpolled: it may be half-way through asking the queue, and hold the
            // connection that a handler, a hand-back or the next call waits for.
            () = desk.queue.ready(), if asks => appetite.hinted(),
            () = sleep_until(look_again.unwrap_or_else(Instant::now)), if look_again.is_some() => {}
        }
    }
}

/// The queue has said of these whether they were still ours; the first of them, of so many, were acked for another time.
fn settle<Q: Queue>(desk: &Desk<Q>, jobs: Vec<Job<Leased<Q::Item>>>, repeated: usize, held: Vec<Held>) {
    desk.flights.settled_all(jobs.iter().map(|job| &**job));
    for (nth, (job, held)) in jobs.into_iter().zip(held).enumerate() {
        // Gone, asked again: it was acked by the call whose answer was lost.
        if !(held.is_yours() || held == Held::Gone && nth < repeated) {
            desk.tell_lost(&job.lease, "when it was done");
        }
        // Too late is no news, as in `attempt::finish`.
        let _ = job.finish();
    }
}

/// Starts a handler for each, and returns what comes too late to be let in.
fn take_in<Q, H>(
    desk: &Desk<Q>,
    intake: &Intake<Leased<Q::Item>>,
    tasks: &mut Tasks<Q, H>,
    claimed: Vec<Claimed<Q::Item>>,
    asked: Instant,
) -> Vec<HandBack>
where
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
    back
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
