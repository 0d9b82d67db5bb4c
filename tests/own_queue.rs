//! The example `own_redis_queue`, as a process that gets real signals: plain lists in which no job is lost, and none is left as taken but by a kill.
#![cfg(all(unix, feature = "redis", feature = "test-util"))]

#[path = "support/redis.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cmd;
use server::Redis;
use tokio::time::sleep;
use winddown::testing::process::{Process, Signal};

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn worker(redis: &Redis, at_once: u32, length: u64, grace: &str) -> Process {
    Process::example("own_redis_queue")
        .env("WINDDOWN_GRACE", grace)
        .args([redis.url(), "first".into(), at_once.to_string(), length.to_string()])
        .ready_line("ready")
}

async fn push(connection: &mut MultiplexedConnection, jobs: &[String]) {
    cmd("RPUSH").arg("jobs").arg(jobs).exec_async(connection).await.unwrap();
}

async fn list(connection: &mut MultiplexedConnection, name: &str) -> Vec<String> {
    cmd("LRANGE").arg(name).arg(0).arg(-1).query_async(connection).await.unwrap()
}

async fn taken(connection: &mut MultiplexedConnection, count: usize) {
    while list(connection, "jobs:taken:first").await.len() < count {
        sleep(ms(5)).await;
    }
}

fn jobs(count: u32) -> Vec<String> {
    (1..=count).map(|n| format!("job {n}")).collect()
}

#[tokio::test]
async fn what_runs_at_the_stop_is_finished_and_the_rest_stays_where_it_was() {
    for at_once in [1, 4] {
        let redis = Redis::start();
        let mut connection = redis.connection().await;
        let all = jobs(30);
        push(&mut connection, &all).await;
        let running = worker(&redis, at_once, 300, "30s").start().await.unwrap();
        while list(&mut connection, "jobs:done").await.is_empty() {
            sleep(ms(5)).await;
        }
        taken(&mut connection, 1).await;
        running.signal(Signal::Term);
        running.wait().await.assert_code(0).assert_within(ms(10_000));
        let (mut done, left) =
            (list(&mut connection, "jobs:done").await, list(&mut connection, "jobs").await);
        assert!(done.len() > 1 && left.len() > 4, "{done:?} {left:?}");
        // Jobs that run side by side may be done in another order.
        done.sort_by_key(|job| job.trim_start_matches("job ").parse::<u32>().unwrap());
        assert_eq!([done, left].concat(), all);
        assert!(list(&mut connection, "jobs:taken:first").await.is_empty());
    }
}

#[tokio::test]
async fn what_does_not_finish_in_time_goes_back_to_the_head_in_its_order() {
    for at_once in [1, 8] {
        let redis = Redis::start();
        let mut connection = redis.connection().await;
        let all = jobs(20);
        push(&mut connection, &all).await;
        let running = worker(&redis, at_once, 3_600_000, "3s").start().await.unwrap();
        taken(&mut connection, at_once as usize).await;
        running.signal(Signal::Term);
        running.wait().await.assert_code(0);
        assert_eq!(list(&mut connection, "jobs").await, all);
        assert!(list(&mut connection, "jobs:taken:first").await.is_empty());
        assert!(list(&mut connection, "jobs:done").await.is_empty());
    }
}

/// I15. The fetch is blocked at the server, and a job comes at the very moment of the signal: it is run, or it is where it was.
#[tokio::test]
async fn i15_a_job_pushed_at_the_moment_of_the_stop_is_done_or_still_queued() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    let (mut ran, mut stayed) = (0, 0);
    for round in 0..30_u64 {
        let running = worker(&redis, 2, 0, "30s").start().await.unwrap();
        // At the end of its idle wait the process may be anywhere around the signal.
        sleep(ms(20)).await;
        let name = format!("job {round}");
        if round % 2 == 0 {
            running.signal(Signal::Term);
            sleep(Duration::from_micros(100 * (round % 10))).await;
        }
        push(&mut connection, std::slice::from_ref(&name)).await;
        running.signal(Signal::Term);
        running.wait().await.assert_code(0).assert_within(ms(4_000));
        let (done, left) = (list(&mut connection, "jobs:done").await, list(&mut connection, "jobs").await);
        assert_eq!([done.clone(), left.clone()].concat(), [name], "in round {round}");
        assert!(list(&mut connection, "jobs:taken:first").await.is_empty());
        (ran, stayed) = (ran + done.len(), stayed + left.len());
        cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
    }
    println!("{ran} were run, {stayed} stayed");
}

/// I15. The fetch is never idle: at the signal there is nearly always a job on its way to it.
#[tokio::test]
async fn i15_of_jobs_that_come_without_end_none_is_lost_at_the_stop_and_their_order_is_kept() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    for round in 0..10 {
        let running = worker(&redis, 1, 0, "30s").start().await.unwrap();
        let mut producer = redis.connection().await;
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let pushing = tokio::spawn(async move {
            let mut all = Vec::new();
            while !seen.load(Ordering::SeqCst) {
                let name = format!("job {}", all.len());
                push(&mut producer, std::slice::from_ref(&name)).await;
                all.push(name);
            }
            all
        });
        while list(&mut connection, "jobs:done").await.len() < 10 {
            sleep(ms(1)).await;
        }
        running.signal(Signal::Term);
        running.wait().await.assert_code(0);
        over.store(true, Ordering::SeqCst);
        let all = pushing.await.unwrap();
        let (done, left) = (list(&mut connection, "jobs:done").await, list(&mut connection, "jobs").await);
        assert_eq!(list(&mut connection, "jobs:taken:first").await, [""; 0], "in round {round}");
        assert!(!left.is_empty());
        assert!([done, left].concat() == all, "in round {round} the order is another");
        cmd("FLUSHALL").exec_async(&mut connection).await.unwrap();
    }
}

#[tokio::test]
async fn what_a_killed_process_had_taken_is_put_back_by_the_next_of_its_name() {
    for at_once in [1, 6] {
        let redis = Redis::start();
        let mut connection = redis.connection().await;
        let all = jobs(12);
        push(&mut connection, &all).await;
        let running = worker(&redis, at_once, 3_600_000, "30s").start().await.unwrap();
        taken(&mut connection, at_once as usize).await;
        running.signal(Signal::Kill);
        running.wait().await;
        assert_eq!(list(&mut connection, "jobs:taken:first").await, all[..at_once as usize]);
        let next = worker(&redis, 1, 0, "30s").start().await.unwrap();
        while list(&mut connection, "jobs:done").await.len() < all.len() {
            sleep(ms(5)).await;
        }
        assert_eq!(list(&mut connection, "jobs:done").await, all, "in the old order");
        next.signal(Signal::Term);
        next.wait().await.assert_code(0);
    }
}
