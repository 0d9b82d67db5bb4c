//! The queue on a Redis stream: what is its own, beyond the promises of every queue.

#![cfg(all(feature = "redis", unix))]

#[path = "queue_stream/bench.rs"]
mod bench;
#[path = "queue_stream/kept.rs"]
mod kept;
#[path = "support/log.rs"]
mod log;
#[path = "queue_stream/meddling.rs"]
mod meddling;
#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "support/redis.rs"]
mod redis_server;
#[path = "queue_stream/waiting.rs"]
mod waiting;
#[path = "support/within.rs"]
mod within;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bench::*;
use redis::Value;
use redis_server::Redis;
use winddown::queue::redis::{OpenError, Server, Stream};
use winddown::queue::{HandBack, Held, JobState, NewJob, Queue};
use within::within;

// === producers ===

#[tokio::test]
async fn what_any_program_adds_is_a_job_by_the_id_of_its_entry() {
    let redis = Redis::start();
    let mut there = redis.connection().await;
    // The stream is older than the queue, and one of its entries too.
    let first: String =
        redis::cmd("XADD").arg(&["jobs", "*", "payload", "\"a\""]).query_async(&mut there).await.unwrap();
    let bench = Bench { queue: open(&redis).await, connection: there, redis };
    let second: String =
        bench.sends(&["XADD", "jobs", "*", "id", "mine", "payload", "\"b\"", "trace", "\u{1}"]).await;
    bench.queue.enqueue(&NewJob::new(id("mine"), "c".into())).await.unwrap();
    let claimed = bench.claim("one", 9).await;
    assert_eq!(names(&claimed), [&first, &second, "mine"]);
    assert_eq!(items(&claimed), ["a", "b", "c"]);
    let before = bench.queue.ack(&leases(&claimed)).await.unwrap();
    assert_eq!(before, [Held::Yours; 3]);
    assert_eq!(bench.queue.ack(&leases(&claimed)).await.unwrap(), [Held::Gone; 3]);
}

#[tokio::test]
async fn age_and_place_of_a_job_follow_from_its_entry() {
    for minutes in [3, 50] {
        let bench = bench().await;
        let now: (u64, u64) = bench.says("TIME").await;
        let old = now.0 * 1000 - minutes * 60_000;
        for seq in [7, 8] {
            bench.sends::<()>(&["XADD", "jobs", &format!("{old}-{seq}"), "payload", "\"a\""]).await;
        }
        bench.add("\"b\"").await;
        let near = |age: Duration| age >= ms(minutes * 60_000) && age < ms(minutes * 60_000 + 60_000);
        assert!(near(bench.queue.counts().await.unwrap().oldest.unwrap()));
        let claimed = bench.claim("one", 9).await;
        assert!(near(claimed[0].age) && claimed[2].age < LONG, "{:?}", claimed[0].age);
        assert!(claimed[0].order < claimed[1].order && claimed[1].order < claimed[2].order);
        assert!(near(bench.queue.counts().await.unwrap().oldest.unwrap()), "also while it is held");
        let _ = bench.queue.ack(&leases(&claimed[..2])).await.unwrap();
        assert!(bench.queue.counts().await.unwrap().oldest.unwrap() < LONG);
        let held = bench.queue.requeue(&interrupted(&claimed[2..])).await.unwrap();
        assert_eq!(held, [Held::Yours]);
        assert_eq!(bench.claim("two", 9).await[0].order, claimed[2].order);
    }
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_is_a_dead_letter_that_says_why_and_never_a_loop() {
    let bench = bench().await;
    bench.add("\"half").await;
    bench.add("17").await;
    bench.sends::<()>(&["XADD", "jobs", "*", "body", "\"a\""]).await;
    let mut odd = redis::cmd("XADD");
    odd.arg("jobs").arg("*").arg(b"\xff\xfe").arg(b"\xff").arg("payload").arg(b"\"\xff\"");
    odd.query_async::<()>(&mut bench.connection.clone()).await.unwrap();
    bench.add("\"good\"").await;
    assert_eq!(items(&bench.claim("one", 1).await), ["good"]);
    assert!(bench.claim("one", 1).await.is_empty());
    let dead = bench.queue.dead_letters(9).await.unwrap();
    let reasons: Vec<_> = dead.iter().map(|letter| letter.reason.as_str()).collect();
    assert_eq!(reasons.len(), 4, "{reasons:?}");
    assert!(reasons.iter().any(|reason| reason.starts_with("corrupt job: payload: EOF")), "{reasons:?}");
    assert!(
        reasons.iter().any(|reason| reason.starts_with("corrupt job: payload: invalid type: integer")),
        "{reasons:?}"
    );
    assert!(reasons.contains(&"corrupt job: it has no field \"payload\""), "{reasons:?}");
    assert!(dead.iter().any(|letter| letter.payload.as_deref() == Some("17")));
    assert!(dead.iter().all(|letter| (letter.attempts, letter.crashes) == (0, 0)));
    assert!(bench.queue.retry(&dead[0].id).await.unwrap());
    assert!(bench.claim("one", 9).await.is_empty());
    let counts = bench.queue.counts().await.unwrap();
    assert_eq!((counts.dead, counts.active, counts.pending, counts.crashes), (4, 1, 0, 0));
}

#[tokio::test]
async fn one_that_cannot_be_read_does_not_disturb_a_step() {
    let bench = bench().await;
    bench.fill(1).await;
    let done = leases(&bench.claim("one", 1).await);
    bench.add("nonsense").await;
    bench.add("\"good\"").await;
    let stepped = bench.queue.step(&done, &owner("one"), 1, LEASE).await.unwrap();
    assert_eq!((stepped.held, items(&stepped.claimed)), (vec![Held::Yours], vec!["good"]));
}

#[tokio::test]
async fn jobs_are_counted_and_found_wherever_they_stand() {
    let bench = bench().await;
    bench.fill(3).await;
    bench.queue.enqueue(&NewJob::new(id("later"), "l".into()).delay(LEASE)).await.unwrap();
    let foreign = bench.add("\"f\"").await;
    let counted = async || {
        let counts = bench.queue.counts().await.unwrap();
        (counts.pending, counts.scheduled, counts.active, counts.dead)
    };
    let found = async |name: &str| bench.queue.find(&id(name)).await.unwrap().map(|found| found.state);
    assert_eq!(counted().await, (4, 1, 0, 0));
    assert_eq!(found("job 0000").await, Some(JobState::Pending));
    assert_eq!(found("later").await, Some(JobState::Scheduled));
    let claimed = bench.claim("one", 2).await;
    assert_eq!(counted().await, (2, 1, 2, 0));
    assert_eq!(bench.queue.nack(&claimed[1].lease, LEASE, "no").await.unwrap(), Held::Yours);
    assert_eq!(bench.queue.dead_letter(&claimed[0].lease, "no").await.unwrap(), Held::Yours);
    assert_eq!(counted().await, (2, 2, 0, 1));
    let rest = bench.claim("one", 9).await;
    assert_eq!(names(&rest), ["job 0002", &foreign]);
    assert_eq!(counted().await, (0, 2, 2, 1));
    assert_eq!(found(&foreign).await, Some(JobState::Active));
    assert_eq!(found("job 0000").await, Some(JobState::Dead));
    assert_eq!(bench.queue.find(&id("job 0001")).await.unwrap().unwrap().attempts, 1);
    let _ = bench.queue.ack(&leases(&rest)).await.unwrap();
    assert_eq!((found(&foreign).await, found("job 0002").await, found("nobody").await), (None, None, None));
    let refused = bench.queue.enqueue(&NewJob::new(id("1-0"), "x".into())).await.unwrap_err();
    assert!(std::error::Error::source(&refused).unwrap().to_string().contains("1-0"));
}

// === consumers ===

#[tokio::test]
async fn what_is_handed_back_is_anothers_at_once_and_in_order_before_what_is_new() {
    let bench = bench().await;
    bench.fill(6).await;
    let mut claimed = bench.claim("one", 4).await;
    claimed.swap(0, 2);
    claimed.swap(1, 3);
    let other = open(&bench.redis).await;
    // Two has all that is new, so that it waits.
    let news = other.claim(&owner("two"), 9, LEASE).await.unwrap();
    assert_eq!(names(&news), ["job 0004", "job 0005"]);
    let waits = tokio::spawn({
        let other = other.clone();
        async move {
            other.ready().await;
            Instant::now()
        }
    });
    bench.is_waiting().await;
    let began = Instant::now();
    let back = interrupted(&claimed);
    assert_eq!(bench.queue.requeue(&back[..2]).await.unwrap(), [Held::Yours; 2]);
    assert_eq!(bench.queue.requeue(&back[2..]).await.unwrap(), [Held::Yours; 2]);
    let woken = within(LONG, waits).await.unwrap();
    assert!(woken - began < ms(1_000), "{:?}", woken - began);
    assert_eq!(other.requeue(&interrupted(&news[1..])).await.unwrap(), [Held::Yours]);
    bench.fill(8).await;
    let again = other.claim(&owner("two"), 9, LEASE).await.unwrap();
    let order = ["job 0000", "job 0001", "job 0002", "job 0003", "job 0005", "job 0006", "job 0007"];
    assert_eq!(names(&again), order);
    assert!(again[..5].iter().all(|job| (job.interruptions, job.attempts, job.crashes) == (1, 0, 0)));
    assert_eq!(bench.consumers().await, [("one".into(), 0), ("two".into(), 8)].into());
}

#[tokio::test]
async fn what_a_dead_consumer_held_is_anothers_when_the_lease_ends_and_then_it_is_deleted() {
    for lease in [400, 1_200] {
        let bench = bench().await;
        bench.fill(3).await;
        let began = Instant::now();
        let held = bench.queue.claim(&owner("dead"), 3, ms(lease)).await.unwrap();
        // One is settled in time, so that a consumer that still held it would lose it.
        assert_eq!(bench.queue.ack(&leases(&held[..1])).await.unwrap(), [Held::Yours]);
        let claimed = within(LONG, async {
            loop {
                bench.queue.ready().await;
                let claimed = bench.claim("two", 9).await;
                if !claimed.is_empty() {
                    return claimed;
                }
            }
        })
        .await;
        let took = began.elapsed();
        assert!(took >= ms(lease) && took < ms(lease + 1_000), "{took:?} for {lease} ms");
        assert_eq!(names(&claimed), ["job 0001", "job 0002"]);
        assert!(claimed.iter().all(|job| (job.crashes, job.interruptions, job.attempts) == (1, 0, 0)));
        assert_eq!(bench.consumers().await, [("two".into(), 2)].into());
    }
}

#[tokio::test]
async fn a_job_that_crashed_too_often_is_logged_by_its_name_with_the_reason() {
    let (lines, _guard) = log::keep();
    let bench = bench().await;
    bench.fill(1).await;
    bench.claim("one", 1).await;
    bench.expire(&bench.entry("job 0000").await).await;
    let strict = bench.queue.clone().max_crashes(0);
    assert!(strict.claim(&owner("two"), 9, LEASE).await.unwrap().is_empty());
    let reason = bench.queue.dead_letters(9).await.unwrap().remove(0).reason;
    let logged = format!("message=job.dead queue=\"jobs\" job=\"job 0000\" reason={reason:?} ");
    assert_eq!(*lines.lock().unwrap(), [logged]);
}

#[tokio::test]
async fn a_consumer_that_holds_something_is_not_deleted() {
    let bench = bench().await;
    bench.fill(3).await;
    let held = bench.claim("one", 2).await;
    bench.expire(&bench.entry("job 0000").await).await;
    assert_eq!(names(&bench.claim("two", 9).await), ["job 0000", "job 0002"]);
    bench.queue.end_drain(&owner("one")).await.unwrap();
    assert_eq!(bench.consumers().await, [("one".into(), 1), ("two".into(), 2)].into());
    assert_eq!(bench.queue.ack(&leases(&held)).await.unwrap(), [Held::Lost, Held::Yours]);
    bench.queue.end_drain(&owner("one")).await.unwrap();
    assert_eq!(bench.consumers().await, [("two".into(), 2)].into());
}

#[tokio::test]
async fn what_another_programs_consumer_left_behind_is_taken_over_once_it_is_idle() {
    let bench = bench().await;
    for n in 0..3 {
        bench.add(&format!("\"{n}\"")).await;
    }
    let read: Value = bench.says("XREADGROUP GROUP workers theirs COUNT 2 STREAMS jobs >").await;
    assert_ne!(read, Value::Nil);
    assert_eq!(items(&bench.claim("one", 9).await), ["2"]);
    // As if the first were so old.
    let range: Vec<(String, Value)> = bench.says("XRANGE jobs - + COUNT 1").await;
    bench.says::<Value>(&format!("XCLAIM jobs workers theirs 0 {} IDLE 299000", range[0].0)).await;
    let look_now = format!("DEL {OWN}tidy");
    bench.says::<()>(&look_now).await;
    assert!(bench.claim("one", 9).await.is_empty());
    bench.says::<Value>(&format!("XCLAIM jobs workers theirs 0 {} IDLE 300000", range[0].0)).await;
    bench.says::<()>(&look_now).await;
    within(LONG, bench.queue.ready()).await;
    let taken = bench.claim("one", 9).await;
    assert_eq!((items(&taken), taken[0].crashes), (vec!["0"], 1));
    assert_eq!(bench.consumers().await, [("one".into(), 2), ("theirs".into(), 1)].into());

    let hasty = bench.queue.clone().gone_after(ms(1));
    tokio::time::sleep(ms(10)).await;
    bench.says::<()>(&look_now).await;
    let taken = hasty.claim(&owner("one"), 9, LEASE).await.unwrap();
    assert_eq!(items(&taken), ["1"], "and nothing of ours, which has a lease");
    bench.says::<()>(&look_now).await;
    assert!(hasty.claim(&owner("one"), 9, LEASE).await.unwrap().is_empty());
    assert_eq!(bench.consumers().await, [("one".into(), 3)].into());
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_taken_back_untouched_by_the_next() {
    let bench = bench().await;
    bench.fill(4).await;
    let known = bench.claim("one", 1).await;
    lose_a_claim(&bench, "one", 2).await;
    let next = bench.claim("one", 9).await;
    assert_eq!(names(&next), ["job 0001", "job 0002", "job 0003"]);
    assert!(next.iter().all(|job| (job.interruptions, job.crashes) == (0, 0)));
    assert!(bench.claim("one", 9).await.is_empty(), "once");
    assert_eq!(bench.queue.ack(&leases(&known)).await.unwrap(), [Held::Yours]);
}

#[tokio::test]
async fn what_such_a_claim_has_brought_is_free_at_once_when_its_owner_ends() {
    let bench = bench().await;
    bench.fill(2).await;
    let held = bench.claim("one", 1).await;
    lose_a_claim(&bench, "one", 1).await;
    bench.queue.begin_drain(&owner("one"), Some(LEASE)).await.unwrap();
    let next = bench.claim("two", 9).await;
    assert_eq!((names(&next), next[0].interruptions), (vec!["job 0001"], 0));
    assert_eq!(bench.queue.ack(&leases(&held)).await.unwrap(), [Held::Yours]);
}

#[tokio::test]
async fn an_owner_that_ends_and_begins_again_keeps_what_it_holds_when_an_answer_is_lost() {
    let bench = bench().await;
    bench.fill(2).await;
    let held = bench.claim("one", 1).await;
    bench.queue.begin_drain(&owner("one"), None).await.unwrap();
    bench.queue.end_drain(&owner("one")).await.unwrap();
    lose_a_claim(&bench, "one", 1).await;
    assert_eq!(names(&bench.claim("one", 9).await), ["job 0001"]);
    assert_eq!(bench.queue.ack(&leases(&held)).await.unwrap(), [Held::Yours]);
}

#[tokio::test]
async fn no_job_is_lost_or_held_twice_by_many_at_once() {
    let bench = bench().await;
    bench.fill(1_500).await;
    let done = Arc::new(Mutex::new(BTreeMap::<String, usize>::new()));
    let mut workers = tokio::task::JoinSet::new();
    for n in 0..4_usize {
        let (queue, done) = (open(&bench.redis).await, Arc::clone(&done));
        workers.spawn(async move {
            let me = owner(&format!("owner {n}"));
            loop {
                let claimed = queue.claim(&me, 7 + 13 * n, LEASE).await.unwrap();
                if claimed.is_empty() {
                    return;
                }
                let (back, ack): (Vec<_>, Vec<_>) =
                    claimed.into_iter().partition(|job| job.interruptions == 0 && job.order % 3 == 0);
                let held = queue.requeue(&interrupted(&back)).await.unwrap();
                assert!(held.iter().all(|held| *held == Held::Yours));
                let held = queue.ack(&leases(&ack)).await.unwrap();
                assert!(held.iter().all(|held| *held == Held::Yours));
                for job in ack {
                    *done.lock().unwrap().entry(job.item).or_default() += 1;
                }
            }
        });
    }
    within(LONG, async { while workers.join_next().await.transpose().unwrap().is_some() {} }).await;
    // Handed back by one when the others had already found nothing.
    let rest = bench.claim("rest", 1_000).await;
    let _ = bench.queue.ack(&leases(&rest)).await.unwrap();
    let mut done = done.lock().unwrap();
    for job in rest {
        *done.entry(job.item).or_default() += 1;
    }
    assert_eq!(done.len(), 1_500);
    assert!(done.values().all(|times| *times == 1));
}

#[tokio::test]
async fn thousands_go_back_and_are_acked_in_one_call() {
    let bench = bench().await;
    bench.fill(2_500).await;
    let claim_all = async |who: &str| {
        let mut all = Vec::new();
        // At most 1 000 at a time, however many are asked for.
        for _ in 0..3 {
            all.extend(bench.claim(who, 9_999).await);
        }
        all
    };
    let all: Vec<String> = (0..2_500).map(|n| format!("job {n:04}")).collect();
    let mut claimed = claim_all("one").await;
    assert_eq!(names(&claimed), all);
    claimed.reverse();
    let held = bench.queue.requeue(&interrupted(&claimed)).await.unwrap();
    assert_eq!(held, vec![Held::Yours; 2_500]);
    let again = claim_all("two").await;
    assert_eq!(names(&again), all);
    assert_eq!(bench.queue.extend(&leases(&again), LEASE).await.unwrap(), vec![Held::Yours; 2_500]);
    assert_eq!(bench.queue.ack(&leases(&again)).await.unwrap(), vec![Held::Yours; 2_500]);
    assert_eq!(bench.queue.counts().await.unwrap().active, 0);
}

// === the server ===

#[tokio::test]
async fn nothing_is_left_of_what_is_done() {
    let bench = bench().await;
    for round in 0..3 {
        bench.fill(20).await;
        bench.add("\"foreign\"").await;
        let claimed = bench.claim("one", 99).await;
        assert_eq!(claimed.len(), 21);
        let back: Vec<_> =
            claimed[..5].iter().map(|job| HandBack::interrupted(job.lease.clone()).checkpoint("x")).collect();
        assert_eq!(bench.queue.requeue(&back).await.unwrap(), [Held::Yours; 5]);
        assert_eq!(bench.queue.nack(&claimed[5].lease, Duration::ZERO, "no").await.unwrap(), Held::Yours);
        let again = bench.claim(&format!("two {round}"), 99).await;
        assert_eq!(again.len(), 6);
        let _ = bench.queue.ack(&leases(&claimed[6..])).await.unwrap();
        let _ = bench.queue.ack(&leases(&again)).await.unwrap();
        for name in ["one", &format!("two {round}")] {
            bench.queue.begin_drain(&owner(name), Some(LEASE)).await.unwrap();
            bench.queue.end_drain(&owner(name)).await.unwrap();
        }
    }
    let keys: BTreeSet<String> = bench.says("KEYS *").await;
    let mut left =
        BTreeSet::from(["epoch", "layout", "tidy", "totals", "wake"].map(|key| format!("{OWN}{key}")));
    left.insert("jobs".into());
    assert_eq!(keys, left);
    assert_eq!(bench.says::<usize>("XLEN jobs").await, 0);
    assert_eq!(bench.says::<usize>(&format!("XLEN {OWN}wake")).await, 1);
    assert!(bench.consumers().await.is_empty());
}

#[tokio::test]
async fn an_entry_that_another_group_has_to_read_is_not_deleted() {
    let bench = bench().await;
    bench.says::<()>("XGROUP CREATE jobs others 0").await;
    bench.fill(2).await;
    let claimed = bench.claim("one", 9).await;
    assert_eq!(bench.queue.ack(&leases(&claimed)).await.unwrap(), [Held::Yours; 2]);
    assert_eq!(bench.says::<usize>("XLEN jobs").await, 2);
    assert!(bench.claim("one", 9).await.is_empty());
    let counts = bench.queue.counts().await.unwrap();
    assert_eq!((counts.pending, counts.active, counts.oldest), (0, 0, None));
    let others =
        Stream::<String>::open(Server::at(&bench.redis.url()).unwrap(), "jobs", "others").await.unwrap();
    assert_eq!(others.claim(&owner("one"), 9, LEASE).await.unwrap().len(), 2);
    bench.says::<()>("XGROUP DESTROY jobs others").await;
    bench.fill(1).await;
    let claimed = bench.claim("one", 9).await;
    assert_eq!(bench.queue.ack(&leases(&claimed)).await.unwrap(), [Held::Yours]);
    assert_eq!(bench.says::<usize>("XLEN jobs").await, 2);
}

#[tokio::test]
async fn what_somebody_trims_away_is_gone_and_disturbs_nothing() {
    let bench = bench().await;
    bench.fill(4).await;
    let claimed = bench.claim("one", 3).await;
    assert_eq!(bench.queue.dead_letter(&claimed[2].lease, "no").await.unwrap(), Held::Yours);
    assert_eq!(bench.queue.requeue(&interrupted(&claimed[..1])).await.unwrap(), [Held::Yours]);
    bench.says::<()>("XTRIM jobs MAXLEN 0").await;
    assert!(bench.claim("two", 9).await.is_empty());
    assert_eq!(bench.queue.requeue(&interrupted(&claimed[1..2])).await.unwrap(), [Held::Gone]);
    assert_eq!(bench.queue.dead_letters(9).await.unwrap().len(), 1);
    assert!(!bench.queue.retry(&id("job 0002")).await.unwrap());
    assert!(bench.queue.dead_letters(9).await.unwrap().is_empty());
    tokio::time::timeout(ms(300), bench.queue.ready()).await.unwrap_err();
    let counts = bench.queue.counts().await.unwrap();
    assert_eq!((counts.pending, counts.active, counts.dead, counts.oldest), (0, 0, 0, None));
    for key in ["held", "leases", "past", "notes", "dead", "reasons"] {
        assert_eq!(bench.says::<u32>(&format!("EXISTS {OWN}{key}")).await, 0, "{key}");
    }
    bench.fill(4).await;
    assert_eq!(bench.claim("two", 9).await.len(), 4, "the names are free again");
}

#[tokio::test]
async fn a_full_server_takes_no_jobs_and_lets_those_it_has_be_claimed_and_settled() {
    let bench = bench().await;
    bench.fill(4).await;
    bench.says::<()>("CONFIG SET maxmemory 1").await;
    bench.queue.enqueue(&NewJob::new(id("one more"), "x".into())).await.unwrap_err();
    let claimed = bench.claim("one", 9).await;
    assert_eq!(claimed.len(), 4);
    bench.queue.begin_drain(&owner("one"), Some(LEASE)).await.unwrap();
    assert_eq!(bench.queue.extend(&leases(&claimed), LEASE).await.unwrap(), [Held::Yours; 4]);
    assert_eq!(bench.queue.ack(&leases(&claimed[..1])).await.unwrap(), [Held::Yours]);
    let back: Vec<_> = interrupted(&claimed[1..2]).into_iter().map(|back| back.checkpoint("half")).collect();
    assert_eq!(bench.queue.requeue(&back).await.unwrap(), [Held::Yours]);
    assert_eq!(bench.queue.nack(&claimed[2].lease, LEASE, "no").await.unwrap(), Held::Yours);
    assert_eq!(bench.queue.dead_letter(&claimed[3].lease, "no").await.unwrap(), Held::Yours);
    bench.queue.end_drain(&owner("one")).await.unwrap();
    let counts = bench.queue.counts().await.unwrap();
    assert_eq!((counts.pending, counts.scheduled, counts.active, counts.dead), (1, 1, 0, 1));
}

#[tokio::test]
async fn a_group_that_was_lost_is_made_anew() {
    let bench = bench().await;
    for lose in ["DEL jobs", "XGROUP DESTROY jobs workers", "FLUSHALL", "SCRIPT FLUSH"] {
        bench.fill(3).await;
        let held = bench.claim("one", 3).await;
        bench.says::<Value>(lose).await;
        let one = std::slice::from_ref(&held[0].lease);
        // What was lost with it is nobody's, and says so or is done, but is no error that would be met again and again.
        let stepped = bench.queue.step(one, &owner("one"), 9, LEASE).await.unwrap();
        let _ = bench.queue.ack(&leases(&held[1..2])).await.unwrap();
        let _ = bench.queue.requeue(&interrupted(&held[2..])).await.unwrap();
        let _ = bench.queue.ack(&leases(&stepped.claimed)).await.unwrap();
        bench.add("\"foreign\"").await;
        within(LONG, bench.queue.ready()).await;
        let claimed = bench.claim("one", 9).await;
        assert!(items(&claimed).contains(&"foreign"), "{lose}: {:?}", items(&claimed));
        assert!(bench.queue.ack(&leases(&claimed)).await.unwrap().iter().all(|held| *held == Held::Yours));
        assert_eq!(bench.queue.counts().await.unwrap().active, 0, "{lose}");
        open(&bench.redis).await;
    }
}

#[tokio::test]
async fn the_keys_and_commands_that_are_documented_are_all_that_a_user_needs() {
    let bench = bench().await;
    let rights = "~jobs ~{jobs}:group:work:* -@all +@hash +@sortedset +@stream +@string +evalsha +eval +exists +type +time +info +client|id +client|unblock";
    bench.says::<()>(&format!("ACL SETUSER worker on >secret {rights}")).await;
    let server = Server::at(&format!("{}?user=worker&pass=secret", bench.redis.url())).unwrap();
    Stream::<String>::open(server.clone(), "jobs", "others").await.unwrap_err();
    let jobs = Stream::<String>::open(server, "jobs", "work").await.unwrap();
    jobs.enqueue_all(&[NewJob::new(id("a"), "a".into()), NewJob::new(id("b"), "b".into()).delay(LEASE)])
        .await
        .unwrap();
    bench.add("\"c\"").await;
    let claim = async || jobs.claim(&owner("one"), 9, LEASE).await.unwrap();
    within(LONG, jobs.ready()).await;
    let held = claim().await;
    assert_eq!(items(&held), ["a", "c"]);
    let _ = jobs.requeue(&interrupted(&held[..1])).await.unwrap();
    let _ = jobs.nack(&held[1].lease, Duration::ZERO, "no").await.unwrap();
    let held = claim().await;
    let _ = jobs.extend(&leases(&held), LEASE).await.unwrap();
    let _ = jobs.dead_letter(&held[0].lease, "no").await.unwrap();
    assert_eq!(jobs.dead_letters(9).await.unwrap().len(), 1);
    assert!(jobs.retry(&held[0].lease.id).await.unwrap());
    let _ = jobs.ack(&leases(&held[1..])).await.unwrap();
    jobs.find(&id("a")).await.unwrap();
    jobs.counts().await.unwrap();
    jobs.begin_drain(&owner("one"), Some(LEASE)).await.unwrap();
    jobs.end_drain(&owner("one")).await.unwrap();
    jobs.warnings().await.unwrap();
    within(LONG, jobs.ready()).await;
    // Lets go of what is pending, and waits at the server.
    let _ = jobs.ack(&leases(&claim().await)).await.unwrap();
    tokio::select! {
        () = jobs.ready() => panic!("nothing came"),
        () = bench.is_waiting() => {}
    }
    within(LONG, jobs.stop_waiting()).await;
    assert_eq!(bench.blocked_clients().await, 0);
}

#[tokio::test]
async fn what_cannot_be_a_queue_is_refused_in_one_line() {
    let redis = Redis::start();
    let server = Server::at(&redis.url()).unwrap();
    let mut there = redis.connection().await;
    for (name, group) in
        [("", "g"), ("a b", "g"), ("{a}", "g"), ("a", ""), ("a", "g\n"), (&*"x".repeat(65), "g")]
    {
        let refused = Stream::<String>::open(server.clone(), name, group).await.unwrap_err();
        assert!(matches!(refused, OpenError::BadName(_)), "{name:?} {group:?}");
    }
    redis::cmd("SET").arg("text").arg("x").query_async::<()>(&mut there).await.unwrap();
    let refused = Stream::<String>::open(server.clone(), "text", "g").await.unwrap_err();
    assert_eq!(refused.to_string(), "key text is not a queue's: it is a string, and should be a stream");
    let key = "{s}:group:g:leases";
    redis::cmd("SET").arg(key).arg("x").query_async::<()>(&mut there).await.unwrap();
    let refused = Stream::<String>::open(server.clone(), "s", "g").await.unwrap_err().to_string();
    assert_eq!(refused, format!("key {key} is not a queue's: it is a string, and should be a zset"));
    redis::cmd("SET")
        .arg("{old}:group:g:layout")
        .arg("winddown stream 7")
        .query_async::<()>(&mut there)
        .await
        .unwrap();
    let refused = Stream::<String>::open(server, "old", "g").await.unwrap_err();
    assert!(matches!(refused, OpenError::Layout { found: 7, needed: 1, .. }), "{refused}");
}
