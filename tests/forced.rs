//! A second signal: deadlines move, phases do not.
#![cfg(feature = "test-util")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use winddown::testing::{self, FakeSignals};
use winddown::{BoxError, Budget, Outcome, Phase, ShutdownCoordinator, Signal, Unfinished, signal};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn coordinator(budget: Budget) -> (ShutdownCoordinator, FakeSignals) {
    let (signals, fake) = testing::signals();
    (ShutdownCoordinator::new(budget, signals).unwrap(), fake)
}

/// Both signals, once the program runs.
fn force_after(fake: &FakeSignals, after: Duration) {
    let now = Instant::now();
    fake.send_at(now + SECOND, Signal::Terminate);
    fake.send_at(now + SECOND + after, Signal::Interrupt);
}

async fn for_ever() -> Result<(), BoxError> {
    std::future::pending().await
}

/// I06. Something hangs in every phase, and the force comes in `Unready`: that ends, `StopIntake` has 250 ms more, the
/// drain none, and handing back and closing share 2 s as they were planned, 3 to 2.
#[tokio::test(start_paused = true)]
async fn a_forced_stop_gives_up_on_waiting_and_shares_two_seconds_for_the_rest() {
    for after in [SECOND, 2500 * MS] {
        let (mut shutdown, fake) = coordinator(Budget::from_grace_period(30 * SECOND).balancer(true));
        let _held = shutdown.gate("held").enter().unwrap();
        for phase in Phase::ALL {
            shutdown.on(phase, phase.as_str(), async |_| for_ever().await);
        }
        force_after(&fake, after);
        let report = shutdown.run().await;
        let ends = report.phases().iter().map(|phase| phase.began + phase.took - after);
        let planned = [0, 250, 250, 1450, 2250].map(|ms| ms * MS);
        assert_eq!(ends.collect::<Vec<_>>(), planned, "{report}");
        assert!(report.phases().iter().all(|phase| phase.outcome == Outcome::Forced), "{report}");
        assert_eq!(report.forced(), Some((after, Signal::Interrupt)));
    }
}

/// I06. Jobs that never end and a callback that takes its time: all go back after the force, by its first reason the stop
/// is a SIGTERM, and the code is that of the signal that forced.
#[tokio::test(start_paused = true)]
async fn a_forced_stop_hands_everything_back() {
    let (mut shutdown, fake) = coordinator(Budget::from_grace_period(30 * SECOND));
    let jobs = shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<u32>| {
        sleep(300 * MS).await;
        Ok::<(), BoxError>(())
    });
    for number in 0..100 {
        let job = jobs.admit(number).unwrap();
        tokio::spawn(job.run(async |_, _| for_ever().await));
    }
    force_after(&fake, 400 * MS);
    let report = shutdown.run().await;
    assert_eq!(report.gate("jobs").unwrap().handed_back, 100, "{report}");
    assert_eq!((report.code(), report.reason()), (130, &Signal::Terminate.into()));
    assert!(report.took() < 1600 * MS, "{report}");
}

/// Invariant 7, forced: a hook of `Close` hangs, with most of a long grace as its share, when the force comes. What is
/// left is shared anew, and the hook behind it has its part; also where `after` puts it behind.
#[tokio::test(start_paused = true)]
async fn a_hook_that_hangs_when_the_force_comes_leaves_the_others_their_share() {
    for (phase, enough) in [(Phase::Close, 900 * MS), (Phase::Requeue, 500 * MS)] {
        let (mut shutdown, fake) = coordinator(Budget::from_grace_period(45 * SECOND));
        shutdown.on(phase, "hangs", async |_| for_ever().await);
        shutdown.on(phase, "works", async move |_| sleep(enough).await).after("hangs");
        force_after(&fake, SECOND);
        let report = shutdown.run().await;
        assert_eq!(report.hook("hangs").unwrap().outcome, Outcome::Forced, "{report}");
        assert_eq!(report.hook("works").unwrap().outcome, Outcome::Finished, "{report}");
        assert!(report.took() <= 3 * SECOND, "{report}");
    }
}

/// The whole is forced while a part drains: the part is forced too, hands back, closes, and the whole waits for that
/// before it closes what both use.
#[tokio::test(start_paused = true)]
async fn a_forced_whole_forces_its_parts() {
    let (mut whole, fake) = coordinator(Budget::from_grace_period(30 * SECOND));
    let mut part = ShutdownCoordinator::new(Budget::from_grace_period(25 * SECOND), signal::none())
        .unwrap()
        .named("part");
    let steps = Arc::new(AtomicUsize::new(0));
    let jobs = part.gate("jobs").requeue_with(
        Arc::clone(&steps),
        async |steps: Arc<AtomicUsize>, _: Unfinished<()>| {
            assert_eq!(steps.fetch_add(1, Ordering::SeqCst), 0);
            Ok::<(), BoxError>(())
        },
    );
    let job = jobs.admit(()).unwrap();
    tokio::spawn(job.run(async |_, _| for_ever().await));
    let closes = Arc::clone(&steps);
    part.on(Phase::Close, "part", async move |_| {
        sleep(100 * MS).await;
        assert_eq!(closes.fetch_add(1, Ordering::SeqCst), 1);
    });
    let last = Arc::clone(&steps);
    whole.on(Phase::Close, "shared", async move |_| assert_eq!(last.fetch_add(1, Ordering::SeqCst), 2));
    let handle = whole.add(part);
    force_after(&fake, 400 * MS);
    let report = whole.run().await;
    assert_eq!(steps.load(Ordering::SeqCst), 3, "{report}");
    let part = handle.ended().await;
    assert_eq!((part.forced(), part.code()), (Some((400 * MS, Signal::Interrupt)), 130), "{part}");
    assert!(report.took() < SECOND, "{report}");
    assert_eq!(report.code(), 130);
}
