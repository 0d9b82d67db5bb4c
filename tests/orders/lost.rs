//! Jobs that Redis itself has lost, and orders that are not to be taken for such.

use std::time::Duration;

use winddown::queue::{Enqueued, Owner, Queue};
use winddown::testing::process::Signal;

use crate::outbox::{job, prepared, queue, store};
use crate::redis::{ask, queued};
use crate::service::{Place, Service, bare, eventually};

async fn is_queued(service: &Service) {
    eventually("all are queued", async || service.stats().await["outbox"] == 0).await;
}

#[tokio::test]
async fn what_redis_loses_in_the_middle_is_queued_again_and_done_once() {
    const ORDERS: i64 = 80;
    let mut place = Place::with_redis();
    let services = [place.start(["--workers", "2"]).await, place.start(["--workers", "2"]).await];
    for number in 0..ORDERS {
        services[0].place(&format!("o{number}"), 300).await;
    }
    is_queued(&services[0]).await;
    assert!(place.number("SELECT count(*) FROM orders WHERE done = 0").await > 30);
    for pause in [300, 700] {
        let _: String = ask(place.redis(), &["FLUSHALL"]).await;
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
    services[1].until_done(u64::try_from(ORDERS).expect("small")).await;
    for service in services {
        service.term().await.assert_code(0);
    }
    place.assert_done_once(ORDERS).await;
    assert_eq!(place.number("SELECT sum(attempts) FROM orders").await, 0);
    assert_eq!(place.number("SELECT count(*) FROM outbox").await, 0);
}

#[tokio::test]
async fn what_redis_loses_while_nobody_is_there_is_queued_again_at_the_next_start() {
    let mut place = Place::with_redis();
    let service = place.start(["--workers", "1"]).await;
    service.place("long", 60_000).await;
    service.until("long", "working").await;
    for number in 0..5 {
        service.place(&format!("o{number}"), 0).await;
    }
    is_queued(&service).await;
    service.running.signal(Signal::Kill);
    service.running.wait().await;
    let _: String = ask(place.redis(), &["FLUSHALL"]).await;
    let service = place.start([]).await;
    service.until_done(5).await;
    service.until("long", "working").await;
    assert_eq!(queued(&mut place).await, 6);
    let exit = service.running;
    exit.signal(Signal::Kill);
    exit.wait().await.assert_line("has lost this order's job");
}

#[tokio::test]
async fn a_job_that_is_lost_while_its_name_is_remembered_is_queued_again() {
    let mut place = prepared().await;
    let jobs = queue(&mut place).await;
    store(&place, "a1").await;
    place.execute("DELETE FROM outbox").await;
    assert_eq!(jobs.enqueue_once(&[job("a1")]).await.expect("queued"), [Enqueued::Added]);
    let lost = jobs.claim(&Owner::unique("gone"), 1, Duration::from_secs(60)).await.expect("claimed");
    let _ = jobs.ack(&[lost[0].lease.clone()]).await.expect("acked");
    let service = place.start([]).await;
    service.until("a1", "done").await;
    service.term().await.assert_code(0);
    // By then the name is remembered again, for the sake of relays that are slow.
    let marks: u64 = ask(place.redis(), &["ZCARD", "{orders}:once"]).await;
    assert_eq!((queued(&mut place).await, marks), (2, 1));
}

#[tokio::test]
async fn an_order_whose_job_waits_runs_is_dead_or_elsewhere_is_not_taken_for_lost() {
    let mut place = Place::with_redis();
    let other = bare(["--listen", "127.0.0.1:0", "--drain", "100ms", "--database"]).args([place.url()]);
    let other = Service::start(other).await;
    other.place("in-the-table", 60_000).await;
    other.term().await.assert_code(0);

    let service = place.start(["--workers", "1"]).await;
    let dead = serde_json::json!({"id": "dead", "items": ["tea"], "fail": 99}).to_string();
    assert_eq!(service.post(dead).await.status, 202);
    service.until("dead", "dead").await;
    service.place("running", 60_000).await;
    service.until("running", "working").await;
    service.place("waiting", 0).await;
    is_queued(&service).await;
    // Long enough for some searches.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(queued(&mut place).await, 3);
    assert_eq!(service.state("dead").await["state"], "dead");
    service.running.signal(Signal::Kill);
    let exit = service.running.wait().await;
    assert!(!exit.stderr.contains("has lost"), "{exit}");
}

#[tokio::test]
async fn a_database_that_is_locked_for_long_uses_up_no_attempt_and_holds_up_no_stop() {
    let mut place = Place::with_redis();
    let service = place.start(["--grace", "30s", "--drain", "1s"]).await;
    for number in 0..4 {
        service.place(&format!("o{number}"), 2_000).await;
    }
    is_queued(&service).await;
    service.until("o3", "working").await;
    // For longer than the three attempts of an order would wait for the lock.
    let lock = place.lock().await;
    tokio::time::sleep(Duration::from_secs(22)).await;
    let dead: u64 = ask(place.redis(), &["ZCARD", "{orders}:dead"]).await;
    assert_eq!(dead, 0);
    service.term().await.assert_within(Duration::from_secs(20));
    drop(lock);
    let service = place.start([]).await;
    service.until_done(4).await;
    service.term().await.assert_code(0);
    place.assert_done_once(4).await;
    assert_eq!(place.number("SELECT sum(attempts) FROM orders").await, 0);
}
