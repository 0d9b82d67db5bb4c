//! Jobs: let in and finished, and handed back by the hundred thousand.

use std::hint::black_box;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::runtime::Runtime;
use winddown::{BoxError, Budget, Gate, Intake, Job, ShutdownCoordinator, Unfinished, signal};

use crate::measure::{Op, Row, Run, cpu, median};

type Numbers = Arc<Mutex<Vec<u64>>>;

/// What handing back an item may cost.
const TARGET: f64 = 1000.0;

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
