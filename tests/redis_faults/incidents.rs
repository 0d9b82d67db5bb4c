//! Incidents that others had, on a real Redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use winddown::queue::redis::{List, Server};
use winddown::queue::{self, Held, Leased, NewJob, Owner, Queue};
use winddown::{BoxError, Budget, Cx, Report, ShutdownCoordinator, ShutdownHandle, signal};

use crate::crew::{Jobs, QUEUE, eventually, ms, waiting};
use crate::redis_server::Redis;

const LEASE: Duration = Duration::from_secs(15);

/// Sleeps for so long, and counts those that it has begun and ended.
struct Sleep {
    length: Duration,
    begun: Arc<AtomicUsize>,
}

impl queue::Handler<serde_json::Value> for Sleep {
    type Error = BoxError;

    async fn handle(&self, job: &Leased<serde_json::Value>, _: &Cx) -> Result<(), BoxError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        job.save("half-way");
        tokio::time::sleep(self.length).await;
        Ok(())
    }
}

struct Stage {
    redis: Redis,
    jobs: Jobs,
}

struct Working {
    handle: ShutdownHandle,
    run: tokio::task::JoinHandle<Report>,
    begun: Arc<AtomicUsize>,
}

impl Stage {
    async fn with(count: u64) -> Stage {
        let redis = Redis::start();
        let jobs: Jobs = List::open(Server::at(&redis.url()).unwrap(), QUEUE).await.unwrap();
        for n in 1..=count {
            jobs.enqueue(&NewJob::new(format!("job-{n}").parse().unwrap(), json!(n))).await.unwrap();
        }
        Stage { redis, jobs }
    }

    async fn work(&self, budget: Budget, length: Duration, concurrency: usize, running: usize) -> Working {
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        let begun = Arc::new(AtomicUsize::new(0));
        let sleep = Sleep { length, begun: Arc::clone(&begun) };
        // Another connection, as another process would have.
        let jobs: Jobs = List::open(Server::at(&self.redis.url()).unwrap(), QUEUE).await.unwrap();
        shutdown.add(queue::work("jobs", jobs, sleep).concurrency(concurrency).lease(LEASE));
        let handle = shutdown.handle();
        let run = tokio::spawn(shutdown.run());
        eventually("handlers run", async || begun.load(Ordering::SeqCst) >= running).await;
        Working { handle, run, begun }
    }

    /// All that can be claimed, in order.
    async fn claimable(&self) -> Vec<queue::Claimed<serde_json::Value>> {
        self.jobs.claim(&Owner::unique("test"), 100, LEASE).await.unwrap()
    }
}

fn grace(grace: Duration) -> Budget {
    Budget::given(grace, "test")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i13_the_backlog_is_not_pulled_after_the_stop() {
    let stage = Stage::with(10).await;
    let working = stage.work(grace(ms(60_000)), ms(600), 1, 1).await;
    working.handle.trigger("test");
    let report = working.run.await.unwrap();
    assert!(report.took() < ms(10_000), "about one job: {report}");
    assert_eq!(working.begun.load(Ordering::SeqCst), 1);
    let left = stage.claimable().await;
    let ids: Vec<&str> = left.iter().map(|job| job.lease.id.as_str()).collect();
    assert_eq!(ids, (2..=10).map(|n| format!("job-{n}")).collect::<Vec<_>>());
    assert!(left.iter().all(|job| (job.attempts, job.interruptions, job.crashes) == (0, 0, 0)));
}

/// The claim is at the server, which is paused, when the stop begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i14_what_a_claim_brings_after_the_stop_goes_back_untouched() {
    let stage = Stage::with(0).await;
    let working = stage.work(grace(ms(60_000)), ms(10), 4, 0).await;
    let mut look = stage.redis.connection().await;
    eventually("the worker waits", async || waiting(&mut look).await == 1).await;
    // Its claim waits at the server from when the delay is over.
    stage.jobs.enqueue(&NewJob::new("late".parse().unwrap(), json!(1)).delay(ms(1_000))).await.unwrap();
    let _: () = redis::cmd("CLIENT").arg("PAUSE").arg(3_000).arg("ALL").query_async(&mut look).await.unwrap();
    tokio::time::sleep(ms(1_500)).await;
    working.handle.trigger("test");
    let report = working.run.await.unwrap();
    assert!(report.is_clean(), "{report}");
    let left = stage.claimable().await;
    assert_eq!(left.len() + working.begun.load(Ordering::SeqCst), 1, "{report}");
    assert_eq!(working.begun.load(Ordering::SeqCst), 0, "nothing begins after the stop");
    assert_eq!((left[0].interruptions, left[0].crashes, left[0].attempts), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i16_and_i18_fifty_jobs_that_ignore_the_stop_are_back_before_the_budget_ends() {
    let stage = Stage::with(50).await;
    let working = stage.work(grace(ms(4_000)), ms(600_000), 50, 50).await;
    working.handle.trigger("test");
    let report = working.run.await.unwrap();
    assert!(report.took() < ms(4_000), "{report}");
    let gate = report.gate("jobs").unwrap();
    assert_eq!((gate.handed_back, gate.lost, gate.finished), (50, 0, 0), "{report}");
    let left = stage.claimable().await;
    let ids: Vec<&str> = left.iter().map(|job| job.lease.id.as_str()).collect();
    assert_eq!(ids, (1..=50).map(|n| format!("job-{n}")).collect::<Vec<_>>());
    assert!(left.iter().all(|job| (job.attempts, job.interruptions, job.crashes) == (0, 1, 0)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i17_interrupted_jobs_keep_attempts_payload_age_and_place() {
    let stage = Stage::with(0).await;
    for (name, priority) in [("low", 0), ("first", 5), ("second", 5), ("high", 9)] {
        let item = json!({ "name": format!("{name}\0\u{e9}"), "numbers": [1.5, -3, u64::MAX] });
        let job = NewJob::new(name.parse().unwrap(), item).priority(priority);
        stage.jobs.enqueue(&job).await.unwrap();
    }
    for _ in 0..2 {
        for job in stage.claimable().await {
            assert_eq!(stage.jobs.nack(&job.lease, Duration::ZERO, "tried").await.unwrap(), Held::Yours);
        }
    }
    let before = stage.claimable().await;
    let back: Vec<_> = before.iter().map(|job| queue::HandBack::untouched(job.lease.clone())).collect();
    assert!(stage.jobs.requeue(&back).await.unwrap().iter().all(|held| held.is_yours()));
    tokio::time::sleep(ms(50)).await;
    let working = stage.work(grace(ms(3_000)), ms(600_000), 4, 4).await;
    working.handle.trigger("test");
    working.run.await.unwrap();
    let after = stage.claimable().await;
    assert_eq!(after.len(), 4);
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(before.lease.id, after.lease.id);
        assert_eq!((&before.item, before.priority, before.order), (&after.item, after.priority, after.order));
        assert_eq!((after.attempts, after.interruptions, after.crashes), (2, 1, 0));
        assert_eq!(after.checkpoint.as_deref(), Some("half-way"));
        assert!(after.age >= before.age + ms(50) && after.lease.epoch > before.lease.epoch);
    }
    let names: Vec<&str> = after.iter().map(|job| job.lease.id.as_str()).collect();
    assert_eq!(names, ["high", "first", "second", "low"]);
}

/// Nobody can have what runs in a drain, however long a lease the drain outlasts; and all of it as soon as the stop is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i34_a_lease_is_given_up_when_the_drain_has_ended_and_not_before() {
    let stage = Stage::with(3).await;
    let budget = grace(ms(60_000)).drain(ms(1_500));
    let working = stage.work(budget, ms(600_000), 3, 3).await;
    working.handle.trigger("test");
    let mut looks = 0;
    while !working.run.is_finished() {
        let counts = stage.jobs.counts().await.unwrap();
        if counts.pending > 0 {
            break;
        }
        assert_eq!(counts.active, 3);
        looks += 1;
        tokio::time::sleep(ms(20)).await;
    }
    assert!(looks > 5, "they were given up at once");
    let report = working.run.await.unwrap();
    assert!(report.took() >= ms(1_500), "{report}");
    let left = stage.claimable().await;
    assert_eq!(left.len(), 3, "free at once, not when the lease of 15 s has ended");
    assert!(report.took() < LEASE, "{report}");
}
