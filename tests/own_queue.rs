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
    let taken = async {
        while list(connection, "jobs:taken:first").await.len() < count {
            sleep(ms(5)).await;
        }
    };
    tokio::time::timeout(ms(60_000), taken).await.expect("jobs are taken within a minute");
}

fn jobs(count: u32) -> Vec<String> {
    (1..=count).map(|n| format!("job {n}")).collect()
}

/// What is in the lists: free, taken, done; all of one moment.
async fn lists(connection: &mut MultiplexedConnection) -> (Vec<String>, Vec<String>, Vec<String>) {
    let mut look = redis::pipe();
    look.atomic();
    for name in ["jobs", "jobs:taken:first", "jobs:done"] {
        look.cmd("LRANGE").arg(name).arg(0).arg(-1);
    }
    look.query_async(connection).await.unwrap()
}

/// Waits until nothing is free or taken, and says what is done, sorted as [`jobs`] are.
async fn all_done(connection: &mut MultiplexedConnection) -> Vec<String> {
    let over = async {
        loop {
            match lists(connection).await {
                (free, taken, done) if free.is_empty() && taken.is_empty() => break by_number(done),
                _ => sleep(ms(10)).await,
            }
        }
    };
    tokio::time::timeout(ms(60_000), over).await.expect("all is done within a minute")
}

fn by_number(mut jobs: Vec<String>) -> Vec<String> {
    jobs.sort_by_key(|job| job.trim_start_matches("job ").parse::<u32>().unwrap());
    jobs
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
        let (done, left) = (list(&mut connection, "jobs:done").await, list(&mut connection, "jobs").await);
        assert!(done.len() > 1 && left.len() > 4, "{done:?} {left:?}");
        // Jobs that run side by side may be done in another order.
        assert_eq!([by_number(done), left].concat(), all);
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
        assert_eq!(all_done(&mut connection).await, all);
        assert_eq!(list(&mut connection, "jobs:done").await, all, "in the old order");
        next.signal(Signal::Term);
        next.wait().await.assert_code(0);
    }
}

#[tokio::test]
async fn a_server_that_answers_late_has_each_effect_done_once() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    let all = jobs(40);
    push(&mut connection, &all).await;
    let running = worker(&redis, 4, 100, "30s").start().await.unwrap();
    while list(&mut connection, "jobs:done").await.len() < 6 {
        sleep(ms(5)).await;
    }
    cmd("CLIENT").arg(&["PAUSE", "900", "ALL"]).exec_async(&mut connection).await.unwrap();
    assert_eq!(all_done(&mut connection).await, all);
    running.signal(Signal::Term);
    running.wait().await.assert_code(0);
}

#[tokio::test]
async fn connections_that_are_lost_are_opened_anew_and_each_effect_is_done_once() {
    for (at_once, length, rounds) in [(4, 100, 3), (2, 0, 25)] {
        let redis = Redis::start();
        let mut connection = redis.connection().await;
        let running = worker(&redis, at_once, length, "30s").start().await.unwrap();
        let mut all = Vec::new();
        for round in 0..rounds {
            let some: Vec<String> = (1..=40).map(|n| format!("job {}", round * 40 + n)).collect();
            push(&mut connection, &some).await;
            all.extend(some);
            let some_done = async {
                while list(&mut connection, "jobs:done").await.len() < all.len() - 34 {
                    sleep(ms(1)).await;
                }
            };
            let some_done = tokio::time::timeout(ms(60_000), some_done).await;
            some_done.unwrap_or_else(|_| panic!("it does not go on in round {round}"));
            cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]).exec_async(&mut connection).await.unwrap();
        }
        assert_eq!(all_done(&mut connection).await, all);
        running.signal(Signal::Term);
        running.wait().await.assert_code(0);
    }
}

/// What is sent to a server that is frozen waits in its socket, and is done when it goes on.
#[tokio::test]
async fn a_server_that_is_frozen_over_a_stop_has_each_job_once_when_it_goes_on() {
    let redis = Redis::start();
    let mut connection = redis.connection().await;
    let all = jobs(20);
    push(&mut connection, &all).await;
    let running = worker(&redis, 6, 1_000, "6s").start().await.unwrap();
    while list(&mut connection, "jobs:done").await.len() < 2 {
        sleep(ms(5)).await;
    }
    taken(&mut connection, 6).await;
    let server = rustix::process::Pid::from_raw(redis.pid().cast_signed()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::STOP).unwrap();
    running.signal(Signal::Term);
    let exit = running.wait().await;
    rustix::process::kill_process(server, rustix::process::Signal::CONT).unwrap();
    // Until the server has done all that was sent by those that are gone.
    loop {
        let clients: String = cmd("CLIENT").arg("LIST").query_async(&mut connection).await.unwrap();
        if clients.lines().count() == 1 {
            break;
        }
        sleep(ms(10)).await;
    }
    let (free, taken, done) = lists(&mut connection).await;
    assert_eq!(by_number([free, taken, done].concat()), all);
    // What the process knows nothing of counts as lost there, and is named; whoever comes next has it all the same.
    exit.assert_code(1).assert_line("job ");
    let next = worker(&redis, 6, 0, "30s").start().await.unwrap();
    assert_eq!(all_done(&mut connection).await, all);
    next.signal(Signal::Term);
    next.wait().await.assert_code(0);
}
