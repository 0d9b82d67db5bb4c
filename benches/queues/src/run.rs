//! A worker of one way: started on a runtime of its own, which is the same for all, and stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::measure::{Load, Tally};
use crate::ways::{CHUNK, Job, Way};

pub struct Worker {
    runtime: Runtime,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// More than the longest of their waits.
const STOPPED: Duration = Duration::from_secs(20);

// === impl Worker ===

impl Worker {
    pub fn start(way: &dyn Way, url: &str, at_once: usize, tally: &Arc<Tally>) -> Worker {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        let (stop, stopped) = oneshot::channel();
        let job =
            Job { url: url.to_owned(), at_once, backlog: tally.has_backlog(), tally: Arc::clone(tally) };
        let task = runtime.spawn(way.work(job, stopped));
        Worker { runtime, stop, task }
    }

    pub fn stop(self) {
        let Worker { runtime, stop, task } = self;
        let _ = stop.send(());
        let stopped = runtime.block_on(async { tokio::time::timeout(STOPPED, task).await });
        if let Err(error) = stopped.expect("it stops") {
            // A peer may not be up to its load; that is a result, too.
            println!("a worker broke: {error}");
        }
        runtime.shutdown_timeout(STOPPED);
    }
}

/// Enqueues so many, on a runtime of its own.
pub fn fill(way: &dyn Way, url: &str, load: &Load, jobs: u64) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let from = numbers(jobs);
    runtime.block_on(async {
        let mut sender = way.sender(url).await;
        for first in (0..jobs).step_by(CHUNK) {
            let last = jobs.min(first + CHUNK as u64);
            sender.send(load.many(from + first..from + last)).await;
        }
    });
}

/// The first of so many numbers that no job has had.
pub fn numbers(jobs: u64) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(jobs, Ordering::Relaxed)
}
