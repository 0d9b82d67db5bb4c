//! What happens at the edges of a stop: before it, beside it, half-way through it, and with no time at all.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use winddown::{
    BoxError, Budget, Cx, Done, Outcome, Overrun, Phase, Rank, Reason, Report, ShutdownCoordinator,
    Unfinished, signal,
};

#[path = "support/log.rs"]
mod log;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn coordinator(grace: u32) -> ShutdownCoordinator {
    ShutdownCoordinator::new(Budget::given(grace * SECOND, "test"), signal::none()).unwrap()
}

async fn run_then_stop(shutdown: ShutdownCoordinator) -> Report {
    let handle = shutdown.handle();
    tokio::join!(shutdown.run(), async move { handle.trigger("test") }).0
}

async fn for_ever() -> Result<(), BoxError> {
    std::future::pending().await
}

/// In each phase one hook panics, one fails, one hangs and one works: each has its outcome, and the phases behind run.
#[tokio::test(start_paused = true)]
async fn a_bad_hook_in_any_phase_is_named_and_keeps_no_phase_from_running() {
    for bad in Phase::ALL {
        let budget = Budget::given(30 * SECOND, "test").unready(SECOND);
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        shutdown.on(bad, "panics", async |_| {
            if true {
                panic!("a bug")
            }
        });
        shutdown.on(bad, "fails", async |_| Err::<(), _>("no"));
        shutdown.on(bad, "hangs", async |_| for_ever().await);
        let ran = Arc::new(Mutex::new(Vec::new()));
        for phase in Phase::ALL {
            let ran = Arc::clone(&ran);
            shutdown.on(phase, phase.as_str(), async move |_| ran.lock().unwrap().push(phase));
        }
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        let outcome = |name| report.hook(name).map(|hook| (hook.outcome, hook.phase)).unwrap();
        assert_eq!(outcome("panics"), (Outcome::Panicked, bad));
        assert_eq!(outcome("fails"), (Outcome::Failed, bad));
        assert_eq!(outcome("hangs"), (Outcome::Overdue, bad));
        assert_eq!(*ran.lock().unwrap(), Phase::ALL);
        assert_eq!(report.code(), 1);
    }
}

/// A hook in each phase waits for the end of the stop: it is left out of its phase, no time passes but the delay for
/// balancers, and it gets the report afterwards.
#[tokio::test(start_paused = true)]
async fn a_hook_that_awaits_the_end_holds_no_phase_and_gets_the_report() {
    let budget = Budget::given(10 * SECOND, "test").unready(SECOND);
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    let got = Arc::new(AtomicUsize::new(0));
    for phase in Phase::ALL {
        let (handle, got) = (shutdown.handle(), Arc::clone(&got));
        shutdown.on(phase, phase.as_str(), async move |_| {
            tokio::task::yield_now().await;
            assert_eq!(handle.ended().await.code(), 0);
            got.fetch_add(1, Ordering::SeqCst);
        });
    }
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert!(report.is_clean() && report.took() == SECOND, "{report}");
    sleep(MS).await;
    assert_eq!(got.load(Ordering::SeqCst), 5);
}

/// A task waits for the end of the stop, beside a job that has to be cancelled, which takes a while: it is not aborted
/// with what is overdue, gets the report, and the code is that of the stop.
#[tokio::test(start_paused = true)]
async fn a_task_that_awaits_the_end_gets_the_report_also_when_others_are_overdue() {
    for until in [Phase::Drain, Phase::Requeue, Phase::Close] {
        let mut shutdown = coordinator(10);
        let handle = shutdown.handle();
        let got = Arc::new(AtomicBool::new(false));
        let gets = Arc::clone(&got);
        shutdown
            .spawn("waits", async move {
                handle.ended().await;
                gets.store(true, Ordering::SeqCst);
            })
            .until(until);
        let jobs = shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<()>| {
            sleep(700 * MS).await;
            Ok::<(), BoxError>(())
        });
        let job = jobs.admit(()).unwrap();
        tokio::spawn(job.run(async |_, _| for_ever().await));
        let report = run_then_stop(shutdown).await;
        assert_eq!(report.code(), 0, "{report}");
        sleep(MS).await;
        assert!(got.load(Ordering::SeqCst));
    }
}

/// Handing back takes longer than the window in which work may end, and less than the phase: it was in time.
#[tokio::test(start_paused = true)]
async fn requeue_is_overdue_only_when_something_did_not_get_back() {
    for (takes, outcome) in [(700, Outcome::Finished), (1200, Outcome::Overdue)] {
        let mut shutdown = coordinator(10);
        let jobs =
            shutdown.gate("jobs").requeue_with(takes * MS, async |takes: Duration, _: Unfinished<()>| {
                sleep(takes).await;
                Ok::<(), BoxError>(())
            });
        let job = jobs.admit(()).unwrap();
        tokio::spawn(job.run(async |_, _| for_ever().await));
        let report = run_then_stop(shutdown).await;
        assert_eq!(report.phase(Phase::Requeue).unwrap().outcome, outcome, "{report}");
        assert_eq!(report.lost().len(), usize::from(outcome == Outcome::Overdue), "{report}");
    }
}

/// Dropped before `run`: its gates refuse, all who wait are told, and the report says why.
#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_dropped_closes_its_gates_and_leaves_nobody_waiting() {
    let (lines, _kept) = log::keep();
    let mut shutdown = coordinator(10);
    let (gate, handle) = (shutdown.gate("requests"), shutdown.handle());
    let in_flight = gate.enter().unwrap();
    drop(shutdown);
    assert!(gate.enter().is_err() && in_flight.is_cancelled());
    assert!(handle.is_triggered() && handle.is_stopping() && handle.is_cancelled());
    for phase in Phase::ALL {
        handle.reached(phase).await;
    }
    let report = handle.ended().await;
    assert_eq!((report.reason(), report.code()), (&Reason::Dropped, 1));
    assert!(lines.lock().unwrap()[0].contains("shutdown.dropped"));
}

/// `run` is dropped before the trigger and in each phase: gates are closed, both signals fired, whoever waits for the
/// end has a report, and tasks and hooks are gone.
#[tokio::test(start_paused = true)]
async fn a_run_that_is_dropped_half_way_stops_everything_and_says_so() {
    struct Gone(Arc<AtomicUsize>);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    for (trigger, after) in [(false, 100), (true, 100), (true, 8200), (true, 9200)] {
        let mut shutdown = coordinator(10);
        let (gate, handle) = (shutdown.gate("requests"), shutdown.handle());
        let gone = Arc::new(AtomicUsize::new(0));
        let held = Gone(Arc::clone(&gone));
        shutdown.spawn("task", async move {
            let _held = held;
            for_ever().await
        });
        for phase in [Phase::Drain, Phase::Requeue, Phase::Close] {
            let gone = Arc::clone(&gone);
            shutdown.on(phase, phase.as_str(), async move |_| {
                let _held = Gone(gone);
                for_ever().await
            });
        }
        let waiting = tokio::spawn({
            let handle = handle.clone();
            async move { handle.ended().await }
        });
        let trigger = async {
            if trigger {
                handle.trigger("test");
            }
            sleep(after * MS).await;
        };
        tokio::select! {
            biased;
            report = shutdown.run() => panic!("{report}"),
            () = trigger => {}
        }
        assert!(gate.enter().is_err() && handle.is_stopping() && handle.is_cancelled());
        let report = waiting.await.unwrap();
        assert_eq!(report.code(), 1, "{report}");
        sleep(MS).await;
        let began = match after {
            9200 => 4,
            8200 => 3,
            _ if trigger_is(&report) => 2,
            _ => 1,
        };
        assert_eq!(gone.load(Ordering::SeqCst), began, "after {after} ms: {report}");
    }
}

fn trigger_is(report: &Report) -> bool {
    *report.reason() != Reason::Dropped
}

/// A set-up that fails: what it had registered before is closed, nothing was started, and the error is the reason.
#[tokio::test(start_paused = true)]
async fn a_set_up_that_fails_or_panics_closes_what_it_had_opened() {
    for panics in [false, true] {
        let (closed, started) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (closes, starts) = (Arc::clone(&closed), Arc::clone(&started));
        let report = coordinator(10)
            .run_with(async move |shutdown| {
                shutdown.on(Phase::Close, "db", async move |_| closes.store(true, Ordering::SeqCst));
                shutdown.spawn("server", async move { starts.store(true, Ordering::SeqCst) });
                assert!(!panics, "a bug");
                shutdown.start("cache", async { Err::<(), _>("no route") }).await?;
                Ok(())
            })
            .await;
        assert!(closed.load(Ordering::SeqCst) && !started.load(Ordering::SeqCst));
        let error =
            if panics { "the set-up panicked: a bug" } else { "cache could not be started: no route" };
        assert_eq!(*report.reason(), Reason::StartFailed { error: error.into() });
        assert_eq!((report.code(), report.took()), (1, Duration::ZERO));
        assert_eq!(report.task("server").unwrap().outcome, Outcome::NotStarted);
    }
}

/// The stop comes while a connection is awaited: it is given up at once, what was opened before is closed, and that is
/// no failure.
#[tokio::test(start_paused = true)]
async fn what_is_being_started_is_given_up_when_the_stop_begins() {
    let shutdown = coordinator(10);
    let handle = shutdown.handle();
    let closed = Arc::new(AtomicBool::new(false));
    let closes = Arc::clone(&closed);
    let running = shutdown.run_with(async move |shutdown| {
        shutdown.on(Phase::Close, "db", async move |_| closes.store(true, Ordering::SeqCst));
        shutdown.start("broker", for_ever()).await?;
        Ok(())
    });
    let trigger = async move {
        sleep(SECOND).await;
        handle.trigger("test");
    };
    let (report, ()) = tokio::join!(running, trigger);
    assert!(closed.load(Ordering::SeqCst) && report.is_clean(), "{report}");
    assert_eq!(report.took(), Duration::ZERO);
    assert!(report.later_reasons().is_empty());
}

/// A set-up hangs on what it did not await with `start`: it is dropped when the drain would be over, at two budgets, and
/// what it had opened is closed in time.
#[tokio::test(start_paused = true)]
async fn a_set_up_that_hangs_is_dropped_when_the_drain_would_end() {
    for (grace, drain) in [(10, 8000), (5, 3500)] {
        let shutdown = coordinator(grace);
        let handle = shutdown.handle();
        let running = shutdown.run_with(async move |shutdown| {
            shutdown.on(Phase::Close, "db", async |_| sleep(100 * MS).await);
            for_ever().await
        });
        let trigger = async move {
            sleep(SECOND).await;
            handle.trigger("test");
        };
        let (report, ()) = tokio::join!(running, trigger);
        assert_eq!(report.hook("db").unwrap().outcome, Outcome::Finished, "{report}");
        assert_eq!(report.took(), (drain + 100) * MS, "{report}");
        assert!(report.later_reasons()[0].1.to_string().contains("still not done"));
    }
}

/// What is registered does not fit together: start-up is refused with words that name it, and what is open is closed.
#[tokio::test(start_paused = true)]
async fn what_does_not_fit_together_is_refused_at_start_up_and_what_is_open_closed() {
    type Register = fn(&mut ShutdownCoordinator);
    let wrong: [(Register, &str); 3] = [
        (
            |shutdown| {
                shutdown.on(Phase::Close, "a", async |_| {}).after("nobody");
            },
            "\"a\" is to run after \"nobody\"",
        ),
        (
            |shutdown| {
                shutdown.on(Phase::Drain, "a", async |_| {}).after("b");
                shutdown.on(Phase::Drain, "b", async |_| {}).after("a");
            },
            "wait for each other: b, a",
        ),
        (
            |shutdown| {
                let gate = shutdown.gate("payments");
                let jobs = gate.requeue_with((), async |(), _: Unfinished<()>| Ok::<(), BoxError>(()));
                drop(jobs.task_limit(9 * SECOND).overrun(Overrun::Finish));
            },
            "task_limit of gate \"payments\" is 9 s: it must fit into the drain of 8 s",
        ),
    ];
    for (register, words) in wrong {
        let mut shutdown = coordinator(10);
        let started = Arc::new(AtomicBool::new(false));
        let starts = Arc::clone(&started);
        register(&mut shutdown);
        shutdown.spawn("server", async move { starts.store(true, Ordering::SeqCst) });
        shutdown.on(Phase::Close, "db", async |_| {});
        let report = shutdown.run().await;
        assert!(report.reason().to_string().contains(words), "{report}");
        assert!(!started.load(Ordering::SeqCst) && report.code() == 1);
        assert_eq!(report.hook("db").unwrap().outcome, Outcome::Finished);
    }
}

/// A budget that leaves no time for any phase: each hook is polled once all the same.
#[tokio::test(start_paused = true)]
async fn with_no_time_at_all_each_hook_is_polled_once() {
    let nothing = Duration::ZERO;
    let budget = Budget::from_grace_period(SECOND)
        .unready(nothing)
        .drain(nothing)
        .requeue(nothing)
        .close(nothing)
        .margin(SECOND);
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    let polled = Arc::new(Mutex::new(Vec::new()));
    for phase in Phase::ALL {
        for name in ["one", "two"] {
            let polled = Arc::clone(&polled);
            shutdown.on(phase, format!("{phase} {name}"), async move |_| {
                polled.lock().unwrap().push(phase);
                for_ever().await
            });
        }
    }
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert_eq!(*polled.lock().unwrap(), Phase::ALL.map(|phase| [phase; 2]).concat(), "{report}");
    assert!(report.took() < 100 * MS, "{report}");
}

/// A blocking hook runs on a thread of its own, with its deadline, and its error and panic are caught.
#[tokio::test]
async fn a_blocking_hook_blocks_its_own_thread_and_is_judged_like_any_other() {
    let mut shutdown = coordinator(10);
    let here = std::thread::current().id();
    shutdown.on_blocking(Phase::Drain, "works", move |cx| {
        std::thread::sleep(50 * MS);
        assert!(std::thread::current().id() != here && cx.deadline().remaining() > SECOND);
    });
    shutdown.on_blocking(Phase::Drain, "fails", |_| Err::<(), _>("no"));
    shutdown.on_blocking(Phase::Drain, "panics", |_| {
        if true {
            panic!("a bug")
        }
    });
    shutdown.on_blocking(Phase::Drain, "hangs", |_| std::thread::sleep(SECOND)).limit(100 * MS);
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    let outcome = |name| report.hook(name).unwrap().outcome;
    assert_eq!(
        ["works", "fails", "panics", "hangs"].map(outcome),
        [Outcome::Finished, Outcome::Failed, Outcome::Panicked, Outcome::Overdue],
        "{report}"
    );
    assert!(report.took() < SECOND, "{report}");
}

/// By rank, within a rank the last first, and `after` before either; one at a time.
#[tokio::test(start_paused = true)]
async fn close_goes_by_rank_and_backwards_within_a_rank_one_at_a_time() {
    let mut shutdown = coordinator(30);
    let (order, running) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let names = [
        ("logs", Rank::Telemetry),
        ("db", Rank::Pools),
        ("mail", Rank::Clients),
        ("search", Rank::Clients),
        ("kafka out", Rank::Producers),
        ("kafka in", Rank::Consumers),
    ];
    for (name, rank) in names {
        let (order, running) = (Arc::clone(&order), Arc::clone(&running));
        let hook = shutdown.on(Phase::Close, name, async move |_| {
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
            sleep(10 * MS).await;
            running.fetch_sub(1, Ordering::SeqCst);
            order.lock().unwrap().push(name);
        });
        let hook = hook.rank(rank);
        if name == "kafka out" {
            hook.after("db");
        }
    }
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(*order.lock().unwrap(), ["kafka in", "search", "mail", "db", "kafka out", "logs"]);
}

/// A part is stopped alone: the whole and its sibling run on, a second stop changes nothing, and the whole's own stop
/// finds it ended.
#[tokio::test(start_paused = true)]
async fn a_part_stopped_alone_leaves_the_whole_running() {
    let mut whole = coordinator(10);
    let mut closes = Vec::new();
    let mut parts = Vec::new();
    for name in ["one", "two"] {
        let mut part = coordinator(5);
        let closed = Arc::new(AtomicUsize::new(0));
        closes.push(Arc::clone(&closed));
        part.on(Phase::Close, name, async move |_| {
            closed.fetch_add(1, Ordering::SeqCst);
        });
        let handle = part.handle();
        part.spawn("work", async move { handle.triggered().await });
        parts.push(whole.add(part.named(name)));
    }
    let closed = || [0, 1].map(|part: usize| closes[part].load(Ordering::SeqCst));
    let handle = whole.handle();
    let running = tokio::spawn(whole.run());
    sleep(SECOND).await;
    parts[0].trigger("alone");
    assert_eq!(parts[0].ended().await.reason().to_string(), "alone");
    sleep(60 * SECOND).await;
    assert!(!parts[0].trigger("again") && !handle.is_triggered() && !parts[1].is_triggered());
    assert_eq!(closed(), [1, 0]);
    handle.trigger("the whole");
    let report = running.await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(closed(), [1, 1]);
    assert_eq!(parts[1].ended().await.reason().to_string(), "the whole");
}

/// The whole is stopped while its set-up is still under way: a part that was added has something open, and closes it
/// without having begun its work.
#[tokio::test(start_paused = true)]
async fn a_part_closes_what_it_has_open_also_when_the_stop_comes_during_the_set_up() {
    let shutdown = coordinator(10);
    let handle = shutdown.handle();
    let (closed, started) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (closes, starts) = (Arc::clone(&closed), Arc::clone(&started));
    let report = shutdown
        .run_with(async move |shutdown| {
            let mut part = coordinator(5);
            part.on(Phase::Close, "part's db", async move |_| closes.store(true, Ordering::SeqCst));
            part.spawn("work", async move {
                starts.store(true, Ordering::SeqCst);
                for_ever().await
            });
            shutdown.add(part);
            handle.trigger("early");
            Ok(())
        })
        .await;
    assert!(closed.load(Ordering::SeqCst) && !started.load(Ordering::SeqCst), "{report}");
    assert!(report.is_clean(), "{report}");
}

/// A shield that is up when the drain ends is waited for and its effect is whole; one that would be raised later is not
/// begun.
#[tokio::test(start_paused = true)]
async fn a_shield_outlasts_the_drain_and_is_not_begun_after_it() {
    let mut shutdown = coordinator(10);
    let jobs = shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<u32>| Ok::<(), BoxError>(()));
    let done = Arc::new(AtomicUsize::new(0));
    for begins in [7_900, 8_050] {
        let (job, done) = (jobs.admit(begins).unwrap(), Arc::clone(&done));
        tokio::spawn(async move {
            let ended = job
                .run(async |begins, cx| {
                    let until = Instant::now() + *begins * MS;
                    cx.shield(async {}).await;
                    tokio::time::sleep_until(until).await;
                    cx.shield(sleep(300 * MS)).await;
                    done.fetch_add(1, Ordering::SeqCst);
                    Ok::<(), BoxError>(())
                })
                .await;
            assert_eq!(matches!(ended, Done::Finished(())), begins == 7_900);
        });
    }
    let report = run_then_stop(shutdown).await;
    assert_eq!(done.load(Ordering::SeqCst), 1);
    assert_eq!(report.took(), 8_200 * MS, "{report}");
    let ledger = report.gate("jobs").unwrap();
    assert_eq!((ledger.finished, ledger.handed_back, report.code()), (1, 1, 0), "{report}");
}

/// What is shielded hears the end of the drain, and may make haste rather than be cut later.
#[tokio::test(start_paused = true)]
async fn a_shield_hears_that_the_drain_is_over() {
    for (grace, drain) in [(10, 8_000), (5, 3_500)] {
        let mut shutdown = coordinator(grace);
        let jobs =
            shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<u32>| Ok::<(), BoxError>(()));
        let job = jobs.admit(1).unwrap();
        tokio::spawn(async move {
            let hurry = async |_: &u32, cx: &Cx| {
                cx.shield(cx.cancelled()).await;
                Ok::<(), BoxError>(())
            };
            assert!(matches!(job.run(hurry).await, Done::Finished(())));
        });
        let report = run_then_stop(shutdown).await;
        assert_eq!((report.took(), report.code()), (drain * MS, 0), "{report}");
        assert_eq!(report.gate("jobs").unwrap().finished, 1, "{report}");
    }
}

/// A shield that lasts too long is cut and logged; the task around it hears so and ends by itself, and handed back is fine.
#[tokio::test(start_paused = true)]
async fn a_shield_that_lasts_too_long_is_cut_by_name_and_its_task_ends_by_itself() {
    let (lines, _kept) = log::keep();
    let mut shutdown = coordinator(10);
    let jobs = shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<u32>| Ok::<(), BoxError>(()));
    let job = jobs.admit(1).unwrap();
    shutdown.spawn("worker", async move {
        let done = job
            .run(async |_, cx| {
                cx.shield(tokio::time::sleep(60 * SECOND)).await;
                Ok::<(), BoxError>(())
            })
            .await;
        assert!(matches!(done, Done::HandedBack(_)));
    });
    let handle = shutdown.handle();
    tokio::spawn(async move {
        tokio::time::sleep(MS).await;
        handle.trigger("test");
    });
    let report = shutdown.run().await;
    assert_eq!(report.task("worker").unwrap().outcome, Outcome::Finished, "{report}");
    assert_eq!((report.code(), report.gate("jobs").unwrap().handed_back), (0, 1), "{report}");
    assert_eq!(lines.lock().unwrap().iter().filter(|line| line.contains("shield.cut")).count(), 1);
}

/// Jobs that are cut one after the other, as on several threads, still stand in their old order in the queue.
#[tokio::test(start_paused = true)]
async fn items_that_come_back_one_by_one_go_back_in_their_old_order() {
    for apart in [1, 4] {
        let back = Arc::new(Mutex::new(Vec::new()));
        let mut shutdown = coordinator(10);
        let jobs = shutdown.gate("jobs").requeue_with(
            Arc::clone(&back),
            async |back: Arc<Mutex<Vec<u32>>>, job: Unfinished<u32>| {
                back.lock().unwrap().insert(0, *job);
                Ok::<(), BoxError>(())
            },
        );
        for number in 0..10 {
            let job = jobs.admit(number).unwrap();
            tokio::spawn(job.run(async move |&number: &u32, cx: &Cx| {
                let late = async {
                    cx.cancelled().await;
                    sleep(apart * number * MS).await;
                };
                cx.shield(late).await;
                for_ever().await
            }));
        }
        let report = run_then_stop(shutdown).await;
        assert!(report.is_clean(), "{report}");
        assert_eq!(*back.lock().unwrap(), (0..10).collect::<Vec<_>>(), "{apart} ms apart");
    }
}

/// On the real clock: its thread takes longer for the first poll than the phase lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hook_that_is_done_by_its_first_poll_is_in_time_where_its_phase_has_none() {
    for takes in [1, 3] {
        let budget = Budget::given(Duration::from_secs(10), "test").unready(Duration::ZERO);
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        shutdown.on(Phase::Unready, "slow to be polled", async move |_| {
            std::thread::sleep(Duration::from_millis(takes));
        });
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        assert_eq!(report.hooks()[0].outcome, Outcome::Finished, "{report}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_callback_that_goes_on_failing_is_called_ever_less_often_and_at_once_when_the_stop_begins() {
    for waits in [60 * SECOND, 77 * SECOND] {
        let mut shutdown = coordinator(10);
        let calls = Arc::new(Mutex::new(Vec::new()));
        let jobs = shutdown.gate("jobs").pulled().requeue_with(
            Arc::clone(&calls),
            async |calls: Arc<Mutex<Vec<Instant>>>, _: Unfinished<u32>| {
                calls.lock().unwrap().push(Instant::now());
                Err::<(), BoxError>("it is down".into())
            },
        );
        let handle = shutdown.handle();
        let running = tokio::spawn(shutdown.run());
        drop(jobs.admit(1).unwrap());
        sleep(waits).await;
        let last = *calls.lock().unwrap().last().unwrap();
        let before = calls.lock().unwrap().len();
        assert!((10..=8 + waits.as_secs() as usize / 5).contains(&before), "{before} calls in {waits:?}");
        handle.trigger("test");
        let stopped = Instant::now();
        running.await.unwrap();
        let next = calls.lock().unwrap()[before];
        assert!(next == stopped && last < stopped, "{:?} after the stop", next - stopped);
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_go_back_to_one_place_holds_up_nothing_that_goes_to_another() {
    let mut shutdown = coordinator(10);
    let back = Arc::new(Mutex::new(Vec::<u32>::new()));
    let jobs = shutdown
        .gate("jobs")
        .requeue_batch_with(
            Arc::clone(&back),
            async |back: Arc<Mutex<Vec<u32>>>, items: Vec<Unfinished<u32>>| {
                if items.iter().any(|item| **item % 2 == 1) {
                    assert!(items.iter().all(|item| **item % 2 == 1), "of one kind");
                    return Err("that place is full");
                }
                back.lock().unwrap().extend(items.iter().map(|item| **item));
                Ok(())
            },
        )
        .apart(|number: &u32| (*number % 2) as usize);
    // One fails long before the stop.
    drop(jobs.admit(1).unwrap());
    sleep(60 * SECOND).await;
    drop(jobs.admit(2).unwrap());
    sleep(100 * MS).await;
    assert_eq!(*back.lock().unwrap(), [2]);
    let held: Vec<_> = (3..=8).map(|number| jobs.admit(number).unwrap()).collect();
    shutdown.handle().trigger("test");
    drop(held);
    let report = shutdown.run().await;
    assert_eq!(*back.lock().unwrap(), [2, 4, 6, 8], "oldest first: {report}");
    let gate = report.gate("jobs").unwrap();
    assert_eq!((gate.held, gate.handed_back, gate.lost), (7, 3, 4), "{report}");
}
