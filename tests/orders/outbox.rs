//! The way of an order from the database into Redis, with a death or a pause at each point of it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use winddown::queue::redis::{List, Server};
use winddown::queue::{Enqueued, NewJob, Owner, Queue};
use winddown::testing::process::Signal;

use crate::client::Client;
use crate::redis::queued;
use crate::service::{Place, Random, Service, bare, eventually, order, times};

/// As the program stores it: what is left out is there.
fn body(id: &str, work_ms: u64) -> Value {
    json!({"id": id, "items": ["tea"], "work_ms": work_ms, "fail": 0, "block_ms": 0})
}

/// An order as one is stored by a process that died long ago.
pub async fn store(place: &Place, id: &str) {
    place
        .execute(&format!(
            "INSERT INTO orders (id, body) VALUES ('{id}', '{}');
             INSERT INTO outbox (order_id, relay, placed) VALUES ('{id}', 'a process that is gone', 0)",
            body(id, 0)
        ))
        .await;
}

/// The queue, as a relay sees it.
pub async fn queue(place: &mut Place) -> List<Value> {
    let server = Server::at(&place.redis().url()).expect("a URL");
    List::open(server, "orders").await.expect("a queue")
}

/// The job of [`body`].
pub fn job(id: &str) -> NewJob<Value> {
    NewJob::new(id.parse().expect("a name"), body(id, 0))
}

/// A place whose tables are there.
pub async fn prepared() -> Place {
    let place = Place::with_redis();
    place.start([]).await.term().await.assert_code(0);
    place
}

/// Runs the service until all that is stored has gone its way, and one more order behind it.
async fn all_done(place: &mut Place, orders: u32) {
    let service = place.start([]).await;
    eventually("the outbox is empty", async || place.number("SELECT count(*) FROM outbox").await == 0).await;
    service.place("last", 0).await;
    service.until("last", "done").await;
    service.term().await.assert_code(0);
    place.assert_done_once(i64::from(orders + 1)).await;
    assert_eq!(queued(place).await, u64::from(orders + 1), "each was queued once");
}

/// How often a handler has begun on an order shows in the epoch that it left.
async fn epoch(place: &Place, id: &str) -> i64 {
    place.number(&format!("SELECT coalesce(max(epoch), 0) FROM claims WHERE order_id = '{id}'")).await
}

#[tokio::test]
async fn an_order_that_was_stored_and_not_queued_is_queued_at_the_next_start() {
    let mut place = prepared().await;
    store(&place, "a1").await;
    all_done(&mut place, 1).await;
}

#[tokio::test]
async fn an_order_that_was_queued_and_whose_row_is_still_there_is_not_queued_again() {
    let mut place = prepared().await;
    let jobs = queue(&mut place).await;
    store(&place, "waiting").await;
    store(&place, "done").await;
    let both = [job("done"), job("waiting")];
    assert_eq!(jobs.enqueue_once(&both).await.expect("queued"), [Enqueued::Added; 2]);
    // One of them was even done before the relay's process died.
    let claimed = jobs.claim(&Owner::unique("test"), 1, Duration::from_secs(30)).await.expect("claimed");
    assert_eq!(claimed[0].lease.id.as_str(), "done");
    place
        .execute(
            "UPDATE orders SET done = 1 WHERE id = 'done';
             INSERT INTO effects VALUES ('done', 'reserve'), ('done', 'charge'), ('done', 'ship')",
        )
        .await;
    assert!(jobs.ack(&[claimed[0].lease.clone()]).await.expect("acked")[0].is_yours());
    all_done(&mut place, 2).await;
    assert_eq!(epoch(&place, "done").await, 0, "nobody has begun it again");
}

#[tokio::test]
async fn an_order_whose_row_is_gone_and_whose_mark_is_not_is_done_once() {
    let mut place = prepared().await;
    let jobs = queue(&mut place).await;
    store(&place, "a1").await;
    let job = NewJob::new("a1".parse().expect("a name"), body("a1", 0));
    assert_eq!(jobs.enqueue_once(&[job]).await.expect("queued"), [Enqueued::Added]);
    place.execute("DELETE FROM outbox").await;
    all_done(&mut place, 1).await;
}

#[tokio::test]
async fn a_job_of_an_order_that_is_done_is_acked_without_effects() {
    let mut place = prepared().await;
    let service = place.start([]).await;
    service.place("a1", 0).await;
    service.until("a1", "done").await;
    // As after a failover to a server that had not heard of it yet.
    let jobs = queue(&mut place).await;
    let job = NewJob::new("a1".parse().expect("a name"), body("a1", 0));
    eventually("queued again", async || {
        jobs.enqueue_once(std::slice::from_ref(&job)).await.expect("asked") == [Enqueued::Added]
    })
    .await;
    eventually("acked", async || jobs.find(&job.id).await.expect("asked").is_none()).await;
    let stats = service.stats().await;
    assert_eq!((&stats["dead"], &stats["done"]), (&0.into(), &1.into()), "{stats}");
    service.term().await.assert_code(0);
    place.assert_done_once(1).await;
}

#[tokio::test]
async fn a_job_without_an_order_in_this_database_becomes_a_dead_letter() {
    let mut place = prepared().await;
    let service = place.start([]).await;
    let jobs = queue(&mut place).await;
    let job = NewJob::new("elsewhere".parse().expect("a name"), body("elsewhere", 0));
    let _ = jobs.enqueue_once(std::slice::from_ref(&job)).await.expect("queued");
    eventually("dead", async || service.stats().await["dead"] == 1).await;
    let stats = service.stats().await;
    let letter = &stats["dead_letters"][0];
    assert_eq!(letter["reason"], "the database has no order \"elsewhere\"", "{stats}");
    service.term().await.assert_code(0);
    place.assert_done_once(0).await;
}

#[tokio::test]
async fn while_redis_is_away_orders_are_taken_and_they_are_queued_when_it_is_back() {
    let mut place = Place::with_redis();
    let service = place.start(["--grace", "5s"]).await;
    service.place("before", 0).await;
    service.until("before", "done").await;
    place.redis().kill();
    for number in 0..20 {
        service.place(&format!("o{number}"), 0).await;
    }
    assert_eq!(service.state("o7").await["state"], "accepted");
    assert_eq!(service.state("before").await["state"], "done");
    assert_eq!(service.get("/readyz").await.status, 200, "what can take orders is ready");
    let stats = service.get("/stats").await;
    assert_eq!(stats.status, 503, "it cannot be told: {stats:?}");
    stats.error();
    place.redis().start_again();
    service.until_done(21).await;
    service.term().await.assert_code(0);
    place.assert_done_once(21).await;
    assert_eq!(place.number("SELECT sum(attempts) FROM orders").await, 0);
}

#[tokio::test]
async fn a_stop_or_a_kill_while_redis_is_away_leaves_the_orders_for_the_next_start() {
    for signal in [Signal::Term, Signal::Kill] {
        let mut place = Place::with_redis();
        let service = place.start(["--grace", "5s"]).await;
        place.redis().kill();
        for number in 0..5 {
            service.place(&format!("o{number}"), 0).await;
        }
        service.running.signal(signal);
        let exit = service.running.wait().await;
        exit.assert_within(Duration::from_secs(5));
        if signal == Signal::Term {
            exit.assert_line("stopped: SIGTERM");
        }
        assert_eq!(place.number("SELECT count(*) FROM outbox").await, 5, "{exit}");
        place.redis().start_again();
        let service = place.start([]).await;
        service.until_done(5).await;
        service.term().await.assert_code(0);
        place.assert_done_once(5).await;
    }
}

#[tokio::test]
async fn a_stop_while_redis_does_not_answer_ends_on_time_and_loses_no_order() {
    for grace in [3, 5] {
        let mut place = Place::with_redis();
        let gate = Gate::open(&mut place);
        let service = gate.start(&place, &["--lease", "1s", "--grace", &format!("{grace}s")]).await;
        service.place("a1", 20_000).await;
        service.until("a1", "working").await;
        gate.shut();
        service.place("a2", 0).await;
        service.term().await.assert_within(Duration::from_secs(grace)).assert_line("stopped: SIGTERM");
        gate.open_from(0);
        let service = place.start([]).await;
        service.until("a2", "done").await;
        service.until("a1", "working").await;
        service.running.signal(Signal::Kill);
        assert_eq!(queued(&mut place).await, 2, "each was queued once");
    }
}

#[tokio::test]
async fn orders_that_come_after_the_trigger_are_left_to_others() {
    let place = Place::with_redis();
    let ending = place.start(["--grace", "20s", "--unready", "4s", "--drain", "8s"]).await;
    let other = place.start([]).await;
    ending.running.signal(Signal::Term);
    eventually("not ready", async || ending.get("/readyz").await.status == 503).await;
    ending.place("late", 0).await;
    let done = other.until("late", "done").await;
    assert_eq!(done["interruptions"], 0, "{done}");
    ending.running.wait().await.assert_code(0);
    other.term().await.assert_code(0);
    place.assert_done_once(1).await;
}

/// A way to Redis that can be shut: what is sent meanwhile arrives when it is open again.
struct Gate {
    url: String,
    /// Connections with smaller numbers are shut.
    shut: watch::Sender<usize>,
    connections: Arc<AtomicUsize>,
}

impl Gate {
    fn open(place: &mut Place) -> Gate {
        let (path, server) = (place.path("gate.sock"), place.redis().socket());
        let listener = UnixListener::bind(&path).expect("a socket");
        let (shut, is_shut) = watch::channel(0);
        let connections = Arc::new(AtomicUsize::new(0));
        let numbers = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = numbers.fetch_add(1, Ordering::Relaxed);
                let Ok(server) = UnixStream::connect(&server).await else { continue };
                let ((asks, hears), (answers, asked)) = (client.into_split(), server.into_split());
                tokio::spawn(carry(asks, asked, number, is_shut.clone()));
                tokio::spawn(carry(answers, hears, number, watch::channel(0).1));
            }
        });
        Gate { url: format!("redis+unix://{}", path.display()), shut, connections }
    }

    /// A process that goes by this way.
    async fn start(&self, place: &Place, args: &[&str]) -> Service {
        let fixed = ["--listen", "127.0.0.1:0", "--database", &place.url(), "--queue", &self.url];
        Service::start(bare(fixed).args(args)).await
    }

    /// Lets nothing through that is sent from here on.
    fn shut(&self) {
        self.shut.send_replace(usize::MAX);
    }

    /// Lets through what comes on the connections from this number on.
    fn open_from(&self, number: usize) {
        self.shut.send_replace(number);
    }
}

async fn carry(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    number: usize,
    mut is_shut: watch::Receiver<usize>,
) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        // Also where the sender is gone by now: what is on its way arrives.
        let _ = is_shut.wait_for(|shut| number >= *shut).await;
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_relay_that_was_slow_queues_nothing_that_another_has_moved() {
    let mut place = Place::with_redis();
    let gate = Gate::open(&mut place);
    let slow = gate.start(&place, &[]).await;
    let other = place.start([]).await;
    gate.shut();
    // Its relay sends at once what it has, and that is on its way for long.
    slow.place("a1", 0).await;
    other.until("a1", "done").await;
    let begun = epoch(&place, "a1").await;
    assert!(begun > 0);
    gate.open_from(0);
    // What it has after that comes by the same way, behind it.
    for id in ["a2", "a3"] {
        slow.place(id, 0).await;
        slow.until(id, "done").await;
    }
    eventually("nothing is left", async || {
        let stats = other.stats().await;
        stats["accepted"] == 0 && stats["working"] == 0
    })
    .await;
    assert_eq!(epoch(&place, "a1").await, begun, "nobody has begun it again");
    slow.term().await.assert_code(0);
    other.term().await.assert_code(0);
    place.assert_done_once(3).await;
    assert_eq!(queued(&mut place).await, 3);
}

#[tokio::test]
async fn a_call_that_arrives_late_queues_nothing_that_its_own_relay_has_moved() {
    let mut place = Place::with_redis();
    let gate = Gate::open(&mut place);
    let service = gate.start(&place, &[]).await;
    gate.shut();
    service.place("a1", 0).await;
    // When the calls on the old connections have taken too long, new ones are opened.
    let before = gate.connections.load(Ordering::Relaxed);
    eventually("new connections", async || gate.connections.load(Ordering::Relaxed) > before).await;
    gate.open_from(before);
    service.until("a1", "done").await;
    eventually("the outbox is empty", async || place.number("SELECT count(*) FROM outbox").await == 0).await;
    service.place("a2", 0).await;
    service.until("a2", "done").await;
    gate.open_from(0);
    for id in ["a3", "a4"] {
        service.place(id, 0).await;
        service.until(id, "done").await;
    }
    service.term().await.assert_code(0);
    place.assert_done_once(4).await;
    assert_eq!(queued(&mut place).await, 4, "each was queued once");
}

/// Two processes that share all, killed at random, while a client that does not give up places orders with either.
async fn two_killed(times: u32) {
    const ORDERS: usize = 150;
    let mut place = Place::with_redis();
    let args = ["--lease", "2s", "--grace", "3s"];
    let mut services = [place.start(args).await, place.start(args).await];
    let addresses = Arc::new(Mutex::new(services.each_ref().map(|service| service.address)));
    let current = Arc::clone(&addresses);
    let client = tokio::spawn(async move {
        for number in 0..ORDERS {
            let order = order(&format!("o{number}"), 30);
            for turn in number.. {
                let address = current.lock().expect("no panic")[turn % 2];
                let answer = async { Client::connect(address).await?.post(&order).await };
                if let Ok(answer) = answer.await {
                    assert!(matches!(answer.status, 200 | 202), "{answer:?}");
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut random = Random(0x5eed_0e01);
    for _ in 0..times {
        tokio::time::sleep(Duration::from_millis(random.below(300))).await;
        let which = usize::try_from(random.below(2)).expect("0 or 1");
        services[which].running.signal(Signal::Kill);
        let started = place.start(args).await;
        addresses.lock().expect("no panic")[which] = started.address;
        let killed = std::mem::replace(&mut services[which], started);
        assert!(killed.running.wait().await.was_killed());
    }
    client.await.expect("no panic");
    services[0].until_done(u64::try_from(ORDERS).expect("small")).await;
    eventually("nothing is left", async || {
        let stats = services[0].stats().await;
        stats["accepted"] == 0 && stats["working"] == 0
    })
    .await;
    let stats = services[0].stats().await;
    for service in services {
        service.term().await.assert_code(0);
    }
    let orders = i64::try_from(ORDERS).expect("small");
    place.assert_done_once(orders).await;
    assert_eq!(place.number("SELECT count(*) FROM outbox").await, 0);
    assert_eq!(place.number("SELECT sum(attempts) FROM orders").await, 0);
    assert_eq!(queued(&mut place).await, u64::try_from(ORDERS).expect("small"), "each was queued once");
    assert_eq!(stats["crashes"], place.number("SELECT sum(crashes) FROM orders").await, "{stats}");
    assert_eq!(stats["interruptions"], 0, "{stats}");
}

#[tokio::test]
async fn two_relays_that_are_killed_at_random_lose_no_order_and_queue_none_twice() {
    two_killed(times(6, 40)).await;
}
