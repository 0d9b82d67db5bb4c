//! Lines that are slow, answers that never come, and whoever stops in the middle of that.

use std::future::pending;
use std::process::Command;
use std::time::Duration;

use redis::{Cmd, FromRedisValue};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use winddown::queue::redis::{List, Server, Stream};
use winddown::queue::{self, Held, JobState, Leased, NewJob, Queue};
use winddown::{Budget, Cx, Report, ShutdownCoordinator, ShutdownHandle, signal};

use crate::proxy::Proxy;
use crate::server::Redis;
use crate::{Jobs, SOON, id};

const LEASE: Duration = Duration::from_secs(600);

async fn run<T: FromRedisValue>(redis: &Redis, command: &[&str]) -> T {
    let mut all = Cmd::new();
    for part in command {
        all.arg(*part);
    }
    all.query_async(&mut redis.connection().await).await.unwrap()
}

async fn until(what: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !what().await {
        assert!(began.elapsed() < SOON);
        sleep(Duration::from_millis(5)).await;
    }
}

async fn never(_: &Leased<String>, _: &Cx) -> Result<(), std::io::Error> {
    pending().await
}

/// A worker whose first claim of a job was done and never answered, and who has found the line dead since.
async fn trapped(redis: &Redis) -> (Jobs, Proxy, ShutdownHandle, JoinHandle<Report>) {
    let trap = Proxy::to(&redis.socket()).await;
    trap.lose_the_answer_and_close("item a");
    let there: Jobs = List::open(Server::at(&trap.url()).unwrap(), "trap").await.unwrap();
    let here: Jobs = List::open(Server::at(&redis.url()).unwrap(), "trap").await.unwrap();
    let budget = Budget::given(Duration::from_secs(60), "test");
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    shutdown.add(queue::work("trap", there, never).lease(LEASE));
    let handle = shutdown.handle();
    let run = tokio::spawn(shutdown.run());
    here.enqueue(&NewJob::new(id("a"), "item a".into())).await.unwrap();
    until(async || trap.refused() > 0).await;
    assert_eq!(here.counts().await.unwrap().active, 1);
    (here, trap, handle, run)
}

#[tokio::test]
async fn what_a_claim_without_an_answer_has_brought_is_free_at_once_when_its_worker_stops() {
    let redis = Redis::start();
    let (here, trap, handle, run) = trapped(&redis).await;
    // In one step: the worker does not come to claim again.
    trap.open();
    handle.trigger("test");
    assert_eq!(run.await.unwrap().code(), 0);
    let again = here.claim(&"two".parse().unwrap(), 9, LEASE).await.unwrap();
    let told: Vec<_> =
        again.iter().map(|job| (job.lease.id.as_str(), job.interruptions, job.crashes)).collect();
    assert_eq!(told, [("a", 0, 0)]);
    // That claim may not even have reached the server yet; when it does, nobody is there any more.
    assert_eq!(crate::line::run::<u64>(&redis, &["HLEN", "{trap}:ending"]).await, 1);
}

#[tokio::test]
async fn the_same_is_so_where_the_line_comes_back_after_the_stop_has_begun() {
    let redis = Redis::start();
    let (here, trap, handle, run) = trapped(&redis).await;
    let refused = trap.refused();
    handle.trigger("test");
    until(async || trap.refused() > refused).await;
    trap.open();
    assert_eq!(run.await.unwrap().code(), 0);
    assert_eq!(here.claim(&"two".parse().unwrap(), 9, LEASE).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_line_that_stays_dead_does_not_keep_a_worker_that_holds_nothing_from_stopping() {
    let redis = Redis::start();
    let (_, _trap, handle, run) = trapped(&redis).await;
    let began = Instant::now();
    handle.trigger("test");
    assert_eq!(run.await.unwrap().code(), 0);
    // It is given 60 s.
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_jobs_that_cannot_be_read_take_one_way_there_and_back_to_set_aside_and_not_one_each() {
    const MISFITS: usize = 300;
    let redis = Redis::start();
    let direct = Server::at(&redis.url()).unwrap();
    let line = Proxy::to(&redis.socket()).await;
    let slow = Server::at(&line.url()).unwrap();
    let misfits: Vec<_> = (0..MISFITS).map(|n| NewJob::new(id(&format!("misfit {n}")), n as u64)).collect();
    let good = NewJob::new(id("good"), "good".to_owned());

    List::<u64>::open(direct.clone(), "list").await.unwrap().enqueue_all(&misfits).await.unwrap();
    List::<String>::open(direct.clone(), "list").await.unwrap().enqueue(&good).await.unwrap();
    let list = List::<String>::open(slow.clone(), "list").await.unwrap();
    let stream = Stream::<u64>::open(direct.clone(), "stream", "group").await.unwrap();
    for misfit in &misfits {
        stream.enqueue(misfit).await.unwrap();
    }
    Stream::<String>::open(direct, "stream", "group").await.unwrap().enqueue(&good).await.unwrap();
    let stream = Stream::<String>::open(slow, "stream", "group").await.unwrap();

    line.delay(Duration::from_millis(50));
    sets_aside(&list, MISFITS).await;
    sets_aside(&stream, MISFITS).await;
}

async fn sets_aside(jobs: &impl Queue<Item = String>, misfits: usize) {
    let began = Instant::now();
    let claimed = jobs.claim(&"one".parse().unwrap(), 1000, LEASE).await.unwrap();
    // One by one it would be 30 s.
    assert!(began.elapsed() < Duration::from_secs(12), "{:?}", began.elapsed());
    assert_eq!(claimed.iter().map(|job| job.item.as_str()).collect::<Vec<_>>(), ["good"]);
    assert_eq!(jobs.counts().await.unwrap().dead, misfits as u64);
    assert_eq!(jobs.ack(&[claimed[0].lease.clone()]).await.unwrap(), [Held::Yours]);
}

fn signal(redis: &Redis, name: &str) {
    let sent = Command::new("kill").arg(name).arg(redis.pid().to_string()).status().unwrap();
    assert!(sent.success());
}

#[tokio::test]
async fn a_stop_that_is_given_up_half_way_does_not_deafen_another_worker_of_the_process() {
    let redis = Redis::start();
    let jobs: Jobs = List::open(Server::at(&redis.url()).unwrap(), "two").await.unwrap();
    let other: Jobs = List::open(Server::at(&redis.url()).unwrap(), "two").await.unwrap();
    let blocked = async || run::<String>(&redis, &["INFO", "clients"]).await.contains("blocked_clients:1");
    let waiting = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.ready().await }
    });
    until(blocked).await;
    waiting.abort();
    let _ = waiting.await;
    signal(&redis, "-STOP");
    timeout(Duration::from_millis(50), jobs.stop_waiting()).await.unwrap_err();
    signal(&redis, "-CONT");
    // Until what it waited with has ended by itself.
    until(async || !blocked().await).await;
    let waiting = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.ready().await }
    });
    until(blocked).await;
    other.enqueue(&NewJob::new(id("a"), "a".into())).await.unwrap();
    timeout(SOON, waiting).await.expect("nobody has heard of the job").unwrap();
}

#[tokio::test]
async fn names_that_are_to_be_forgotten_are_forgotten_some_at_a_time() {
    let redis = Redis::start();
    let jobs: Jobs = List::open(Server::at(&redis.url()).unwrap(), "names").await.unwrap();
    let many = "for i = 1, 10000 do redis.call('ZADD', '{names}:once', i, i) end";
    let () = run(&redis, &["EVAL", many, "0"]).await;
    let mut left = Vec::new();
    for number in 0..6 {
        jobs.enqueue_once(&[NewJob::new(id(&format!("job {number}")), String::new())]).await.unwrap();
        left.push(run::<usize>(&redis, &["ZCARD", "{names}:once"]).await);
    }
    // A script that forgets them all at once holds up everybody, and there may be millions.
    assert!(left[0] > 7000, "{left:?}");
    assert_eq!(left[5], 6, "{left:?}");
}

/// Else the server would be held up by one claim for seconds, its answer come too late, and the next claim be no better.
#[tokio::test]
async fn of_large_jobs_fewer_are_claimed_and_reclaimed_at_once_and_all_in_the_end() {
    const LARGE: usize = 399_900;
    let redis = Redis::start();
    let jobs: Jobs = List::open(Server::at(&redis.url()).unwrap(), "large").await.unwrap();
    let all: Vec<_> = (0..60).map(|n| NewJob::new(id(&format!("job {n:02}")), "x".repeat(LARGE))).collect();
    for some in all.chunks(10) {
        jobs.enqueue_all(some).await.unwrap();
    }
    let owner = "one".parse().unwrap();
    let claims = async |most: usize| {
        let mut claims = Vec::new();
        while claims.iter().map(Vec::len).sum::<usize>() < 60 {
            let claimed = jobs.claim(&owner, most, LEASE).await.unwrap();
            assert!(!claimed.is_empty(), "{:?}", jobs.counts().await);
            claims.push(claimed);
        }
        claims
    };
    let first = claims(1000).await;
    assert_eq!(first.iter().map(Vec::len).collect::<Vec<_>>(), [20, 20, 20]);
    let names: Vec<_> = first.iter().flatten().map(|job| job.lease.id.to_string()).collect();
    assert_eq!(names, (0..60).map(|n| format!("job {n:02}")).collect::<Vec<_>>());
    for token in run::<Vec<String>>(&redis, &["ZRANGE", "{large}:leases", "0", "-1"]).await {
        let _: i64 = run(&redis, &["ZADD", "{large}:leases", "1", &token]).await;
    }
    // One claim of those that ran out at a time.
    jobs.claim(&owner, 1, LEASE).await.unwrap();
    assert_eq!(jobs.counts().await.unwrap().crashes, 20);
    jobs.enqueue(&NewJob::new(id("more"), "x".into())).await.unwrap();
    assert_eq!(claims(1000).await.iter().flatten().filter(|job| job.crashes == 1).count(), 59);
}

#[tokio::test]
async fn to_count_large_jobs_reads_few_of_them() {
    let redis = Redis::start();
    let jobs: Jobs = List::open(Server::at(&redis.url()).unwrap(), "large").await.unwrap();
    let all: Vec<_> =
        (0..100).map(|n| NewJob::new(id(&format!("job {n}")), "x".repeat(50_000)).delay(LEASE)).collect();
    for some in all.chunks(10) {
        jobs.enqueue_all(some).await.unwrap();
    }
    let () = run(&redis, &["CONFIG", "RESETSTAT"]).await;
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.scheduled, counts.oldest.is_some()), (100, true));
    let stats = run::<String>(&redis, &["INFO", "commandstats"]).await;
    let reads = stats.lines().find(|line| line.starts_with("cmdstat_hmget:calls=3,"));
    assert!(reads.is_some(), "two of them, ten jobs each, and one for the totals: {stats}");
}

/// To look into every claim would hold up a server with very many of them.
#[tokio::test]
async fn to_find_a_job_looks_into_no_claim() {
    let redis = Redis::start();
    let jobs: Jobs = List::open(Server::at(&redis.url()).unwrap(), "find").await.unwrap();
    let all: Vec<_> = (0..300).map(|n| NewJob::new(id(&format!("job {n}")), String::new())).collect();
    jobs.enqueue_all(&all).await.unwrap();
    for _ in 0..50 {
        assert_eq!(jobs.claim(&"one".parse().unwrap(), 1, LEASE).await.unwrap().len(), 1);
    }
    let () = run(&redis, &["CONFIG", "RESETSTAT"]).await;
    for (number, state) in
        [(0, JobState::Active), (49, JobState::Active), (50, JobState::Pending), (299, JobState::Pending)]
    {
        let found = jobs.find(&id(&format!("job {number}"))).await.unwrap().unwrap();
        assert_eq!(found.state, state, "{number}");
    }
    let stats = run::<String>(&redis, &["INFO", "commandstats"]).await;
    assert!(!stats.contains("cmdstat_sismember"), "{stats}");
}

#[tokio::test]
async fn a_server_that_becomes_full_in_the_middle_of_a_call_does_the_whole_call() {
    let redis = Redis::start();
    let jobs: Jobs = List::open(Server::at(&redis.url()).unwrap(), "full").await.unwrap();
    jobs.enqueue(&NewJob::new(id("first"), String::new())).await.unwrap();
    let used = run::<String>(&redis, &["INFO", "memory"]).await;
    let used = used.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
    let most = used.parse::<u64>().unwrap() + 20_000_000;
    let many = |round: usize| -> Vec<_> {
        (0..1000).map(|n| NewJob::new(id(&format!("job {round} {n}")), "x".repeat(5000))).collect()
    };
    let () = run(&redis, &["CONFIG", "SET", "maxmemory", &most.to_string()]).await;
    // One that the server has begun it ends, and one that it has no room for is refused as a whole.
    let mut added = 0;
    for round in 0..10 {
        added += jobs.enqueue_all(&many(round)).await.map_or(0, |added| added.len() as u64);
        assert_eq!(jobs.counts().await.unwrap().pending, 1 + added);
    }
    assert!((1000..9000).contains(&added), "{added}");
    let claimed = jobs.claim(&"one".parse().unwrap(), 100, LEASE).await.unwrap();
    assert_eq!(claimed.len() as u64, 100.min(1 + added));
}

#[tokio::test]
async fn the_longest_times_and_the_longest_names_are_no_error() {
    let redis = Redis::start();
    let jobs: Jobs = List::open(Server::at(&redis.url()).unwrap(), "long").await.unwrap();
    let (long, me) = (id(&"é".repeat(127)), "ü".repeat(127).parse().unwrap());
    jobs.enqueue(&NewJob::new(long.clone(), String::new())).await.unwrap();
    jobs.enqueue(&NewJob::new(id("late"), String::new()).delay(Duration::MAX)).await.unwrap();
    let claimed = jobs.claim(&me, usize::MAX, Duration::MAX).await.unwrap();
    assert_eq!((claimed.len(), &claimed[0].lease.id), (1, &long));
    let lease = claimed[0].lease.clone();
    assert_eq!(jobs.extend(std::slice::from_ref(&lease), Duration::MAX).await.unwrap(), [Held::Yours]);
    jobs.begin_drain(&me, Some(Duration::MAX)).await.unwrap();
    // A new mark is told to all who wait.
    timeout(SOON, jobs.ready()).await.unwrap();
    assert!(jobs.claim(&"other".parse().unwrap(), 9, LEASE).await.unwrap().is_empty());
    timeout(Duration::from_millis(100), jobs.ready()).await.unwrap_err();
    assert_eq!(jobs.nack(&lease, Duration::MAX, &"no".repeat(100_000)).await.unwrap(), Held::Yours);
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.scheduled, counts.active), (2, 0));
}

#[test]
fn a_queue_outlives_the_runtime_that_it_was_opened_on() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = Redis::start();
    let jobs = runtime().block_on(async {
        let jobs: Jobs = List::open(Server::at(&redis.url()).unwrap(), "moved").await.unwrap();
        let waiting = tokio::spawn({
            let jobs = jobs.clone();
            async move { jobs.ready().await }
        });
        until(async || run::<String>(&redis, &["INFO", "clients"]).await.contains("blocked_clients:1")).await;
        waiting.abort();
        jobs
    });
    runtime().block_on(async {
        // The first call may still be told of the old connection.
        let added = async || jobs.enqueue(&NewJob::new(id("a"), "a".into())).await.is_ok();
        until(added).await;
        timeout(SOON, jobs.ready()).await.expect("nobody waits at the server");
        assert_eq!(jobs.claim(&"one".parse().unwrap(), 9, LEASE).await.unwrap().len(), 1);
    });
}
