//! Code of users that does what it should not: words that panic, drops that panic, wakers that panic, names of any kind.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use winddown::{
    BoxError, Budget, Gate, Outcome, Phase, Reason, Report, ShutdownCoordinator, Unfinished, signal,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// An error that cannot even be told.
#[derive(Debug)]
struct Unspeakable;

/// An item that must not be dropped.
struct Bomb(u32);

struct PanickingWaker;

impl fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("no words for it")
    }
}

impl Error for Unspeakable {}

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 % 2 == 1 {
            panic!("item {} was dropped", self.0)
        }
    }
}

impl Wake for PanickingWaker {
    fn wake(self: Arc<Self>) {
        panic!("woken")
    }
}

fn coordinator() -> ShutdownCoordinator {
    ShutdownCoordinator::new(Budget::given(10 * SECOND, "test"), signal::none()).unwrap()
}

async fn stop(shutdown: ShutdownCoordinator) -> Report {
    shutdown.handle().trigger("test");
    shutdown.run().await
}

#[tokio::test(start_paused = true)]
async fn a_hook_whose_error_cannot_be_told_has_failed() {
    let mut shutdown = coordinator();
    shutdown.on(Phase::Close, "index", async |_| Err::<(), _>(Unspeakable));
    let report = stop(shutdown).await;
    assert_eq!(report.hook("index").unwrap().outcome, Outcome::Failed);
    assert_eq!(report.code(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_error_cannot_be_told_triggers_the_stop() {
    let mut shutdown = coordinator();
    shutdown.spawn("consumer", async { Err::<(), _>(Unspeakable) });
    let report = tokio::time::timeout(SECOND, shutdown.run()).await.expect("it stops");
    assert!(matches!(report.reason(), Reason::TaskFailed { task, .. } if task == "consumer"));
}

#[tokio::test(start_paused = true)]
async fn a_set_up_whose_error_cannot_be_told_closes_what_it_had_opened() {
    let closed = Arc::new(AtomicUsize::new(0));
    let closes = Arc::clone(&closed);
    let report = coordinator()
        .run_with(async move |shutdown| {
            shutdown.on(Phase::Close, "pool", async move |_| {
                closes.fetch_add(1, Ordering::SeqCst);
            });
            Err::<(), BoxError>(Unspeakable.into())
        })
        .await;
    assert!(matches!(report.reason(), Reason::StartFailed { .. }));
    assert_eq!(closed.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_callback_whose_error_cannot_be_told_is_called_again() {
    let mut shutdown = coordinator();
    let calls = Arc::new(AtomicUsize::new(0));
    let jobs = shutdown.gate("jobs").requeue_with(
        Arc::clone(&calls),
        async |calls: Arc<AtomicUsize>, _: Unfinished<u32>| {
            if calls.fetch_add(1, Ordering::SeqCst) == 0 { Err(Unspeakable) } else { Ok(()) }
        },
    );
    jobs.admit(1).unwrap().hand_back();
    let report = stop(shutdown).await;
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert!(report.lost().is_empty(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn items_that_panic_when_dropped_are_handed_back_like_others() {
    for batch in [false, true] {
        let mut shutdown = coordinator();
        let back = Arc::new(Mutex::new(Vec::new()));
        let gate = shutdown.gate("jobs");
        let one = async |back: Arc<Mutex<Vec<u32>>>, item: Unfinished<Bomb>| {
            back.lock().unwrap().push(item.0);
            Ok::<_, BoxError>(())
        };
        let many = async |back: Arc<Mutex<Vec<u32>>>, items: Vec<Unfinished<Bomb>>| {
            back.lock().unwrap().extend(items.iter().map(|item| item.0));
            Ok::<_, BoxError>(())
        };
        let jobs = match batch {
            true => gate.requeue_batch_with(Arc::clone(&back), many),
            false => gate.requeue_with(Arc::clone(&back), one),
        };
        let held: Vec<_> = (0..10).map(|number| jobs.admit(Bomb(number)).unwrap()).collect();
        let began = tokio::time::Instant::now();
        shutdown.handle().trigger("test");
        let running = tokio::spawn(shutdown.run());
        tokio::time::sleep(MS).await;
        drop(held);
        let report = running.await.unwrap();
        back.lock().unwrap().sort();
        assert_eq!(*back.lock().unwrap(), Vec::from_iter(0..10));
        let gate = report.gate("jobs").unwrap();
        assert_eq!((gate.handed_back, gate.lost), (10, 0), "{report}");
        assert!(began.elapsed() < SECOND, "{report}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waker_that_panics_stops_neither_the_trigger_nor_the_run() {
    let mut shutdown = coordinator();
    let closed = Arc::new(AtomicUsize::new(0));
    let closes = Arc::clone(&closed);
    shutdown.on(Phase::Close, "pool", async move |_| {
        closes.fetch_add(1, Ordering::SeqCst);
    });
    let handle = shutdown.handle();
    let waker = Waker::from(Arc::new(PanickingWaker));
    let mut cx = Context::from_waker(&waker);
    let tokens = [handle.triggered_token(), handle.stopping_token()];
    let mut waits: Vec<_> = tokens.iter().map(|token| Box::pin(token.cancelled())).collect();
    for wait in &mut waits {
        assert!(wait.as_mut().poll(&mut cx).is_pending());
    }
    let mut resumed = Box::pin(handle.resumed());
    handle.pause();
    assert!(resumed.as_mut().poll(&mut cx).is_pending());
    handle.resume();
    assert!(handle.trigger("test"));
    let report = shutdown.run().await;
    assert_eq!(closed.load(Ordering::SeqCst), 1);
    assert_eq!(report.code(), 0, "{report}");
}

#[tokio::test]
async fn a_blocking_hook_runs_whatever_its_name() {
    let mut shutdown = coordinator();
    shutdown.on_blocking(Phase::Close, "a\0b", |_| ());
    shutdown.on_blocking(Phase::Close, "n".repeat(100_000), |_| ());
    let report = stop(shutdown).await;
    assert_eq!(report.code(), 0, "{report}");
}

/// Its runtime is gone: it never ran, and that is said.
#[test]
fn a_hook_that_its_runtime_dropped_has_not_finished() {
    let theirs = tokio::runtime::Runtime::new().unwrap();
    let mut shutdown = theirs.block_on(async { coordinator() });
    let ran = Arc::new(AtomicUsize::new(0));
    let runs = Arc::clone(&ran);
    shutdown.on(Phase::Close, "flush", async move |_| {
        runs.fetch_add(1, Ordering::SeqCst);
    });
    theirs.shutdown_background();
    let report = tokio::runtime::Runtime::new().unwrap().block_on(stop(shutdown));
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    assert_ne!(report.hook("flush").unwrap().outcome, Outcome::Finished);
    assert_eq!(report.code(), 1);
}

#[tokio::test(start_paused = true)]
async fn two_intakes_of_one_gate_are_both_waited_for() {
    let mut shutdown = coordinator();
    let gate = shutdown.gate("jobs");
    let slow = async |back: Arc<AtomicUsize>, item: Unfinished<u32>| {
        tokio::time::sleep(*item * 700 * MS).await;
        back.fetch_add(1, Ordering::SeqCst);
        Ok::<_, BoxError>(())
    };
    let back = Arc::new(AtomicUsize::new(0));
    let first = gate.clone().requeue_with(Arc::clone(&back), slow);
    let second = gate.requeue_with(Arc::clone(&back), slow);
    let jobs = (first.admit(1).unwrap(), second.admit(0).unwrap());
    let tasks = [jobs.0, jobs.1].map(|job| {
        tokio::spawn(async move {
            let _ = job.run(async |_, _| std::future::pending::<Result<(), BoxError>>().await).await;
        })
    });
    let at_close = Arc::new(AtomicUsize::new(0));
    let (seen, count) = (Arc::clone(&at_close), Arc::clone(&back));
    shutdown.on(Phase::Close, "queue", async move |_| {
        seen.store(count.load(Ordering::SeqCst), Ordering::SeqCst);
    });
    let report = stop(shutdown).await;
    assert_eq!(at_close.load(Ordering::SeqCst), 2, "{report}");
    assert_eq!(report.gate("jobs").unwrap().handed_back, 2, "{report}");
    drop(tasks);
}

#[tokio::test(start_paused = true)]
async fn what_a_standalone_gate_let_in_goes_back_through_its_callback() {
    let back = Arc::new(AtomicUsize::new(0));
    let jobs = Gate::standalone("jobs").requeue_with(
        Arc::clone(&back),
        async |back: Arc<AtomicUsize>, _: Unfinished<u32>| {
            back.fetch_add(1, Ordering::SeqCst);
            Ok::<_, BoxError>(())
        },
    );
    jobs.admit(1).unwrap().hand_back();
    jobs.gate().close();
    jobs.gate().drained().await;
    assert_eq!(back.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_limit_counts_the_time_behind_a_shield_too() {
    let mut shutdown = coordinator();
    let jobs = shutdown
        .gate("jobs")
        .requeue_with((), async |(), _: Unfinished<u32>| Ok::<_, BoxError>(()))
        .task_limit(3 * SECOND);
    let began = tokio::time::Instant::now();
    let done = jobs
        .admit(1)
        .unwrap()
        .run(async |_, cx| {
            cx.shield(tokio::time::sleep(2 * SECOND)).await;
            tokio::time::sleep(2 * SECOND).await;
            Ok::<_, BoxError>(())
        })
        .await;
    assert!(matches!(done, winddown::Done::Overran(_)), "{done:?}");
    assert_eq!(began.elapsed(), 3 * SECOND);
}

/// It waits for the end in one branch, and works in the other.
#[tokio::test(start_paused = true)]
async fn a_task_that_waits_for_the_end_no_longer_is_waited_for() {
    let mut shutdown = coordinator();
    let handle = shutdown.handle();
    let worked = Arc::new(AtomicUsize::new(0));
    let works = Arc::clone(&worked);
    shutdown.spawn("consumer", async move {
        tokio::select! {
            biased;
            _ = handle.ended() => {}
            () = tokio::time::sleep(SECOND) => {}
        }
        tokio::time::sleep(2 * SECOND).await;
        works.fetch_add(1, Ordering::SeqCst);
    });
    let handle = shutdown.handle();
    let report = tokio::join!(shutdown.run(), async {
        tokio::time::sleep(1500 * MS).await;
        handle.trigger("test");
    })
    .0;
    assert_eq!(worked.load(Ordering::SeqCst), 1, "{report}");
}

#[test]
fn a_runtime_without_a_clock_is_refused_at_the_start_and_not_at_the_stop() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let refused = runtime.block_on(async {
        ShutdownCoordinator::new(Budget::given(10 * SECOND, "test"), signal::none()).map(drop)
    });
    assert!(refused.is_err());
}

/// Whoever comes last wins, in the flag and in the gates.
#[tokio::test]
async fn a_pause_and_a_resume_at_once_leave_gates_as_the_flag_says() {
    let mut shutdown = coordinator();
    let gates: Vec<Gate> = (0..64).map(|_| shutdown.gate("jobs").pulled()).collect();
    let handle = shutdown.handle();
    for _ in 0..500 {
        std::thread::scope(|scope| {
            scope.spawn(|| handle.pause());
            scope.spawn(|| handle.resume());
        });
        let paused = handle.is_paused();
        assert!(gates.iter().all(|gate| gate.is_paused() == paused), "the flag says {paused}");
    }
}

/// Threads of other executors, and of none, have no runtime at hand.
#[test]
fn a_run_that_another_executor_polls_finds_its_runtime() {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut shutdown = runtime.block_on(async {
        ShutdownCoordinator::new(Budget::given(400 * MS, "test"), signal::none()).unwrap()
    });
    let gate = shutdown.gate("uploads");
    let in_flight = gate.enter().unwrap();
    shutdown.handle().trigger("test");
    let set_up = async |shutdown: &mut ShutdownCoordinator| {
        tokio::time::sleep(MS).await;
        shutdown.on(Phase::Close, "index", async |_| tokio::time::sleep(MS).await);
        Ok::<_, BoxError>(())
    };
    let mut run = Box::pin(shutdown.run_with(set_up));
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let report = loop {
        match run.as_mut().poll(&mut Context::from_waker(&waker)) {
            std::task::Poll::Ready(report) => break report,
            std::task::Poll::Pending => std::thread::park(),
        }
    };
    assert_eq!(report.hook("index").unwrap().outcome, Outcome::Finished);
    drop(in_flight);
}
