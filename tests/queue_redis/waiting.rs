//! Waiting for jobs, and its end.

use super::*;

/// How many connections the server was asked for so far.
async fn opened(redis: &Redis) -> u64 {
    let stats: String = run(redis, &["INFO", "stats"]).await;
    let line = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    line.unwrap().trim().parse().unwrap()
}

#[tokio::test]
async fn a_waiter_is_told_of_a_job_when_it_comes_and_not_when_it_next_looks() {
    let redis = Redis::start();
    let (here, there) = (open(&redis, "wake").await, open(&redis, "wake").await);
    let mut took = Vec::new();
    let mut connections = 0;
    for round in 0..20 {
        if round == 1 {
            connections = opened(&redis).await;
        }
        let woken = async {
            here.ready().await;
            Instant::now()
        };
        let pushed = async {
            sleep(Duration::from_millis(20 + round)).await;
            let pushed = Instant::now();
            there.enqueue(&job(&format!("job {round}"))).await.unwrap();
            pushed
        };
        let (woken, pushed) = tokio::join!(timeout(SOON, woken), pushed);
        took.push(woken.unwrap().saturating_duration_since(pushed));
        let held = claim(&here, "one", 1).await;
        assert_eq!(here.ack(&leases(&held)).await.unwrap(), [Held::Yours], "{round}");
    }
    // Of which the one for the look at it is the test's.
    assert_eq!(opened(&redis).await, connections + 1, "a waiter waits over the connection that it has");
    took.sort_unstable();
    eprintln!("push to start: median {:?}, longest {:?}", took[10], took[19]);
    // A waiter that looks by itself would need a second on the average.
    assert!(took[10] < Duration::from_millis(200), "{took:?}");
}

#[tokio::test]
async fn an_idle_waiter_asks_about_once_a_second() {
    let redis = Redis::start();
    let jobs = open(&redis, "idle").await;
    assert!(claim(&jobs, "one", 1).await.is_empty());
    let asked = async || calls(&redis, "evalsha").await.0 + calls(&redis, "blpop").await.0;
    let before = asked().await;
    // As a worker does that is told of something else meanwhile: the wait at the server goes on.
    let began = Instant::now();
    while began.elapsed() < secs(9) {
        assert!(timeout(Duration::from_millis(50), jobs.ready()).await.is_err());
    }
    let asked = asked().await - before;
    let most = began.elapsed().as_secs() + 2;
    assert!((4..=most).contains(&asked), "{asked} in {:?}", began.elapsed());
}

#[tokio::test]
async fn a_delay_and_a_lease_that_end_wake_a_waiter() {
    let redis = Redis::start();
    let jobs = open(&redis, "due").await;
    let other = open(&redis, "due").await;
    // A waiter that only looks by itself does so after 2 s or more.
    let slack = Duration::from_millis(900);
    for delay in [300, 800] {
        let delay = Duration::from_millis(delay);
        jobs.stop_waiting().await;
        let began = Instant::now();
        jobs.enqueue(&job("a").delay(delay)).await.unwrap();
        claim_next(&jobs, "one").await;
        let took = began.elapsed();
        assert!(took >= delay && took < delay + slack, "{took:?} after {delay:?}");
        // What another process makes due earlier than was known is learnt at once, too.
        jobs.stop_waiting().await;
        let began = Instant::now();
        let ends = async {
            sleep(Duration::from_millis(100)).await;
            other.begin_drain(&owner("one"), Some(delay)).await.unwrap();
        };
        let (held, ()) = tokio::join!(claim_next(&jobs, "two"), ends);
        let took = began.elapsed();
        assert!(took >= delay && took < delay + slack, "{took:?} after {delay:?}");
        assert_eq!(jobs.ack(&[held.lease]).await.unwrap(), [Held::Yours]);
        jobs.end_drain(&owner("one")).await.unwrap();
    }
}

#[tokio::test]
async fn whatever_makes_a_job_free_sooner_wakes_a_waiter_at_once() {
    for what in ["delay", "priority", "extend", "nack", "later", "retry", "back", "resume"] {
        let redis = Redis::start();
        let (here, there) = (open(&redis, "free").await, open(&redis, "free").await);
        there.enqueue_all(&[job("a"), job("b")]).await.unwrap();
        let held = leases(&claim(&there, "one", 2).await);
        assert_eq!(there.dead_letter(&held[1], "no").await.unwrap(), Held::Yours);
        if what == "resume" {
            there.pause().await.unwrap();
            there.enqueue(&job("c")).await.unwrap();
        }
        // Takes the token that is there, and learns that nothing is due for long.
        let waits = tokio::spawn({
            let here = here.clone();
            async move { claim_next(&here, "two").await.lease.id.to_string() }
        });
        let began = Instant::now();
        while !blocked(&redis).await || run::<bool>(&redis, &["EXISTS", "{free}:wake"]).await {
            assert!(began.elapsed() < SOON);
        }
        let began = Instant::now();
        let short = Duration::from_millis(100);
        let comes = match what {
            "delay" => there.enqueue(&job("c").delay(short)).await.map(|_| "c"),
            "priority" => there.enqueue(&job("c").priority(1)).await.map(|_| "c"),
            "extend" => there.extend(&held[..1], short).await.map(|_| "a"),
            "nack" => there.nack(&held[0], Duration::ZERO, "no").await.map(|_| "a"),
            "later" => there.nack(&held[0], short, "no").await.map(|_| "a"),
            "retry" => there.retry(&held[1].id).await.map(|_| "b"),
            "back" => there.requeue(&[HandBack::interrupted(held[0].clone())]).await.map(|_| "a"),
            _ => there.resume().await.map(|()| "c"),
        };
        // One that only looks by itself does so after 2 s.
        assert_eq!(timeout(SOON, waits).await.unwrap().unwrap(), comes.unwrap());
        assert!(began.elapsed() < Duration::from_millis(1_200), "{:?} after {what}", began.elapsed());
    }
}

#[tokio::test]
async fn who_begins_to_wait_while_a_stop_is_under_way_is_woken_all_the_same() {
    let redis = Redis::start();
    let (jobs, other) = (open(&redis, "amid").await, open(&redis, "amid").await);
    tokio::select! {
        () = jobs.ready() => panic!("nothing came"),
        () = until_blocked(&redis, 1) => {}
    }
    signal(&redis, "-STOP");
    let mut stops = Box::pin(jobs.stop_waiting());
    assert!(timeout(Duration::from_millis(20), &mut stops).await.is_err());
    let waits = tokio::spawn({
        let jobs = jobs.clone();
        async move { claim_next(&jobs, "one").await.lease.id.to_string() }
    });
    timeout(SOON, stops).await.unwrap();
    signal(&redis, "-CONT");
    other.enqueue(&job("a")).await.unwrap();
    assert_eq!(timeout(SOON, waits).await.unwrap().unwrap(), "a");
}

#[tokio::test]
async fn jobs_that_come_together_wake_as_many_waiters_one_after_the_other() {
    let redis = Redis::start();
    let mut waits = tokio::task::JoinSet::new();
    for number in 0..3 {
        let jobs = open(&redis, "together").await;
        waits.spawn(async move {
            let name = format!("waiter {number}");
            let job = claim_next(&jobs, &name).await;
            (job.lease.id.to_string(), Instant::now())
        });
    }
    until_blocked(&redis, 3).await;
    let (jobs, began) = (open(&redis, "together").await, Instant::now());
    jobs.enqueue_all(&numbered(0..3)).await.unwrap();
    let mut claimed = timeout(SOON, waits.join_all()).await.unwrap();
    claimed.sort();
    let (names, woken): (Vec<_>, Vec<_>) = claimed.into_iter().unzip();
    assert_eq!(names, ["job 00000", "job 00001", "job 00002"]);
    // One that only looks by itself does so after 2 s.
    let last = woken.into_iter().max().unwrap() - began;
    assert!(last < Duration::from_millis(1_200), "{last:?}");
}

/// Takes no time.
struct Nothing;

impl queue::Handler<String> for Nothing {
    type Error = BoxError;

    async fn handle(&self, _: &Leased<String>, _: &Cx) -> Result<(), BoxError> {
        Ok(())
    }
}

#[tokio::test]
async fn an_idle_worker_asks_twice_a_second_at_most_also_where_something_is_due_later() {
    tokio::join!(asked_by_an_idle_worker(false), asked_by_an_idle_worker(true));
}

async fn asked_by_an_idle_worker(due: bool) {
    let redis = Redis::start();
    let jobs = open(&redis, "idle").await;
    if due {
        jobs.enqueue_all(&[job("held"), job("later").delay(secs(600))]).await.unwrap();
        assert_eq!(claim(&jobs, "other", 1).await.len(), 1);
    }
    let budget = Budget::given(secs(20), "test").drain(Duration::from_millis(500));
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    shutdown.add(queue::work("jobs", open(&redis, "idle").await, Nothing));
    let handle = shutdown.handle();
    let working = tokio::spawn(shutdown.run());
    let began = Instant::now();
    while !blocked(&redis).await {
        assert!(began.elapsed() < SOON);
    }
    let asked = async || {
        let mut all = 0;
        for command in ["evalsha", "eval", "blpop", "client|id", "client|unblock"] {
            all += calls(&redis, command).await.0;
        }
        all
    };
    let (before, began) = (asked().await, Instant::now());
    sleep(secs(6)).await;
    let (asked, seconds) = (asked().await - before, began.elapsed().as_secs_f64());
    assert!(asked as f64 <= 2.0 * seconds, "{asked} in {seconds} s, with something due: {due}");
    assert!(asked >= 2, "somebody looks for what ends by itself");
    handle.trigger("test");
    assert!(timeout(SOON, working).await.unwrap().unwrap().is_clean());
    assert!(!blocked(&redis).await);
}

async fn blocked_clients(redis: &Redis) -> usize {
    let info: String = run(redis, &["INFO", "clients"]).await;
    info.lines().find_map(|line| line.strip_prefix("blocked_clients:")).unwrap().trim().parse().unwrap()
}

async fn blocked(redis: &Redis) -> bool {
    blocked_clients(redis).await > 0
}

/// Until so many wait at the server.
async fn until_blocked(redis: &Redis, clients: usize) {
    let began = Instant::now();
    while blocked_clients(redis).await != clients {
        assert!(began.elapsed() < SOON, "{clients} do not wait");
        sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_queue_that_nobody_waits_for_any_more_asks_nothing() {
    let redis = Redis::start();
    let jobs = open(&redis, "left").await;
    tokio::select! {
        () = jobs.ready() => panic!("nothing came"),
        () = until_blocked(&redis, 1) => {}
    }
    until_blocked(&redis, 0).await;
    let asked = async || {
        let (scripts, pops) = (calls(&redis, "evalsha").await.0, calls(&redis, "blpop").await.0);
        (scripts, pops, blocked(&redis).await)
    };
    let before = asked().await;
    sleep(secs(3)).await;
    assert_eq!(asked().await, before);
}

/// Else it would be heard of only when the other looks for itself.
#[tokio::test]
async fn a_job_that_comes_where_nobody_listens_any_more_wakes_somebody_else_at_once() {
    let redis = Redis::start();
    let (leaves, stays) = (open(&redis, "leaves").await, open(&redis, "leaves").await);
    tokio::select! {
        () = leaves.ready() => panic!("nothing came"),
        () = until_blocked(&redis, 1) => {}
    }
    // It still stands at the server, before the other.
    let waits = tokio::spawn({
        let stays = stays.clone();
        async move { stays.ready().await }
    });
    until_blocked(&redis, 2).await;
    let began = Instant::now();
    leaves.enqueue(&job("a")).await.unwrap();
    timeout(SOON, waits).await.unwrap().unwrap();
    assert!(began.elapsed() < Duration::from_millis(1_200), "{:?}", began.elapsed());
    assert_eq!(names(&claim(&stays, "one", 1).await), ["a"]);
}

fn signal(redis: &Redis, name: &str) {
    let sent = std::process::Command::new("kill").arg(name).arg(redis.pid().to_string()).status().unwrap();
    assert!(sent.success());
}

#[tokio::test]
async fn a_server_that_hangs_keeps_no_waiter_from_stopping_and_one_that_waits_on_is_told_of_it() {
    let redis = Redis::start();
    let (stops, stays) = (open(&redis, "hangs").await, open(&redis, "hangs").await);
    tokio::select! {
        () = stops.ready() => panic!("nothing came"),
        () = stays.ready() => panic!("nothing came"),
        () = until_blocked(&redis, 2) => {}
    }
    signal(&redis, "-STOP");
    let waits = tokio::spawn({
        let stays = stays.clone();
        async move { stays.ready().await }
    });
    let began = Instant::now();
    stops.stop_waiting().await;
    // The server has a second for it; what it was asked for gives up only after 7 s.
    assert!(began.elapsed() < secs(5), "{:?}", began.elapsed());
    // The claim that follows says what is wrong.
    timeout(SOON, waits).await.expect("nobody has heard that the server hangs").unwrap();
    signal(&redis, "-CONT");
    stops.enqueue(&job("a")).await.unwrap();
    assert_eq!(claim_next(&stops, "one").await.lease.id.as_str(), "a");
}

#[tokio::test]
async fn a_waiter_that_stops_leaves_nothing_at_the_server_and_can_wait_again() {
    let redis = Redis::start();
    let jobs = open(&redis, "stop").await;
    jobs.stop_waiting().await;
    for _ in 0..3 {
        let began = Instant::now();
        assert!(timeout(Duration::from_millis(30), jobs.ready()).await.is_err());
        while !blocked(&redis).await {
            assert!(began.elapsed() < SOON);
        }
        let stop = Instant::now();
        jobs.stop_waiting().await;
        assert!(!blocked(&redis).await);
        // It is ended, not waited out; the pop lasts 2 s or more.
        assert!(stop.elapsed() < Duration::from_millis(900), "{:?}", stop.elapsed());
    }
    let comes = job("a");
    let (woken, added) = tokio::join!(timeout(SOON, jobs.ready()), jobs.enqueue(&comes));
    woken.unwrap();
    assert_eq!(added.unwrap(), Enqueued::Added);
}

/// I15
#[tokio::test]
async fn a_job_that_comes_at_the_very_moment_of_the_stop_wakes_somebody_else() {
    let redis = Redis::start();
    let (stops, stays, pushes) =
        (open(&redis, "race").await, open(&redis, "race").await, open(&redis, "race").await);
    for round in 0..200_u64 {
        let waits = tokio::spawn({
            let stops = stops.clone();
            async move { drop(timeout(Duration::from_micros(500 * (round % 10)), stops.ready()).await) }
        });
        let pushed = async {
            sleep(Duration::from_micros(370 * (round % 13))).await;
            pushes.enqueue(&job("a")).await.unwrap();
        };
        let (waited, ()) = tokio::join!(waits, pushed);
        waited.unwrap();
        stops.stop_waiting().await;
        // Not by looking for itself: that would take 2 s or more, each time.
        let began = Instant::now();
        timeout(SOON, stays.ready()).await.unwrap();
        let held = claim(&stays, "one", 9).await;
        assert_eq!(names(&held), ["a"], "{round}");
        assert!(began.elapsed() < Duration::from_millis(1_500), "{round}: {:?}", began.elapsed());
        assert_eq!(stays.ack(&leases(&held)).await.unwrap(), [Held::Yours]);
    }
}

#[tokio::test]
async fn a_server_that_is_gone_does_not_keep_a_waiter_from_stopping() {
    let mut redis = Redis::start();
    let jobs = open(&redis, "gone").await;
    assert!(timeout(Duration::from_millis(300), jobs.ready()).await.is_err());
    redis.kill();
    // The claim that follows says what is wrong.
    timeout(SOON, jobs.ready()).await.unwrap();
    jobs.claim(&owner("one"), 1, LEASE).await.unwrap_err();
    timeout(SOON, jobs.stop_waiting()).await.unwrap();
}

// === Bad input ===
