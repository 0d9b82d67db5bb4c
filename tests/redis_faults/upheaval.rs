//! What may happen to a server in the middle of a stop.

use redis::aio::MultiplexedConnection;
use winddown::testing::process::Signal;

use crate::crew::{Ended, Scene, duty, ended, ms, overlaps, term};
use crate::redis_server::Redis;

const JOBS: u64 = 40;
/// So many are in hand when the stop begins, and take longer than its drain.
const LONG: u64 = 4;

/// Stops one with [`LONG`] jobs in hand that will not end by themselves, and as many that do, after this was done to the server.
async fn stopped_amid(upset: &[(&str, &[&str])]) -> ([Redis; 2], Scene, Ended) {
    let (redis, noted) = (Redis::start(), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    scene.push_all(JOBS, |n| duty("shield", if n < LONG { &[60_000, 10] } else { &[100] })).await;
    let first = scene.crew("first").args(["--lease", "20000", "--concurrency", "8", "--drain", "1000"]);
    let first = first.start().await.unwrap();
    scene.begun(first.id(), LONG as usize + 6).await;
    first.signal(Signal::Term);
    tokio::time::sleep(ms(300)).await;
    let mut connection = redis.connection().await;
    for (command, args) in upset {
        run(&mut connection, command, args).await;
    }
    let ended = ended(first).await;
    ended.exit.assert_within(ms(5_000));
    ([redis, noted], scene, ended)
}

async fn run(connection: &mut MultiplexedConnection, command: &str, args: &[&str]) {
    let _: redis::Value = redis::cmd(command).arg(args).query_async(connection).await.unwrap();
}

/// What was handed back is there at once, untouched but for the interruption, and the rest is done elsewhere.
async fn all_is_well(scene: &Scene, ended: &Ended) {
    ended.exit.assert_code(0);
    assert_eq!((ended.count("interrupted"), ended.count("lost")), (LONG, 0), "{}", ended.exit);
    let counts = scene.counts().await;
    assert_eq!((counts.active, counts.interruptions, counts.crashes), (0, LONG, 0), "{}", ended.exit);
    elsewhere(scene).await;
    let counts = scene.counts().await;
    assert_eq!((counts.interruptions, counts.crashes, counts.dead), (LONG, 0, 0));
}

async fn elsewhere(scene: &Scene) {
    let next = scene.crew("next").start().await.unwrap();
    scene.until_done().await;
    term(next).await.exit.assert_code(0);
    let (stamps, effects) = (scene.stamps().await, scene.effects().await);
    assert!(overlaps(&stamps, None).is_empty(), "{stamps:?}");
    assert_eq!(effects.len() as u64, JOBS);
    assert!(effects.values().all(|&effects| effects == 1), "{effects:?}");
    assert!(stamps.iter().all(|stamp| stamp.attempts == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_the_server_forgets_in_a_stop_are_given_to_it_again() {
    let (_servers, scene, ended) = stopped_amid(&[("SCRIPT", &["FLUSH"])]).await;
    all_is_well(&scene, &ended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_the_server_closes_in_a_stop_are_opened_again() {
    let upset: &[(&str, &[&str])] = &[("CLIENT", &["KILL", "TYPE", "normal", "SKIPME", "yes"])];
    let (_servers, scene, ended) = stopped_amid(upset).await;
    all_is_well(&scene, &ended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_paused_in_a_stop_is_waited_for_while_there_is_time() {
    let (_servers, scene, ended) = stopped_amid(&[("CLIENT", &["PAUSE", "1500", "ALL"])]).await;
    all_is_well(&scene, &ended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_full_in_a_stop_takes_back_what_it_holds_already() {
    let upset: &[(&str, &[&str])] =
        &[("CONFIG", &["SET", "maxmemory-policy", "noeviction"]), ("CONFIG", &["SET", "maxmemory", "1000"])];
    let (servers, scene, ended) = stopped_amid(upset).await;
    let mut connection = servers[0].connection().await;
    run(&mut connection, "CONFIG", &["SET", "maxmemory", "0"]).await;
    all_is_well(&scene, &ended).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_full_refuses_new_jobs_and_works_off_the_others() {
    let (redis, noted) = (Redis::start(), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    scene.push_all(JOBS, |_| duty("shield", &[20])).await;
    let mut connection = redis.connection().await;
    run(&mut connection, "CONFIG", &["SET", "maxmemory-policy", "noeviction"]).await;
    run(&mut connection, "CONFIG", &["SET", "maxmemory", "1000"]).await;
    let job = winddown::queue::NewJob::new("late".parse().unwrap(), duty("nothing", &[]));
    let refused = scene.jobs.enqueue(&job).await.unwrap_err();
    let source = std::error::Error::source(&refused).unwrap().to_string();
    assert!(source.contains("OOM") || source.contains("maxmemory"), "{source}");
    let first = scene.crew("first").args(["--lease", "5000"]).start().await.unwrap();
    scene.until_done().await;
    let ended = term(first).await;
    ended.exit.assert_code(0);
    assert_eq!((ended.count("acked"), ended.count("lost")), (JOBS, 0));
    assert_eq!(scene.effects().await.len() as u64, JOBS);
}
