//! Gates as a program without a coordinator uses them, on real threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;
use winddown::{Cancelled, Gate, Unfinished};

const LONG: Duration = Duration::from_secs(60);

/// I11: panic, abort, a future dropped half-way, a runtime that goes away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_count_comes_back_however_the_work_ends() {
    let gate = Gate::standalone("requests");
    let enter = || gate.enter().expect("open");
    let panicking = enter();
    let panicked = tokio::spawn(async move {
        let _in_flight = panicking;
        panic!("in the middle of the work");
    });
    let aborted = enter();
    let aborted = tokio::spawn(async move { aborted.run(std::future::pending::<()>()).await });
    let half_way = enter();
    drop(Box::pin(async move { half_way.run(std::future::pending::<()>()).await }));
    let lost = enter();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.spawn(async move { lost.run(std::future::pending::<()>()).await });
    })
    .join()
    .expect("no panic");
    assert!(panicked.await.unwrap_err().is_panic());
    aborted.abort();
    assert!(aborted.await.unwrap_err().is_cancelled());
    assert_eq!(gate.in_flight(), 0);
    gate.close();
    timeout(LONG, gate.drained()).await.expect("nothing is in flight");
}

/// I12: a parent that ends first does not end the drain.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_started_by_work_is_waited_for_also_after_the_close() {
    let gate = Gate::standalone("requests");
    let done = Arc::new(AtomicUsize::new(0));
    let parent = gate.enter().expect("open");
    let counted = done.clone();
    let mut closed = std::pin::pin!(gate.drained());
    gate.close();
    let handle = tokio::spawn(async move {
        for _ in 0..100 {
            let (child, counted) = (parent.child(), counted.clone());
            tokio::spawn(async move {
                tokio::task::yield_now().await;
                counted.fetch_add(1, Ordering::Release);
                drop(child);
            });
        }
    });
    timeout(LONG, closed.as_mut()).await.expect("all of it ends");
    assert_eq!(done.load(Ordering::Acquire), 100);
    handle.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_parked_tasks_all_hear_of_the_end() {
    let gate = Gate::standalone("parked");
    let cancelled = Arc::new(AtomicUsize::new(0));
    let tasks = 100_000;
    for n in 0..tasks {
        let (in_flight, cancelled) = (gate.enter().expect("open"), cancelled.clone());
        tokio::spawn(async move {
            if n % 2 == 0 {
                in_flight.stopping().await;
            }
            if in_flight.run(std::future::pending::<()>()).await == Err(Cancelled) {
                cancelled.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    // Some are parked, some are about to be, some have not begun.
    assert_eq!(gate.close(), tasks);
    gate.cancel();
    timeout(LONG, gate.drained()).await.expect("all of them hear of it");
    assert_eq!(cancelled.load(Ordering::Relaxed), tasks);
}

#[tokio::test(start_paused = true)]
async fn a_run_gives_the_result_or_says_that_the_drain_is_over() {
    for (takes, result) in [(1, Ok(1)), (3, Ok(3)), (7, Err(Cancelled))] {
        let gate = Gate::standalone("jobs");
        let in_flight = gate.enter().expect("open");
        let handle = tokio::spawn(async move {
            let work = async {
                tokio::time::sleep(Duration::from_secs(takes)).await;
                takes
            };
            in_flight.run(work).await
        });
        tokio::time::sleep(Duration::from_secs(5)).await;
        gate.cancel();
        gate.drained().await;
        assert_eq!(handle.await.expect("no panic"), result);
    }
}

#[test]
fn who_stops_waiting_is_forgotten() {
    let gate = Gate::standalone("many");
    for _ in 0..100_000 {
        let in_flight = gate.enter().expect("open");
        assert_eq!(in_flight.run(std::future::pending::<()>()).now_or_never(), None);
        assert_eq!(gate.stopping().now_or_never(), None);
    }
    assert_eq!((gate.in_flight(), gate.close()), (0, 0));
    assert_eq!(gate.drained().now_or_never(), Some(()));
}

#[tokio::test(start_paused = true)]
async fn what_a_gate_of_its_own_let_in_and_nobody_finished_is_handed_back() {
    let back = Arc::new(Mutex::new(Vec::new()));
    let jobs = Gate::standalone("jobs").requeue_with(
        Arc::clone(&back),
        async |back: Arc<Mutex<Vec<u32>>>, job: Unfinished<u32>| {
            back.lock().unwrap().push(*job);
            Ok::<(), std::io::Error>(())
        },
    );
    let (one, two) = (jobs.admit(1).unwrap(), jobs.admit(2).unwrap());
    drop(one);
    two.finish().unwrap();
    jobs.gate().close();
    jobs.gate().drained().await;
    assert_eq!(*back.lock().unwrap(), [1]);
}
