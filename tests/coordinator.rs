//! The coordinator's rules, on paused time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use winddown::{
    BoxError, Budget, Done, Outcome, Phase, Reason, ShutdownCoordinator, Unfinished, Why, signal,
};

const MS: Duration = Duration::from_millis(1);

fn coordinator(grace: Duration) -> ShutdownCoordinator {
    ShutdownCoordinator::new(Budget::given(grace, "test"), signal::none()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_empty_program_stops_in_no_time() {
    let shutdown = coordinator(Duration::from_secs(10));
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.took(), Duration::ZERO);
    assert_eq!(report.phases().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn work_in_flight_is_finished_before_anything_is_closed() {
    let mut shutdown = coordinator(Duration::from_secs(10));
    let gate = shutdown.gate("uploads");
    let order = Arc::new(Mutex::new(Vec::new()));
    let (seen, closed) = (Arc::clone(&order), Arc::clone(&order));
    let in_flight = gate.enter().unwrap();
    tokio::spawn(async move {
        let done = in_flight.run(tokio::time::sleep(700 * MS)).await;
        seen.lock().unwrap().push(if done.is_ok() { "done" } else { "cut" });
    });
    shutdown.on(Phase::Close, "db", async move |_| closed.lock().unwrap().push("closed"));
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(*order.lock().unwrap(), ["done", "closed"]);
    assert_eq!(report.took(), 700 * MS);
    let gate = report.gate("uploads").unwrap();
    assert_eq!((gate.held, gate.finished, gate.lost), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn overdue_jobs_are_handed_back_in_their_old_order() {
    let mut shutdown = coordinator(Duration::from_secs(10));
    let queue = Arc::new(Mutex::new(Vec::<u32>::new()));
    let jobs = shutdown.gate("jobs").requeue_batch_with(
        Arc::clone(&queue),
        async |queue: Arc<Mutex<Vec<u32>>>, items: Vec<Unfinished<u32>>| {
            queue.lock().unwrap().extend(items.iter().map(|item| **item));
            assert!(items.iter().all(|item| item.why() == Why::Cancelled));
            Ok::<(), BoxError>(())
        },
    );
    for number in 0..20 {
        let job = jobs.admit(number).unwrap();
        tokio::spawn(async move {
            let done = job
                .run(async |_, _| {
                    std::future::pending::<()>().await;
                    Ok::<(), BoxError>(())
                })
                .await;
            assert!(matches!(done, Done::HandedBack(Why::Cancelled)));
        });
    }
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert_eq!(*queue.lock().unwrap(), (0..20).collect::<Vec<_>>());
    let gate = report.gate("jobs").unwrap();
    assert_eq!((gate.held, gate.finished, gate.handed_back, gate.lost), (20, 0, 20, 0), "{report}");
    assert_eq!(report.phase(Phase::Drain).unwrap().outcome, Outcome::Overdue);
    assert_eq!(report.took(), Duration::from_secs(8), "{report}");
    assert_eq!(report.code(), 0, "handed back is fine");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_ends_triggers_the_stop() {
    let mut shutdown = coordinator(Duration::from_secs(10));
    shutdown.spawn("consumer", async { Err::<(), _>("the broker went away") });
    let report = shutdown.run().await;
    assert_eq!(
        *report.reason(),
        Reason::TaskFailed { task: "consumer".into(), error: "the broker went away".into() }
    );
    assert_eq!(report.code(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_callback_for_still_running_items_does_not_take_is_lost_by_name() {
    for hangs in [false, true] {
        let mut shutdown = coordinator(Duration::from_secs(10));
        let jobs = shutdown
            .gate("jobs")
            .requeue_with((), async |(), _: Unfinished<u32>| Ok::<(), BoxError>(()))
            .still_running(hangs, async |hangs, _: Unfinished<u32>| {
                if hangs {
                    std::future::pending::<()>().await;
                }
                Err::<(), BoxError>("nobody takes it".into())
            })
            .named(|number| format!("order {number}"));
        let _held = jobs.admit(7).unwrap();
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        let gate = report.gate("jobs").unwrap();
        assert_eq!((gate.held, gate.finished, gate.handed_back, gate.lost), (1, 0, 0, 1), "{report}");
        assert_eq!(report.lost()[0].item, "order 7");
        assert_eq!(report.code(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_with_a_longer_budget_hands_back_before_the_whole_closes() {
    let mut whole = coordinator(Duration::from_secs(10));
    let mut part = coordinator(Duration::from_secs(100)).named("billing");
    let order = Arc::new(Mutex::new(Vec::new()));
    let jobs = part.gate("jobs").requeue_with(
        Arc::clone(&order),
        async |order: Arc<Mutex<Vec<&str>>>, _: Unfinished<u32>| {
            order.lock().unwrap().push("handed back");
            Ok::<(), BoxError>(())
        },
    );
    let job = jobs.admit(1).unwrap();
    tokio::spawn(job.run(async |_, _| std::future::pending::<Result<(), BoxError>>().await));
    let closed = Arc::clone(&order);
    whole.on(Phase::Close, "pool", async move |_| closed.lock().unwrap().push("closed"));
    let handle = whole.handle();
    whole.add(part);
    tokio::spawn(async move {
        tokio::time::sleep(MS).await;
        handle.trigger("test");
    });
    let report = whole.run().await;
    assert_eq!(*order.lock().unwrap(), ["handed back", "closed"], "{report}");
    assert_eq!(report.task("billing").unwrap().outcome, Outcome::Finished, "{report}");
}

/// A drain that is short in a long grace leaves time: a shield may use it, and a thread that is blocked does not.
#[tokio::test(start_paused = true)]
async fn time_that_the_drain_left_goes_to_shields_and_not_to_what_does_not_move() {
    for (shielded, took) in
        [(true, 200 * MS + 2 * Duration::from_secs(1)), (false, 200 * MS + 500 * MS + 220 * MS)]
    {
        let budget = Budget::given(Duration::from_secs(10), "test").drain(200 * MS);
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        let jobs = shutdown
            .gate("jobs")
            .requeue_with((), async |(), _: Unfinished<u32>| Ok::<(), BoxError>(()))
            .still_running((), async |(), _| Ok::<(), BoxError>(()));
        let job = jobs.admit(1).unwrap();
        let stuck = if shielded {
            tokio::spawn(async move {
                let done = job.run(async |_, cx| {
                    cx.shield(tokio::time::sleep(2200 * MS)).await;
                    Ok::<(), BoxError>(())
                });
                assert!(matches!(done.await, Done::Finished(())));
            });
            None
        } else {
            // As if its thread were blocked: somebody holds it and does nothing with it.
            Some(job)
        };
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        assert_eq!(report.took(), took, "{report}");
        assert_eq!(report.gate("jobs").unwrap().still_running, usize::from(stuck.is_some()), "{report}");
    }
}

/// On a machine that is busy: the thread comes to the job only when the window is over, and there is time enough.
#[tokio::test(start_paused = true)]
async fn what_ends_a_little_after_the_cancel_window_still_goes_back_while_there_is_time() {
    let budget = Budget::given(Duration::from_secs(10), "test").drain(200 * MS);
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    let jobs = shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<u32>| Ok::<(), BoxError>(()));
    let jobs: Vec<_> = (0..3).map(|number| jobs.admit(number).unwrap()).collect();
    tokio::spawn(async move {
        // Each a little before the others would be given up.
        tokio::time::sleep(200 * MS + 500 * MS).await;
        for job in jobs {
            tokio::time::sleep(180 * MS).await;
            drop(job);
        }
    });
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    let gate = report.gate("jobs").unwrap();
    assert_eq!((gate.held, gate.handed_back, gate.lost), (3, 3, 0), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_runs_finds_the_program_ready() {
    for _ in 0..200 {
        let mut shutdown = coordinator(Duration::from_secs(10));
        let readiness = shutdown.readiness();
        shutdown.spawn("asks", async move { readiness.is_ready().then_some(()).ok_or("not ready") });
        let report = shutdown.run().await;
        assert_eq!(*report.reason(), Reason::TaskEnded { task: "asks".into() });
    }
}

#[tokio::test(start_paused = true)]
async fn the_report_says_what_makes_the_exit_code_one_and_nothing_where_it_is_zero() {
    let mut shutdown = coordinator(Duration::from_secs(10));
    shutdown.on(Phase::Close, "index", async |_| Err::<(), _>("no room"));
    shutdown.spawn("deaf", std::future::pending::<()>());
    let gate = shutdown.gate("uploads");
    let _held = gate.enter().unwrap();
    let handle = shutdown.handle();
    tokio::spawn(async move {
        tokio::time::sleep(MS).await;
        handle.trigger("test");
    });
    let report = shutdown.run().await;
    let faults = [
        "hook index of phase close: failed",
        "task deaf did not end when it was told, and was aborted",
        "gate uploads: 1 lost",
    ];
    assert_eq!(report.faults(), faults, "{report}");
    for fault in faults {
        assert!(report.to_string().contains(&format!("\n  exit code 1: {fault}\n")), "{report}");
    }
    assert_eq!(report.code(), 1);
    assert!(report.advice().iter().any(|advice| advice.starts_with("task deaf did not end")), "{report}");

    let shutdown = coordinator(Duration::from_secs(10));
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert!(report.faults().is_empty() && report.code() == 0 && !report.to_string().contains("exit code 1"));
}

#[tokio::test]
async fn an_error_that_main_returns_is_printed_for_an_operator() {
    let refused = |budget: Budget| match ShutdownCoordinator::new(budget, signal::none()) {
        Err(error) => format!("{error:?}"),
        Ok(_) => panic!("it does not fit"),
    };
    let too_long = refused(Budget::given(Duration::from_secs(10), "test").drain(Duration::from_secs(12)));
    assert!(too_long.starts_with("drain is 12 s: ") && too_long.contains("10 s"), "{too_long}");
    let mut shutdown = ShutdownCoordinator::new(Budget::default(), signal::none()).unwrap();
    let failed = shutdown.start("database", async { Err::<(), _>(std::io::Error::other("no route")) }).await;
    assert_eq!(format!("{:?}", failed.unwrap_err()), "database could not be started: no route");
}
