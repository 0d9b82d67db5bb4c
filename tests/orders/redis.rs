//! With `--queue`: the same service, its jobs in Redis.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use winddown::testing::process::Signal;

use crate::redis_server::Redis;
use crate::sentinel::Watched;
use crate::service::{Place, Service, bare, eventually, order};
use crate::{api, database, stop};

#[tokio::test]
async fn an_order_is_done_by_way_of_redis_and_told_of_in_the_same_words() {
    let mut place = Place::with_redis();
    let service = place.start([]).await;
    let placed = service.post(order("a1", 600)).await;
    assert_eq!((placed.status, &placed.json()["state"]), (202, &"accepted".into()), "{placed:?}");
    service.until("a1", "working").await;
    let done = service.until("a1", "done").await;
    let whole = json!({"id": "a1", "state": "done", "steps": ["reserve", "charge", "ship"],
                       "attempts": 0, "interruptions": 0, "crashes": 0});
    assert_eq!(done, whole);
    assert_eq!(service.post(order("a1", 600)).await.status, 200);
    assert_eq!(service.post(order("a1", 601)).await.status, 409);
    let stats = service.stats().await;
    assert_eq!(
        stats,
        json!({"accepted": 0, "working": 0, "done": 1, "dead": 0, "interruptions": 0, "crashes": 0,
               "outbox": 0, "oldest_ms": null, "dead_letters": []})
    );
    service.term().await.assert_code(0);
    place.assert_done_once(1).await;
    assert_eq!(place.number("SELECT count(*) FROM winddown_jobs WHERE id LIKE 'a%'").await, 0);
    let marks: u64 = ask(place.redis(), &["ZCARD", "{orders}:once"]).await;
    assert_eq!((marks, queued(&mut place).await), (0, 1), "no more is remembered than has to be");
    let clients: String = ask(place.redis(), &["CLIENT", "LIST"]).await;
    assert_eq!(clients.lines().count(), 1, "no connection is left but the test's: {clients}");
}

#[tokio::test]
async fn a_job_starts_when_its_order_is_stored_and_not_at_the_next_look() {
    let place = Place::with_redis();
    let service = place.start([]).await;
    let mut client = service.connect().await;
    let mut took = Vec::new();
    for number in 0..15 {
        let began = Instant::now();
        let id = format!("o{number}");
        assert_eq!(client.post(order(&id, 0)).await.expect("an answer").status, 202);
        let path = format!("/orders/{id}");
        while client.get(&path).await.expect("an answer").json()["state"] != "done" {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        took.push(began.elapsed());
    }
    took.sort();
    // A relay or a worker that looked once a second would take half a second each.
    assert!(took[7] < Duration::from_millis(200), "{took:?}");
    println!("from the request to the last effect: median {:?}, most {:?}", took[7], took[14]);
    service.term().await.assert_code(0);
}

#[tokio::test]
async fn a_stop_in_the_middle_of_200_orders_on_redis_loses_none_and_does_none_twice() {
    stop::stopped_in_the_middle(Place::with_redis(), None, "1s", 0).await;
}

#[tokio::test]
async fn orders_on_redis_that_are_longer_than_the_drain_are_interrupted_and_use_up_no_attempt() {
    for (drain, longer) in [("50ms", 2), ("200ms", 3)] {
        let interrupted = stop::stopped_in_the_middle(Place::with_redis(), None, drain, longer).await;
        assert!(interrupted >= u64::from(longer), "{interrupted} with a drain of {drain}");
    }
}

#[tokio::test]
async fn everything_is_answered_until_intake_stops_with_the_queue_in_redis() {
    let unready = Some(Duration::from_millis(400));
    stop::stopped_in_the_middle(Place::with_redis(), unready, "1s", 0).await;
}

#[tokio::test]
async fn kills_lose_no_order_on_redis_and_do_none_twice() {
    killed(5, "1s").await;
}

#[tokio::test]
#[ignore = "long: 20 kills"]
async fn twenty_kills_lose_no_order_on_redis_and_do_none_twice() {
    killed(20, "3s").await;
}

async fn killed(times: u32, lease: &str) {
    let mut place = Place::with_redis();
    stop::killed(&place, times, lease).await;
    assert_eq!(queued(&mut place).await, 200, "each was queued once");
}

#[tokio::test]
async fn two_processes_share_a_queue_in_redis_and_do_none_of_it_twice() {
    let mut place = Place::with_redis();
    database::shared(&place).await;
    let marks: u64 = ask(place.redis(), &["ZCARD", "{orders}:once"]).await;
    assert_eq!(queued(&mut place).await, 120, "each was queued once");
    // Each relay has forgotten what was its own; some may have been taken over where all was slow.
    assert!(marks < 60, "{marks}");
}

#[tokio::test]
async fn an_order_on_redis_that_fails_is_repeated_given_up_and_retried() {
    api::failing(Place::with_redis()).await;
}

#[tokio::test]
async fn what_is_held_at_the_kill_of_a_stop_is_free_at_once_and_counts_as_interrupted() {
    let place = Place::with_redis();
    let orders = place.orders(["--grace", "2s", "--lease", "60s"]).env("TOKIO_WORKER_THREADS", "4");
    let service = Service::start(orders).await;
    let blocks = json!({"id": "b1", "items": ["tea"], "block_ms": 60_000}).to_string();
    assert_eq!(service.post(blocks).await.status, 202);
    service.until("b1", "working").await;
    let exit = service.term().await;
    exit.assert_within(Duration::from_secs(2)).assert_line("still running");

    // Its lease was shortened to the kill, not kept for a minute.
    let service = place.start([]).await;
    eventually("b1 is claimed again", async || {
        let state = service.state("b1").await;
        state["interruptions"] == 1 && state["state"] == "working" && state["crashes"] == 0
    })
    .await;
    assert_eq!(service.stats().await["interruptions"], 1, "the total outlives the process");
    service.running.signal(Signal::Kill);
}

#[tokio::test]
async fn who_has_lost_a_job_writes_no_effect() {
    let place = Place::with_redis();
    let service = place.start([]).await;
    service.place("a1", 3_000).await;
    eventually("reserved", async || service.state("a1").await["steps"] == json!(["reserve"])).await;
    // As if another process had claimed it since, and begun.
    place.execute("UPDATE claims SET epoch = epoch * 2").await;
    let dead = service.until("a1", "dead").await;
    assert_eq!((&dead["steps"], &dead["attempts"]), (&json!(["reserve"]), &3.into()), "{dead}");
    let stats = service.stats().await;
    let reason = stats["dead_letters"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("claimed again since"), "{stats}");
    // What was in the way is gone: it goes on where it was.
    place.execute("DELETE FROM claims").await;
    let retried = service.connect().await.request("POST", "/orders/a1/retry", b"").await.expect("an answer");
    assert_eq!(retried.status, 202, "{retried:?}");
    service.until("a1", "done").await;
    service.term().await.assert_code(0);
    place.assert_done_once(1).await;
}

#[tokio::test]
async fn stats_tell_the_age_of_the_oldest_order() {
    let place = Place::with_redis();
    let service = place.start(["--workers", "1"]).await;
    assert_eq!(service.stats().await["oldest_ms"], Value::Null);
    service.place("a1", 30_000).await;
    service.until("a1", "working").await;
    for pause in [300, 900] {
        let before = service.stats().await["oldest_ms"].as_u64().expect("an age");
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let after = service.stats().await["oldest_ms"].as_u64().expect("an age");
        assert!(after >= before + pause && after < 60_000, "{before} {after}");
    }
    service.running.signal(Signal::Kill);
}

#[tokio::test]
async fn a_server_that_may_lose_jobs_is_warned_of_at_the_start() {
    let on = async |redis: &Redis| {
        let place = Place::new();
        let url = redis.url();
        let service = place.start(["--queue", &url]).await;
        let exit = service.term().await;
        exit.assert_code(0);
        exit
    };
    let exit = on(&Redis::start()).await;
    assert_eq!(exit.stderr.matches("queue.warning").count(), 1, "nothing is kept on disk: {exit}");
    let evicts = ["--appendonly", "yes", "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let exit = on(&Redis::start_with(&evicts)).await;
    assert_eq!(exit.stderr.matches("queue.warning").count(), 1, "{exit}");
    exit.assert_line("allkeys-lru");
    let exit = on(&Redis::start_with(&["--appendonly", "yes"])).await;
    assert!(!exit.stderr.contains("queue.warning"), "{exit}");
}

#[tokio::test]
async fn orders_that_wait_in_the_other_kind_of_queue_are_told_of_at_the_start() {
    let place = Place::with_redis();
    let in_table = || bare(["--listen", "127.0.0.1:0", "--drain", "100ms", "--database"]).args([place.url()]);
    let service = Service::start(in_table()).await;
    service.place("t1", 60_000).await;
    service.term().await.assert_code(0);
    let service = place.start(["--drain", "100ms"]).await;
    service.place("r1", 60_000).await;
    service.until("r1", "working").await;
    service.term().await.assert_code(0).assert_line("1 orders wait in the database's own queue");
    let service = Service::start(in_table()).await;
    assert_eq!(service.state("r1").await["state"], "accepted");
    service.term().await.assert_code(0).assert_line("1 orders wait in a queue elsewhere");
}

#[tokio::test]
async fn a_server_that_is_not_there_ends_the_start_with_the_reason() {
    let mut place = Place::with_redis();
    place.redis().kill();
    let exit = place.fails([]).await;
    exit.assert_code(1).assert_within(Duration::from_secs(20)).assert_line("queue redis+unix://");
    assert!(!exit.stdout.contains("ready"), "{exit}");
    assert!(!place.path("orders.db-wal").exists(), "what was opened is closed: {exit}");

    let place = Place::new();
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let url = format!("redis://user:secret@{gone}/3");
    let exit = place.fails(["--queue", &url]).await;
    exit.assert_code(1).assert_line(&format!("queue redis://{gone}/3"));
    assert!(!exit.stderr.contains("secret"), "{exit}");
}

#[tokio::test]
async fn a_failover_in_the_middle_loses_no_order_and_does_none_twice() {
    const ORDERS: u32 = 40;
    let mut watched = Watched::start().await;
    let place = Place::new();
    let service = place.start(["--queue", &watched.url(), "--lease", "2s"]).await;
    for number in 0..ORDERS {
        service.place(&format!("o{number}"), 600).await;
    }
    eventually("all are queued", async || service.stats().await["outbox"] == 0).await;
    watched.replicated().await;
    watched.master.kill();
    // What was taken meanwhile is queued when there is a server again.
    service.place("meanwhile", 0).await;
    eventually("all are done", async || {
        place.number("SELECT count(*) FROM orders WHERE done = 1").await == i64::from(ORDERS + 1)
    })
    .await;
    service.term().await.assert_code(0);
    place.assert_done_once(i64::from(ORDERS + 1)).await;
    assert_eq!(place.number("SELECT sum(attempts) FROM orders").await, 0);
}

#[tokio::test]
async fn keys_of_somebody_else_are_refused_and_left_alone() {
    let mut place = Place::with_redis();
    let _: () = ask(place.redis(), &["SET", "{orders}:pending", "mine"]).await;
    let exit = place.fails([]).await;
    exit.assert_code(1).assert_line("{orders}:pending");
    let value: String = ask(place.redis(), &["GET", "{orders}:pending"]).await;
    assert_eq!(value, "mine");
}

/// How many jobs were ever put into the queue.
pub async fn queued(place: &mut Place) -> u64 {
    ask(place.redis(), &["HGET", "{orders}:state", "seq"]).await
}

/// Asks the server itself.
pub async fn ask<T: ::redis::FromRedisValue>(redis: &Redis, words: &[&str]) -> T {
    let mut connection = redis.connection().await;
    let mut command = ::redis::Cmd::new();
    command.arg(words);
    command.query_async(&mut connection).await.unwrap_or_else(|error| panic!("{words:?}: {error}"))
}
