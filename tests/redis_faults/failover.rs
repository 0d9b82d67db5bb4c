//! A replica takes over, by Sentinel's decision, in the middle of a stop.

use winddown::testing::process::Signal;

use crate::crew::{Scene, duty, ended, ms, overlaps, term};
use crate::redis_server::Redis;
use crate::sentinel::Watched;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_goes_on_with_the_replica_that_takes_over() {
    let (watched, noted) = (Watched::start().await, Redis::start());
    let scene = Scene::apart(&watched.url(), &noted).await;
    a_stop_goes_on(watched, scene).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_stream_a_stop_goes_on_with_the_replica_that_takes_over() {
    let (watched, noted) = (Watched::start().await, Redis::start());
    let scene = Scene::on_a_stream_apart(&watched.url(), &noted).await;
    a_stop_goes_on(watched, scene).await;
}

async fn a_stop_goes_on(mut watched: Watched, scene: Scene) {
    scene.push_all(20, |n| duty("sleep", if n < 4 { &[120_000, 10] } else { &[10] })).await;
    let first = scene.crew("first").args([
        "--lease",
        "60000",
        "--concurrency",
        "6",
        "--grace",
        "40000",
        "--drain",
        "2000",
        "--requeue",
        "34000",
    ]);
    let first = first.start().await.unwrap();
    scene.begun(first.id(), 20).await;
    first.signal(Signal::Term);
    tokio::time::sleep(ms(500)).await;
    watched.replicated().await;
    watched.master.kill();
    let ended = ended(first).await;
    ended.exit.assert_code(0).assert_within(ms(40_000));
    eprintln!("the stop took {:?}", ended.exit.took);
    assert_eq!((ended.count("interrupted"), ended.count("lost")), (4, 0), "{}", ended.exit);
    let counts = scene.counts().await;
    assert_eq!((counts.pending, counts.active, counts.interruptions, counts.crashes), (4, 0, 4, 0));
    let next = scene.crew("next").start().await.unwrap();
    scene.until_done().await;
    term(next).await.exit.assert_code(0);
    let (stamps, effects) = (scene.stamps().await, scene.effects().await);
    assert!(overlaps(&stamps, None).is_empty(), "{stamps:?}");
    assert_eq!(effects.len(), 20);
    assert!(effects.values().all(|&effects| effects == 1));
    assert!(stamps.iter().all(|stamp| stamp.attempts == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crew_goes_on_with_the_replica_that_takes_over() {
    let (watched, noted) = (Watched::start().await, Redis::start());
    let scene = Scene::apart(&watched.url(), &noted).await;
    a_crew_goes_on(watched, scene).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_stream_a_crew_goes_on_with_the_replica_that_takes_over() {
    let (watched, noted) = (Watched::start().await, Redis::start());
    let scene = Scene::on_a_stream_apart(&watched.url(), &noted).await;
    a_crew_goes_on(watched, scene).await;
}

async fn a_crew_goes_on(mut watched: Watched, scene: Scene) {
    scene.push_all(6, |_| duty("sleep", &[12_000, 10])).await;
    let first = scene.crew("first").args(["--lease", "30000", "--concurrency", "4"]).start().await.unwrap();
    scene.begun(first.id(), 4).await;
    watched.replicated().await;
    watched.master.kill();
    // The leases of those in hand are with the replica: none is lost, and epochs go on from where they were.
    scene.begun(first.id(), 6).await;
    scene.until_done().await;
    let ended = term(first).await;
    ended.exit.assert_code(0);
    assert_eq!((ended.count("acked"), ended.count("lost")), (6, 0), "{}", ended.exit);
    let (stamps, effects, counts) = (scene.stamps().await, scene.effects().await, scene.counts().await);
    assert!(overlaps(&stamps, None).is_empty(), "{stamps:?}");
    assert!(effects.values().all(|&effects| effects == 1));
    assert_eq!((counts.interruptions, counts.crashes), (0, 0));
}
