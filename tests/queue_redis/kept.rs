//! What is kept of jobs and owners, for how long, and what is left of them.

use super::*;

#[tokio::test]
async fn a_job_that_is_named_twice_in_one_call_is_settled_once() {
    let redis = Redis::start();
    let jobs = open(&redis, "twice").await;
    jobs.enqueue_all(&numbered(0..4)).await.unwrap();
    let held = leases(&claim(&jobs, "one", 4).await);
    let twice = |n: usize| [held[n].clone(), held[n].clone()];
    assert_eq!(jobs.extend(&twice(0), LEASE).await.unwrap(), [Held::Yours; 2]);
    let _ = jobs.ack(&twice(0)).await.unwrap();
    let _ = jobs.requeue(&twice(1).map(HandBack::interrupted)).await.unwrap();
    let stepped = jobs.step(&twice(2), &owner("one"), 9, LEASE).await.unwrap();
    assert_eq!((names(&stepped.claimed), stepped.claimed[0].interruptions), (vec!["job 00001"], 1));
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.pending, counts.active), (0, 2));
}

#[tokio::test]
async fn an_owner_that_ends_ends_for_itself_alone_however_alike_the_names_and_however_many_the_claims() {
    let redis = Redis::start();
    let jobs = open(&redis, "alike").await;
    jobs.enqueue_all(&numbered(0..23)).await.unwrap();
    let others = ["x:one", "on*", "ones"];
    for other in others {
        assert_eq!(claim(&jobs, other, 1).await.len(), 1);
    }
    for _ in 0..20 {
        claim(&jobs, "one", 1).await;
    }
    let many = "for i = 1, 150000 do redis.call('ZADD', '{alike}:leases', 1e15, i .. ':other') end";
    let () = run(&redis, &["EVAL", many, "0"]).await;
    jobs.begin_drain(&owner("one"), Some(Duration::ZERO)).await.unwrap();
    let mut free = claim(&jobs, "two", 100).await;
    free.extend(claim(&jobs, "two", 100).await);
    assert_eq!(free.len(), 20);
    assert!(free.iter().all(|job| (job.interruptions, job.crashes) == (1, 0)));
    // A pattern in a name is none.
    jobs.begin_drain(&owner("on*"), Some(Duration::ZERO)).await.unwrap();
    assert_eq!(names(&claim(&jobs, "two", 100).await), ["job 00001"]);
}

#[tokio::test]
async fn the_mark_of_an_owner_that_never_said_a_last_word_is_forgotten_after_a_week_unless_it_holds_something()
 {
    let redis = Redis::start();
    let jobs = open(&redis, "marks").await;
    jobs.enqueue(&job("a")).await.unwrap();
    claim(&jobs, "holds", 1).await;
    for name in ["holds", "gone", "late"] {
        jobs.begin_drain(&owner(name), None).await.unwrap();
    }
    let now: (u64, u64) = run(&redis, &["TIME"]).await;
    for (name, ago) in [("holds", 604_800_001), ("gone", 604_800_001), ("late", 604_000_000)] {
        let mark = format!("- {}", now.0 * 1000 - ago);
        let _: i64 = run(&redis, &["HSET", "{marks}:ending", name, &mark]).await;
    }
    jobs.begin_drain(&owner("new"), None).await.unwrap();
    let mut left: Vec<String> = run(&redis, &["HKEYS", "{marks}:ending"]).await;
    left.sort();
    assert_eq!(left, ["holds", "late", "new"]);
}

#[tokio::test]
async fn a_job_that_has_crashed_more_often_than_is_allowed_here_may_still_be_interrupted() {
    let redis = Redis::start();
    let jobs = open(&redis, "often").await;
    let strict = jobs.clone().max_crashes(0).clone();
    jobs.enqueue(&job("a")).await.unwrap();
    for (owner_ends, crashes, interruptions) in [(false, 1, 0), (true, 1, 1)] {
        claim(&jobs, "one", 1).await;
        if owner_ends {
            jobs.begin_drain(&owner("one"), None).await.unwrap();
        }
        let token: Vec<String> = run(&redis, &["ZRANGE", "{often}:leases", "0", "-1"]).await;
        assert_eq!(token.len(), 1, "of what has ended no lease is left");
        let _: i64 = run(&redis, &["ZADD", "{often}:leases", "1", &token[0]]).await;
        let again = claim(if owner_ends { &strict } else { &jobs }, "two", 1).await;
        assert_eq!((again[0].crashes, again[0].interruptions), (crashes, interruptions));
        let _ = jobs.requeue(&[HandBack::untouched(again[0].lease.clone())]).await.unwrap();
    }
    claim(&jobs, "three", 1).await;
    let token: Vec<String> = run(&redis, &["ZRANGE", "{often}:leases", "0", "-1"]).await;
    let _: i64 = run(&redis, &["ZADD", "{often}:leases", "1", &token[0]]).await;
    assert!(claim(&strict, "two", 1).await.is_empty());
    assert_eq!(jobs.counts().await.unwrap().dead, 1);
}

#[tokio::test]
async fn epochs_grow_also_where_the_clock_of_the_server_was_set_back() {
    let redis = Redis::start();
    let jobs = open(&redis, "clock").await;
    jobs.enqueue_all(&numbered(0..3)).await.unwrap();
    let first = claim(&jobs, "one", 1).await.remove(0).lease.epoch;
    let ahead = first + 3_600_000_000;
    let () = run(&redis, &["SET", "{clock}:epoch", &ahead.to_string()]).await;
    for later in 1..3 {
        assert_eq!(claim(&jobs, "one", 1).await[0].lease.epoch, ahead + later);
    }
}

#[tokio::test]
async fn what_is_written_after_all_was_lost_is_a_queue_that_others_can_open() {
    let redis = Redis::start();
    let jobs = open(&redis, "lost").await;
    for write in ["enqueue", "once", "claim", "drain", "end", "requeue", "nack", "extend", "pause", "resume"]
    {
        jobs.enqueue(&job("a")).await.unwrap();
        let held = claim(&jobs, "one", 1).await;
        let () = run(&redis, &["FLUSHALL"]).await;
        match write {
            "enqueue" => drop(jobs.enqueue(&job("b")).await.unwrap()),
            "once" => drop(jobs.enqueue_once(&[job("b")]).await.unwrap()),
            "claim" => drop(claim(&jobs, "one", 1).await),
            "drain" => jobs.begin_drain(&owner("one"), None).await.unwrap(),
            "end" => jobs.end_drain(&owner("one")).await.unwrap(),
            "requeue" => drop(jobs.requeue(&[HandBack::interrupted(held[0].lease.clone())]).await.unwrap()),
            "nack" => drop(jobs.nack(&held[0].lease, LEASE, "no").await.unwrap()),
            "extend" => drop(jobs.extend(&leases(&held), LEASE).await.unwrap()),
            "pause" => jobs.pause().await.unwrap(),
            _ => jobs.resume().await.unwrap(),
        }
        open(&redis, "lost").await;
        let () = run(&redis, &["FLUSHALL"]).await;
    }
}
