//! Real processes on a queue in a stream that are killed, frozen and asked to stop, while others do with the stream what they like.
#![cfg(all(unix, feature = "orders", feature = "test-util"))]

#[path = "support/crew.rs"]
#[allow(dead_code)]
mod crew;
#[path = "support/redis.rs"]
#[allow(dead_code)]
mod redis_server;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crew::limits::times;
use crew::{Dice, QUEUE, Scene, Stamp, duty, eventually, kill, ms, term};
use redis::Value;
use redis::aio::MultiplexedConnection;
use redis_server::Redis;
use winddown::testing::process::Signal;

const GROUP: &str = "crew";

async fn says(connection: &mut MultiplexedConnection, line: &str) -> redis::RedisResult<Value> {
    let words: Vec<&str> = line.split(' ').collect();
    redis::Cmd::new().arg(&words).query_async(connection).await
}

/// What random processes and a meddler leave behind.
#[derive(Default)]
struct Left {
    frozen: BTreeSet<u32>,
    kills: u64,
    terms: u64,
}

/// Processes one after the other, each killed, frozen for longer than its lease and let go again, or asked to stop.
async fn one_place(scene: &Scene, place: usize, until: Instant) -> Left {
    let mut dice = Dice::new(place as u64);
    let mut left = Left::default();
    for turn in 0.. {
        if Instant::now() >= until {
            break;
        }
        let owner = format!("crew-{place}-{turn}");
        let drain = dice.below(40).to_string();
        let crew = scene.crew(&owner).args(["--concurrency", "4", "--lease", "1500", "--grace", "20000"]);
        let crew = crew.args(["--drain", &drain, "--requeue", "10000", "--prefetch", "3"]);
        let running = crew.start().await.unwrap();
        tokio::time::sleep(ms(300 + dice.below(1_000))).await;
        match dice.below(3) {
            0 => {
                left.kills += 1;
                kill(running).await;
            }
            1 => {
                left.frozen.insert(running.id());
                running.signal(Signal::Stop);
                tokio::time::sleep(ms(1_600 + dice.below(1_500))).await;
                running.signal(Signal::Cont);
                tokio::time::sleep(ms(dice.below(300))).await;
                term(running).await.exit.assert_code(0);
            }
            _ => {
                left.terms += 1;
                term(running).await.exit.assert_code(0);
            }
        }
    }
    left
}

/// Claims what is idle, sets the group back, destroys it, adds what cannot be read, and trims nothing.
async fn meddle(redis: &Redis, until: Instant) -> u64 {
    let mut there = redis.connection().await;
    let mut dice = Dice::new(99);
    let mut foreign = 0;
    while Instant::now() < until {
        let line = match dice.below(6) {
            0 => format!("XAUTOCLAIM {QUEUE} {GROUP} theirs 0 0 COUNT {}", 1 + dice.below(20)),
            1 => format!("XGROUP DESTROY {QUEUE} {GROUP}"),
            2 => format!("XGROUP SETID {QUEUE} {GROUP} 0"),
            3 => "SCRIPT FLUSH".to_owned(),
            4 => {
                foreign += 1;
                format!("XADD {QUEUE} * trace x payload {{\"kind\":\"shield\",\"ms\":[5]}} id job-1")
            }
            _ => format!("XADD {QUEUE} * nothing to-be-read"),
        };
        // The group may be gone just now.
        let _ = says(&mut there, &line).await;
        tokio::time::sleep(ms(dice.below(150))).await;
    }
    // What it has claimed at last would be given back only after minutes.
    let _ = says(&mut there, &format!("XGROUP SETID {QUEUE} {GROUP} 0")).await;
    foreign
}

/// Notes of a job that came after those of a later claim, by processes that were never frozen.
fn overlaps<'a>(stamps: &'a [Stamp], frozen: &BTreeSet<u32>) -> Vec<&'a Stamp> {
    crew::overlaps(stamps, None).into_iter().filter(|stamp| !frozen.contains(&stamp.pid)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_happens_to_processes_and_to_the_group_no_job_is_lost_or_run_twice_at_once() {
    let (count, length) = (times(2_000, 15_000), Duration::from_secs(times(8, 60)));
    let redis = Redis::start();
    let scene = Scene::on_a_stream(&redis).await;
    let mut dice = Dice::new(7);
    scene.push_all(count, |n| duty(if n % 2 == 0 { "sleep" } else { "shield" }, &[dice.below(51)])).await;
    let until = Instant::now() + length;
    let places = futures_util::future::join_all((0..4).map(|place| one_place(&scene, place, until)));
    let (left, foreign) = tokio::join!(places, meddle(&redis, until));
    let rest = [scene.crew("rest-0").start().await.unwrap(), scene.crew("rest-1").start().await.unwrap()];
    scene.until_done().await;
    for running in rest {
        term(running).await.exit.assert_code(0);
    }
    let frozen: BTreeSet<u32> = left.iter().flat_map(|left| left.frozen.iter().copied()).collect();
    let sum = |of: fn(&Left) -> u64| left.iter().map(of).sum::<u64>();
    eprintln!(
        "{} killed, {} asked, {} frozen, {foreign} of others",
        sum(|l| l.kills),
        sum(|l| l.terms),
        frozen.len()
    );

    let (stamps, effects) = (scene.stamps().await, scene.effects().await);
    assert_eq!(effects.len() as u64, count + foreign, "each job took effect");
    let overlaps = overlaps(&stamps, &frozen);
    assert!(overlaps.is_empty(), "run twice at once: {:?}", &overlaps[..overlaps.len().min(9)]);
    assert!(stamps.iter().all(|stamp| stamp.attempts == 0));
    let mut there = redis.connection().await;
    let own = |key: &str| format!("{{{QUEUE}}}:group:{GROUP}:{key}");
    for key in ["ids", "leases", "later"] {
        let kept = says(&mut there, &format!("EXISTS {}", own(key))).await.unwrap();
        assert_eq!(kept, Value::Int(0), "{key} is kept of what is done");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crew_goes_on_with_a_stream_that_was_flushed_away() {
    let (redis, noted) = (Redis::start(), Redis::start());
    let scene = Scene::on_a_stream_apart(&redis.url(), &noted).await;
    let first = scene.crew("first").args(["--lease", "2000"]).start().await.unwrap();
    scene.push_all(6, |_| duty("sleep", &[60_000])).await;
    scene.begun(first.id(), 4).await;
    let mut there = redis.connection().await;
    for round in 1..=3_u64 {
        says(&mut there, "FLUSHALL").await.unwrap();
        scene.push_from(10 * round, 5, |_| duty("shield", &[10])).await;
        eventually("what came afterwards is done", async || scene.effects().await.len() as u64 == 5 * round)
            .await;
    }
    let ended = term(first).await;
    ended.exit.assert_code(0);
    assert_eq!(ended.count("acked"), 15, "{}", ended.exit);
    assert!(scene.effects().await.values().all(|&effects| effects == 1));
}
