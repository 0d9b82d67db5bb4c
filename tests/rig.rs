//! The harness in process: false signals, order and ledger, on paused time.
#![cfg(feature = "test-util")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;
use winddown::testing::{self, Ledger, Rig};
use winddown::{Budget, Gate, Phase, Reason, ShutdownCoordinator, Signal, Unfinished};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Holds the gate for that long, and notes its end.
fn work(gate: &Gate, notes: testing::Notes, takes: Duration) {
    let in_flight = gate.enter().unwrap();
    tokio::spawn(async move {
        let done = in_flight.run(tokio::time::sleep(takes)).await;
        notes.note(if done.is_ok() { "done" } else { "cut" });
    });
}

/// I09
#[tokio::test(start_paused = true)]
async fn a_false_signal_stops_one_coordinator_and_no_other() {
    let budget = || Budget::given(10 * SECOND, "test");
    let (signals, fake) = testing::signals();
    let (others, other_fake) = testing::signals();
    let shutdown = ShutdownCoordinator::new(budget(), signals).unwrap();
    let other = ShutdownCoordinator::new(budget(), others).unwrap();
    let (handle, other_handle) = (shutdown.handle(), other.handle());
    let (running, other_running) = (tokio::spawn(shutdown.run()), tokio::spawn(other.run()));
    assert!(fake.send(Signal::Interrupt));
    assert!(handle.is_triggered(), "heard before `send` returns");
    assert_eq!(*running.await.unwrap().reason(), Reason::Signal(Signal::Interrupt));
    tokio::time::sleep(SECOND).await;
    assert!(!other_handle.is_triggered());
    assert!(other_fake.send(Signal::Terminate));
    assert_eq!(*other_running.await.unwrap().reason(), Reason::Signal(Signal::Terminate));
}

#[tokio::test(start_paused = true)]
async fn a_signal_before_there_is_a_coordinator_is_kept() {
    let (signals, fake) = testing::signals_with_exit();
    assert!(fake.send(Signal::Terminate));
    tokio::time::sleep(SECOND).await;
    let shutdown = ShutdownCoordinator::new(Budget::given(10 * SECOND, "test"), signals).unwrap();
    assert!(shutdown.handle().is_triggered());
    let report = shutdown.run().await;
    assert_eq!(report.took(), SECOND, "counted from the signal");
    assert_eq!(fake.exits(), []);
}

#[tokio::test(start_paused = true)]
async fn a_signal_that_nobody_hears_would_end_the_process() {
    let (signals, fake) = testing::signals_with_exit();
    drop(signals);
    assert!(!fake.send(Signal::Interrupt));
    assert_eq!(fake.exits().iter().map(|exit| exit.code).collect::<Vec<_>>(), [130]);
    let (signals, fake) = testing::signals();
    drop(signals);
    assert!(!fake.send(Signal::Interrupt));
    assert_eq!(fake.exits(), [], "not ours to exit");
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_forces_and_a_third_would_exit() {
    for gap in [400 * MS, 900 * MS] {
        let mut rig = Rig::new(10 * SECOND);
        let notes = rig.notes();
        work(&rig.gate("uploads"), notes.clone(), 5 * SECOND);
        let slow = notes.clone();
        rig.on(Phase::Close, "slow", async move |_| {
            slow.note("closing");
            tokio::time::sleep(3600 * SECOND).await;
        });
        let (signals, began) = (rig.signals(), Instant::now());
        for nth in 0..3 {
            signals.send_at(began + nth * gap, Signal::Terminate);
        }
        let stopped = rig.run().await;
        stopped.assert_order(["cut", "closing"]);
        assert_eq!(stopped.report().forced(), Some((gap, Signal::Terminate)));
        let exits = stopped.exits();
        assert_eq!((exits[0].code, exits[0].at - began), (143, 2 * gap), "{}", stopped.report());
    }
}

#[tokio::test(start_paused = true)]
async fn the_watchdog_would_leave_before_the_kill_on_paused_time() {
    for grace in [10 * SECOND, 30 * SECOND] {
        let mut rig = Rig::new(grace);
        let margin = rig.plan().margin();
        let began = Instant::now();
        rig.signals().send(Signal::Terminate);
        // A program that does not come to its stop at all.
        let signals = rig.signals();
        rig.on(Phase::Close, "never", async |_| {});
        tokio::time::sleep(grace).await;
        let exits = signals.exits();
        assert_eq!(exits.len(), 1);
        assert_eq!((exits[0].code, exits[0].at - began), (124, grace - margin / 2));
        drop(rig);
    }
}

#[tokio::test(start_paused = true)]
async fn pause_and_resume_reach_the_gates_that_pull() {
    let mut rig = Rig::new(10 * SECOND);
    let (pulled, served) = (rig.gate("jobs").pulled(), rig.gate("requests"));
    let signals = rig.signals();
    assert!(signals.pause());
    assert!(pulled.enter().unwrap_err().is_paused());
    assert!(served.enter().is_ok());
    assert!(signals.resume());
    assert!(pulled.enter().is_ok());
    assert!(signals.dump());
    signals.send(Signal::Terminate);
    assert!(signals.resume(), "without effect");
    assert!(pulled.enter().is_err());
    rig.run().await.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_rig_says_in_which_order_and_how_long_and_what_became_of_it() {
    for takes in [700 * MS, 3 * SECOND] {
        let mut rig = Rig::new(10 * SECOND);
        let notes = rig.notes();
        work(&rig.gate("uploads"), notes.clone(), SECOND + takes);
        let closed = notes.clone();
        rig.on(Phase::Close, "db", async move |_| closed.note("closed db"));
        rig.terminate_after(SECOND);
        let stopped = rig.run().await;
        stopped.assert_clean();
        stopped.assert_order(["done", "closed db"]);
        stopped.assert_took(takes);
        assert_eq!(stopped.notes().at("closed db"), Some(SECOND + takes));
        stopped.assert_ledger("uploads", Ledger { held: 1, finished: 1, ..Ledger::default() });
    }
}

/// What an assertion says when it fails.
fn complaint(assertion: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(assertion)).expect_err("the assertion should fail");
    *panic.downcast::<String>().unwrap()
}

#[tokio::test(start_paused = true)]
async fn assertions_that_fail_tell_the_whole_story() {
    let mut rig = Rig::new(10 * SECOND);
    let notes = rig.notes();
    work(&rig.gate("uploads"), notes.clone(), 60 * SECOND);
    notes.note("begun");
    rig.terminate_after(SECOND);
    let stopped = rig.run().await;
    stopped.assert_adds_up();
    stopped.assert_order(["begun", "cut"]);

    let words = complaint(|| stopped.assert_order(["cut", "begun"]));
    assert!(words.starts_with("\"begun\" did not happen after \"cut\"\n"), "{words}");
    assert!(words.contains("+0.000 s  begun\n") && words.contains("+9.000 s  cut\n"), "{words}");
    assert!(words.contains("gate uploads: 1 held = 0 finished"), "{words}");
    let words = complaint(|| stopped.assert_order(["begun", "closed db"]));
    assert!(words.starts_with("\"closed db\" did not happen\n"), "{words}");
    let words = complaint(|| stopped.assert_clean());
    assert!(words.starts_with("the stop was not clean: exit code 1\n"), "{words}");
    let words = complaint(|| stopped.assert_took(SECOND));
    assert!(words.contains("and not 1s\n"), "{words}");
    let words = complaint(|| stopped.assert_ledger("uploads", Ledger::default()));
    assert!(words.starts_with("the ledger of gate uploads is not as expected\n"), "{words}");
    let words = complaint(|| stopped.assert_ledger("jobs", Ledger::default()));
    assert!(words.starts_with("there is no gate jobs\n"), "{words}");
}

#[tokio::test(start_paused = true)]
async fn what_was_let_in_earlier_goes_back_earlier_however_late_it_comes() {
    let mut rig = Rig::new(10 * SECOND);
    let batches = Arc::new(Mutex::new(Vec::<Vec<u32>>::new()));
    let jobs = rig.gate("jobs").requeue_batch_with(
        Arc::clone(&batches),
        async |batches: Arc<Mutex<Vec<Vec<u32>>>>, items: Vec<Unfinished<u32>>| {
            tokio::time::sleep(SECOND).await;
            batches.lock().unwrap().push(items.iter().map(|item| **item).collect());
            Ok::<(), std::io::Error>(())
        },
    );
    let mut held: Vec<_> = (0..4).map(|number| Some(jobs.admit(number).unwrap())).collect();
    // The first call is under way while the others come, the newest of them first.
    for number in [0, 3, 1, 2] {
        drop(held[number].take());
        tokio::time::sleep(100 * MS).await;
    }
    rig.signals().send(Signal::Terminate);
    let stopped = rig.run().await;
    stopped.assert_clean();
    stopped.assert_ledger("jobs", Ledger { held: 4, handed_back: 4, ..Ledger::default() });
    assert_eq!(*batches.lock().unwrap(), [vec![0], vec![1, 2, 3]]);
}

#[test]
fn what_waits_to_be_handed_back_when_the_runtime_ends_goes_to_the_last_resort() {
    let lost = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&lost);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let mut rig = Rig::new(10 * SECOND);
        let jobs = rig
            .gate("jobs")
            .requeue_with((), async |(), _: Unfinished<u32>| {
                std::future::pending::<Result<(), String>>().await
            })
            .concurrency(1)
            .last_resort(move |item, _| sink.lock().unwrap().push(*item));
        for number in 0..3 {
            drop(jobs.admit(number).unwrap());
        }
        tokio::time::sleep(SECOND).await;
    });
    drop(runtime);
    let mut lost = lost.lock().unwrap().clone();
    lost.sort_unstable();
    assert_eq!(lost, [0, 1, 2]);
}
