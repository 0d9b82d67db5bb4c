//! Much of everything at once, and force at every moment.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use winddown::{BoxError, Budget, Phase, ShutdownCoordinator, Unfinished, signal};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn coordinator() -> ShutdownCoordinator {
    ShutdownCoordinator::new(Budget::given(10 * SECOND, "test").drain(200 * MS), signal::none()).unwrap()
}

/// On the real clock: what it costs is what is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_tasks_a_thousand_hooks_and_ten_thousand_waiters_stop_within_the_grace() {
    let mut shutdown = coordinator();
    let counted = Arc::new(AtomicUsize::new(0));
    for number in 0..10_000 {
        let handle = shutdown.handle();
        shutdown.spawn(format!("task {number}"), async move { handle.triggered().await }).optional();
    }
    let mut before = String::new();
    for number in 0..1000 {
        let counted = Arc::clone(&counted);
        let name = format!("hook {number}");
        let hook = shutdown.on(Phase::ALL[number % 5], name.clone(), async move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        if number % 5 == 2 {
            if !before.is_empty() {
                hook.after(before);
            }
            before = name;
        }
    }
    let waiters: Vec<_> = (0..10_000)
        .map(|number| {
            let handle = shutdown.handle();
            tokio::spawn(async move {
                handle.reached(Phase::ALL[number % 5]).await;
                handle.ended().await.code()
            })
        })
        .collect();
    let handle = shutdown.handle();
    let running = tokio::spawn(shutdown.run());
    tokio::time::sleep(500 * MS).await;
    handle.trigger("test");
    let report = running.await.unwrap();
    assert_eq!(counted.load(Ordering::SeqCst), 1000);
    let faults = report.faults();
    assert!(faults.is_empty(), "{} faults, {:?} first", faults.len(), faults.first());
    assert_eq!(report.code(), 0);
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_jobs_are_handed_back_one_by_one_within_the_reserve() {
    flood(false, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_jobs_are_handed_back_in_batches_within_the_reserve() {
    flood(true, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_jobs_of_a_thousand_kinds_are_handed_back_one_by_one_within_the_reserve() {
    flood(false, 1000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_jobs_of_a_thousand_kinds_are_handed_back_in_batches_within_the_reserve() {
    flood(true, 1000).await;
}

async fn flood(batch: bool, kinds: u32) {
    let mut shutdown = coordinator();
    let back = Arc::new(Mutex::new(Vec::new()));
    let gate = shutdown.gate("jobs");
    let jobs = match batch {
        true => gate.requeue_batch_with(
            Arc::clone(&back),
            async |back: Arc<Mutex<Vec<u32>>>, items: Vec<Unfinished<u32>>| {
                back.lock().unwrap().extend(items.iter().map(|item| **item));
                Ok::<_, BoxError>(())
            },
        ),
        false => {
            gate.requeue_with(Arc::clone(&back), async |back: Arc<Mutex<Vec<u32>>>, item: Unfinished<u32>| {
                back.lock().unwrap().push(*item);
                Ok::<_, BoxError>(())
            })
        }
    };
    let jobs = jobs.apart(move |number: &u32| (number % kinds) as usize);
    for number in 0..100_000_u32 {
        let job = jobs.admit(number).unwrap();
        tokio::spawn(job.run(async |_, _| std::future::pending::<Result<(), BoxError>>().await));
    }
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    let gate = report.gate("jobs").unwrap();
    assert_eq!((gate.held, gate.handed_back, gate.lost), (100_000, 100_000, 0));
    let mut back = back.lock().unwrap();
    back.sort_unstable();
    assert!(back.iter().copied().eq(0..100_000), "each once");
}
