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
    let back = jobs.requeue(&twice(1).map(HandBack::interrupted)).await.unwrap();
    assert_eq!(back, [Held::Yours, Held::Already]);
    let stepped = jobs.step(&twice(2), &owner("one"), 9, LEASE).await.unwrap();
    assert_eq!((names(&stepped.claimed), stepped.claimed[0].interruptions), (vec!["job 00001"], 1));
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.pending, counts.active, counts.interruptions), (0, 2, 1));
}

#[tokio::test]
async fn a_lease_made_shorter_for_a_job_that_is_named_twice_is_not_for_another_of_its_claim() {
    let redis = Redis::start();
    let jobs = open(&redis, "twice").await;
    jobs.enqueue_all(&numbered(0..2)).await.unwrap();
    let held = leases(&claim(&jobs, "one", 2).await);
    let twice = [held[0].clone(), held[0].clone()];
    assert_eq!(jobs.extend(&twice, Duration::ZERO).await.unwrap(), [Held::Yours; 2]);
    assert!(claim(&jobs, "two", 2).await.is_empty());
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
async fn nothing_is_kept_of_what_a_job_went_through_once_it_is_done_or_where_that_was_nothing() {
    let redis = Redis::start();
    let jobs = open(&redis, "meta").await;
    let kept = async || run::<bool>(&redis, &["EXISTS", "{meta}:meta"]).await;
    jobs.enqueue_all(&[job("a"), job("b")]).await.unwrap();
    let back = claim(&jobs, "one", 2).await.into_iter().map(|job| HandBack::untouched(job.lease));
    assert_eq!(jobs.requeue(&back.collect::<Vec<_>>()).await.unwrap(), [Held::Yours; 2]);
    assert!(kept().await, "that it was handed back, for one that repeats it");
    let held = claim(&jobs, "one", 2).await;
    assert!(!kept().await);
    let back: Vec<_> = held.into_iter().map(|job| HandBack::interrupted(job.lease)).collect();
    assert_eq!(jobs.requeue(&back).await.unwrap(), [Held::Yours; 2]);
    // One of them is lost, and the other done, in one call.
    let held = claim(&jobs, "one", 2).await;
    assert_eq!(jobs.dead_letter(&held[0].lease, "no").await.unwrap(), Held::Yours);
    assert_eq!(jobs.ack(&leases(&held)).await.unwrap(), [Held::Lost, Held::Yours]);
    let left: Vec<String> = run(&redis, &["HKEYS", "{meta}:meta"]).await;
    assert_eq!(left, ["a"]);
    assert!(jobs.retry(&id("a")).await.unwrap());
    assert!(!run::<bool>(&redis, &["EXISTS", "{meta}:reasons"]).await);
    let again = claim(&jobs, "two", 2).await.remove(0);
    assert_eq!((again.attempts, again.interruptions, again.crashes), (0, 1, 0));
    assert_eq!(jobs.ack(&[again.lease]).await.unwrap(), [Held::Yours]);
    assert!(!kept().await);
}

#[tokio::test]
async fn a_job_is_found_wherever_it_is_free() {
    let redis = Redis::start();
    let jobs = open(&redis, "free").await;
    let mut all = numbered(0..9);
    all[3] = all.remove(3).priority(1);
    jobs.enqueue_all(&all).await.unwrap();
    let held = claim(&jobs, "one", 3).await;
    assert_eq!(names(&held), ["job 00003", "job 00000", "job 00001"]);
    let back = [HandBack::interrupted(held[1].lease.clone())];
    assert_eq!(jobs.requeue(&back).await.unwrap(), [Held::Yours]);
    for job in &all {
        let state = if [&held[0], &held[2]].iter().any(|held| held.lease.id == job.id) {
            JobState::Active
        } else {
            JobState::Pending
        };
        let found = jobs.find(&job.id).await.unwrap().unwrap();
        assert_eq!(found.state, state, "{}", job.id);
    }
    jobs.enqueue(&job("urgent").priority(9)).await.unwrap();
    assert_eq!(jobs.find(&id("urgent")).await.unwrap().unwrap().state, JobState::Pending);
}

#[tokio::test]
async fn claims_without_leases_are_found_among_many_other_keys() {
    let redis = Redis::start();
    let jobs = open(&redis, "lost").await;
    jobs.enqueue_all(&numbered(0..4)).await.unwrap();
    for _ in 0..4 {
        claim(&jobs, "one", 1).await;
    }
    let many = "redis.call('DEL', '{lost}:leases') for i = 1, 30000 do redis.call('SET', i, i) end";
    let () = run(&redis, &["EVAL", many, "0"]).await;
    // A part of the keys is looked at each time that somebody begins to wait.
    for looks in 1.. {
        timeout(Duration::from_millis(100), open(&redis, "lost").await.ready()).await.unwrap_or_default();
        if run::<usize>(&redis, &["ZCARD", "{lost}:leases"]).await == 4 {
            break;
        }
        assert!(looks < 20, "they are not found");
    }
    assert_eq!(claim(&jobs, "two", 9).await.iter().map(|job| job.crashes).sum::<u32>(), 4);
}

#[tokio::test]
async fn any_number_of_names_is_forgotten() {
    let redis = Redis::start();
    let jobs = open(&redis, "names").await;
    let all = numbered(0..1_100);
    jobs.enqueue_once(&all).await.unwrap();
    jobs.forget_once(&all.into_iter().map(|job| job.id).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(run::<usize>(&redis, &["ZCARD", "{names}:once"]).await, 0);
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
async fn what_somebody_writes_for_the_last_epoch_is_none_unless_it_can_be_counted_on() {
    let redis = Redis::start();
    let jobs = open(&redis, "written").await;
    jobs.enqueue_all(&numbered(0..30)).await.unwrap();
    for written in ["", "no", "inf", "nan", "-1", "1e300", "9007199254740993", "99999999999999999999"] {
        let () = run(&redis, &["SET", "{written}:epoch", written]).await;
        for max in [1, 2] {
            let held = leases(&claim(&jobs, "one", max).await);
            assert_eq!(jobs.ack(&held).await.unwrap(), vec![Held::Yours; max], "{written}");
        }
    }
}

#[tokio::test]
async fn jobs_stand_in_their_order_and_in_one_place_also_where_the_last_number_was_lost() {
    let redis = Redis::start();
    let jobs = open(&redis, "numbers").await;
    jobs.enqueue_all(&numbered(0..3)).await.unwrap();
    claim(&jobs, "one", 1).await;
    let _: u64 = run(&redis, &["DEL", "{numbers}:state", "{numbers}:leases"]).await;
    jobs.enqueue_all(&numbered(3..5)).await.unwrap();
    assert_eq!(jobs.find(&id("job 00004")).await.unwrap().unwrap().state, JobState::Pending);
    // It looks for what is in no place.
    jobs.ready().await;
    let claimed = claim(&jobs, "two", 9).await;
    assert_eq!(names(&claimed), ["job 00000", "job 00001", "job 00002", "job 00003", "job 00004"]);
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
