//! What is kept of jobs and owners, for how long, and what is left of them.

use redis::Value;
use winddown::queue::{Enqueued, HandBack, Held, JobState, NewJob, Queue};

use crate::bench::*;

impl Bench {
    async fn is_there(&self, key: &str) -> bool {
        self.says(&format!("EXISTS {OWN}{key}")).await
    }

    /// As when the time to look after what is gone has come: the next claim or wait does.
    async fn time_to_tidy(&self) {
        self.says::<()>(&format!("HSET {OWN}tidy next 0")).await;
    }
}

#[tokio::test]
async fn a_job_that_is_named_twice_in_one_call_is_settled_once() {
    let bench = bench().await;
    bench.fill(4).await;
    let held = leases(&bench.claim("one", 4).await);
    let twice = |n: usize| [held[n].clone(), held[n].clone()];
    assert_eq!(bench.queue.extend(&twice(0), LEASE).await.unwrap(), [Held::Yours; 2]);
    assert_eq!(bench.queue.ack(&twice(0)).await.unwrap(), [Held::Yours, Held::Gone]);
    let back = twice(1).map(HandBack::interrupted);
    assert_eq!(bench.queue.requeue(&back).await.unwrap(), [Held::Yours, Held::Already]);
    let stepped = bench.queue.step(&twice(2), &owner("one"), 9, LEASE).await.unwrap();
    assert_eq!(stepped.held, [Held::Yours, Held::Gone]);
    assert_eq!((names(&stepped.claimed), stepped.claimed[0].interruptions), (vec!["job 0001"], 1));
    let counts = bench.queue.counts().await.unwrap();
    assert_eq!((counts.active, counts.interruptions), (2, 1));
}

#[tokio::test]
async fn who_has_lost_a_job_is_told_so_as_long_as_the_job_is_there_whoever_added_it() {
    let bench = bench().await;
    bench.fill(1).await;
    bench.add("\"foreign\"").await;
    let held = leases(&bench.claim("one", 2).await);
    for lease in &held {
        assert_eq!(bench.queue.nack(lease, ms(0), "no").await.unwrap(), Held::Yours);
        assert_eq!(bench.queue.find(&lease.id).await.unwrap().unwrap().state, JobState::Pending);
    }
    assert_eq!(bench.queue.ack(&held).await.unwrap(), [Held::Lost; 2]);
    // One of ours is known by its name, also where the group knows of nothing.
    bench.says::<Value>("XGROUP DESTROY jobs workers").await;
    let lost = bench.queue.ack(&held[..1]).await.unwrap();
    assert_eq!(lost, [Held::Lost]);
}

#[tokio::test]
async fn what_is_trimmed_away_while_it_is_held_leaves_nothing_when_its_try_fails() {
    for length in [LEASE, ms(0)] {
        let bench = bench().await;
        bench.fill(2).await;
        let held = leases(&bench.claim("one", 2).await);
        bench.says::<()>("XTRIM jobs MAXLEN 0").await;
        assert_eq!(bench.queue.find(&held[0].id).await.unwrap(), None);
        let _ = bench.queue.nack(&held[0], length, "no").await.unwrap();
        let _ = bench.queue.dead_letter(&held[1], "no").await.unwrap();
        for key in ["held", "leases", "later", "past", "dead", "reasons"] {
            assert!(!bench.is_there(key).await, "{key}");
        }
    }
}

#[tokio::test]
async fn what_is_trimmed_away_leaves_nothing_when_its_delay_or_its_lease_ends() {
    let bench = bench().await;
    bench.fill(2).await;
    let held = leases(&bench.claim("one", 2).await);
    let back = [0, 1].map(|n| HandBack::interrupted(held[n].clone()).checkpoint("half"));
    assert_eq!(bench.queue.requeue(&back).await.unwrap(), [Held::Yours; 2]);
    let held = leases(&bench.claim("one", 2).await);
    assert_eq!(bench.queue.nack(&held[0], LEASE, "no").await.unwrap(), Held::Yours);
    bench.expire_delay("job 0000").await;
    bench.expire(&bench.entry("job 0001").await).await;
    bench.says::<()>("XTRIM jobs MAXLEN 0").await;
    assert!(bench.claim("two", 9).await.is_empty());
    for key in ["held", "leases", "later", "past", "notes", "dead", "reasons"] {
        assert!(!bench.is_there(key).await, "{key}");
    }
    let counts = bench.queue.counts().await.unwrap();
    assert_eq!((counts.interruptions, counts.crashes), (2, 0));
}

#[tokio::test]
async fn an_ack_is_told_as_it_was_where_the_group_or_the_stream_is_gone() {
    for lose in ["XGROUP DESTROY jobs workers", "DEL jobs"] {
        let bench = bench().await;
        bench.fill(2).await;
        let held = leases(&bench.claim("one", 2).await);
        bench.says::<Value>(lose).await;
        assert_eq!(bench.queue.ack(&held[..1]).await.unwrap(), [Held::Yours], "{lose}");
        let stepped = bench.queue.step(&held[1..], &owner("one"), 9, LEASE).await.unwrap();
        assert_eq!((stepped.held, stepped.claimed.len()), (vec![Held::Yours], 0), "{lose}");
    }
}

#[tokio::test]
async fn what_had_a_delay_or_was_dead_is_free_and_has_not_crashed_where_that_was_lost() {
    let bench = bench().await;
    bench.fill(2).await;
    let held = leases(&bench.claim("one", 2).await);
    assert_eq!(bench.queue.nack(&held[0], LEASE, "no").await.unwrap(), Held::Yours);
    assert_eq!(bench.queue.dead_letter(&held[1], "no").await.unwrap(), Held::Yours);
    bench.says::<()>(&format!("DEL {OWN}later {OWN}dead")).await;
    tokio::time::sleep(ms(5)).await;
    let hasty = bench.queue.clone().gone_after(ms(1));
    assert!(hasty.claim(&owner("two"), 9, LEASE).await.unwrap().is_empty(), "it is looked for every 5 s");
    bench.time_to_tidy().await;
    let free = hasty.claim(&owner("two"), 9, LEASE).await.unwrap();
    assert_eq!(names(&free), ["job 0000", "job 0001"]);
    assert!(free.iter().all(|job| (job.attempts, job.crashes) == (1, 0)));
    assert_eq!(bench.queue.counts().await.unwrap().crashes, 0);
}

#[tokio::test]
async fn a_job_that_is_retried_has_its_interruptions_and_its_checkpoint_and_no_more_of_what_it_went_through()
{
    let bench = bench().await;
    bench.fill(1).await;
    for round in 0..2 {
        let held = bench.claim("one", 1).await.remove(0).lease;
        if round == 0 {
            let back = HandBack::interrupted(held).checkpoint("half");
            assert_eq!(bench.queue.requeue(&[back]).await.unwrap(), [Held::Yours]);
        } else {
            assert_eq!(bench.queue.dead_letter(&held, "no").await.unwrap(), Held::Yours);
        }
    }
    assert!(bench.queue.retry(&id("job 0000")).await.unwrap());
    assert!(!bench.is_there("reasons").await && !bench.is_there("dead").await);
    let job = bench.claim("one", 1).await.remove(0);
    assert_eq!((job.attempts, job.interruptions, job.crashes), (0, 1, 0));
    assert_eq!(job.checkpoint.as_deref(), Some("half"));
}

#[tokio::test]
async fn a_name_that_is_given_anew_has_nothing_of_the_job_that_bore_it_before() {
    let bench = bench().await;
    bench.fill(1).await;
    let back = interrupted(&bench.claim("one", 1).await);
    assert_eq!(bench.queue.requeue(&back).await.unwrap(), [Held::Yours]);
    let entry = bench.entry("job 0000").await;
    bench.says::<u32>(&format!("XACK jobs workers {entry}")).await;
    bench.says::<u32>(&format!("XDEL jobs {entry}")).await;
    let again = NewJob::new(id("job 0000"), "again".into());
    assert_eq!(bench.queue.enqueue(&again).await.unwrap(), Enqueued::Added);
    assert!(!bench.is_there("past").await, "what is left of it is found by nobody any more");
    assert_eq!(bench.claim("one", 1).await[0].interruptions, 0);
}

#[tokio::test]
async fn a_job_that_another_programs_consumer_holds_is_active() {
    let bench = bench().await;
    let entry = bench.add("\"a\"").await;
    bench.says::<Value>("XREADGROUP GROUP workers theirs COUNT 1 STREAMS jobs >").await;
    assert_eq!(bench.queue.find(&id(&entry)).await.unwrap().unwrap().state, JobState::Active);
    assert_eq!(bench.queue.counts().await.unwrap().active, 1);
}

#[tokio::test]
async fn the_oldest_job_is_told_whoever_holds_it_and_no_dead_letter_is() {
    let bench = bench().await;
    let now: (u64, u64) = bench.says("TIME").await;
    for minutes in [50, 20] {
        let old = now.0 * 1000 - minutes * 60_000;
        bench.sends::<()>(&["XADD", "jobs", &format!("{old}-1"), "payload", "\"a\""]).await;
    }
    bench.fill(1).await;
    let minutes = async || bench.queue.counts().await.unwrap().oldest.unwrap().as_secs() / 60;
    let oldest = bench.claim("one", 1).await.remove(0).lease;
    bench.claim("another", 1).await;
    assert_eq!(minutes().await, 50);
    assert_eq!(bench.queue.dead_letter(&oldest, "no").await.unwrap(), Held::Yours);
    assert_eq!(minutes().await, 20);
}

#[tokio::test]
async fn jobs_are_counted_also_where_one_between_them_was_deleted() {
    let bench = bench().await;
    bench.fill(5).await;
    let entry = bench.entry("job 0003").await;
    bench.claim("one", 1).await;
    bench.says::<u32>(&format!("XDEL jobs {entry}")).await;
    let counts = bench.queue.counts().await.unwrap();
    assert_eq!((counts.pending, counts.active), (3, 1));
}

#[tokio::test]
async fn an_owner_that_ends_with_more_than_a_call_claims_lets_go_of_all_of_it() {
    let bench = bench().await;
    bench.fill(1_200).await;
    // The first thousand are known, and in the order of the group they stand before those that are lost.
    let known = bench.claim("one", 1_000).await;
    lose_a_claim(&bench, "one", 100).await;
    bench.queue.begin_drain(&owner("one"), None).await.unwrap();
    assert_eq!(bench.says::<usize>(&format!("ZCARD {OWN}leases")).await, known.len());
    let free = bench.claim("two", 9_999).await;
    assert_eq!(free.len(), 200);
    assert!(free.iter().all(|job| (job.interruptions, job.crashes) == (0, 0)));
    bench.queue.end_drain(&owner("one")).await.unwrap();
    assert_eq!(bench.queue.requeue(&interrupted(&free)).await.unwrap(), [Held::Yours; 200]);
    assert_eq!(bench.claim("one", 200).await.len(), 200);
    bench.queue.begin_drain(&owner("one"), Some(ms(0))).await.unwrap();
    let mut free = bench.claim("two", 9_999).await;
    free.extend(bench.claim("two", 9_999).await);
    assert_eq!(free.len(), 1_200, "all leases end at the kill");
}

#[tokio::test]
async fn the_mark_of_an_owner_is_forgotten_when_it_was_taken_away_and_an_hour_after_a_kill() {
    let bench = bench().await;
    bench.fill(1).await;
    let marks = async || bench.says::<Vec<String>>(&format!("ZRANGE {OWN}marks 0 -1")).await;
    let keys = async || bench.says::<usize>(&format!("HLEN {OWN}ending")).await;
    for name in ["clean", "dead", "holds"] {
        if name == "holds" {
            assert_eq!(bench.claim(name, 1).await.len(), 1);
        }
        bench.queue.begin_drain(&owner(name), Some(LEASE)).await.unwrap();
    }
    bench.queue.end_drain(&owner("clean")).await.unwrap();
    assert_eq!((marks().await, keys().await), (vec!["dead".into(), "holds".into()], 2));
    let key = format!("{OWN}marks");
    let forgotten: u64 = bench.sends::<f64>(&["ZSCORE", &key, "dead"]).await as u64;
    let now: (u64, u64) = bench.says("TIME").await;
    assert!(forgotten > now.0 * 1000 + 3_600_000, "an hour after the kill, and not before");
    bench.time_to_tidy().await;
    assert!(bench.claim("two", 1).await.is_empty());
    assert_eq!(keys().await, 2);
    for name in ["dead", "holds"] {
        bench.sends::<()>(&["ZADD", &key, "XX", "1", name]).await;
    }
    bench.time_to_tidy().await;
    assert!(bench.claim("two", 1).await.is_empty());
    // What it holds is yet to count as interrupted.
    assert_eq!((marks().await, keys().await), (vec!["holds".into()], 1));
}

#[tokio::test]
async fn what_is_left_behind_is_found_among_many_that_are_held() {
    let bench = bench().await;
    let idle = async |consumer: &str, entry: &str| {
        let words = ["XCLAIM", "jobs", "workers", consumer, "0", entry, "IDLE", "300000", "JUSTID"];
        bench.sends::<Value>(&words).await;
    };
    let first = bench.add("\"first\"").await;
    bench.says::<Value>("XREADGROUP GROUP workers theirs COUNT 1 STREAMS jobs >").await;
    bench.fill(150).await;
    let held = bench.claim("one", 150).await;
    let last = bench.add("\"last\"").await;
    bench.says::<Value>("XREADGROUP GROUP workers theirs COUNT 1 STREAMS jobs >").await;
    for job in &held {
        idle("one", &bench.entry(job.lease.id.as_str()).await).await;
    }
    // A hundred are looked at each time.
    for entry in [last, first] {
        idle("theirs", &entry).await;
        let mut found = Vec::new();
        for _ in 0..3 {
            bench.time_to_tidy().await;
            found.extend(bench.claim("two", 9).await);
        }
        assert_eq!((names(&found), found[0].crashes), (vec![entry.as_str()], 1));
    }
    assert_eq!(bench.consumers().await["one"], 150);
}

#[tokio::test]
async fn a_consumer_that_holds_nothing_is_deleted_only_when_it_was_idle_for_long() {
    let bench = bench().await;
    let entry = bench.add("\"a\"").await;
    bench.says::<Value>("XREADGROUP GROUP workers theirs COUNT 1 STREAMS jobs >").await;
    bench.says::<u32>(&format!("XACK jobs workers {entry}")).await;
    bench.time_to_tidy().await;
    assert!(bench.claim("one", 1).await.is_empty());
    assert!(bench.consumers().await.contains_key("theirs"));
    tokio::time::sleep(ms(5)).await;
    bench.time_to_tidy().await;
    assert!(bench.queue.clone().gone_after(ms(1)).claim(&owner("one"), 1, LEASE).await.unwrap().is_empty());
    assert!(!bench.consumers().await.contains_key("theirs"));
}

/// Clones, too, are what was said.
#[tokio::test]
async fn how_long_the_idle_are_left_alone_and_how_often_a_job_may_crash_holds_for_clones() {
    let bench = bench().await;
    bench.fill(1).await;
    let strict = bench.queue.clone().max_crashes(0).gone_after(ms(1)).clone();
    bench.claim("one", 1).await;
    bench.expire(&bench.entry("job 0000").await).await;
    assert!(strict.claim(&owner("two"), 9, LEASE).await.unwrap().is_empty());
    assert_eq!(bench.queue.counts().await.unwrap().dead, 1);
    let entry = bench.add("\"a\"").await;
    bench.says::<Value>("XREADGROUP GROUP workers theirs COUNT 1 STREAMS jobs >").await;
    bench.time_to_tidy().await;
    tokio::time::sleep(ms(5)).await;
    assert_eq!(names(&strict.claim(&owner("two"), 9, LEASE).await.unwrap()), [&entry]);
}

#[tokio::test]
async fn settings_that_put_jobs_at_risk_are_named() {
    let warnings = bench().await.queue.warnings().await.unwrap();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("appendonly is no and save is empty"), "{warnings:?}");
}

#[tokio::test]
async fn what_is_written_after_all_was_lost_is_a_queue_that_others_can_open() {
    let bench = bench().await;
    for write in ["enqueue", "claim", "drain", "end", "requeue", "nack", "extend"] {
        bench.fill(1).await;
        let held = bench.claim("one", 1).await;
        bench.says::<()>("FLUSHALL").await;
        match write {
            "enqueue" => bench.fill(1).await,
            "claim" => drop(bench.claim("one", 1).await),
            "drain" => bench.queue.begin_drain(&owner("one"), None).await.unwrap(),
            "end" => bench.queue.end_drain(&owner("one")).await.unwrap(),
            "requeue" => drop(bench.queue.requeue(&interrupted(&held)).await.unwrap()),
            "nack" => drop(bench.queue.nack(&held[0].lease, LEASE, "no").await.unwrap()),
            _ => drop(bench.queue.extend(&leases(&held), LEASE).await.unwrap()),
        }
        open(&bench.redis).await;
        bench.says::<()>("FLUSHALL").await;
    }
}
