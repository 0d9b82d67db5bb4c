//! What a stop, or a kill, does to orders that are on their way.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::task::JoinSet;
use winddown::testing::process::{Exit, Signal};

use crate::client::Client;
use crate::service::{Place, Random, Service, eventually, order, times};

const ORDERS: u32 = 200;

/// What a client saw that asked on a new connection each time.
type Seen = Vec<(Instant, std::io::Result<u16>)>;

/// Reads and writes until it is told that nobody is there any more.
async fn keep_asking(address: SocketAddr, known: String) -> Seen {
    let mut seen = Seen::new();
    for turn in 0_u32.. {
        let began = Instant::now();
        let answer = async {
            let mut client = Client::connect(address).await?;
            if turn % 2 == 0 { client.get("/stats").await } else { client.post(&known).await }
        };
        let status = answer.await.map(|answer| answer.status);
        let gone = status.is_err();
        seen.push((began, status));
        if gone {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    seen
}

/// Places 200 orders from eight connections.
async fn place_all(service: &Service) {
    let address = service.address;
    let mut clients = JoinSet::new();
    for first in 0..8 {
        clients.spawn(async move {
            let mut client = Client::connect(address).await.expect("a connection");
            for number in (first..ORDERS).step_by(8) {
                let answer = client.post(order(&format!("o{number}"), 300)).await.expect("an answer");
                assert!(answer.status == 202 || number == 0 && answer.status == 200, "{answer:?}");
            }
        });
    }
    clients.join_all().await;
}

/// Stops it among 200 orders, after so many longer ones were begun; returns how many were interrupted.
pub async fn stopped_in_the_middle(place: Place, unready: Option<Duration>, drain: &str, longer: u32) -> u64 {
    let file = place.path("report.json").display().to_string();
    let length = format!("{}ms", unready.unwrap_or_default().as_millis());
    let mut args = vec!["--grace", "3s", "--drain", drain, "--report", &file];
    if unready.is_some() {
        args.extend(["--unready", &length]);
    }
    let service = place.start(args).await;
    let began = Instant::now();
    let asking = tokio::spawn(keep_asking(service.address, order("o0", 300)));
    for number in 0..longer {
        service.place(&format!("longer{number}"), 8_000).await;
        service.until(&format!("longer{number}"), "working").await;
    }
    place_all(&service).await;
    tokio::time::sleep(Duration::from_secs(1).saturating_sub(began.elapsed())).await;
    let told = Instant::now();
    let exit = service.term().await;
    exit.assert_code(0).assert_within(Duration::from_secs(3)).assert_line("stopped: SIGTERM");

    let serves_until = told + unready.unwrap_or_default();
    let seen = asking.await.expect("no panic");
    let before = seen.iter().take_while(|(began, _)| *began < serves_until);
    assert!(before.clone().count() > 10, "{seen:?}");
    for (began, answer) in before {
        let late = began.saturating_duration_since(told);
        assert!(matches!(answer, Ok(200 | 202)), "{answer:?} {late:?} after the signal: {exit}");
    }

    let report = place.report("report.json");
    let gates = report["gates"].as_array().expect("gates");
    let gate = gates.iter().find(|gate| gate["name"] == "orders").expect("a gate for orders");
    let interrupted = gate["handed_back"].as_u64().expect("a count");
    assert!(interrupted <= 8, "{exit}");
    assert_eq!(gate["lost"], 0);

    let service = place.start([]).await;
    let orders = ORDERS + longer;
    service.until_done(orders.into()).await;
    let stats = service.stats().await;
    assert_eq!((&stats["interruptions"], &stats["crashes"]), (&interrupted.into(), &0.into()), "{exit}");
    service.term().await.assert_code(0);
    place.assert_done_once(orders.into()).await;
    assert_eq!(place.number("SELECT sum(attempts) FROM orders").await, 0);
    let counted = place.number("SELECT sum(interruptions) FROM orders").await;
    assert_eq!(u64::try_from(counted), Ok(interrupted));
    interrupted
}

#[tokio::test]
async fn a_stop_in_the_middle_of_200_orders_loses_none_and_does_none_twice() {
    stopped_in_the_middle(Place::new(), None, "1s", 0).await;
}

#[tokio::test]
async fn orders_that_are_longer_than_the_drain_are_interrupted_and_use_up_no_attempt() {
    for (drain, longer) in [("50ms", 2), ("200ms", 3)] {
        let interrupted = stopped_in_the_middle(Place::new(), None, drain, longer).await;
        assert!(interrupted >= u64::from(longer), "{interrupted} with a drain of {drain}");
    }
}

#[tokio::test]
async fn everything_is_answered_until_intake_stops() {
    stopped_in_the_middle(Place::new(), Some(Duration::from_millis(400)), "1s", 0).await;
}

/// Kills it again and again, while a client that does not give up places its orders.
///
/// An order that crashes its process more than five times is given up: the lease is so long that none is held at so many kills.
pub async fn killed(place: &Place, times: u32, lease: &str) {
    let args = ["--lease", lease, "--grace", "3s"];
    let mut random = Random(0x5eed_0006);
    let mut service = place.start(args).await;
    let address = Arc::new(Mutex::new(service.address));
    let current = Arc::clone(&address);
    let client = tokio::spawn(async move {
        let mut client = None;
        for number in 0..ORDERS {
            let order = order(&format!("o{number}"), 300);
            loop {
                let address = *current.lock().expect("no panic");
                let answer = async {
                    let mut open = match client.take() {
                        Some(open) => open,
                        None => Client::connect(address).await?,
                    };
                    let answer = open.post(&order).await?;
                    Ok::<_, std::io::Error>((open, answer))
                };
                match answer.await {
                    // 200: it had been stored, and only the answer was lost.
                    Ok((open, answer)) => {
                        assert!(matches!(answer.status, 200 | 202), "{answer:?}");
                        client = Some(open);
                        break;
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        }
    });
    for _ in 0..times {
        tokio::time::sleep(Duration::from_millis(50 + random.below(450))).await;
        service.running.signal(Signal::Kill);
        assert!(service.running.wait().await.was_killed());
        service = place.start(args).await;
        *address.lock().expect("no panic") = service.address;
    }
    client.await.expect("no panic");
    service.until_done(ORDERS.into()).await;
    let stats = service.stats().await;
    assert!(stats["crashes"].as_i64() >= Some(1), "{stats}");
    assert_eq!(stats["interruptions"], 0, "{stats}");
    service.term().await.assert_code(0);
    place.assert_done_once(ORDERS.into()).await;
    assert_eq!(place.number("SELECT sum(attempts) FROM orders").await, 0);
    let counted = place.number("SELECT sum(crashes) FROM orders").await;
    assert_eq!(stats["crashes"], counted);
}

#[tokio::test]
async fn kills_lose_no_order_and_do_none_twice() {
    killed(&Place::new(), 5, "1s").await;
}

#[tokio::test]
#[ignore = "long: 20 kills"]
async fn twenty_kills_lose_no_order_and_do_none_twice() {
    killed(&Place::new(), 20, "3s").await;
}

#[tokio::test]
async fn a_signal_from_the_first_byte_of_output_on_is_a_clean_stop() {
    for _ in 0..times(10, 50) {
        let place = Place::new();
        let running = place.orders([]).start().await.expect("started");
        running.first_output().await.expect("output");
        running.signal(Signal::Term);
        let exit = running.wait().await;
        exit.assert_code(0).assert_line("stopped: SIGTERM").assert_within(Duration::from_secs(3));
    }
}

/// Places orders that block their threads, until the program answers nobody any more.
async fn block_all(service: &Service, ids: &[&str]) {
    let mut blocking = JoinSet::new();
    for id in ids {
        let order = serde_json::json!({"id": id, "items": ["tea"], "block_ms": 60_000}).to_string();
        let address = service.address;
        blocking.spawn(async move { Client::connect(address).await?.post(order).await });
    }
    eventually("nobody answers", async || {
        let asked = async { Client::connect(service.address).await?.get("/livez").await };
        tokio::time::timeout(Duration::from_millis(500), asked).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn with_every_worker_blocked_it_ends_before_the_kill_and_names_the_orders() {
    for (grace, limit) in [("2s", 2), ("3s", 3)] {
        let place = Place::new();
        let orders = place.orders(["--grace", grace, "--lease", "1s"]).env("TOKIO_WORKER_THREADS", "2");
        let service = Service::start(orders).await;
        block_all(&service, &["b1", "b2"]).await;
        let exit = service.term().await;
        exit.assert_code(124).assert_within(Duration::from_secs(limit));
        assert!(exit.took > Duration::from_secs(limit - 1), "{exit}");
        for id in ["b1", "b2"] {
            let named = exit.stderr.lines().any(|line| line.contains("stuck") && line.contains(id));
            assert!(named, "{id}: {exit}");
        }
        // Nothing was settled: who comes next finds them there.
        assert_eq!(place.number("SELECT count(*) FROM orders WHERE done = 0").await, 2);
    }
}

#[tokio::test]
async fn an_order_that_will_not_stop_is_told_apart_and_is_not_run_twice_at_once() {
    let place = Place::new();
    let file = place.path("report.json").display().to_string();
    let orders = place.orders(["--grace", "2s", "--report", &file]).env("TOKIO_WORKER_THREADS", "4");
    let service = Service::start(orders).await;
    let blocks = serde_json::json!({"id": "b1", "items": ["tea"], "block_ms": 60_000}).to_string();
    assert_eq!(service.post(blocks).await.status, 202);
    service.until("b1", "working").await;
    service.place("o1", 30_000).await;
    service.until("o1", "working").await;
    let exit = service.term().await;
    // A handler that blocks holds the runtime's end: the watchdog leaves, with the report's code.
    exit.assert_within(Duration::from_secs(2)).assert_line("still running");
    let report = place.report("report.json");
    let gate = &report["gates"].as_array().expect("gates").iter().find(|gate| gate["name"] == "orders");
    let gate = gate.expect("a gate for orders");
    assert_eq!((&gate["handed_back"], &gate["still_running"]), (&2.into(), &1.into()), "{exit}");
    let advice = report["advice"].to_string();
    assert!(advice.contains("block their thread") && !advice.contains("hand back in batches"), "{exit}");
    assert_eq!(exit.code, report["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok()), "{exit}");

    // Its lease was shortened to the kill, not kept for 30 s.
    let service = place.start([]).await;
    eventually("b1 is claimed again", async || {
        let state = service.state("b1").await;
        state["interruptions"] == 1 && state["state"] == "working" && state["crashes"] == 0
    })
    .await;
    service.running.signal(Signal::Kill);
}

/// Long orders, and signals at these moments.
async fn signalled(signals: &[(u64, Signal)]) -> (Place, Exit) {
    let place = Place::new();
    let service = place.start(["--grace", "20s"]).await;
    for id in ["a1", "a2", "a3", "a4"] {
        service.place(id, 15_000).await;
        service.until(id, "working").await;
    }
    for (after, signal) in signals {
        tokio::time::sleep(Duration::from_millis(*after)).await;
        service.running.signal(*signal);
    }
    let exit = service.running.wait().await;
    (place, exit)
}

#[tokio::test]
async fn a_second_signal_hands_back_and_closes_within_a_second() {
    for (signal, code) in [(Signal::Term, 143), (Signal::Int, 130)] {
        let (place, exit) = signalled(&[(0, signal), (400, signal)]).await;
        exit.assert_code(code)
            .assert_within(Duration::from_millis(1_400))
            .assert_line("4 handed back + 0 lost");
        assert!(exit.took >= Duration::from_millis(400), "{exit}");
        assert_eq!(place.number("SELECT count(*) FROM winddown_jobs WHERE state = 'pending'").await, 4);
        assert_eq!(place.number("SELECT sum(interruptions) FROM winddown_jobs WHERE id LIKE 'a_'").await, 4);
        assert_eq!(place.number("SELECT sum(attempts) FROM winddown_jobs WHERE id LIKE 'a_'").await, 0);
    }
}

#[tokio::test]
async fn a_signal_doubled_within_a_quarter_of_a_second_counts_once() {
    let place = Place::new();
    let service = place.start(["--grace", "20s"]).await;
    service.place("a1", 1_500).await;
    service.until("a1", "working").await;
    service.running.signal(Signal::Term);
    tokio::time::sleep(Duration::from_millis(50)).await;
    service.running.signal(Signal::Term);
    service.running.wait().await.assert_code(0).assert_line("1 finished + 0 handed back");
    place.assert_done_once(1).await;
}

#[tokio::test]
async fn a_third_signal_leaves_at_once() {
    for signal in [Signal::Term, Signal::Int] {
        let place = Place::new();
        let orders = place.orders(["--grace", "60s"]).env("TOKIO_WORKER_THREADS", "2");
        let service = Service::start(orders).await;
        // What is blocked holds up also the second signal's stop.
        block_all(&service, &["b1", "b2"]).await;
        service.running.signal(signal);
        tokio::time::sleep(Duration::from_millis(400)).await;
        service.running.signal(signal);
        tokio::time::sleep(Duration::from_millis(400)).await;
        service.running.signal(signal);
        let exit = service.running.wait().await;
        exit.assert_within(Duration::from_millis(1_200));
        assert_eq!((exit.signal, exit.code), (None, Some(128 + signal.number())), "{exit}");
        exit.assert_line("b1").assert_line("b2");
    }
}

#[tokio::test]
async fn the_session_of_the_readme_goes_as_it_says() {
    let place = Place::new();
    let service = place.start(["--grace", "4s"]).await;
    let ids = ["a1", "a2", "a3", "a4"];
    for id in ids {
        service.place(id, 6_000).await;
        service.until(id, "working").await;
    }
    service.running.signal(Signal::Int);
    let exit = service.running.wait().await;
    exit.assert_code(0).assert_within(Duration::from_secs(4));
    exit.assert_line("stopped: SIGINT").assert_line("4 handed back + 0 lost").assert_line("advice: ");
    let progress: Vec<_> = exit.lines.iter().filter(|line| line.text.contains("drain.progress")).collect();
    assert!(progress.len() >= 2, "{exit}");
    for pair in progress.windows(2) {
        let apart = pair[1].at - pair[0].at;
        assert!(apart > Duration::from_millis(700) && apart < Duration::from_millis(1_500), "{exit}");
    }
    for line in progress {
        assert!(ids.iter().all(|id| line.text.contains(id)) && line.text.contains("time_left"), "{exit}");
    }

    let service = place.start([]).await;
    for id in ids {
        let done = service.until(id, "done").await;
        let steps: Value = ["reserve", "charge", "ship"].into();
        assert_eq!(
            (&done["steps"], &done["attempts"], &done["interruptions"], &done["crashes"]),
            (&steps, &0.into(), &1.into(), &0.into())
        );
    }
    service.term().await.assert_code(0);
    place.assert_done_once(4).await;
}

#[tokio::test]
async fn an_order_that_was_interrupted_goes_on_from_its_next_step() {
    let place = Place::new();
    let service = place.start(["--grace", "3s", "--drain", "100ms"]).await;
    service.place("a1", 3_000).await;
    eventually("reserved", async || service.state("a1").await["steps"] == Value::from(["reserve"])).await;
    service.term().await.assert_code(0).assert_line("1 handed back");
    assert_eq!(place.number("SELECT count(*) FROM effects").await, 1);

    let service = place.start([]).await;
    let began = Instant::now();
    service.until("a1", "done").await;
    // Two steps of a second each, not three.
    assert!(began.elapsed() > Duration::from_millis(1_500));
    service.term().await.assert_code(0);
    place.assert_done_once(1).await;
}

#[tokio::test]
async fn the_admin_listener_tells_of_the_orders_while_they_are_drained() {
    let place = Place::new();
    let service = place.start(["--admin", "127.0.0.1:0", "--grace", "30s", "--unready", "0ms"]).await;
    let lines = service.running.stdout();
    let address = lines.lines().find_map(|line| line.strip_prefix("admin on http://")).expect("its address");
    let address: SocketAddr = address.parse().expect("an address");
    service.place("slow", 3000).await;
    service.until("slow", "working").await;
    service.running.signal(Signal::Term);
    service.running.wait_for_line("intake.stopped").await.expect("the drain");
    let ask = async |path| {
        Client::connect(address).await.expect("a connection").get(path).await.expect("an answer")
    };
    assert_eq!(ask("/readyz").await.status, 503);
    assert_eq!(ask("/livez").await.status, 200);
    let status = ask("/status").await;
    assert!(status.body.contains("slow"), "{status:?}");
    let exit = service.running.wait().await;
    exit.assert_code(0);
    place.assert_done_once(1).await;
}
