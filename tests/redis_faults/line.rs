//! A line to the server that is slow, or that breaks.

use std::time::Duration;

use crate::crew::{Scene, duty, eventually, ms, overlaps, term};
use crate::proxy::Proxy;
use crate::redis_server::Redis;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_slow_by_200_ms_each_way_is_worked_over_and_stopped_over() {
    let (redis, noted) = (Redis::start(), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    let proxy = Proxy::to(&redis.socket()).await;
    scene.push_all(60, |n| duty("sleep", if n < 56 { &[10] } else { &[60_000, 10] })).await;
    let first = scene.crew_at(&proxy.url(), "first").args(["--lease", "4000", "--concurrency", "8"]);
    let first = first.start().await.unwrap();
    proxy.delay(ms(200));
    scene.begun(first.id(), 60).await;
    // Renewed over that line for longer than a lease.
    tokio::time::sleep(ms(5_000)).await;
    assert_eq!(scene.counts().await.crashes, 0);
    let ended = term(first).await;
    ended.exit.assert_code(0).assert_within(ms(5_000));
    assert_eq!((ended.count("interrupted"), ended.count("lost")), (4, 0), "{}", ended.exit);
    let counts = scene.counts().await;
    assert_eq!((counts.pending, counts.active, counts.interruptions, counts.crashes), (4, 0, 4, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_cut_again_and_again_costs_no_job_and_runs_none_twice_at_once() {
    let (redis, noted) = (Redis::start(), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    let proxy = Proxy::to(&redis.socket()).await;
    scene.push_all(600, |_| duty("shield", &[15])).await;
    let mut running = Vec::new();
    for owner in ["first", "second"] {
        running.push(scene.crew_at(&proxy.url(), owner).args(["--lease", "5000"]).start().await.unwrap());
    }
    for _ in 0..25 {
        tokio::time::sleep(ms(100)).await;
        proxy.cut();
    }
    scene.until_done().await;
    for running in running {
        let ended = term(running).await;
        ended.exit.assert_code(0);
        assert_eq!(ended.count("lost"), 0, "{}", ended.exit);
    }
    let (stamps, effects, counts) = (scene.stamps().await, scene.effects().await, scene.counts().await);
    assert!(overlaps(&stamps, None).is_empty());
    assert_eq!((effects.len(), counts.dead, counts.interruptions), (600, 0, 0));
    assert!(stamps.iter().all(|stamp| stamp.attempts == 0));
    // Whose claim was answered into a line that was cut has it given back: nobody has died.
    assert_eq!(counts.crashes, 0, "a claim whose answer was lost has run out");
    // Once each, since nobody was cut for longer than a lease.
    assert!(effects.values().all(|&effects| effects == 1), "{effects:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_be_reached_is_called_ever_less_often() {
    let (redis, noted) = (Redis::start(), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    let proxy = Proxy::to(&redis.socket()).await;
    scene.push_all(1, |_| duty("sleep", &[60_000, 10])).await;
    let first = scene.crew_at(&proxy.url(), "first").args(["--lease", "3000"]).start().await.unwrap();
    scene.begun(first.id(), 1).await;
    proxy.close(true);
    first.wait_for_line("queue.unreachable").await.unwrap();
    let early = proxy.calls();
    tokio::time::sleep(ms(6_000)).await;
    let calls = proxy.calls() - early;
    // Four parts ask: the loop that claims, the renewal, what waits for jobs, and, once the lease is over, what hands back.
    assert!((2..=90).contains(&calls), "{calls} connections in 6 s");
    let later = proxy.calls();
    tokio::time::sleep(ms(6_000)).await;
    let fewer = proxy.calls() - later;
    assert!(fewer <= 20, "{fewer} connections in 6 s, after {calls}");
    eprintln!("{calls} connections in the first 6 s, {fewer} in the second");
    proxy.close(false);
    first.wait_for_line("queue.reachable").await.unwrap();
    scene.until_done().await;
    eventually("it is idle again", async || scene.counts().await.active == 0).await;
    term(first).await.exit.assert_code(0).assert_within(Duration::from_secs(5));
    assert!(overlaps(&scene.stamps().await, None).is_empty());
}
