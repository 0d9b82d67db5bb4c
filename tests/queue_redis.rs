//! What only the queue on a Redis list has.
#![cfg(all(feature = "redis", unix))]

#[path = "queue_redis/kept.rs"]
mod kept;
#[path = "queue_redis/places.rs"]
mod places;
#[path = "support/proxy.rs"]
#[allow(dead_code)]
mod proxy;
#[path = "support/redis.rs"]
#[allow(dead_code)]
mod redis_server;
#[path = "support/sentinel.rs"]
#[allow(dead_code)]
mod sentinel;
#[path = "queue_redis/servers.rs"]
mod servers;
#[path = "queue_redis/waiting.rs"]
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proxy::Proxy;
use redis::{Cmd, FromRedisValue};
use redis_server::Redis;
use tokio::time::{sleep, timeout};
use winddown::queue::redis::{List, OpenError, Server};
use winddown::queue::{
    self, Claimed, Enqueued, HandBack, Held, JobId, JobState, Lease, Leased, NewJob, Owner, Queue,
};
use winddown::{BoxError, Budget, Cx, ShutdownCoordinator, signal};

type Jobs = List<String>;

const LEASE: Duration = Duration::from_secs(30);
/// Far more than anything here takes on a slow machine.
const SOON: Duration = Duration::from_secs(20);

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn id(name: &str) -> JobId {
    name.parse().unwrap()
}

fn owner(name: &str) -> Owner {
    name.parse().unwrap()
}

fn job(name: &str) -> NewJob<String> {
    NewJob::new(id(name), format!("item {name}"))
}

fn numbered(range: std::ops::Range<usize>) -> Vec<NewJob<String>> {
    range.map(|number| job(&format!("job {number:05}"))).collect()
}

fn at(redis: &Redis) -> Server {
    Server::at(&redis.url()).unwrap()
}

async fn open(redis: &Redis, name: &str) -> Jobs {
    List::open(at(redis), name).await.unwrap()
}

async fn claim(jobs: &Jobs, who: &str, max: usize) -> Vec<Claimed<String>> {
    jobs.claim(&owner(who), max, LEASE).await.unwrap()
}

/// As a worker does that has nothing else to do.
async fn claim_next(jobs: &Jobs, who: &str) -> Claimed<String> {
    loop {
        timeout(SOON, jobs.ready()).await.unwrap();
        if let Some(job) = claim(jobs, who, 1).await.pop() {
            return job;
        }
    }
}

fn names(claimed: &[Claimed<String>]) -> Vec<&str> {
    claimed.iter().map(|job| job.lease.id.as_str()).collect()
}

fn leases(claimed: &[Claimed<String>]) -> Vec<Lease> {
    claimed.iter().map(|job| job.lease.clone()).collect()
}

fn why(error: &dyn std::error::Error) -> String {
    error.source().unwrap().to_string()
}

async fn run<T: FromRedisValue>(redis: &Redis, command: &[&str]) -> T {
    let mut connection = redis.connection().await;
    let mut sent = Cmd::new();
    sent.arg(command);
    sent.query_async(&mut connection).await.unwrap()
}

async fn keys(redis: &Redis) -> Vec<String> {
    let mut keys: Vec<String> = run(redis, &["KEYS", "*"]).await;
    keys.sort();
    keys
}

/// How often clients have called a command, and how many microseconds that has taken.
async fn calls(redis: &Redis, command: &str) -> (u64, u64) {
    let stats: String = run(redis, &["INFO", "commandstats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let number = |name: &str| {
        let parts = line.unwrap_or_default().split(',');
        parts.filter_map(|part| part.strip_prefix(name)).find_map(|number| number.parse().ok()).unwrap_or(0)
    };
    (number("calls="), number("usec="))
}

// === Opening ===

#[tokio::test]
async fn two_queues_on_one_server_do_not_disturb_each_other() {
    let redis = Redis::start();
    let server = at(&redis);
    let one: Jobs = List::open(server.clone(), "one").await.unwrap();
    let two: Jobs = List::open(server, "two").await.unwrap();
    one.enqueue(&job("a")).await.unwrap();
    assert!(claim(&two, "me", 9).await.is_empty());
    two.enqueue(&job("a")).await.unwrap();
    one.begin_drain(&owner("me"), Some(secs(1))).await.unwrap();
    one.pause().await.unwrap();
    let held = claim(&two, "me", 9).await;
    assert_eq!(one.ack(&leases(&held)).await.unwrap(), [Held::Lost]);
    assert_eq!(two.ack(&leases(&held)).await.unwrap(), [Held::Yours]);
    assert_eq!((one.counts().await.unwrap().pending, two.counts().await.unwrap().pending), (1, 0));
}

// === Enqueuing ===

#[tokio::test]
async fn what_is_enqueued_once_is_not_enqueued_again_when_it_is_done() {
    use Enqueued::{Added, Exists};
    let redis = Redis::start();
    let jobs = open(&redis, "once").await;
    assert_eq!(jobs.enqueue_once(&[job("a"), job("b")]).await.unwrap(), [Added, Added]);
    let held = claim(&jobs, "one", 1).await;
    assert_eq!(jobs.ack(&leases(&held)).await.unwrap(), [Held::Yours]);
    let again = [job("a"), job("b"), job("c")];
    assert_eq!(jobs.enqueue_once(&again).await.unwrap(), [Exists, Exists, Added]);
    assert_eq!(jobs.counts().await.unwrap().pending, 2);
    jobs.forget_once(&[id("a"), id("nobody")]).await.unwrap();
    assert_eq!(jobs.enqueue_once(&again).await.unwrap(), [Added, Exists, Exists]);
    // Its mark is older than a week.
    let held = claim(&jobs, "one", 9).await;
    let _ = jobs.ack(&leases(&held)).await.unwrap();
    let _: f64 = run(&redis, &["ZINCRBY", "{once}:once", "-604800001", "b"]).await;
    assert_eq!(jobs.enqueue_once(&again).await.unwrap(), [Exists, Added, Exists]);
}

#[tokio::test]
async fn a_job_says_where_it_stands() {
    let redis = Redis::start();
    let jobs = open(&redis, "find").await;
    let all = [job("a"), job("b"), job("c").delay(secs(60)), job("d")];
    jobs.enqueue_all(&all).await.unwrap();
    let held = claim(&jobs, "one", 2).await;
    let _ = jobs.dead_letter(&held[0].lease, "no").await.unwrap();
    let mut states = Vec::new();
    for job in &all {
        states.push(jobs.find(&job.id).await.unwrap().unwrap().state);
    }
    assert_eq!(states, [JobState::Dead, JobState::Active, JobState::Scheduled, JobState::Pending]);
    assert_eq!(jobs.find(&id("a")).await.unwrap().unwrap().attempts, 1);
    assert_eq!(jobs.find(&id("nobody")).await.unwrap(), None);
}

#[tokio::test]
async fn a_paused_queue_gives_nothing_away_until_it_is_resumed() {
    let redis = Redis::start();
    let (jobs, other) = (open(&redis, "paused").await, open(&redis, "paused").await);
    jobs.enqueue_all(&[job("a"), job("b")]).await.unwrap();
    let held = claim(&jobs, "one", 1).await;
    assert!(!jobs.is_paused().await.unwrap());
    other.pause().await.unwrap();
    assert!(jobs.is_paused().await.unwrap());
    let stepped = jobs.step(&leases(&held), &owner("one"), 9, LEASE).await.unwrap();
    assert_eq!((stepped.held, stepped.claimed.len()), (vec![Held::Yours], 0));
    // The first hint is from before; then it is long enough for a waiter to look for itself.
    timeout(SOON, jobs.ready()).await.unwrap();
    assert!(claim(&jobs, "one", 9).await.is_empty());
    assert!(timeout(secs(3), jobs.ready()).await.is_err());
    let (woken, resumed) = tokio::join!(timeout(SOON, jobs.ready()), other.resume());
    woken.unwrap();
    resumed.unwrap();
    assert_eq!(names(&claim(&jobs, "one", 9).await), ["b"]);
}

/// What the server spends on `count` jobs of ten priorities, all of them enqueued, claimed, handed back, claimed and acked.
async fn cost_of_priorities(count: usize) -> u64 {
    let redis = Redis::start();
    let jobs = open(&redis, "levels").await;
    let all: Vec<_> =
        numbered(0..count).into_iter().zip(0..).map(|(job, n)| job.priority(n % 10 - 4)).collect();
    jobs.enqueue_all(&all).await.unwrap();
    let mut last = (i32::MAX, 0);
    for round in 0..2 {
        let mut held = Vec::new();
        loop {
            let some = claim(&jobs, "one", 100).await;
            if some.is_empty() {
                break;
            }
            for job in &some {
                assert!(job.priority < last.0 || job.priority == last.0 && job.order > last.1);
                last = (job.priority, job.order);
            }
            held.extend(leases(&some));
        }
        assert_eq!(held.len(), count);
        last = (i32::MAX, 0);
        for some in held.chunks(100) {
            let settled = if round == 0 {
                let back: Vec<_> = some.iter().cloned().map(HandBack::interrupted).collect();
                jobs.requeue(&back).await.unwrap()
            } else {
                jobs.ack(some).await.unwrap()
            };
            assert!(settled.iter().all(|held| *held == Held::Yours));
        }
    }
    calls(&redis, "evalsha").await.1
}

#[tokio::test]
async fn ten_thousand_jobs_of_many_priorities_cost_ten_times_a_thousand() {
    let (few, many) = (cost_of_priorities(1_000).await, cost_of_priorities(10_000).await);
    // Quadratic would be a hundred times.
    assert!(many < few * 30, "{few} and {many} µs");
}

#[tokio::test]
async fn many_jobs_go_back_one_at_a_time_in_any_order_and_stand_as_before() {
    let redis = Redis::start();
    let jobs = open(&redis, "back").await;
    let all = numbered(0..4_000);
    jobs.enqueue_all(&all).await.unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.extend(claim(&jobs, "one", 1_000).await);
    }
    // Odd ones first, each on its own; then the others in one go.
    let (even, odd): (Vec<_>, Vec<_>) = held.into_iter().partition(|job| job.order % 2 == 0);
    for job in odd {
        assert_eq!(jobs.requeue(&[HandBack::untouched(job.lease)]).await.unwrap(), [Held::Yours]);
    }
    let even: Vec<_> = even.into_iter().map(|job| HandBack::untouched(job.lease)).collect();
    assert_eq!(jobs.requeue(&even).await.unwrap(), vec![Held::Yours; even.len()]);
    let mut again = Vec::new();
    for _ in 0..5 {
        again.extend(claim(&jobs, "two", 900).await);
    }
    assert_eq!(names(&again), all.iter().map(|job| job.id.as_str()).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_thousand_is_not_the_most_that_a_call_is_given() {
    let redis = Redis::start();
    let jobs = open(&redis, "many").await;
    assert_eq!(jobs.enqueue_all(&numbered(0..2_500)).await.unwrap(), vec![Enqueued::Added; 2_500]);
    let mut held = Vec::new();
    for many in [1_000, 1_000, 500] {
        let some = claim(&jobs, "one", 5_000).await;
        assert_eq!(some.len(), many);
        held.extend(leases(&some));
    }
    assert_eq!(jobs.extend(&held, LEASE).await.unwrap(), vec![Held::Yours; 2_500]);
    let back: Vec<_> = held[..1_200].iter().cloned().map(HandBack::interrupted).collect();
    assert_eq!(jobs.requeue(&back).await.unwrap(), vec![Held::Yours; 1_200]);
    let stepped = jobs.step(&held, &owner("one"), 1, LEASE).await.unwrap();
    assert_eq!(stepped.held[..1_200], vec![Held::Lost; 1_200]);
    assert_eq!(stepped.held[1_200..], vec![Held::Yours; 1_300]);
    assert_eq!(names(&stepped.claimed), ["job 00000"]);
}

// === Claims and leases ===

#[tokio::test]
async fn a_lease_made_shorter_for_some_is_not_for_the_others_of_its_claim() {
    let redis = Redis::start();
    let jobs = open(&redis, "some").await;
    jobs.enqueue_all(&[job("a"), job("b")]).await.unwrap();
    let held = leases(&claim(&jobs, "one", 2).await);
    assert_eq!(jobs.extend(&held[..1], Duration::ZERO).await.unwrap(), [Held::Yours]);
    assert!(claim(&jobs, "two", 9).await.is_empty());
    assert_eq!(jobs.extend(&held, Duration::ZERO).await.unwrap(), [Held::Yours, Held::Yours]);
    assert_eq!(names(&claim(&jobs, "two", 9).await), ["a", "b"]);
}

#[tokio::test]
async fn a_claim_without_a_lease_is_found_and_counts_a_crash() {
    let redis = Redis::start();
    let jobs = open(&redis, "lost").await;
    let free = [job("free"), job("urgent").priority(1), job("later").delay(LEASE)];
    jobs.enqueue_all(&[job("a"), job("b"), job("c")]).await.unwrap();
    claim(&jobs, "one", 1).await;
    claim(&jobs, "one", 2).await;
    jobs.enqueue(&job("dead")).await.unwrap();
    let dead = claim(&jobs, "one", 1).await;
    assert_eq!(jobs.dead_letter(&dead[0].lease, "no").await.unwrap(), Held::Yours);
    // It was told when the next lease ends, and looks for itself all the same.
    assert!(claim(&jobs, "two", 1).await.is_empty());
    jobs.enqueue_all(&free).await.unwrap();
    let _: i64 = run(&redis, &["DEL", "{lost}:leases"]).await;
    // One that is held, and is not to be taken for lost.
    assert_eq!(names(&claim(&jobs, "two", 1).await), ["urgent"]);
    let mut found = Vec::new();
    while found.len() < 4 {
        timeout(SOON, jobs.ready()).await.unwrap();
        found.extend(claim(&jobs, "two", 9).await);
    }
    found.sort_by(|one, other| one.lease.id.as_str().cmp(other.lease.id.as_str()));
    let found: Vec<_> = found.iter().map(|job| (job.lease.id.as_str(), job.crashes)).collect();
    assert_eq!(found, [("a", 1), ("b", 1), ("c", 1), ("free", 0)]);
}

#[tokio::test]
async fn epochs_grow_from_the_last_one_where_the_clock_has_gone_back() {
    let redis = Redis::start();
    let jobs = open(&redis, "ahead").await;
    jobs.enqueue_all(&numbered(0..12)).await.unwrap();
    for ahead in [8_000_000_000_000_000_u64, 8_000_000_000_000_011] {
        let () = run(&redis, &["SET", "{ahead}:epoch", &ahead.to_string()]).await;
        for (max, epoch) in [1, 2, 2, 1].into_iter().zip(ahead + 1..) {
            let held = leases(&claim(&jobs, "one", max).await);
            assert!(held.iter().all(|lease| lease.epoch == epoch), "{held:?}, not {epoch}");
            assert_eq!(jobs.extend(&held, LEASE).await.unwrap(), vec![Held::Yours; max]);
            assert_eq!(jobs.ack(&held).await.unwrap(), vec![Held::Yours; max]);
            assert_eq!(jobs.ack(&held).await.unwrap(), vec![Held::Gone; max]);
        }
    }
}

#[tokio::test]
async fn a_job_named_twice_is_acked_once_and_the_others_of_its_claim_are_still_held() {
    let redis = Redis::start();
    let jobs = open(&redis, "twice").await;
    jobs.enqueue_all(&numbered(0..3)).await.unwrap();
    let single = leases(&claim(&jobs, "one", 1).await);
    let held = leases(&claim(&jobs, "one", 2).await);
    let twice = [held[0].clone(), held[0].clone()];
    assert_eq!(jobs.ack(&twice).await.unwrap(), [Held::Yours, Held::Yours]);
    let twice = [single[0].clone(), single[0].clone()];
    assert_eq!(jobs.extend(&twice, LEASE).await.unwrap(), [Held::Yours, Held::Yours]);
    assert!(jobs.ack(&twice).await.unwrap().contains(&Held::Yours));
    assert_eq!(jobs.counts().await.unwrap().active, 1);
    assert_eq!(jobs.extend(&held, LEASE).await.unwrap(), [Held::Gone, Held::Yours]);
    assert_eq!(jobs.ack(&held[1..]).await.unwrap(), [Held::Yours]);
    let left = ["{twice}:epoch", "{twice}:layout", "{twice}:state", "{twice}:wake"];
    assert_eq!(keys(&redis).await, left);
}

#[tokio::test]
async fn what_a_claim_has_brought_whose_answer_was_lost_is_claimed_again_untouched() {
    let redis = Redis::start();
    let line = Proxy::to(&redis.socket()).await;
    let jobs: Jobs = List::open(Server::at(&line.url()).unwrap(), "lost").await.unwrap();
    jobs.enqueue_all(&numbered(0..5)).await.unwrap();
    let other = claim(&jobs, "other", 1).await;
    line.lose_the_next_answer();
    jobs.claim(&owner("one"), 3, LEASE).await.unwrap_err();
    assert_eq!(jobs.counts().await.unwrap().active, 4);
    // Another owner does not get what is not its own.
    let next = claim(&jobs, "other", 1).await;
    assert_eq!(names(&next), ["job 00004"]);
    let mine = claim(&jobs, "one", 9).await;
    assert_eq!(names(&mine), ["job 00001", "job 00002", "job 00003"]);
    assert!(mine.iter().all(|job| (job.attempts, job.interruptions, job.crashes) == (0, 0, 0)));
    assert!(claim(&jobs, "one", 9).await.is_empty());
    let all = [leases(&mine), leases(&other), leases(&next)].concat();
    assert_eq!(jobs.ack(&all).await.unwrap(), vec![Held::Yours; 5]);
}

#[tokio::test]
async fn what_such_a_claim_has_brought_is_free_at_once_when_its_owner_ends() {
    let redis = Redis::start();
    let line = Proxy::to(&redis.socket()).await;
    let jobs: Jobs = List::open(Server::at(&line.url()).unwrap(), "lost").await.unwrap();
    // Else the answer that is lost would be that the server does not know the script.
    assert!(claim(&jobs, "two", 1).await.is_empty());
    jobs.enqueue(&job("a")).await.unwrap();
    line.lose_the_next_answer();
    jobs.claim(&owner("one"), 3, LEASE).await.unwrap_err();
    assert_eq!(jobs.counts().await.unwrap().active, 1);
    jobs.begin_drain(&owner("one"), Some(secs(60))).await.unwrap();
    assert_eq!(
        keys(&redis).await.iter().filter(|key| key.contains("}:h:") || key.ends_with("leases")).count(),
        0
    );
    let claimed = claim(&jobs, "two", 9).await;
    assert_eq!((names(&claimed), claimed[0].interruptions), (vec!["a"], 0));
}

#[tokio::test]
async fn an_owner_that_ends_and_begins_again_keeps_what_it_holds_when_an_answer_is_lost() {
    let redis = Redis::start();
    let line = Proxy::to(&redis.socket()).await;
    let jobs: Jobs = List::open(Server::at(&line.url()).unwrap(), "lost").await.unwrap();
    jobs.enqueue_all(&numbered(0..2)).await.unwrap();
    let held = claim(&jobs, "one", 1).await;
    jobs.begin_drain(&owner("one"), None).await.unwrap();
    jobs.end_drain(&owner("one")).await.unwrap();
    line.lose_the_next_answer();
    jobs.claim(&owner("one"), 1, LEASE).await.unwrap_err();
    assert_eq!(names(&claim(&jobs, "one", 9).await), ["job 00001"]);
    assert_eq!(jobs.ack(&leases(&held)).await.unwrap(), [Held::Yours]);
}

#[tokio::test]
async fn a_call_whose_answer_was_lost_may_be_repeated() {
    let redis = Redis::start();
    let line = Proxy::to(&redis.socket()).await;
    let jobs: Jobs = List::open(Server::at(&line.url()).unwrap(), "lost").await.unwrap();
    // Else the answer that is lost would be that the server does not know the script.
    jobs.enqueue(&job("first")).await.unwrap();
    let first = claim(&jobs, "one", 1).await.remove(0).lease;
    let _ = jobs.requeue(&[HandBack::untouched(first)]).await.unwrap();
    let _ = jobs.ack(&leases(&claim(&jobs, "one", 1).await)).await.unwrap();
    line.lose_the_next_answer();
    jobs.enqueue(&job("a")).await.unwrap_err();
    assert_eq!(jobs.enqueue(&job("a")).await.unwrap(), Enqueued::Exists);
    let held = claim(&jobs, "one", 1).await.remove(0).lease;
    let back = [HandBack::interrupted(held.clone())];
    line.lose_the_next_answer();
    jobs.requeue(&back).await.unwrap_err();
    assert_eq!(jobs.requeue(&back).await.unwrap(), [Held::Already]);
    let held = claim(&jobs, "one", 1).await.remove(0);
    assert_eq!(held.interruptions, 1);
    line.lose_the_next_answer();
    jobs.ack(std::slice::from_ref(&held.lease)).await.unwrap_err();
    assert_eq!(jobs.ack(&[held.lease]).await.unwrap(), [Held::Gone]);
    assert_eq!(jobs.counts().await.unwrap().interruptions, 1);
}

// === What happens to the server ===

#[tokio::test]
async fn scripts_that_the_server_forgot_are_sent_again() {
    let redis = Redis::start();
    let jobs = open(&redis, "flushed").await;
    for round in 0..3 {
        let () = run(&redis, &["SCRIPT", "FLUSH"]).await;
        jobs.enqueue(&job("a")).await.unwrap();
        let () = run(&redis, &["SCRIPT", "FLUSH"]).await;
        let held = claim(&jobs, "one", 1).await;
        let () = run(&redis, &["SCRIPT", "FLUSH"]).await;
        assert_eq!(jobs.ack(&leases(&held)).await.unwrap(), [Held::Yours], "{round}");
    }
}

#[tokio::test]
async fn a_server_that_starts_again_is_found_again_with_what_it_kept() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let jobs = open(&redis, "kept").await;
    jobs.enqueue_all(&[job("a"), job("b")]).await.unwrap();
    let held = claim(&jobs, "one", 1).await;
    redis.kill();
    jobs.ack(&leases(&held)).await.unwrap_err();
    redis.start_again();
    let began = Instant::now();
    // It may still be loading.
    let acked = loop {
        match jobs.ack(&leases(&held)).await {
            Ok(acked) => break acked,
            Err(error) => assert!(began.elapsed() < SOON, "{error:?}"),
        }
        sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(acked, [Held::Yours]);
    assert_eq!(names(&claim(&jobs, "one", 9).await), ["b"]);
}

#[tokio::test]
async fn a_full_server_takes_no_new_job_and_lets_those_that_it_has_be_done() {
    let redis = Redis::start();
    let jobs = open(&redis, "full").await;
    jobs.enqueue_all(&numbered(0..20)).await.unwrap();
    let () = run(&redis, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let full = jobs.enqueue(&job("one more")).await.unwrap_err();
    let why = std::error::Error::source(&full).unwrap().to_string();
    assert!(why.contains("OOM"), "{why}");
    let held = claim(&jobs, "one", 10).await;
    assert_eq!(held.len(), 10);
    assert_eq!(jobs.extend(&leases(&held), LEASE).await.unwrap(), vec![Held::Yours; 10]);
    let back: Vec<_> = leases(&held[..5]).into_iter().map(HandBack::interrupted).collect();
    assert_eq!(jobs.requeue(&back).await.unwrap(), vec![Held::Yours; 5]);
    assert_eq!(jobs.nack(&held[5].lease, secs(60), "no").await.unwrap(), Held::Yours);
    assert_eq!(jobs.dead_letter(&held[6].lease, "no").await.unwrap(), Held::Yours);
    jobs.begin_drain(&owner("one"), Some(secs(60))).await.unwrap();
    assert_eq!(jobs.ack(&leases(&held[7..])).await.unwrap(), vec![Held::Yours; 3]);
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.pending, counts.scheduled, counts.dead, counts.active), (15, 1, 1, 0));
}

#[tokio::test]
async fn after_many_jobs_nothing_is_left_but_what_is_counted() {
    let redis = Redis::start();
    let jobs = open(&redis, "clean").await;
    let me = owner("one");
    for round in 0..5 {
        let all = numbered(0..1_000).into_iter().zip(0..);
        let all: Vec<_> = all.map(|(job, n)| job.priority(i32::from(n % 3 == 0))).collect();
        jobs.enqueue_all(&all).await.unwrap();
        let mut done = Vec::new();
        loop {
            let stepped = jobs.step(&done, &me, 100, LEASE).await.unwrap();
            let (back, rest): (Vec<_>, Vec<_>) =
                stepped.claimed.into_iter().partition(|job| job.interruptions == 0 && job.order % 7 == 0);
            if back.is_empty() && rest.is_empty() {
                break;
            }
            let back: Vec<_> =
                back.into_iter().map(|job| HandBack::interrupted(job.lease).checkpoint("half")).collect();
            let _ = jobs.requeue(&back).await.unwrap();
            done = leases(&rest);
        }
        jobs.begin_drain(&me, Some(secs(1))).await.unwrap();
        jobs.end_drain(&me).await.unwrap();
        let left = ["{clean}:epoch", "{clean}:layout", "{clean}:state", "{clean}:wake"];
        assert_eq!(keys(&redis).await, left, "{round}");
    }
}

// === Waiting ===

#[tokio::test]
async fn a_job_that_cannot_be_read_is_a_dead_letter_with_the_reason_and_the_others_are_done() {
    let redis = Redis::start();
    let jobs = open(&redis, "bad").await;
    jobs.enqueue_all(&numbered(0..7)).await.unwrap();
    for (name, value) in [
        ("job 00001", "2 1700000000000 0 {\"not\": \"a text\"}"),
        ("job 00002", "3 1700000000000 0 \"half"),
        ("job 00003", "nothing of ours"),
        ("job 00004", ""),
    ] {
        let _: i64 = run(&redis, &["HSET", "{bad}:jobs", name, value]).await;
    }
    let _: i64 = run(&redis, &["RPUSH", "{bad}:pending", "nobody", "winddown:no name"]).await;
    let _: i64 = run(&redis, &["HSET", "{bad}:meta", "job 00005", "what is this"]).await;

    let claimed = claim(&jobs, "one", 99).await;
    assert_eq!(names(&claimed), ["job 00000", "job 00006"]);
    assert_eq!(jobs.ack(&leases(&claimed)).await.unwrap(), [Held::Yours, Held::Yours]);
    let dead = jobs.dead_letters(99).await.unwrap();
    let why = |name: &str| {
        let letter = dead.iter().find(|letter| letter.id.as_str() == name);
        letter.unwrap_or_else(|| panic!("{name} is dead: {dead:?}")).reason.clone()
    };
    assert!(why("job 00001").starts_with("corrupt job: payload: invalid type: map"), "{dead:?}");
    assert!(why("job 00002").starts_with("corrupt job: payload: EOF while parsing"), "{dead:?}");
    assert_eq!(why("job 00003"), "corrupt job: its payload does not begin with order, time and priority");
    assert_eq!(why("job 00004"), "corrupt job: its payload does not begin with order, time and priority");
    assert_eq!(why("job 00005"), "corrupt job: what it went through cannot be read");
    assert_eq!(why("nobody"), "corrupt job: it is listed, and has no payload");
    assert_eq!(why("(unreadable)"), "corrupt job: its name is none");
    assert_eq!(dead.len(), 7);
    assert!(dead.iter().all(|letter| letter.attempts == 0));
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.pending, counts.active, counts.dead), (0, 0, 7));
    assert!(claim(&jobs, "one", 99).await.is_empty());
    // One that can be read after all is done when it is retried.
    let _: i64 = run(&redis, &["HSET", "{bad}:jobs", "job 00001", "2 1700000000000 0 \"mended\""]).await;
    assert!(jobs.retry(&id("job 00001")).await.unwrap());
    assert_eq!(claim(&jobs, "one", 99).await[0].item, "mended");
}

#[tokio::test]
async fn whatever_a_job_is_named_that_is_listed_by_hand_it_is_set_aside() {
    let redis = Redis::start();
    let jobs = open(&redis, "odd").await;
    let names: [&[u8]; 4] = [b"two\nlines", b"\xff\xfe", b" ", b"1 2 3 4\n5 6 0 \"x\""];
    let mut connection = redis.connection().await;
    for name in names {
        let mut add = redis::pipe();
        add.cmd("HSET").arg("{odd}:jobs").arg(name).arg("1 2 0 \"item\"").ignore();
        add.cmd("RPUSH").arg("{odd}:pending").arg(name).ignore();
        let () = add.query_async(&mut connection).await.unwrap();
    }
    jobs.enqueue(&job("good")).await.unwrap();
    let mut claimed = Vec::new();
    for _ in 0..=names.len() {
        claimed.extend(claim(&jobs, "one", 1).await);
    }
    assert_eq!(claimed.iter().map(|job| job.lease.id.as_str()).collect::<Vec<_>>(), [" ", "good"]);
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.pending, counts.active, counts.dead), (0, 2, 3));
}

#[tokio::test]
async fn a_key_that_becomes_somebody_elses_is_an_error_and_no_panic() {
    let redis = Redis::start();
    let jobs = open(&redis, "foreign").await;
    jobs.enqueue(&job("a")).await.unwrap();
    let () = run(&redis, &["SET", "{foreign}:pending", "mine"]).await;
    let error = jobs.claim(&owner("one"), 1, LEASE).await.unwrap_err();
    assert_eq!(error.to_string(), "could not claim jobs");
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("WRONGTYPE"), "{why}");
    assert!(jobs.counts().await.is_err());
}

// === The worker ===

/// Counts what it has done; one job has no end.
struct Counts(Arc<AtomicUsize>);

impl queue::Handler<String> for Counts {
    type Error = BoxError;

    async fn handle(&self, job: &Leased<String>, _: &Cx) -> Result<(), BoxError> {
        if job.item == "item slow" {
            std::future::pending::<()>().await;
        }
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test]
async fn a_worker_does_all_jobs_and_hands_back_what_a_stop_interrupts() {
    let redis = Redis::start();
    let jobs = open(&redis, "work").await;
    let done = Arc::new(AtomicUsize::new(0));
    let budget = Budget::given(secs(60), "test").drain(Duration::from_millis(200));
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    shutdown.add(queue::work("work", jobs.clone(), Counts(Arc::clone(&done))).concurrency(16));
    let handle = shutdown.handle();
    let run = tokio::spawn(shutdown.run());
    jobs.enqueue_all(&numbered(0..500)).await.unwrap();
    jobs.enqueue(&job("slow")).await.unwrap();
    let began = Instant::now();
    while done.load(Ordering::SeqCst) < 500 || jobs.counts().await.unwrap().active != 1 {
        assert!(began.elapsed() < SOON, "{} done", done.load(Ordering::SeqCst));
        sleep(Duration::from_millis(5)).await;
    }
    handle.trigger("test");
    let report = run.await.unwrap();
    assert!(!report.to_string().is_empty());
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.pending, counts.active, counts.interruptions), (1, 0, 1));
    let again = claim(&jobs, "next", 9).await;
    assert_eq!((names(&again), again[0].attempts, again[0].interruptions), (vec!["slow"], 0, 1));
}
