//! What one writes by hand: a loop of `BLMOVE` and `LREM`, and, as the yardstick for a slow link, whole batches a round trip.

use redis::{cmd, pipe};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Doing, Job, Opening, Pushes, Sender, Way, connect};
use crate::measure::Load;

/// So many loops as jobs at once; what is claimed and not done stays in a list, and nobody brings it back.
pub struct Loop;

/// One loop that takes so many jobs as may run at once in one round trip, and forgets those before in the same.
pub struct Batches;

const PENDING: &str = "plain:pending";
const ACTIVE: &str = "plain:active";

// === impl Loop ===

impl Way for Loop {
    fn name(&self) -> &'static str {
        "BLMOVE + LREM loop"
    }

    fn sender<'a>(&'a self, url: &'a str) -> Opening<'a> {
        push(url)
    }

    fn work(&self, job: Job, stop: oneshot::Receiver<()>) -> Doing<'static> {
        Box::pin(async move {
            // With a backlog the blocking command never blocks, and all loops share one connection, which is the fastest. Where it
            // blocks it keeps all behind it waiting: the other commands have a connection of their own.
            let blocking = connect(&job.url).await;
            let other = if job.backlog { blocking.clone() } else { connect(&job.url).await };
            let mut loops = JoinSet::new();
            for _ in 0..job.at_once {
                loops.spawn(one(blocking.clone(), other.clone(), job.clone()));
            }
            let _ = stop.await;
        })
    }
}

async fn one(
    mut blocking: redis::aio::MultiplexedConnection,
    mut other: redis::aio::MultiplexedConnection,
    job: Job,
) {
    loop {
        let moved =
            cmd("BLMOVE").arg(&[PENDING, ACTIVE, "RIGHT", "LEFT", "2"]).query_async(&mut blocking).await;
        let Ok(Some(text)) = moved else { continue };
        let text: Vec<u8> = text;
        let load: Load = serde_json::from_slice(&text).expect("ours");
        job.tally.job(&load);
        // From the tail: that is where the oldest are, which are done first.
        let removed: Result<i64, _> =
            cmd("LREM").arg(ACTIVE).arg(-1).arg(&text).query_async(&mut other).await;
        if removed.is_err() {
            // The connection is gone with the runtime.
            return;
        }
    }
}

// === impl Batches ===

impl Way for Batches {
    fn name(&self) -> &'static str {
        "batches by hand"
    }

    fn sender<'a>(&'a self, url: &'a str) -> Opening<'a> {
        push(url)
    }

    fn work(&self, job: Job, stop: oneshot::Receiver<()>) -> Doing<'static> {
        let batches = async move {
            let mut connection = connect(&job.url).await;
            let mut done: Vec<Vec<u8>> = Vec::new();
            loop {
                let mut step = pipe();
                step.atomic();
                if !done.is_empty() {
                    step.cmd("SREM").arg(ACTIVE).arg(&done).ignore();
                }
                // Noted before it runs, so that somebody could bring it back.
                step.cmd("LRANGE").arg(PENDING).arg(0).arg(job.at_once - 1);
                step.cmd("LTRIM").arg(PENDING).arg(job.at_once).arg(-1).ignore();
                let (taken,): (Vec<Vec<u8>>,) = step.query_async(&mut connection).await.expect("it answers");
                for text in &taken {
                    let load: Load = serde_json::from_slice(text).expect("ours");
                    job.tally.job(&load);
                }
                done = taken;
            }
        };
        Box::pin(async move {
            tokio::select! {
                () = batches => {}
                _ = stop => {}
            }
        })
    }
}

fn push(url: &str) -> Opening<'_> {
    Box::pin(async move {
        Box::new(Pushes { connection: connect(url).await, list: PENDING, text: Load::json })
            as Box<dyn Sender>
    })
}
