//! Jobs and handlers that do what they should not: the worker takes them one by one, and goes on.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use winddown::queue::{self, Counts, Leased, NewJob, Queue, memory::Memory};
use winddown::{BoxError, Budget, Cx, ShutdownCoordinator, signal};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Unspeakable;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("no words for it")
    }
}

impl std::error::Error for Unspeakable {}

/// Runs the handler on one job with three attempts, for a minute; how often it ran, and what became of the job.
async fn a_minute_of<F, Fut, E>(task_limit: Option<Duration>, handler: F) -> (usize, Counts)
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError> + 'static,
{
    let jobs = Memory::new();
    jobs.enqueue(NewJob::new("a".parse().unwrap(), 1_u32));
    let mut shutdown = ShutdownCoordinator::new(Budget::given(10 * SECOND, "test"), signal::none()).unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let runs = Arc::clone(&ran);
    let handler = move |_: &Leased<u32>, _: &Cx| {
        runs.fetch_add(1, Ordering::SeqCst);
        handler()
    };
    let work = queue::work("orders", jobs.clone(), handler).attempts(3);
    shutdown.add(match task_limit {
        Some(limit) => work.task_limit(limit),
        None => work,
    });
    let handle = shutdown.handle();
    let running = tokio::spawn(shutdown.run());
    tokio::time::sleep(60 * SECOND).await;
    assert!(handle.trigger("test"));
    assert_eq!(running.await.unwrap().code(), 0);
    (ran.load(Ordering::SeqCst), jobs.counts().await.unwrap())
}

/// Else it would be handed back as if it had been interrupted, and come again at once and for ever.
#[tokio::test(start_paused = true)]
async fn an_error_that_cannot_be_told_uses_an_attempt() {
    let (ran, counts) = a_minute_of(None, || async { Err::<(), _>(Unspeakable) }).await;
    assert_eq!((ran, counts.dead), (3, 1));
}

/// Panics when its future goes.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("it will not go");
        }
    }
}

/// Else it would come again at once and for ever, too.
#[tokio::test(start_paused = true)]
async fn a_handler_that_takes_too_long_and_panics_when_it_is_cut_uses_an_attempt() {
    let handler = || async {
        let _bomb = Bomb;
        std::future::pending::<()>().await;
        Ok::<(), std::io::Error>(())
    };
    let (ran, counts) = a_minute_of(Some(SECOND), handler).await;
    assert_eq!((ran, counts.dead, counts.interruptions), (3, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn the_time_that_a_job_waits_claimed_ahead_is_none_of_its_task_limit() {
    let jobs = Memory::new();
    for n in 0..8_u32 {
        jobs.enqueue(NewJob::new(n.to_string().parse().unwrap(), n));
    }
    let mut shutdown = ShutdownCoordinator::new(Budget::given(10 * SECOND, "test"), signal::none()).unwrap();
    let handler = async |_: &Leased<u32>, _: &Cx| {
        tokio::time::sleep(SECOND).await;
        Ok::<(), std::io::Error>(())
    };
    let work = queue::work("orders", jobs.clone(), handler).concurrency(1).prefetch(7);
    shutdown.add(work.task_limit(2 * SECOND).lease(3 * SECOND));
    let handle = shutdown.handle();
    let running = tokio::spawn(shutdown.run());
    tokio::time::sleep(9 * SECOND).await;
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.pending, counts.active, counts.scheduled, counts.dead), (0, 0, 0, 0));
    assert!(handle.trigger("test"));
    assert_eq!(running.await.unwrap().code(), 0);
}
