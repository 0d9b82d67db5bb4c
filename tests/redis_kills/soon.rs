//! How soon a job runs elsewhere.

use std::time::Duration;

use winddown::testing::process::Signal;

use super::crew::{Scene, duty, kill, ms, term, told};
use super::redis_server::Redis;

/// What a slow machine may add.
const SLOW: Duration = Duration::from_millis(700);

fn us(duration: Duration) -> u64 {
    duration.as_micros() as u64
}

/// When each job was begun by this process.
async fn begun_at(scene: &Scene, pid: u32) -> Vec<u64> {
    let stamps = scene.stamps().await;
    stamps.iter().filter(|stamp| stamp.pid == pid && stamp.note == "start").map(|stamp| stamp.us).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_at_a_kill_during_a_stop_runs_elsewhere_within_a_second_after_the_grace() {
    killed_in_a_stop(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_does_what_is_held_on_a_stream_at_a_kill_during_a_stop() {
    killed_in_a_stop(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_at_a_kill_out_of_nothing_runs_elsewhere_within_the_lease_and_three_seconds() {
    killed_out_of_nothing(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn so_does_what_is_held_on_a_stream_at_a_kill_out_of_nothing() {
    killed_out_of_nothing(true).await;
}

async fn scene_on(redis: &Redis, on_a_stream: bool) -> Scene {
    if on_a_stream { Scene::on_a_stream(redis).await } else { Scene::on(redis).await }
}

/// Interruptions and crashes, as the queue counts them and as the jobs are told.
async fn told_and_counted(scene: &Scene, expected: (u64, u64)) {
    let (counts, stamps) = (scene.counts().await, scene.stamps().await);
    assert_eq!((counts.interruptions, counts.crashes), expected);
    assert!(stamps.iter().all(|stamp| stamp.attempts == 0));
    assert_eq!(told(&stamps), expected);
}

async fn killed_in_a_stop(on_a_stream: bool) {
    // Killed early in its drain, or at the end of the grace as the platform does.
    for (grace, killed_after) in [(ms(2_000), ms(400)), (ms(3_500), ms(400)), (ms(2_000), ms(2_000))] {
        let redis = Redis::start();
        let scene = scene_on(&redis, on_a_stream).await;
        let grace_ms = grace.as_millis().to_string();
        scene.push_all(2, |_| duty("block", &[120_000, 10])).await;
        let first = scene.crew("first").args(["--lease", "60000", "--threads", "4", "--grace", &grace_ms]);
        let first = first.start().await.unwrap();
        scene.begun(first.id(), 2).await;
        let asked = scene.now_us().await;
        let next = scene.crew("next").start().await.unwrap();
        // The other was started before: it is not what takes time.
        let stop = scene.now_us().await;
        first.signal(Signal::Term);
        tokio::time::sleep(killed_after).await;
        kill(first).await;
        scene.until_done().await;

        let begun = begun_at(&scene, next.id()).await;
        assert_eq!(begun.len(), 2);
        for at in begun {
            assert!(at >= asked + us(grace) - us(ms(50)), "its lease holds until the kill: {} us", at - stop);
            let late = at.saturating_sub(stop + us(grace));
            assert!(late < us(Duration::from_secs(1) + SLOW), "{late} us after a grace of {grace:?}");
            eprintln!("{late} us after a grace of {grace:?}, killed after {killed_after:?}");
        }
        told_and_counted(&scene, (2, 0)).await;
        term(next).await.exit.assert_code(0);
    }
}

async fn killed_out_of_nothing(on_a_stream: bool) {
    for lease in [ms(1_500), ms(4_000)] {
        let redis = Redis::start();
        let scene = scene_on(&redis, on_a_stream).await;
        scene.push_all(2, |_| duty("sleep", &[120_000, 10])).await;
        let lease_ms = lease.as_millis().to_string();
        let first = scene.crew("first").args(["--lease", &lease_ms]).start().await.unwrap();
        scene.begun(first.id(), 2).await;
        let next = scene.crew("next").args(["--lease", &lease_ms]).start().await.unwrap();
        // It has been renewed at least once.
        tokio::time::sleep(lease).await;
        kill(first).await;
        let killed = scene.now_us().await;
        scene.until_done().await;

        let begun = begun_at(&scene, next.id()).await;
        assert_eq!(begun.len(), 2);
        for at in begun {
            let after = at - killed;
            assert!(
                after < us(lease + Duration::from_secs(3)),
                "{after} us after the kill, with a lease of {lease:?}"
            );
            // Renewed after a third of it, so that two thirds at least are left.
            assert!(
                after + us(ms(500)) > us(lease) / 2,
                "{after} us after the kill: the lease of {lease:?} was not kept"
            );
            eprintln!("{after} us after a kill, with a lease of {lease:?}");
        }
        told_and_counted(&scene, (0, 2)).await;
        term(next).await.exit.assert_code(0);
    }
}
