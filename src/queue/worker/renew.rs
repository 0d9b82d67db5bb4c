//! Keeps the leases of what is in flight, and at a stop moves their ends to the kill.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::desk::Desk;
use super::flight::Loss;
use crate::Phase;
use crate::queue::{Lease, Queue};

/// How many leases one call renews.
const BATCH: usize = 1000;
/// A lease is renewed when one part of three has gone, so that two tries may fail.
const PARTS: u32 = 3;
/// A renewal that failed is tried again after this part of the lease, while there is a lease that it can save.
const RETRY_PARTS: u32 = 15;
/// How often what is left to say after the work is said.
const LAST_TRIES: u32 = 3;
/// For how long, at the most, a stop is held up by a claim that has no answer, once all else is over.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What becomes of the mark of an owner that is ending.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// There is none.
    None,
    /// It is taken away when all is settled.
    Passes,
    /// It keeps out a claim that the queue has not come to yet, and whose answer nobody waits for.
    Stays,
}

/// Renews until the last job is settled. Handlers never do it themselves: one that is busy would let its own lease end.
pub(super) async fn run<Q: Queue>(desk: Arc<Desk<Q>>, over: CancellationToken) {
    // Renewing goes on while the queue is told of the stop, which may take its time.
    let dead_man = async {
        let mut mark = tell_of_the_stop(&desk, &over).await;
        over.cancelled().await;
        // It only tidies up: a stop over a slow line is not to be called unclean because of it.
        let left = desk.handle.deadline(Phase::Requeue).map_or(Duration::ZERO, |end| end.remaining()) / 2;
        if desk.claims.unanswered().is_some() {
            // What no answer tells of would be held by nobody, until the end of its lease counts as a crash.
            mark = Mark::Stays;
            drop(timeout(left.min(LAST_WORD), a_few_times(&desk, || begin_drain(&desk))).await);
        }
        // What is kept, because it would not stop, is to count as interrupted at the kill: for that the mark stays, too.
        if mark == Mark::Passes && !desk.flights.any_kept() {
            drop(timeout(left, a_few_times(&desk, || end_drain(&desk))).await);
        }
    };
    // For each queue apart: one that does not answer holds up no renewal at another.
    let renewal = join_all((0..desk.queue.members()).map(|member| renew(&desk, &over, member)));
    let watch = async {
        tokio::select! {
            biased;
            () = over.cancelled() => {}
            () = desk.flights.watch(usable(&desk)) => {}
        }
    };
    tokio::join!(dead_man, renewal, watch);
}

/// Marks the owner as ending, once the stop has begun, and says what is to become of the mark.
async fn tell_of_the_stop<Q: Queue>(desk: &Desk<Q>, over: &CancellationToken) -> Mark {
    tokio::select! {
        biased;
        () = over.cancelled() => return Mark::None,
        () = desk.handle.triggered() => {}
    }
    if desk.is_idle() {
        return Mark::None;
    }
    let mut mark = Mark::Passes;
    for failures in 0.. {
        if desk.claims.unanswered().is_some() {
            mark = Mark::Stays;
        }
        if begin_drain(desk).await {
            break;
        }
        tokio::select! {
            biased;
            // All is settled: nothing is left that the mark would be for, but for a claim without an answer.
            () = over.cancelled() => break,
            () = desk.wait(failures) => {}
        }
    }
    mark
}

/// Whether the queue has heard it.
async fn begin_drain<Q: Queue>(desk: &Desk<Q>) -> bool {
    // Looked at before: a claim that fails while this is under way is not put back by it.
    let unanswered = desk.claims.unanswered();
    // Anew for each try: what is left until the kill has become less.
    let kill_in = desk.handle.kill().filter(|_| desk.handle.may_exit()).map(|kill| kill.remaining());
    let heard = desk.heard(desk.queue.begin_drain(&desk.owner, kill_in).await).is_some();
    if heard {
        desk.claims.put_back(unanswered);
        desk.told_kill.fetch_or(kill_in.is_some(), Ordering::Relaxed);
    }
    heard
}

/// Whether the queue has heard it.
async fn end_drain<Q: Queue>(desk: &Desk<Q>) -> bool {
    desk.heard(desk.queue.end_drain(&desk.owner).await).is_some()
}

/// Until it is heard, but not for ever.
async fn a_few_times<Q, Fut>(desk: &Desk<Q>, mut call: impl FnMut() -> Fut)
where
    Fut: Future<Output = bool>,
{
    for failures in 0..LAST_TRIES {
        if call().await {
            return;
        }
        desk.wait(failures).await;
    }
}

/// Renews what is of one queue, until all is settled.
async fn renew<Q: Queue>(desk: &Desk<Q>, over: &CancellationToken, member: usize) {
    let lease = desk.options.lease;
    let mut pause = lease / PARTS;
    loop {
        tokio::select! {
            biased;
            () = over.cancelled() => return,
            () = sleep(pause) => {}
        }
        // Dropped when all is settled: extending what is settled changes nothing.
        let renewed = tokio::select! {
            biased;
            () = over.cancelled() => return,
            renewed = renew_all(desk, member) => renewed,
        };
        let in_time = || desk.flights.any_in_time(|lease| desk.queue.member(lease) == member);
        pause = if !renewed && in_time() { lease / RETRY_PARTS } else { lease / PARTS };
    }
}

async fn renew_all<Q: Queue>(desk: &Desk<Q>, member: usize) -> bool {
    let mut flights = desk.flights.all();
    flights.retain(|flight| desk.queue.member(&flight.lease) == member);
    let mut all = true;
    for flights in flights.chunks(BATCH) {
        let leases: Vec<Lease> = flights.iter().map(|flight| flight.lease.clone()).collect();
        // Counted from before the call: the queue's own count begins later, and ends later.
        let until = Instant::now() + usable(desk);
        let Some(held) = desk.heard_of(member, desk.queue.extend(&leases, desk.options.lease).await) else {
            all = false;
            continue;
        };
        for (flight, held) in flights.iter().zip(held) {
            if held.is_yours() {
                flight.renewed(until);
            } else if flight.is_running() {
                flight.lose(Loss::Told);
            }
        }
    }
    all
}

/// How much of a lease is used: the rest is for the cut itself, so that it is over when somebody else may claim.
pub(super) fn usable<Q>(desk: &Desk<Q>) -> Duration {
    let lease = desk.options.lease;
    lease - (lease / 10).min(Duration::from_secs(1))
}
