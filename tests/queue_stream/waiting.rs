//! Waiting for jobs, and a worker that stops.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use winddown::queue::{self, HandBack, Held, Leased, NewJob, Queue};
use winddown::{BoxError, Budget, Cx, Report, ShutdownCoordinator, signal};

use crate::bench::*;
use crate::within::within;

#[tokio::test]
async fn a_foreign_entry_wakes_whoever_waits_at_once() {
    let bench = bench().await;
    let mut took = Vec::new();
    for round in 0..20 {
        let waits = tokio::spawn({
            let queue = bench.queue.clone();
            async move {
                queue.ready().await;
                Instant::now()
            }
        });
        bench.is_waiting().await;
        let began = Instant::now();
        bench.add("\"a\"").await;
        took.push(within(LONG, waits).await.unwrap() - began);
        let claimed = bench.claim("one", 9).await;
        assert_eq!(claimed.len(), 1, "round {round}");
        assert_eq!(bench.queue.ack(&leases(&claimed)).await.unwrap(), [Held::Yours]);
    }
    took.sort();
    println!("woken after {:?} to {:?}, half of them within {:?}", took[0], took[19], took[10]);
    assert!(took[10] < ms(100), "{took:?}");
}

#[tokio::test]
async fn a_waiter_is_woken_when_a_delay_ends() {
    for delay in [300, 900] {
        let bench = bench().await;
        let began = Instant::now();
        bench.queue.enqueue(&NewJob::new(id("a"), "a".into()).delay(ms(delay))).await.unwrap();
        let claimed = within(LONG, async {
            loop {
                bench.queue.ready().await;
                let claimed = bench.claim("one", 9).await;
                if !claimed.is_empty() {
                    return claimed;
                }
            }
        })
        .await;
        let took = began.elapsed();
        // One that only looks by itself does so after 2 s.
        assert!(took >= ms(delay) && took < ms(delay + 1_000), "{took:?} for {delay} ms");
        assert_eq!(names(&claimed), ["a"]);
    }
}

#[tokio::test]
async fn a_lease_that_is_made_shorter_wakes_when_it_ends() {
    let bench = bench().await;
    bench.fill(2).await;
    let held = bench.claim("one", 2).await;
    let waits = tokio::spawn({
        let queue = bench.queue.clone();
        async move { queue.ready().await }
    });
    bench.is_waiting().await;
    let began = Instant::now();
    bench.queue.begin_drain(&owner("one"), Some(ms(400))).await.unwrap();
    within(LONG, waits).await.unwrap();
    let took = began.elapsed();
    assert!(took >= ms(400) && took < ms(1_400), "{took:?}");
    assert_eq!(bench.claim("two", 9).await.iter().map(|job| job.interruptions).collect::<Vec<_>>(), [1, 1]);
    let back = HandBack::interrupted(held[0].lease.clone());
    assert_eq!(bench.queue.requeue(&[back]).await.unwrap(), [Held::Lost]);
}

#[tokio::test]
async fn whatever_makes_a_job_free_sooner_wakes_whoever_waits_at_once() {
    for what in ["extend", "nack", "later", "retry", "drain"] {
        let bench = bench().await;
        bench.fill(3).await;
        let held = leases(&bench.claim("one", 2).await);
        assert_eq!(bench.queue.dead_letter(&held[1], "no").await.unwrap(), Held::Yours);
        if what == "drain" {
            lose_a_claim(&bench, "one", 1).await;
        } else {
            bench.claim("one", 1).await;
        }
        let waits = tokio::spawn({
            let queue = bench.queue.clone();
            async move {
                queue.ready().await;
                Instant::now()
            }
        });
        bench.is_waiting().await;
        let began = Instant::now();
        match what {
            "extend" => drop(bench.queue.extend(&held[..1], ms(100)).await.unwrap()),
            "nack" => drop(bench.queue.nack(&held[0], ms(0), "no").await.unwrap()),
            "later" => drop(bench.queue.nack(&held[0], ms(100), "no").await.unwrap()),
            "retry" => assert!(bench.queue.retry(&held[1].id).await.unwrap()),
            _ => bench.queue.begin_drain(&owner("one"), None).await.unwrap(),
        }
        // One that only looks by itself does so after 2 s.
        let took = within(LONG, waits).await.unwrap() - began;
        assert!(took < ms(1_200), "{took:?} after {what}");
        within(LONG, async {
            while bench.claim("two", 9).await.is_empty() {
                bench.queue.ready().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn what_waits_at_the_server_is_ended_there_and_an_entry_that_comes_then_is_nobodys() {
    let bench = bench().await;
    for round in 0..100 {
        tokio::select! {
            biased;
            () = bench.queue.ready() => panic!("nothing came"),
            () = bench.is_waiting() => {}
        }
        assert_eq!(bench.blocked_clients().await, 1);
        let began = Instant::now();
        let ((), added) = tokio::join!(bench.queue.stop_waiting(), async {
            if round % 2 == 0 { Some(bench.add("\"a\"").await) } else { None }
        });
        assert!(began.elapsed() < ms(1_000), "{:?}", began.elapsed());
        assert_eq!(bench.blocked_clients().await, 0, "round {round}");
        if let Some(added) = added {
            within(LONG, bench.queue.ready()).await;
            let claimed = bench.claim("one", 9).await;
            assert_eq!(names(&claimed), [&added]);
            assert_eq!(bench.queue.ack(&leases(&claimed)).await.unwrap(), [Held::Yours]);
            bench.queue.stop_waiting().await;
        }
    }
    let clients: String = bench.says("CLIENT LIST").await;
    assert_eq!(clients.lines().count(), 2, "the test's and the one for calls: {clients}");
}

#[tokio::test]
async fn who_stops_waiting_does_not_disturb_another_that_waits() {
    let bench = bench().await;
    let waits = tokio::spawn({
        let queue = bench.queue.clone();
        async move { queue.ready().await }
    });
    bench.is_waiting().await;
    bench.queue.stop_waiting().await;
    assert_eq!(bench.blocked_clients().await, 1);
    assert!(!waits.is_finished());
    bench.add("\"a\"").await;
    within(LONG, waits).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_is_cut_while_it_waits_is_opened_anew() {
    let bench = bench().await;
    let waits = tokio::spawn({
        let queue = bench.queue.clone();
        async move {
            // It may return where the server could not be asked.
            loop {
                queue.ready().await;
                let claimed = queue.claim(&owner("one"), 9, LEASE).await.unwrap_or_default();
                if !claimed.is_empty() {
                    return claimed;
                }
            }
        }
    });
    for _ in 0..3 {
        bench.is_waiting().await;
        bench.says::<i64>("CLIENT KILL TYPE NORMAL SKIPME yes").await;
    }
    bench.is_waiting().await;
    let added = bench.add("\"a\"").await;
    assert_eq!(names(&within(LONG, waits).await.unwrap()), [&added]);
}

// === a worker ===

/// Takes as long as the item says, in milliseconds, and notes the job when it begins.
struct Sleeps(watch::Sender<Vec<String>>);

impl queue::Handler<String> for Sleeps {
    type Error = BoxError;

    async fn handle(&self, job: &Leased<String>, _cx: &Cx) -> Result<(), BoxError> {
        self.0.send_modify(|ran| ran.push(job.lease.id.to_string()));
        // A sleep of nothing takes a tick of the timer.
        if job.item != "0" {
            tokio::time::sleep(ms(job.item.parse()?)).await;
        }
        Ok(())
    }
}

struct Running {
    handle: winddown::ShutdownHandle,
    run: tokio::task::JoinHandle<Report>,
    ran: watch::Receiver<Vec<String>>,
}

impl Running {
    async fn start(bench: &Bench, concurrency: usize) -> Running {
        let (tell, ran) = watch::channel(Vec::new());
        let budget = Budget::given(ms(20_000), "test").drain(ms(500));
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        shutdown.add(queue::work("jobs", open(&bench.redis).await, Sleeps(tell)).concurrency(concurrency));
        Running { handle: shutdown.handle(), run: tokio::spawn(shutdown.run()), ran }
    }

    async fn stop(self) -> Report {
        self.handle.trigger("test");
        within(LONG, self.run).await.unwrap()
    }

    async fn until_ran(&self, jobs: usize) {
        within(LONG, self.ran.clone().wait_for(|ran| ran.len() >= jobs)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stops_hands_back_in_order_and_another_goes_on() {
    let bench = bench().await;
    let one = Running::start(&bench, 3).await;
    let mut added = Vec::new();
    for item in ["0", "600000", "600000", "600000", "0", "0"] {
        added.push(bench.add(&format!("\"{item}\"")).await);
    }
    // The fourth begins only when the worker has heard that the first is acked; the server would say so before that.
    one.until_ran(4).await;
    let report = one.stop().await;
    let gate = report.gate("jobs").unwrap();
    assert_eq!((gate.finished, gate.handed_back, gate.lost), (0, 3, 0), "{report}");
    assert!(bench.consumers().await.is_empty(), "it is gone, and held nothing");
    let left = bench.claim("two", 9).await;
    assert_eq!(names(&left), added[1..]);
    let counted: Vec<_> = left.iter().map(|job| (job.interruptions, job.attempts, job.crashes)).collect();
    assert_eq!(counted, [(1, 0, 0), (1, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_worker_starts_a_job_at_once_and_asks_twice_a_second_at_most_and_its_wait_ends_with_it() {
    let bench = bench().await;
    let worker = Running::start(&bench, 4).await;
    let mut took = Vec::new();
    for n in 1..=20 {
        bench.is_waiting().await;
        let began = Instant::now();
        bench.add("\"0\"").await;
        worker.until_ran(n).await;
        took.push(began.elapsed());
    }
    took.sort();
    println!("ran after {:?} to {:?}, half of them within {:?}", took[0], took[19], took[10]);
    assert!(took[10] < ms(100), "{took:?}");
    bench.is_waiting().await;
    let (before, began) = (bench.requests().await, Instant::now());
    tokio::time::sleep(Duration::from_secs(6)).await;
    let (asked, seconds) = (bench.requests().await - before, began.elapsed().as_secs_f64());
    println!("{asked} requests in {seconds:.1} s");
    assert!(asked as f64 <= 2.0 * seconds, "{asked} in {seconds} s");
    assert!(asked >= 2, "somebody looks for what ends by itself");
    let began = Instant::now();
    let report = worker.stop().await;
    assert!(began.elapsed() < ms(1_500), "{:?}: {report}", began.elapsed());
    assert_eq!(bench.blocked_clients().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_added_at_the_very_moment_of_the_stop_is_done_or_pending() {
    let bench = bench().await;
    let (mut added, mut ran) = (0, 0);
    for round in 0..40_u64 {
        let worker = Running::start(&bench, 2).await;
        bench.is_waiting().await;
        let done = worker.ran.clone();
        let (report, ()) = tokio::join!(worker.stop(), async {
            tokio::time::sleep(Duration::from_micros(round * 50)).await;
            bench.add("\"0\"").await;
        });
        added += 1;
        ran += done.borrow().len();
        assert_eq!(report.gate("jobs").unwrap().lost, 0, "{report}");
    }
    let counts = bench.queue.counts().await.unwrap();
    println!("{ran} of {added} ran");
    assert_eq!((ran as u64 + counts.pending, counts.active, counts.crashes), (added, 0, 0));
    assert_eq!(bench.claim("rest", 99).await.len() as u64, counts.pending);
}
