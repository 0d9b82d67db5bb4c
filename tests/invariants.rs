//! The twelve invariants of the design, each under its own words.
#![cfg(all(unix, feature = "test-util"))]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use winddown::testing::process::{Process, Signal};
use winddown::{BoxError, Budget, Outcome, Phase, Rank, Report, ShutdownCoordinator, Unfinished, signal};

const MS: Duration = Duration::from_millis(1);

fn coordinator(grace: Duration) -> ShutdownCoordinator {
    ShutdownCoordinator::new(Budget::given(grace, "test"), signal::none()).unwrap()
}

/// Triggers once the tasks run: before that, a stop is one during the set-up, and starts none.
async fn run_then_stop(shutdown: ShutdownCoordinator) -> Report {
    let handle = shutdown.handle();
    let (report, _) = tokio::join!(shutdown.run(), async move { handle.trigger("test") });
    report
}

fn victim() -> Process {
    Process::example("victim").ready_line("ready")
}

/// Invariant 1. Ten thousand waiters over all phases and four threads, as many again that come too late, and an
/// observer that never sees a phase before one that it saw already.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn phases_only_go_forward_and_every_waiter_on_a_phase_is_woken_however_many_however_late() {
    const WAITERS: usize = 10_000;
    // Hooks of `Unready` have no time but its delay, and the clock is real.
    let budget = Budget::given(Duration::from_secs(10), "test").unready(1000 * MS);
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    let handle = shutdown.handle();
    let woken = Arc::new(AtomicUsize::new(0));
    let waiters: Vec<_> = (0..WAITERS)
        .map(|index| {
            let (reached, woken) = (handle.reached(Phase::ALL[index % 5]), Arc::clone(&woken));
            tokio::spawn(async move {
                reached.await;
                woken.fetch_add(1, Ordering::SeqCst);
            })
        })
        .collect();
    let order = Arc::new(Mutex::new(Vec::new()));
    for phase in Phase::ALL {
        let (order, handle) = (Arc::clone(&order), handle.clone());
        shutdown.on(phase, phase.as_str(), async move |cx| {
            // Those before have been reached, those behind have not.
            for other in Phase::ALL {
                let reached = futures_util::FutureExt::now_or_never(handle.reached(other)).is_some();
                assert_eq!(reached, other <= cx.phase(), "{other} seen from {}", cx.phase());
            }
            order.lock().unwrap().push(handle.phase().unwrap());
        });
    }
    let observer = {
        let handle = handle.clone();
        std::thread::spawn(move || {
            let mut last = None;
            while !handle.is_cancelled() {
                let phase = handle.phase();
                assert!(phase >= last, "{phase:?} after {last:?}");
                last = phase;
            }
        })
    };
    tokio::task::yield_now().await;
    assert_eq!(woken.load(Ordering::SeqCst), 0);
    handle.trigger("test");
    let report = shutdown.run().await;
    assert!(report.is_clean(), "{report}");
    for waiter in waiters {
        tokio::time::timeout(Duration::from_secs(20), waiter).await.expect("a waiter was not woken").unwrap();
    }
    for index in 0..WAITERS {
        handle.reached(Phase::ALL[index % 5]).await;
    }
    assert_eq!(woken.load(Ordering::SeqCst), WAITERS);
    assert_eq!(*order.lock().unwrap(), Phase::ALL);
    observer.join().unwrap();
}

/// Invariant 2. Threads enter in a tight loop while the intake stops: whoever got in is done when the drain is, and
/// from the end of `StopIntake` on nobody gets in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_let_in_after_stop_intake_is_done_and_what_raced_it_is_either_counted_or_refused() {
    for _ in 0..300 {
        let mut shutdown = coordinator(Duration::from_secs(10));
        let gate = shutdown.gate("requests");
        let (inside, let_in) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (gate, inside, let_in) = (gate.clone(), Arc::clone(&inside), Arc::clone(&let_in));
                std::thread::spawn(move || {
                    while let Ok(in_flight) = gate.enter() {
                        inside.fetch_add(1, Ordering::SeqCst);
                        let_in.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(in_flight);
                    }
                })
            })
            .collect();
        let late = gate.clone();
        shutdown.on(Phase::Drain, "late", async move |_| {
            if late.enter().is_ok() { Err("let in after the intake had stopped") } else { Ok(()) }
        });
        let left = Arc::clone(&inside);
        shutdown.on(Phase::Requeue, "left", async move |_| {
            let left = left.load(Ordering::SeqCst);
            if left > 0 { Err(format!("{left} still inside")) } else { Ok(()) }
        });
        while let_in.load(Ordering::SeqCst) < 10 {
            tokio::task::yield_now().await;
        }
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        assert_eq!(report.code(), 0, "{report}");
        let ledger = report.gate("requests").unwrap();
        assert!(ledger.adds_up() && ledger.held == ledger.finished, "{report}");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

/// Invariant 3. Guards, children made while draining, and items whose hand-back takes its time: the phase after the
/// drain finds nothing undone, unless the drain ran out of time, and then `Close` finds nothing that is not handed over.
#[tokio::test(start_paused = true)]
async fn the_drain_never_ends_while_admitted_work_is_neither_done_nor_handed_over() {
    for round in 1..=20_u32 {
        let mut shutdown = coordinator(Duration::from_secs(10));
        let open = Arc::new(AtomicUsize::new(0));
        let gate = shutdown.gate("requests");
        let jobs = shutdown.gate("jobs").requeue_with(
            Arc::clone(&open),
            async |open: Arc<AtomicUsize>, _: Unfinished<u32>| {
                sleep(30 * MS).await;
                open.fetch_sub(1, Ordering::SeqCst);
                Ok::<(), BoxError>(())
            },
        );
        for number in 0..10 {
            let lasts = 37 * MS * (number * round % 17);
            let (in_flight, open_here) = (gate.enter().unwrap(), Arc::clone(&open));
            open.fetch_add(2, Ordering::SeqCst);
            tokio::spawn(async move {
                sleep(lasts).await;
                let child = in_flight.child();
                drop(in_flight);
                sleep(lasts).await;
                open_here.fetch_sub(1, Ordering::SeqCst);
                drop(child);
            });
            let job = jobs.admit(number).unwrap();
            tokio::spawn(async move {
                sleep(lasts).await;
                drop(job);
            });
        }
        let at_the_end = Arc::clone(&open);
        shutdown.on(Phase::Requeue, "look", async move |_| {
            let left = at_the_end.load(Ordering::SeqCst);
            if left == 0 { Ok(()) } else { Err(format!("{left} are neither done nor handed over")) }
        });
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        assert_eq!(report.code(), 0, "{report}");
        assert_eq!(report.phase(Phase::Drain).unwrap().outcome, Outcome::Finished);
        assert_eq!(report.gate("jobs").unwrap().handed_back, 10, "{report}");
        assert!(report.gate("requests").unwrap().let_in <= 10 && report.gates().iter().all(|g| g.adds_up()));
    }
}

/// Invariant 4. Items that end in every way there is, and three whose handlers block their threads until about the moment
/// at which they are given up, or later: each is finished once, or handed back once, and never both.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_item_ends_exactly_once() {
    const ITEMS: usize = 700;
    type Ends = Arc<Vec<AtomicUsize>>;
    let mut shutdown =
        ShutdownCoordinator::new(Budget::from_grace_period(1200 * MS).drain(300 * MS), signal::none())
            .unwrap();
    let ends: Ends = Arc::new((0..ITEMS + 3).map(|_| AtomicUsize::new(0)).collect());
    async fn back(ends: Ends, item: Unfinished<usize>) -> Result<(), BoxError> {
        ends[*item].fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    let jobs =
        shutdown.gate("jobs").requeue_with(Arc::clone(&ends), back).still_running(Arc::clone(&ends), back);
    let mut blocked = Vec::new();
    for (number, lasts) in [(ITEMS, 650), (ITEMS + 1, 656), (ITEMS + 2, 1000)] {
        let (job, ends) = (jobs.admit(number).unwrap(), Arc::clone(&ends));
        blocked.push(tokio::spawn(async move {
            let done = job
                .run(async |_, _| {
                    std::thread::sleep(lasts * MS);
                    Ok::<(), BoxError>(())
                })
                .await;
            if matches!(done, winddown::Done::Finished(())) {
                ends[number].fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    for number in 0..ITEMS {
        let (job, ends) = (jobs.admit(number).unwrap(), Arc::clone(&ends));
        let finished = move |done: bool| {
            if done {
                ends[number].fetch_add(1, Ordering::SeqCst);
            }
        };
        let task = tokio::spawn(async move {
            match number % 7 {
                0 => finished(job.finish().is_ok()),
                1 => drop(job),
                2 => panic!("a handler panics"),
                3 => {
                    // Ends at the very moment at which the drain is over.
                    let done = job
                        .run(async |_, _| {
                            sleep(300 * MS).await;
                            Ok::<(), BoxError>(())
                        })
                        .await;
                    finished(matches!(done, winddown::Done::Finished(())));
                }
                4 => {
                    let _ = job.run(async |_, _| std::future::pending::<Result<(), BoxError>>().await).await;
                }
                5 => {
                    let done = job
                        .run(async |_, cx| {
                            loop {
                                cx.checkpoint()?;
                                sleep(7 * MS).await;
                            }
                            #[expect(unreachable_code, reason = "gives the type")]
                            Ok::<(), BoxError>(())
                        })
                        .await;
                    finished(matches!(done, winddown::Done::Finished(())));
                }
                _ => {
                    sleep(Duration::from_secs(60)).await;
                    drop(job);
                }
            }
        });
        if number % 7 == 6 {
            tokio::spawn(async move {
                sleep(50 * MS).await;
                task.abort();
            });
        }
    }
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    for task in blocked {
        task.await.unwrap();
    }
    let wrong: Vec<_> = (0..ITEMS + 3).filter(|&number| ends[number].load(Ordering::SeqCst) != 1).collect();
    assert!(wrong.is_empty(), "{wrong:?} did not end exactly once: {report}");
    assert!(report.gate("jobs").unwrap().adds_up() && report.lost().is_empty(), "{report}");
}

/// Invariant 4 again: items that come back one by one while the program runs, each at about the moment at which the last
/// one is settled. None is taken for one that the runtime's end left behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_that_comes_back_as_the_one_before_it_is_settled_is_not_lost() {
    let mut shutdown = coordinator(Duration::from_secs(10));
    let jobs = shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<u32>| Ok::<(), BoxError>(()));
    for number in 0..10_000 {
        drop(jobs.admit(number).unwrap());
        while jobs.gate().in_flight() > 0 {
            std::thread::yield_now();
        }
        (0..number % 97 * 8).for_each(|_| std::hint::spin_loop());
    }
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert!(report.lost().is_empty(), "{} lost", report.lost().len());
}

/// Invariant 5. All phases run and each hook once: in a stop of its own, in one that is triggered again and again, and
/// (in a real process) in one that a second signal forces.
#[tokio::test]
async fn every_hook_runs_at_most_once_every_phase_runs_also_when_forced() {
    let mut shutdown = coordinator(Duration::from_secs(10));
    let runs = Arc::new(Mutex::new(Vec::new()));
    for phase in Phase::ALL {
        let (runs, handle) = (Arc::clone(&runs), shutdown.handle());
        shutdown.on(phase, phase.as_str(), async move |_| {
            handle.trigger("again");
            runs.lock().unwrap().push(phase);
        });
    }
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert_eq!(*runs.lock().unwrap(), Phase::ALL);
    assert_eq!(report.later_reasons().len(), 5);

    let mut forced = victim().args(["--grace", "10000", "--task", "sleep"]);
    for phase in Phase::ALL {
        forced = forced.args(["--hook", &format!("{phase}:ok")]);
    }
    let forced = forced.start().await.unwrap();
    forced.signal(Signal::Term);
    sleep(400 * MS).await;
    forced.signal(Signal::Term);
    let exit = forced.wait().await;
    exit.assert_code(143);
    let hooks: Vec<_> = exit.stdout.lines().filter_map(|line| line.strip_suffix(" hook")).collect();
    assert_eq!(hooks, Phase::ALL.map(Phase::as_str), "{exit}");
}

/// Invariant 6. With a hook that hangs in every phase each ends at its deadline to the millisecond, at two budgets; with
/// hooks that have nothing to wait for no time passes at all.
#[tokio::test(start_paused = true)]
async fn no_phase_ends_after_its_deadline_and_none_waits_when_there_is_nothing_to_wait_for() {
    for grace in [5, 45] {
        let mut shutdown = coordinator(Duration::from_secs(grace));
        let jobs = shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<()>| {
            std::future::pending::<Result<(), BoxError>>().await
        });
        let job = jobs.admit(()).unwrap();
        tokio::spawn(job.run(async |_, _| std::future::pending::<Result<(), BoxError>>().await));
        for phase in Phase::ALL {
            shutdown.on(phase, phase.as_str(), async |_| std::future::pending::<()>().await);
        }
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        for phase in report.phases() {
            let ended = phase.began + phase.took;
            // A hook's first poll and a lost item's last words have 20 ms, which the reserves behind bear.
            assert!(ended <= phase.deadline + 20 * MS, "{} ended at {ended:?}: {report}", phase.phase);
        }
        assert!(report.took() < report.phase(Phase::Close).unwrap().deadline + MS, "{report}");
        assert_eq!(report.lost().len(), 1, "{report}");
    }
    let mut shutdown = coordinator(Duration::from_secs(45));
    for phase in Phase::ALL {
        shutdown.on(phase, phase.as_str(), async |_| tokio::task::yield_now().await);
    }
    shutdown.handle().trigger("test");
    assert_eq!(shutdown.run().await.took(), Duration::ZERO);
}

/// The steps in which it is looked whether more has ended are cut to what is left, too.
#[tokio::test(start_paused = true)]
async fn a_stop_ends_within_the_smallest_grace_though_jobs_do_not_end() {
    for grace in [100, 150, 500] {
        let mut shutdown = coordinator(grace * MS);
        let jobs = shutdown
            .gate("jobs")
            .requeue_with((), async |(), _: Unfinished<usize>| Ok::<_, BoxError>(()))
            .still_running((), async |(), _| Ok::<_, BoxError>(()));
        // Held by nobody that would end them.
        let held: Vec<_> = (0..10).map(|number| jobs.admit(number).unwrap()).collect();
        // It never begins, so that it does not end either.
        shutdown.spawn("late", std::future::pending::<()>());
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        assert!(report.took() < grace * MS, "{report}");
        let gate = report.gate("jobs").unwrap();
        assert_eq!((gate.still_running, gate.lost), (10, 0), "{report}");
        drop(held);
    }
}

/// Invariant 7. In each phase, after hooks that panic, fail and hang, one that needs a fifth of the time gets it: where
/// they come one after another by rank, and where `after` makes it so.
#[tokio::test(start_paused = true)]
async fn a_hooks_panic_error_or_hang_never_keeps_a_later_hook_from_its_share_of_time() {
    for phase in [Phase::Unready, Phase::StopIntake, Phase::Drain, Phase::Requeue, Phase::Close] {
        for grace in [30, 45] {
            let budget = Budget::given(Duration::from_secs(grace), "test").unready(Duration::from_secs(2));
            let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
            shutdown.on(phase, "panics", async |_| {
                if true {
                    panic!("on purpose")
                }
            });
            shutdown.on(phase, "fails", async |_| Err::<(), _>("on purpose")).after("panics");
            shutdown.on(phase, "hangs", async |_| std::future::pending::<()>().await).after("fails");
            shutdown.on(phase, "hangs too", async |_| std::future::pending::<()>().await).after("hangs");
            shutdown.on(phase, "works", async |_| sleep(200 * MS).await).after("hangs too");
            shutdown.handle().trigger("test");
            let report = shutdown.run().await;
            let outcome = |name| report.hook(name).map(|hook| hook.outcome);
            assert_eq!(outcome("panics"), Some(Outcome::Panicked));
            assert_eq!(outcome("fails"), Some(Outcome::Failed));
            assert_eq!(outcome("hangs"), Some(Outcome::Overdue));
            assert_eq!(outcome("works"), Some(Outcome::Finished), "{phase} of {grace} s: {report}");
        }
    }
}

/// Invariant 8. What renews leases is told to live until `Requeue` has ended: it is there at each hand-back, and for the
/// work that is cut at the drain's end.
#[tokio::test(start_paused = true)]
async fn leases_outlive_the_work_they_cover() {
    struct Renewal(Arc<AtomicBool>);
    impl Drop for Renewal {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }
    let mut shutdown = coordinator(Duration::from_secs(10));
    let renewed = Arc::new(AtomicBool::new(true));
    let jobs = shutdown.gate("jobs").requeue_with(
        Arc::clone(&renewed),
        async |renewed: Arc<AtomicBool>, _: Unfinished<u32>| {
            sleep(200 * MS).await;
            if renewed.load(Ordering::SeqCst) { Ok(()) } else { Err("the lease is gone") }
        },
    );
    let (renewal, drained) = (Renewal(Arc::clone(&renewed)), jobs.gate().drained());
    shutdown
        .spawn("renewal", async move {
            drained.await;
            drop(renewal);
        })
        .until(Phase::Requeue);
    for number in 0..100 {
        let job = jobs.admit(number).unwrap();
        tokio::spawn(job.run(async |_, _| std::future::pending::<Result<(), BoxError>>().await));
    }
    let report = run_then_stop(shutdown).await;
    assert!(!renewed.load(Ordering::SeqCst));
    assert_eq!((report.gate("jobs").unwrap().handed_back, report.code()), (100, 0), "{report}");
    assert_eq!(report.task("renewal").unwrap().outcome, Outcome::Finished);
}

/// Invariant 9. The pool through which items go back closes after the last of them, wherever it was registered.
#[tokio::test(start_paused = true)]
async fn a_resource_closes_after_whatever_was_handed_back_through_it() {
    let mut shutdown = coordinator(Duration::from_secs(10));
    let open = Arc::new(AtomicBool::new(true));
    let closes = Arc::clone(&open);
    shutdown.on(Phase::Close, "pool", async move |_| closes.store(false, Ordering::SeqCst)).rank(Rank::Pools);
    let user = Arc::clone(&open);
    shutdown.on(Phase::Close, "client", async move |_| {
        sleep(100 * MS).await;
        if user.load(Ordering::SeqCst) { Ok(()) } else { Err("its pool was closed before it") }
    });
    let jobs = shutdown.gate("jobs").requeue_with(open, async |open: Arc<AtomicBool>, _: Unfinished<u32>| {
        sleep(150 * MS).await;
        if open.load(Ordering::SeqCst) { Ok(()) } else { Err("the pool is closed") }
    });
    for number in 0..10 {
        let job = jobs.admit(number).unwrap();
        tokio::spawn(job.run(async |_, _| std::future::pending::<Result<(), BoxError>>().await));
    }
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert_eq!((report.gate("jobs").unwrap().handed_back, report.code()), (10, 0), "{report}");
}

/// Invariant 10. With hooks and tasks that hang, jobs that are cut and a part with all of that, the runtime has after
/// `run` as many tasks as before; also when `run` is dropped in the middle of any phase.
#[tokio::test(start_paused = true)]
async fn nothing_is_spawned_that_is_not_joined_aborted_or_named() {
    fn fill(shutdown: &mut ShutdownCoordinator) {
        let jobs =
            shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<()>| Ok::<(), BoxError>(()));
        let job = jobs.admit(()).unwrap();
        for phase in Phase::ALL {
            shutdown.on(phase, phase.as_str(), async |_| std::future::pending::<()>().await);
        }
        shutdown.spawn("hangs", async { std::future::pending::<()>().await });
        shutdown.spawn("renewal", async { std::future::pending::<()>().await }).until(Phase::Requeue);
        shutdown.spawn("probes", async { std::future::pending::<()>().await }).until(Phase::Close);
        shutdown.spawn("worker", async move {
            let _ = job.run(async |_, _| std::future::pending::<Result<(), BoxError>>().await).await;
        });
    }
    async fn settled() -> usize {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        tokio::runtime::Handle::current().metrics().num_alive_tasks()
    }
    let base = settled().await;
    let whole = || {
        let mut whole = coordinator(Duration::from_secs(10));
        fill(&mut whole);
        let mut part = coordinator(Duration::from_secs(5));
        fill(&mut part);
        whole.add(part.named("part"));
        whole
    };
    let report = run_then_stop(whole()).await;
    assert_eq!(settled().await, base, "{report}");
    for lasts in [0, 100, 1_000, 7_900, 8_010, 8_100, 9_100] {
        let _ = tokio::time::timeout(lasts * MS, run_then_stop(whole())).await;
        sleep(MS).await;
        assert_eq!(settled().await, base, "after {lasts} ms");
    }
}

/// Invariant 11. Work, items, children and waiters, 400 000 of each, items, children and waiters: after the first eighth the process holds no
/// more than before.
#[tokio::test]
async fn memory_does_not_grow_with_the_work_that_has_passed_through() {
    let units = if std::env::var_os("WINDDOWN_FULL").is_some() { "1000000" } else { "400000" };
    let soak =
        Process::example("victim").args(["--flavor", "current", "--soak", units]).start().await.unwrap();
    let exit = soak.wait().await;
    exit.assert_code(0);
    exit.assert_line("done with 0");
    let resident: Vec<u64> =
        exit.stdout.lines().filter_map(|line| line.strip_prefix("resident ")?.parse().ok()).collect();
    assert_eq!(resident.len(), 8);
    // 350 000 units follow; a leak of 8 bytes in each would be 2700 KiB.
    assert!(resident[7] < resident[0] + 1024, "KiB: {resident:?}");
}

/// Invariant 12. One stops while the other runs on, as if it were alone: its gates open, its readiness true, its waiters
/// waiting, its hooks not run; and later it stops by its own reason.
#[tokio::test(start_paused = true)]
async fn no_global_state_two_coordinators_in_one_process_know_nothing_of_each_other() {
    let (mut one, mut two) = (coordinator(Duration::from_secs(10)), coordinator(Duration::from_secs(30)));
    let (first, second) = (one.handle(), two.handle());
    let gate = two.gate("same name");
    one.gate("same name");
    one.on(Phase::Close, "same hook", async |_| {});
    let closed = Arc::new(AtomicBool::new(false));
    let closes = Arc::clone(&closed);
    two.on(Phase::Close, "same hook", async move |_| closes.store(true, Ordering::SeqCst));
    two.spawn("same task", async move { second.triggered().await });
    let second = two.handle();
    let running = tokio::spawn(two.run());
    first.pause();
    first.trigger("one");
    let report = one.run().await;
    assert_eq!(report.hooks().len(), 1);
    sleep(Duration::from_secs(60)).await;
    assert!(!second.is_triggered() && !second.is_paused() && second.readiness().is_ready());
    assert!(second.phase().is_none() && gate.enter().is_ok() && !closed.load(Ordering::SeqCst));
    let began = Instant::now();
    second.trigger("two");
    let report = running.await.unwrap();
    assert_eq!(report.reason().to_string(), "two");
    assert!(closed.load(Ordering::SeqCst) && began.elapsed() == Duration::ZERO, "{report}");
}
