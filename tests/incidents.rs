//! Faults that people who run real services have met at shutdown, each as the smallest scene that shows it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, sleep};
use winddown::{
    BoxError, Budget, Done, Gate, Outcome, Phase, Reason, Report, ShutdownCoordinator, Unfinished, Why,
    signal,
};

#[path = "support/log.rs"]
mod log;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn coordinator(budget: Budget) -> ShutdownCoordinator {
    ShutdownCoordinator::new(budget, signal::none()).unwrap()
}

fn with_drain(drain: Duration) -> Budget {
    Budget::from_grace_period(10 * SECOND).drain(drain)
}

/// Triggers once the tasks run.
async fn run_then_stop(shutdown: ShutdownCoordinator, after: Duration) -> Report {
    let handle = shutdown.handle();
    let trigger = async move {
        sleep(after).await;
        handle.trigger("test");
    };
    tokio::join!(shutdown.run(), trigger).0
}

async fn for_ever() -> Result<(), BoxError> {
    std::future::pending().await
}

/// I10. Two threads enter in a tight loop while a third closes, at ten thousand gates: once a gate is drained, nobody who
/// was let in is inside.
#[test]
fn whoever_is_let_in_while_the_gate_closes_is_waited_for() {
    let gates: Vec<_> = (0..10_000).map(|_| (Gate::standalone("gate"), AtomicUsize::new(0))).collect();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for (gate, inside) in &gates {
                    while let Ok(in_flight) = gate.enter() {
                        inside.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(in_flight);
                    }
                }
            });
        }
        for (gate, inside) in &gates {
            gate.close();
            while gate.drained().now_or_never().is_none() {
                std::thread::yield_now();
            }
            assert_eq!(inside.load(Ordering::SeqCst), 0);
        }
    });
}

/// I11. A guard goes down with a panic, with a future that is dropped half-way, with an aborted task, and with a handler
/// whose client hangs up: nothing is left in flight, the drain takes no time, and the panic is in the report.
#[tokio::test(start_paused = true)]
async fn a_guard_is_given_back_by_a_panic_a_drop_an_abort_and_a_hang_up() {
    let mut shutdown = coordinator(Budget::default());
    let gate = shutdown.gate("requests");
    let guard = gate.enter().unwrap();
    shutdown.spawn("panics", async move {
        let _held = guard;
        sleep(10 * MS).await;
        assert!(_held.is_stopping(), "a bug");
    });
    let guard = gate.enter().unwrap();
    let half_way = tokio::time::timeout(10 * MS, async move { guard.run(for_ever()).await });
    let guard = gate.enter().unwrap();
    let aborted = tokio::spawn(async move { guard.run(for_ever()).await });
    let guard = gate.enter().unwrap();
    let (client, hung_up) = tokio::sync::oneshot::channel::<()>();
    let handler = tokio::spawn(async move {
        tokio::select! {
            _ = async { guard.run(for_ever()).await } => {}
            _ = hung_up => {}
        }
        drop(guard);
    });
    let (report, _) = tokio::join!(shutdown.run(), async {
        assert!(half_way.await.is_err());
        aborted.abort();
        drop(client);
        handler.await.unwrap();
    });
    assert_eq!(gate.in_flight(), 0);
    assert_eq!(report.took(), Duration::ZERO, "{report}");
    assert_eq!(*report.reason(), Reason::TaskPanicked { task: "panics".into(), message: "a bug".into() });
    assert!(report.gates().iter().all(|gate| gate.adds_up() && gate.lost == 0), "{report}");
}

/// I12. The handler has answered at once and left 300 ms of work behind, with a child of its guard. The stop comes right
/// after the answer; the work is done, and new work refused.
#[tokio::test(start_paused = true)]
async fn the_drain_waits_for_work_that_a_handler_left_behind() {
    for lasts in [300 * MS, 500 * MS] {
        let mut shutdown = coordinator(Budget::default());
        let gate = shutdown.gate("requests");
        let written = Arc::new(AtomicUsize::new(0));
        let (guard, handle, writes) = (gate.enter().unwrap(), shutdown.handle(), Arc::clone(&written));
        tokio::spawn(async move {
            let child = guard.child();
            drop(guard);
            handle.reached(Phase::Drain).await;
            // While draining, and from work that was let in: allowed.
            let grandchild = child.child();
            tokio::spawn(async move {
                sleep(lasts).await;
                writes.fetch_add(1, Ordering::SeqCst);
                drop(grandchild);
            });
            assert!(gate.enter().is_err());
        });
        tokio::task::yield_now().await;
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        assert_eq!((written.load(Ordering::SeqCst), report.took()), (1, lasts), "{report}");
        let ledger = report.gate("requests").unwrap();
        assert_eq!((ledger.held, ledger.let_in, ledger.finished), (1, 1, 2), "{report}");
    }
}

/// I16. Fifty jobs end at nothing; two of them block their threads. The whole budget is 2 s and handing back one takes
/// 20 ms: all fifty go back, side by side, the two of them as *still running*, before the budget is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_overdue_jobs_are_handed_back_within_what_was_reserved_for_it() {
    type Back = Arc<Mutex<Vec<(u32, Why)>>>;
    async fn take(back: Back, item: Unfinished<u32>) -> Result<(), BoxError> {
        sleep(20 * MS).await;
        back.lock().unwrap().push((*item, item.why()));
        Ok(())
    }
    let mut shutdown = coordinator(Budget::from_grace_period(2 * SECOND).requeue(600 * MS));
    let back = Back::default();
    let jobs =
        shutdown.gate("jobs").requeue_with(Arc::clone(&back), take).still_running(Arc::clone(&back), take);
    let release = Arc::new(AtomicBool::new(false));
    for number in 0..50 {
        let (job, release) = (jobs.admit(number).unwrap(), Arc::clone(&release));
        tokio::spawn(job.run(async move |number: &u32, _: &winddown::Cx| {
            while *number % 25 == 0 && !release.load(Ordering::SeqCst) {
                std::thread::sleep(10 * MS);
            }
            for_ever().await
        }));
    }
    let began = Instant::now();
    let report = run_then_stop(shutdown, 10 * MS).await;
    let took = began.elapsed();
    release.store(true, Ordering::SeqCst);
    let mut back = back.lock().unwrap().clone();
    back.sort_unstable_by_key(|(number, _)| *number);
    let numbers: Vec<_> = back.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..50).collect::<Vec<_>>(), "{report}");
    for (number, why) in back {
        assert_eq!(why, if number % 25 == 0 { Why::StillRunning } else { Why::Cancelled });
    }
    let ledger = report.gate("jobs").unwrap();
    assert_eq!((ledger.handed_back, ledger.still_running, ledger.lost), (50, 2, 0), "{report}");
    assert!(took < 2 * SECOND, "{took:?}: {report}");
}

/// I17. Orders with attempts used, priorities and payloads, interrupted by the deadline: they come back as they were, to
/// the head of the queue, before those that were never taken, in their old order, with the stop as the reason.
#[tokio::test(start_paused = true)]
async fn interrupted_items_keep_their_attempts_their_payload_and_their_place() {
    #[derive(Debug, Clone, PartialEq)]
    struct Order {
        attempts: u32,
        priority: u8,
        payload: Vec<u8>,
    }
    type Queue = Arc<Mutex<std::collections::VecDeque<Order>>>;
    let before: Vec<Order> = (0..12)
        .map(|number| Order { attempts: 2, priority: 9 - number / 2, payload: vec![number, 0, 255] })
        .collect();
    let queue: Queue = Arc::new(Mutex::new(before.iter().cloned().collect()));
    let mut shutdown = coordinator(Budget::default());
    let jobs = shutdown.gate("orders").requeue_with(
        Arc::clone(&queue),
        async |queue: Queue, order: Unfinished<Order>| {
            if !order.why().is_shutdown() {
                return Err(format!("handed back as {}", order.why()));
            }
            queue.lock().unwrap().push_front(order.clone());
            Ok(())
        },
    );
    for _ in 0..8 {
        let order = queue.lock().unwrap().pop_front().unwrap();
        let job = jobs.admit(order).unwrap();
        tokio::spawn(async move {
            let cut = job.payload[0] % 2 == 0;
            let done = job
                .run(async |_, cx| {
                    if cut {
                        return for_ever().await;
                    }
                    loop {
                        cx.checkpoint()?;
                        sleep(7 * MS).await;
                    }
                })
                .await;
            assert!(matches!(done, Done::HandedBack(why) if why.is_shutdown()));
        });
    }
    let report = run_then_stop(shutdown, SECOND).await;
    assert_eq!(queue.lock().unwrap().make_contiguous(), before.as_slice(), "{report}");
}

/// I18. A task and a job swallow every cancellation and sleep on: the drain ends at its deadline, both are dropped, the
/// task is named and the job handed back; who asks once more for the end is not made to wait.
#[tokio::test(start_paused = true)]
async fn what_will_not_be_cancelled_does_not_stretch_the_deadline() {
    for drain in [1, 3] {
        let mut shutdown = coordinator(with_drain(drain * SECOND));
        let handle = shutdown.handle();
        let token = handle.stopping_token();
        let stubborn = move |token: tokio_util::sync::CancellationToken| async move {
            loop {
                let _ = token.run_until_cancelled(sleep(60 * SECOND)).await;
                let _ = tokio::time::timeout(60 * SECOND, std::future::pending::<()>()).await;
            }
        };
        shutdown.spawn("stubborn", stubborn(token.clone()));
        let jobs =
            shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<()>| Ok::<(), BoxError>(()));
        let job = jobs.admit(()).unwrap();
        tokio::spawn(async move {
            let _ = job
                .run(async |_, _| {
                    stubborn(token).await;
                    Ok::<(), BoxError>(())
                })
                .await;
        });
        let report = run_then_stop(shutdown, SECOND).await;
        assert_eq!(report.phase(Phase::Drain).unwrap().took, drain * SECOND, "{report}");
        assert!(report.took() < drain * SECOND + 100 * MS, "{report}");
        assert_eq!(report.task("stubborn").unwrap().outcome, Outcome::Overdue);
        assert!(
            !report.task("stubborn").unwrap().stuck && report.to_string().contains("task stubborn: overdue")
        );
        assert_eq!(report.gate("jobs").unwrap().handed_back, 1);
        let asked = Instant::now();
        handle.ended().await;
        assert_eq!(asked.elapsed(), Duration::ZERO);
    }
}

/// I20. The first of three close hooks fails and the second outlives its limit; all three run, and each is in the report
/// with what became of it.
#[tokio::test(start_paused = true)]
async fn a_failing_hook_skips_none_of_the_rest() {
    for limit in [100 * MS, 150 * MS] {
        let mut shutdown = coordinator(Budget::default());
        shutdown.on(Phase::Close, "last", async |_| sleep(50 * MS).await);
        shutdown.on(Phase::Close, "slow", async |_| for_ever().await).limit(limit);
        shutdown.on(Phase::Close, "fails", async |_| Err::<(), _>("the disk is full"));
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        let hooks: Vec<_> =
            report.hooks().iter().map(|hook| (hook.name.as_str(), hook.outcome, hook.took)).collect();
        assert_eq!(
            hooks,
            [
                ("fails", Outcome::Failed, Duration::ZERO),
                ("slow", Outcome::Overdue, limit),
                ("last", Outcome::Finished, 50 * MS),
            ]
        );
        assert_eq!(report.hook("fails").unwrap().error.as_deref(), Some("the disk is full"));
        assert_eq!((report.code(), report.is_clean()), (1, false));
    }
}

/// I24. Ten tasks on four threads ask for the stop at once and wait for its end; one more asks afterwards. Hooks run
/// once, one caller is the first, and all get the same report.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_callers_of_the_same_stop_get_the_same_report() {
    let mut shutdown = coordinator(Budget::default());
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    shutdown.on(Phase::Close, "once", async move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        sleep(20 * MS).await;
    });
    let handle = shutdown.handle();
    let running = tokio::spawn(shutdown.run());
    let callers: Vec<_> = (0..10)
        .map(|number| {
            let handle = handle.clone();
            tokio::spawn(async move { (handle.trigger(format!("caller {number}")), handle.ended().await) })
        })
        .collect();
    let report = running.await.unwrap();
    let mut firsts = 0;
    for caller in callers {
        let (first, theirs) = caller.await.unwrap();
        firsts += usize::from(first);
        assert_eq!(theirs.to_string(), report.to_string());
    }
    assert!(!handle.trigger("late"));
    let asked = Instant::now();
    assert_eq!(handle.ended().await.to_string(), report.to_string());
    assert!(asked.elapsed() < 10 * MS);
    assert_eq!((firsts, runs.load(Ordering::SeqCst), report.later_reasons().len()), (1, 1, 9));
}

/// I25. Five hooks of 400 ms in one phase take 400 ms. And limits that do not fit into the grace together are refused
/// where that is given, and warned of where it is assumed.
#[tokio::test(start_paused = true)]
async fn limits_share_one_budget_and_hooks_of_a_phase_their_time() {
    for lasts in [400 * MS, 700 * MS] {
        for phase in [Phase::Drain, Phase::Requeue] {
            let mut shutdown =
                coordinator(Budget::from_grace_period(3 * SECOND).requeue(SECOND).drain(SECOND));
            for number in 0..5 {
                shutdown.on(phase, format!("hook {number}"), async move |_| sleep(lasts).await);
            }
            shutdown.handle().trigger("test");
            let report = shutdown.run().await;
            assert!(report.is_clean(), "{report}");
            assert_eq!(report.took(), lasts, "{report}");
        }
    }
    let too_long = |budget: Budget| budget.drain(2 * SECOND).requeue(2 * SECOND);
    let refused = ShutdownCoordinator::new(too_long(Budget::given(3 * SECOND, "test")), signal::none());
    assert!(refused.unwrap_err().to_string().contains("fit into the grace of 3 s"));
    let warned = coordinator(too_long(Budget::assumed(3 * SECOND, "a guess")));
    assert_eq!(warned.plan().warnings().len(), 1);
}

/// I29. A delivery to a peer that is dead is tried again and again. At the stop it gets what is left of the drain and
/// not more, and then says by itself what it could not deliver.
#[tokio::test(start_paused = true)]
async fn a_retry_loop_is_given_the_time_left_and_then_says_what_is_undelivered() {
    for drain in [2, 4] {
        let mut shutdown = coordinator(with_drain(drain * SECOND));
        let handle = shutdown.handle();
        shutdown.spawn("delivery", async move {
            let give_up = async {
                handle.triggered().await;
                // Ends before the drain does, so that it can still say so.
                let left = handle.deadline(Phase::Drain).unwrap().remaining();
                sleep(left - 100 * MS).await;
            };
            let retry = async {
                loop {
                    sleep(30 * MS).await;
                }
            };
            tokio::select! {
                () = retry => Ok(()),
                () = give_up => Err("undelivered: 3"),
            }
        });
        let report = run_then_stop(shutdown, SECOND).await;
        let task = report.task("delivery").unwrap();
        assert_eq!(
            (task.outcome, task.error.as_deref()),
            (Outcome::Failed, Some("undelivered: 3")),
            "{report}"
        );
        assert_eq!((report.took(), report.code()), (drain * SECOND - 100 * MS, 1));
    }
}

/// I30. A part sleeps a quarter of an hour between two attempts: the stop ends that sleep at once.
#[tokio::test(start_paused = true)]
async fn a_back_off_sleep_ends_when_the_stop_begins() {
    let mut shutdown = coordinator(Budget::default());
    let handle = shutdown.handle();
    shutdown.spawn("poller", async move { while handle.sleep(900 * SECOND).await.is_ok() {} });
    let report = run_then_stop(shutdown, 100 * SECOND).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.took(), Duration::ZERO);
}

/// I31. The drop of a resource blocks for long: on a thread of its own and under a limit it keeps neither the other tasks
/// of a single-threaded runtime from running, nor the stop from ending.
#[tokio::test]
async fn a_drop_that_blocks_holds_no_worker() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            std::thread::sleep(2 * SECOND);
        }
    }
    let mut shutdown = coordinator(Budget::default());
    let slow = Slow;
    shutdown.on_blocking(Phase::Close, "slow", move |_| drop(slow)).limit(200 * MS);
    let ticks = Arc::new(AtomicUsize::new(0));
    let ticked = Arc::clone(&ticks);
    let ticker = tokio::spawn(async move {
        loop {
            sleep(5 * MS).await;
            ticked.fetch_add(1, Ordering::SeqCst);
        }
    });
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    ticker.abort();
    assert_eq!(report.hook("slow").unwrap().outcome, Outcome::Overdue, "{report}");
    assert!(report.took() >= 200 * MS && report.took() < SECOND, "{report}");
    assert!(ticks.load(Ordering::SeqCst) >= 5);
}

/// I32. Tasks end by themselves, well, with an error and with a panic, in the moment before the trigger: what they
/// returned is in the report, and none is polled again (which would panic with other words).
#[tokio::test(start_paused = true)]
async fn a_task_that_ended_early_is_not_polled_again() {
    let mut shutdown = coordinator(Budget::default());
    for (name, end) in [("well", 0), ("badly", 1), ("panics", 2)] {
        let mut polls = 0;
        let task = std::future::poll_fn(move |_| {
            polls += 1;
            assert_eq!(polls, 1, "polled again");
            match end {
                0 => std::task::Poll::Ready(Ok(())),
                1 => std::task::Poll::Ready(Err("its own error")),
                _ => panic!("its own panic"),
            }
        });
        shutdown.spawn(name, task).optional();
    }
    let report = run_then_stop(shutdown, Duration::ZERO).await;
    let ends: Vec<_> = report.tasks().iter().map(|task| (task.outcome, task.error.as_deref())).collect();
    assert_eq!(
        ends,
        [
            (Outcome::Finished, None),
            (Outcome::Failed, Some("its own error")),
            (Outcome::Panicked, Some("its own panic")),
        ]
    );
}

/// I33. A background unit hears of no stop. While it is waited for, a line a second says so, with its name and its age
/// and the time left; afterwards it is in the report.
#[tokio::test(start_paused = true)]
async fn each_second_of_the_drain_says_what_is_waited_for() {
    let (lines, _kept) = log::keep();
    let mut shutdown = coordinator(with_drain(3500 * MS));
    shutdown.spawn("indexer", for_ever());
    let gate = shutdown.gate("uploads").detailed();
    let upload = gate.enter_named("cat.jpg").unwrap();
    let report = run_then_stop(shutdown, 10 * SECOND).await;
    let lines = lines.lock().unwrap();
    let progress: Vec<_> =
        lines.iter().filter(|line| line.contains("drain.progress phase=\"drain\"")).collect();
    assert_eq!(progress.len(), 3, "{lines:#?}");
    for (second, line) in progress.iter().enumerate() {
        let age = format!("for {}.000 s", 11 + second);
        assert!(line.contains("task indexer, for") && line.contains(&age), "{line}");
        assert!(line.contains(&format!("cat.jpg of gate uploads, {age}")), "{line}");
        let left = ["2.5 s", "1.5 s", "500 ms"][second];
        assert!(line.contains(&format!("time_left={left}")), "{line}");
    }
    assert_eq!(report.task("indexer").unwrap().outcome, Outcome::Overdue);
    assert!(report.gate("uploads").unwrap().still[0].contains("cat.jpg"), "{report}");
    for event in ["shutdown.ready", "shutdown.begin", "intake.stopped", "shutdown.complete"] {
        assert_eq!(lines.iter().filter(|line| line.contains(event)).count(), 1, "{event}: {lines:#?}");
    }
    drop(upload);
}

/// I35. Under paused time each phase with something that hangs ends at its deadline, to the nanosecond, at two budgets;
/// and hours of it take no real time.
#[tokio::test(start_paused = true)]
async fn all_limits_are_exact_under_paused_time() {
    let real = std::time::Instant::now();
    for grace in [30, 7200] {
        let budget = Budget::from_grace_period(grace * SECOND).balancer(true);
        let mut shutdown = coordinator(budget);
        let _held = shutdown.gate("held").enter().unwrap();
        for phase in Phase::ALL {
            shutdown.on(phase, phase.as_str(), async |_| for_ever().await);
        }
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        for phase in report.phases() {
            assert_eq!(phase.began + phase.took, phase.deadline, "{}: {report}", phase.phase);
        }
    }
    assert!(real.elapsed() < 5 * SECOND);
}

/// I37. A scheduler submits a job every 5 ms through a gate whose work is pulled, and a balancer is waited for: the
/// scheduler ends with the trigger, a late tick is refused quietly, and jobs that run are awaited.
#[tokio::test(start_paused = true)]
async fn no_tick_comes_after_the_stop_and_running_jobs_are_awaited() {
    for lasts in [100 * MS, 3200 * MS] {
        let mut shutdown = coordinator(Budget::from_grace_period(30 * SECOND).unready(2 * SECOND));
        let gate = shutdown.gate("jobs").pulled();
        let (begun, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (counted, finished, jobs, handle) =
            (Arc::clone(&begun), Arc::clone(&done), gate.clone(), shutdown.handle());
        shutdown.spawn("ticker", async move {
            while handle.sleep(5 * MS).await.is_ok() {
                let Ok(in_flight) = jobs.enter() else { return };
                counted.fetch_add(1, Ordering::SeqCst);
                let finished = Arc::clone(&finished);
                tokio::spawn(async move {
                    let _ = in_flight.run(sleep(lasts)).await;
                    finished.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        let late = gate.clone();
        shutdown.on(Phase::Unready, "late tick", async move |_| match late.enter() {
            Ok(_) => Err("a late tick was let in"),
            Err(_) => Ok(()),
        });
        let handle = shutdown.handle();
        let trigger = async {
            sleep(1002 * MS).await;
            handle.trigger("test");
            assert!(gate.enter().is_err(), "before anything else has run");
        };
        let report = tokio::join!(shutdown.run(), trigger).0;
        assert!(report.is_clean(), "{report}");
        assert_eq!(begun.load(Ordering::SeqCst), 200);
        assert_eq!(done.load(Ordering::SeqCst), 200);
        assert_eq!(report.took(), (lasts - 2 * MS).max(2 * SECOND), "{report}");
    }
}
