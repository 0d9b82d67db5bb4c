//! Loops and schedules end between two steps, on paused time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use winddown::background::{self, More};
use winddown::{Budget, Outcome, ShutdownCoordinator, signal};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn coordinator() -> ShutdownCoordinator {
    ShutdownCoordinator::new(Budget::given(10 * SECOND, "test"), signal::none()).unwrap()
}

/// When something happened, from the making of this.
#[derive(Clone)]
struct Times(Instant, Arc<Mutex<Vec<Duration>>>);

impl Times {
    fn new() -> Self {
        Times(Instant::now(), Arc::default())
    }

    fn note(&self) {
        self.1.lock().unwrap().push(self.0.elapsed());
    }

    fn all(&self) -> Vec<Duration> {
        self.1.lock().unwrap().clone()
    }
}

fn trigger_after(shutdown: &ShutdownCoordinator, delay: Duration) {
    let handle = shutdown.handle();
    tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        handle.trigger("test");
    });
}

#[tokio::test(start_paused = true)]
async fn a_loop_ends_between_batches_never_inside_one() {
    for (stop, batches) in [(250, 3), (520, 6)] {
        let mut shutdown = coordinator();
        let (begun, ended) = (Times::new(), Times::new());
        let (begin, end) = (begun.clone(), ended.clone());
        let outbox = shutdown.add(background::repeat("outbox", move || {
            let (begin, end) = (begin.clone(), end.clone());
            async move {
                begin.note();
                tokio::time::sleep(100 * MS).await;
                end.note();
                More::Yes
            }
        }));
        trigger_after(&shutdown, stop * MS);
        let report = shutdown.run().await;
        assert!(report.is_clean(), "{report}");
        assert_eq!(begun.all(), (0..batches).map(|at| 100 * at * MS).collect::<Vec<_>>());
        assert_eq!(ended.all().len(), begun.all().len(), "a batch was cut in the middle");
        assert_eq!(report.took(), batches * 100 * MS - stop * MS);
        assert_eq!((outbox.runs(), outbox.failed()), (u64::from(batches), 0));
        assert_eq!(report.task("outbox").unwrap().outcome, Outcome::Finished);
    }
}

#[tokio::test(start_paused = true)]
async fn a_loop_with_nothing_to_do_waits_out_its_idle_delay() {
    for idle in [300 * MS, 700 * MS] {
        let mut shutdown = coordinator();
        let times = Times::new();
        let seen = times.clone();
        shutdown.add(
            background::repeat("poller", move || {
                seen.note();
                async {}
            })
            .idle(idle),
        );
        trigger_after(&shutdown, 2 * idle + 10 * MS);
        let report = shutdown.run().await;
        assert_eq!(times.all(), [Duration::ZERO, idle, 2 * idle]);
        assert_eq!(report.took(), Duration::ZERO, "the stop ends the delay at once");
    }
}

/// I28
#[tokio::test(start_paused = true)]
async fn a_half_full_batch_is_flushed_when_the_stop_begins() {
    let mut shutdown = coordinator();
    let batch = Arc::new(Mutex::new(Vec::new()));
    let sent = Arc::new(Mutex::new(Vec::new()));
    let (held, out) = (Arc::clone(&batch), Arc::clone(&sent));
    let flush = move || {
        let items: Vec<u32> = std::mem::take(&mut *held.lock().unwrap());
        let out = Arc::clone(&out);
        async move {
            tokio::time::sleep(20 * MS).await;
            out.lock().unwrap().extend(items);
        }
    };
    shutdown.add(background::repeat("batcher", flush).idle(60 * SECOND).last_pass());
    tokio::spawn(async move {
        tokio::time::sleep(SECOND).await;
        batch.lock().unwrap().push(7);
    });
    trigger_after(&shutdown, 2 * SECOND);
    let report = shutdown.run().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(*sent.lock().unwrap(), [7]);
    assert_eq!(report.took(), 20 * MS, "flushed now, not when its timer is over");
}

/// I29
#[tokio::test(start_paused = true)]
async fn a_retry_loop_gets_the_drain_and_then_says_what_is_undelivered() {
    for drain in [2 * SECOND, 4 * SECOND] {
        let budget = Budget::given(10 * SECOND, "test").drain(drain);
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        let times = Times::new();
        let seen = times.clone();
        let sender = shutdown.add(
            background::repeat("sender", move || {
                seen.note();
                async { Err::<(), _>("the peer is dead") }
            })
            .backoff(100 * MS, 400 * MS)
            .last_pass(),
        );
        trigger_after(&shutdown, 50 * MS);
        let report = shutdown.run().await;
        assert_eq!(report.took(), drain, "{report}");
        let task = report.task("sender").unwrap();
        assert_eq!(task.outcome, Outcome::Failed);
        assert_eq!(task.error.as_deref(), Some("undelivered: the peer is dead"));
        assert_eq!(report.code(), 1);
        // The last pass at 50 ms, then after 200, 400, 400, ... ms.
        assert_eq!(times.all()[..4], [0, 50, 250, 650].map(|at| at * MS));
        assert_eq!(sender.failed(), sender.runs());
        assert!(*times.all().last().unwrap() <= 50 * MS + drain);
    }
}

#[tokio::test(start_paused = true)]
async fn a_last_pass_that_works_in_the_end_is_clean() {
    let mut shutdown = coordinator();
    let mut tries = 0;
    let sender = shutdown.add(
        background::repeat("sender", move || {
            tries += 1;
            let worked = tries > 3;
            async move { if worked { Ok(()) } else { Err("not yet") } }
        })
        .backoff(100 * MS, SECOND)
        .last_pass(),
    );
    shutdown.handle();
    trigger_after(&shutdown, MS);
    let report = shutdown.run().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!((sender.runs(), sender.failed()), (4, 3));
    assert_eq!(report.took(), 600 * MS, "200 ms and 400 ms of back-off");
}

/// I30
#[tokio::test(start_paused = true)]
async fn the_stop_ends_a_back_off_at_once() {
    for backoff in [900 * SECOND, 30 * SECOND] {
        let mut shutdown = coordinator();
        let client = shutdown
            .add(background::repeat("client", async || Err::<More, _>("refused")).backoff(backoff, backoff));
        trigger_after(&shutdown, 5 * SECOND);
        let report = shutdown.run().await;
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.took(), Duration::ZERO);
        assert_eq!((client.runs(), client.failed()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_or_a_panic_is_one_steps_and_the_back_off_grows_and_is_forgotten() {
    for (min, max) in [(100, 300), (50, 1000)] {
        let mut shutdown = coordinator();
        let times = Times::new();
        let seen = times.clone();
        let mut step = 0;
        let poller = shutdown.add(
            background::repeat("poller", move || {
                seen.note();
                step += 1;
                assert!(step != 2, "the call itself panics");
                async move {
                    assert!(step != 3, "its future panics");
                    if step == 1 || step == 5 { Err("failed") } else { Ok(More::Yes) }
                }
            })
            .backoff(min * MS, max * MS),
        );
        trigger_after(&shutdown, (min + 2 * min + (4 * min).min(max) + min / 2) * MS);
        let report = shutdown.run().await;
        assert!(report.is_clean(), "{report}");
        assert_eq!(poller.failed(), 4);
        let fourth = (min + 2 * min + (4 * min).min(max)) * MS;
        assert_eq!(times.all(), [Duration::ZERO, min * MS, 3 * min * MS, fourth, fourth]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_beyond_its_limit_is_dropped_and_counts_as_failed() {
    for limit in [200 * MS, 350 * MS] {
        let mut shutdown = coordinator();
        let times = Times::new();
        let seen = times.clone();
        let poller = shutdown.add(
            background::repeat("poller", move || {
                seen.note();
                std::future::pending::<()>()
            })
            .backoff(100 * MS, 100 * MS)
            .task_limit(limit),
        );
        trigger_after(&shutdown, limit + 150 * MS);
        let report = shutdown.run().await;
        assert!(report.is_clean(), "{report}");
        assert_eq!((poller.runs(), poller.failed()), (2, 2));
        assert_eq!(times.all(), [Duration::ZERO, limit + 100 * MS]);
        assert_eq!(report.took(), limit - 50 * MS);
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_that_will_not_end_is_dropped_with_the_drain() {
    let mut shutdown = coordinator();
    shutdown.add(background::repeat("poller", std::future::pending::<()>));
    trigger_after(&shutdown, MS);
    let report = shutdown.run().await;
    assert_eq!(report.task("poller").unwrap().outcome, Outcome::Overdue);
    assert!(report.took() < 9 * SECOND, "{report}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_started_while_pulling_is_paused() {
    let mut shutdown = coordinator();
    let (steps, ticks) = (Times::new(), Times::new());
    let (step, tick) = (steps.clone(), ticks.clone());
    shutdown.add(
        background::repeat("poller", move || {
            step.note();
            async {}
        })
        .idle(100 * MS),
    );
    shutdown.add(background::every("sweep", 100 * MS, move || {
        tick.note();
        async {}
    }));
    let handle = shutdown.handle();
    tokio::spawn(async move {
        tokio::time::sleep(150 * MS).await;
        handle.pause();
        tokio::time::sleep(300 * MS).await;
        handle.resume();
        tokio::time::sleep(100 * MS).await;
        handle.pause();
        tokio::time::sleep(200 * MS).await;
        handle.trigger("test");
    });
    let report = shutdown.run().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(steps.all(), [0, 100, 450].map(|at| at * MS), "the pause holds the loop, the stop ends it");
    assert_eq!(ticks.all(), [100, 500].map(|at| at * MS), "ticks in a pause are skipped");
}

/// I37
#[tokio::test(start_paused = true)]
async fn there_is_no_tick_after_the_stop_and_the_running_job_is_awaited() {
    for (stop, runs) in [(23, 4), (61, 12)] {
        let mut shutdown = coordinator();
        let gate = shutdown.gate("jobs").pulled();
        let (begun, ended) = (Times::new(), Times::new());
        let (begin, end) = (begun.clone(), ended.clone());
        let ticker = shutdown.add(background::every("ticker", 5 * MS, move || {
            begin.note();
            let in_flight = gate.enter().expect("no tick after the stop");
            let end = end.clone();
            tokio::spawn(async move {
                tokio::time::sleep(40 * MS).await;
                end.note();
                drop(in_flight);
            });
            async {}
        }));
        trigger_after(&shutdown, stop * MS);
        let report = shutdown.run().await;
        assert!(report.is_clean(), "{report}");
        assert_eq!((ticker.runs(), ticker.failed()), (runs, 0));
        assert_eq!(begun.all().len(), ended.all().len(), "what it submitted is awaited");
        assert!(begun.all().iter().all(|at| *at <= stop * MS));
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_do_not_overlap_and_missed_ticks_are_skipped() {
    for (takes, begins) in [(250, [100, 400, 700]), (30, [100, 200, 300])] {
        let mut shutdown = coordinator();
        let times = Times::new();
        let seen = times.clone();
        shutdown.add(background::every("sweep", 100 * MS, move || {
            seen.note();
            tokio::time::sleep(takes * MS)
        }));
        trigger_after(&shutdown, (begins[2] + 10) * MS);
        let report = shutdown.run().await;
        assert!(report.is_clean(), "{report}");
        assert_eq!(times.all(), begins.map(|at| at * MS));
        assert_eq!(report.took(), (takes - 10) * MS, "the running one is awaited");
    }
}

#[tokio::test(start_paused = true)]
async fn a_schedule_may_begin_at_once_and_goes_on_after_a_panic() {
    for period in [40 * MS, 90 * MS] {
        let mut shutdown = coordinator();
        let times = Times::new();
        let seen = times.clone();
        let sweep = shutdown.add(
            background::every("sweep", period, move || {
                seen.note();
                async { std::panic::resume_unwind(Box::new("one run's")) as () }
            })
            .immediately(),
        );
        trigger_after(&shutdown, 2 * period + MS);
        let report = shutdown.run().await;
        assert!(report.is_clean(), "{report}");
        assert_eq!(times.all(), [Duration::ZERO, period, 2 * period]);
        assert_eq!((sweep.runs(), sweep.failed()), (3, 3));
    }
}
