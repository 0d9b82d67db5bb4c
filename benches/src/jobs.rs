//! Jobs: let in and finished, handed back by the hundred thousand, and worked off a queue that costs nothing.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use winddown::queue::{
    self, Claimed, Counts, DeadLetter, HandBack, Held, JobId, Lease, Leased, Owner, Queue, QueueError,
};
use winddown::{
    BoxError, Budget, Cx, Gate, Intake, Job, ShutdownCoordinator, ShutdownHandle, Unfinished, signal,
};

use crate::measure::{Op, Row, Run, cpu, median};

type Numbers = Arc<Mutex<Vec<u64>>>;

/// What handing back an item may cost.
const TARGET: f64 = 1000.0;

/// What the worker may cost a job, with 256 at once on one thread.
const WORKER_TARGET: f64 = 2000.0;

/// A queue that gives out jobs for nothing, and takes what is said of them, until so many were acked.
struct Free {
    ids: Vec<JobId>,
    claimed: AtomicU64,
    acked: AtomicU64,
    until: u64,
    calls: AtomicU64,
    handle: ShutdownHandle,
}

pub fn row() -> Row {
    Row {
        title: "Jobs: Intake::admit + Job::finish, with a re-enqueue callback",
        times: 100_000,
        added: false,
        target: |_, _| 100.0,
        ops: vec![
            Op { name: "arc-alone", make: arc, bytes: Some(8), ours: false },
            Op { name: "intake", make: intake, bytes: Some(size_of::<Job<u64>>()), ours: true },
        ],
    }
}

/// What one allocation for the item costs.
fn arc() -> Box<Run> {
    Box::new(|times| (0..times).for_each(|item| drop(black_box(Arc::new((item, 0_u64, 0_u64))))))
}

fn intake() -> Box<Run> {
    let jobs = batches(Gate::standalone("bench"), Numbers::default());
    Box::new(move |times| {
        for item in 0..times {
            if let Ok(job) = jobs.admit(item) {
                let _ = black_box(job).finish();
            }
        }
    })
}

fn singles(gate: Gate, back: Numbers) -> Intake<u64> {
    gate.requeue_with(back, async |back: Numbers, item: Unfinished<u64>| {
        back.lock().expect("no panics").push(*item);
        Ok::<(), BoxError>(())
    })
}

fn batches(gate: Gate, back: Numbers) -> Intake<u64> {
    gate.requeue_batch_with(back, async |back: Numbers, items: Vec<Unfinished<u64>>| {
        back.lock().expect("no panics").extend(items.iter().map(|item| **item));
        Ok::<(), BoxError>(())
    })
}

/// Prints what handing back costs an item, at two sizes. Returns how many targets were missed.
pub fn print(quick: bool) -> usize {
    println!("\nHanding back unfinished items (processor time an item)");
    let mut missed = 0;
    for (name, make, target) in [
        ("in batches", batches as fn(Gate, Numbers) -> Intake<u64>, Some(TARGET)),
        ("one by one", singles, None),
    ] {
        for count in [10_000_u64, 100_000] {
            let samples = (0..if quick { 3 } else { 9 }).map(|_| hand_back(count, make)).collect();
            let ns = median(samples);
            let met = target.is_none_or(|target| ns <= target);
            missed += usize::from(!met);
            let verdict = if met { "met" } else { "MISSED" };
            let verdict = target.map(|target| format!("  ◀ {verdict} ≤ {target:.0} ns")).unwrap_or_default();
            println!("{name:<12} {count:>9} items {ns:>9.0} ns each{verdict}");
        }
    }
    missed
}

/// Prints what the worker costs a job that does nothing. Returns how many targets were missed.
pub fn print_worker(quick: bool) -> usize {
    println!(
        "\nA worker on a queue that costs nothing, with a handler that does nothing (processor time a job)"
    );
    let mut missed = 0;
    for (threads, at_once) in [(1, 1), (1, 16), (1, 256), (2, 1), (2, 16), (2, 256)] {
        let jobs = if quick { 50_000 } else { 500_000 };
        let rounds = if quick { 3 } else { 9 };
        let (costs, batches): (Vec<f64>, Vec<f64>) =
            (0..rounds).map(|_| work_off(threads, at_once, jobs)).unzip();
        let (ns, batch) = (median(costs), median(batches));
        let target = ((threads, at_once) == (1, 256)).then_some(WORKER_TARGET);
        let met = target.is_none_or(|target| ns <= target);
        missed += usize::from(!met);
        let verdict = if met { "met" } else { "MISSED" };
        let verdict = target.map(|target| format!("  ◀ {verdict} ≤ {target:.0} ns")).unwrap_or_default();
        println!("{threads} threads {at_once:>4} at once {ns:>6.0} ns each, {batch:>5.1} a call{verdict}");
    }
    missed
}

/// Nanoseconds a job, and jobs a call.
fn work_off(threads: usize, at_once: usize, jobs: u64) -> (f64, f64) {
    let runtime = match threads {
        1 => Builder::new_current_thread().enable_all().build(),
        _ => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    };
    runtime.expect("a runtime").block_on(async {
        let budget = Budget::given(Duration::from_secs(600), "bench");
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).expect("it fits");
        let free = Arc::new(Free {
            ids: (0..1024).map(|n| format!("job-{n}").parse().expect("a name")).collect(),
            claimed: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            until: jobs,
            calls: AtomicU64::new(0),
            handle: shutdown.handle(),
        });
        shutdown.add(queue::work("jobs", Shared(Arc::clone(&free)), nothing).concurrency(at_once));
        let before = cpu(libc::CLOCK_PROCESS_CPUTIME_ID);
        let report = shutdown.run().await;
        let took = cpu(libc::CLOCK_PROCESS_CPUTIME_ID) - before;
        assert!(report.is_clean(), "{report}");
        let acked = free.acked.load(Ordering::Relaxed) as f64;
        (took.as_nanos() as f64 / acked, acked / free.calls.load(Ordering::Relaxed) as f64)
    })
}

async fn nothing(_: &Leased<u64>, _: &Cx) -> Result<(), BoxError> {
    Ok(())
}

fn hand_back(count: u64, make: fn(Gate, Numbers) -> Intake<u64>) -> f64 {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let budget = Budget::given(Duration::from_secs(600), "bench");
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).expect("it fits");
        let back = Numbers::default();
        let jobs = make(shutdown.gate("jobs"), Arc::clone(&back));
        let held: Vec<_> = (0..count).filter_map(|item| jobs.admit(item).ok()).collect();
        shutdown.handle().trigger("bench");
        let before = cpu(libc::CLOCK_PROCESS_CPUTIME_ID);
        drop(held);
        let report = shutdown.run().await;
        let took = cpu(libc::CLOCK_PROCESS_CPUTIME_ID) - before;
        let back = back.lock().expect("no panics");
        assert_eq!(back.len() as u64, count, "all came back");
        assert!(report.is_clean(), "{report}");
        took.as_nanos() as f64 / count as f64
    })
}

struct Shared(Arc<Free>);

impl Queue for Shared {
    type Item = u64;

    async fn claim(&self, owner: &Owner, max: usize, _: Duration) -> Result<Vec<Claimed<u64>>, QueueError> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let first = self.0.claimed.fetch_add(max as u64, Ordering::Relaxed);
        let job = |n: u64| {
            let id = self.0.ids[n as usize % self.0.ids.len()].clone();
            Claimed::new(n, Lease { id, owner: owner.clone(), epoch: n })
        };
        Ok((first..first + max as u64).map(job).collect())
    }

    async fn ready(&self) {}

    async fn extend(&self, leases: &[Lease], _: Duration) -> Result<Vec<Held>, QueueError> {
        Ok(vec![Held::Yours; leases.len()])
    }

    async fn ack(&self, leases: &[Lease]) -> Result<Vec<Held>, QueueError> {
        let acked = self.0.acked.fetch_add(leases.len() as u64, Ordering::Relaxed) + leases.len() as u64;
        if acked >= self.0.until {
            self.0.handle.trigger("bench");
        }
        Ok(vec![Held::Yours; leases.len()])
    }

    async fn nack(&self, _: &Lease, _: Duration, _: &str) -> Result<Held, QueueError> {
        Ok(Held::Yours)
    }

    async fn dead_letter(&self, _: &Lease, _: &str) -> Result<Held, QueueError> {
        Ok(Held::Yours)
    }

    async fn requeue(&self, jobs: &[HandBack]) -> Result<Vec<Held>, QueueError> {
        Ok(vec![Held::Yours; jobs.len()])
    }

    async fn begin_drain(&self, _: &Owner, _: Option<Duration>) -> Result<(), QueueError> {
        Ok(())
    }

    async fn end_drain(&self, _: &Owner) -> Result<(), QueueError> {
        Ok(())
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        Ok(Counts::default())
    }

    async fn dead_letters(&self, _: usize) -> Result<Vec<DeadLetter>, QueueError> {
        Ok(Vec::new())
    }

    async fn retry(&self, _: &JobId) -> Result<bool, QueueError> {
        Ok(false)
    }
}
