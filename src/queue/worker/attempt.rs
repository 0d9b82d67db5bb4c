//! What is done with one job.

use std::convert::Infallible;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use super::crew::{Crew, Place, behind_the_others};
use super::desk::Desk;
use super::flight::{Leased, Loss, Stage};
use super::handler::Handler;
use crate::budget::Human;
use crate::catch::{panic_message, with_sources};
use crate::queue::Queue;
use crate::{Cx, Done, Job};

/// How a handler came to its end.
enum End {
    Done,
    Failed(String),
    Lost(Loss),
}

/// Runs the handler on one job after the other, for as long as one waits.
pub(super) async fn work<Q, H>(mut place: Place<Q, H>, mut job: Job<Leased<Q::Item>>)
where
    Q: Queue,
    H: Handler<Q::Item>,
{
    loop {
        let done = one(&place.crew, job).await;
        let Some(next) = place.next(done) else { return };
        job = next;
        behind_the_others().await;
    }
}

/// Runs the handler on one job, and sees to what becomes of it; what is done is to be acked.
async fn one<Q, H>(crew: &Crew<Q, H>, job: Job<Leased<Q::Item>>) -> Option<Job<Leased<Q::Item>>>
where
    Q: Queue,
    H: Handler<Q::Item>,
{
    // Always an error, since the job is to be held, and waited for by the drain, until the queue has confirmed what became of it.
    let desk = &*crew.desk;
    let ended = job
        .run(async |job, cx| -> Result<Infallible, End> { Err(handle(&crew.handler, job, cx).await) })
        .await;
    match ended {
        Done::Finished(never) => match never {},
        Done::Failed(job, End::Done) => return Some(job),
        // Boxed, like the other: a queue's call is larger than all else together, and every job would carry room for it.
        Done::Failed(job, End::Failed(reason)) => Box::pin(fail(desk, job, &reason)).await,
        Done::Failed(job, End::Lost(loss)) => {
            desk.tell_lost(&job.lease, loss.as_str());
            // Late, the queue may still hold it for us: it goes back when the queue answers, and is named where it never does.
            job.hand_back();
        }
        Done::Overran(job) => {
            let limit = Human(desk.options.task_limit.unwrap_or_default());
            let reason = format!("it took longer than its task_limit of {limit}");
            Box::pin(fail(desk, job, &reason)).await;
        }
        // The intake brings it back, and the flight ends there.
        Done::HandedBack(_) => {}
        Done::TooLate(_) => {
            tracing::warn!(target: "winddown", queue = desk.name, "job.ended_too_late");
        }
    }
    None
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
    match flight.while_held(AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(Ok(()))) => {
            flight.reach(Stage::Done);
            End::Done
        }
        Ok(Ok(Err(reason))) => End::Failed(reason),
        // While the program stops it may be the stop that it fell over: it goes back, and no attempt is used.
        Ok(Err(panic)) if cx.is_stopping() => std::panic::resume_unwind(panic),
        Ok(Err(panic)) => End::Failed(format!("it panicked: {}", panic_message(panic))),
        Err(loss) => End::Lost(loss),
    }
}

/// Uses an attempt: the job comes again later, or not at all.
async fn fail<Q: Queue>(desk: &Desk<Q>, job: Job<Leased<Q::Item>>, reason: &str) {
    let lease = &job.lease;
    job.flight().reach(Stage::Failed);
    let attempts = job.attempts.saturating_add(1);
    let (held, repeated) = if attempts >= desk.options.attempts {
        tracing::error!(target: "winddown", queue = desk.name, job = %lease.id, attempts, reason, "job.dead");
        desk.until_heard_of(lease, || desk.queue.dead_letter(lease, reason)).await
    } else {
        let delay = desk.options.backoff.scattered(job.attempts);
        tracing::warn!(target: "winddown", queue = desk.name, job = %lease.id, attempts, reason, delay = %Human(delay), "job.failed");
        desk.until_heard_of(lease, || desk.queue.nack(lease, delay, reason)).await
    };
    // Repeated, it is lost also where the call before had been done and only its answer was lost.
    if !held.is_yours() && !repeated {
        desk.tell_lost(lease, "when it had failed");
        // Nothing came of this attempt: it is another one's job. Given up by the stop it is not to go back any more, only to be over.
        job.flight().lose(Loss::Told);
        if job.is_live() {
            return job.hand_back();
        }
    }
    finish(desk, job);
}

/// The queue knows what became of it: nobody waits for it any more.
fn finish<Q: Queue>(desk: &Desk<Q>, job: Job<Leased<Q::Item>>) {
    desk.flights.settled(&job);
    // Too late is no news: it was kept as still running, and the callback for that has seen that it is settled.
    let _ = job.finish();
}
