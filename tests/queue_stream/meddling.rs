//! Other programs, and operators, that do with the group and the stream what they like.

use redis::Value;
use winddown::queue::{Enqueued, HandBack, Held, JobState, NewJob, Queue};

use crate::bench::*;
use crate::within::within;

impl Bench {
    /// Has the queue look after all that it looks after now and then.
    async fn tidied(&self) {
        let next = format!("{OWN}tidy");
        for _ in 0..6 {
            self.sends::<()>(&["HSET", &next, "next", "0"]).await;
            let looked = async {
                while self.sends::<String>(&["HGET", &next, "next"]).await == "0" {
                    tokio::time::sleep(ms(1)).await;
                }
            };
            tokio::select! {
                () = self.queue.ready() => {}
                () = within(LONG, looked) => {}
            }
            self.queue.stop_waiting().await;
        }
    }

    /// Pending, scheduled, active, dead.
    async fn standing(&self) -> (u64, u64, u64, u64) {
        let counts = self.queue.counts().await.unwrap();
        (counts.pending, counts.scheduled, counts.active, counts.dead)
    }

    async fn enqueue(&self, name: &str) -> Enqueued {
        self.queue.enqueue(&NewJob::new(id(name), "again".into())).await.unwrap()
    }
}

#[tokio::test]
async fn what_somebody_else_settles_is_over_and_leaves_nothing() {
    for settle in ["XACK jobs workers", "XDEL jobs", "XTRIM jobs MAXLEN 0"] {
        let bench = bench().await;
        // Keeps the stream from being emptied by what is acked.
        bench.says::<()>("XGROUP CREATE jobs others 0").await;
        bench.fill(5).await;
        bench.add("\"foreign\"").await;
        let claimed = bench.claim("one", 9).await;
        let of = |n: usize| claimed[n].lease.clone();
        assert_eq!(bench.queue.dead_letter(&of(0), "no").await.unwrap(), Held::Yours);
        assert_eq!(bench.queue.nack(&of(1), LEASE, "no").await.unwrap(), Held::Yours);
        let back = [HandBack::interrupted(of(2)).checkpoint("half"), HandBack::interrupted(of(5))];
        assert_eq!(bench.queue.requeue(&back).await.unwrap(), [Held::Yours; 2]);
        for name in ["job 0000", "job 0001", "job 0002", "job 0003", "job 0004"] {
            assert_eq!(bench.enqueue(name).await, Enqueued::Exists, "{name}, before {settle}");
        }
        let all: Vec<(String, Value)> = bench.says("XRANGE jobs - +").await;
        for (entry, _) in all {
            let line = if settle.starts_with("XTRIM") { settle.into() } else { format!("{settle} {entry}") };
            bench.says::<Value>(&line).await;
        }
        bench.tidied().await;
        assert_eq!(bench.queue.requeue(&[HandBack::interrupted(of(3))]).await.unwrap(), [Held::Gone]);
        assert_eq!(bench.queue.ack(&[of(4)]).await.unwrap(), [Held::Yours]);
        bench.tidied().await;
        assert!(bench.claim("two", 9).await.is_empty(), "{settle}");
        assert_eq!(bench.standing().await, (0, 0, 0, 0), "{settle}");
        let listed: (usize, Value, Value, Value) = bench.says("XPENDING jobs workers").await;
        assert_eq!(listed.0, 0, "{settle}");
        for key in ["ids", "held", "leases", "later", "past", "notes", "dead", "reasons"] {
            assert_eq!(bench.says::<u32>(&format!("EXISTS {OWN}{key}")).await, 0, "{key} after {settle}");
        }
        for name in ["job 0000", "job 0001", "job 0002", "job 0003", "job 0004"] {
            assert_eq!(bench.enqueue(name).await, Enqueued::Added, "{name} after {settle}");
        }
    }
}

#[tokio::test]
async fn a_name_is_free_again_at_once_when_somebody_else_has_acked_its_job() {
    let bench = bench().await;
    bench.fill(2).await;
    let claimed = bench.claim("one", 2).await;
    assert_eq!(bench.queue.requeue(&interrupted(&claimed[..1])).await.unwrap(), [Held::Yours]);
    for name in ["job 0000", "job 0001"] {
        let entry = bench.entry(name).await;
        assert_eq!(bench.says::<u32>(&format!("XACK jobs workers {entry}")).await, 1);
    }
    assert_eq!(bench.queue.find(&id("job 0000")).await.unwrap(), None);
    assert_eq!(bench.enqueue("job 0000").await, Enqueued::Added);
    assert_eq!(bench.enqueue("job 0001").await, Enqueued::Exists, "its holder is still at it");
}

#[tokio::test]
async fn a_delay_or_a_death_is_not_over_because_another_consumer_took_the_job_and_left() {
    let bench = bench().await;
    bench.fill(3).await;
    let claimed = bench.claim("one", 9).await;
    assert_eq!(bench.queue.nack(&claimed[0].lease, 20 * LEASE, "no").await.unwrap(), Held::Yours);
    assert_eq!(bench.queue.dead_letter(&claimed[1].lease, "no").await.unwrap(), Held::Yours);
    // As a program does that claims whatever is idle.
    for name in ["job 0000", "job 0001"] {
        let entry = bench.entry(name).await;
        bench.says::<Value>(&format!("XCLAIM jobs workers theirs 0 {entry} IDLE 300000")).await;
    }
    bench.tidied().await;
    assert!(bench.claim("two", 9).await.is_empty());
    assert_eq!(bench.standing().await, (0, 1, 1, 1));
    assert_eq!(bench.queue.counts().await.unwrap().crashes, 0);
    // And when the delay is over, it is one job, held once.
    bench.expire_delay("job 0000").await;
    let taken = bench.claim("two", 9).await;
    assert_eq!((names(&taken), taken[0].attempts), (vec!["job 0000"], 1));
    assert!(bench.claim("three", 9).await.is_empty());
    assert!(bench.queue.retry(&id("job 0001")).await.unwrap());
    assert_eq!(names(&bench.claim("three", 9).await), ["job 0001"]);
}

#[tokio::test]
async fn in_a_group_that_is_made_anew_or_set_back_each_job_is_where_it_was() {
    for meddle in ["XGROUP DESTROY jobs workers", "XGROUP SETID jobs workers 0"] {
        let bench = bench().await;
        bench.fill(7).await;
        let claimed = bench.claim("one", 6).await;
        let of = |n: usize| claimed[n].lease.clone();
        assert_eq!(bench.queue.nack(&of(1), LEASE, "no").await.unwrap(), Held::Yours);
        assert_eq!(bench.queue.dead_letter(&of(2), "no").await.unwrap(), Held::Yours);
        let back = HandBack::interrupted(of(3)).checkpoint("half");
        assert_eq!(bench.queue.requeue(&[back]).await.unwrap(), [Held::Yours]);
        bench.says::<Value>(meddle).await;
        // Said before anybody has claimed again.
        let back = HandBack::interrupted(of(4)).checkpoint("nearly");
        assert_eq!(bench.queue.requeue(&[back]).await.unwrap(), [Held::Yours], "{meddle}");
        assert_eq!(bench.queue.nack(&of(5), LEASE, "no").await.unwrap(), Held::Yours);
        for (name, state) in [
            ("job 0000", JobState::Active),
            ("job 0001", JobState::Scheduled),
            ("job 0002", JobState::Dead),
            ("job 0003", JobState::Pending),
            ("job 0005", JobState::Scheduled),
        ] {
            let found = bench.queue.find(&id(name)).await.unwrap().expect(name);
            assert_eq!(found.state, state, "{name} after {meddle}");
        }

        let free = bench.claim("two", 9).await;
        assert_eq!(names(&free), ["job 0003", "job 0004", "job 0006"], "{meddle}");
        let checkpoints: Vec<_> = free.iter().map(|job| job.checkpoint.as_deref()).collect();
        assert_eq!(checkpoints, [Some("half"), Some("nearly"), None]);
        assert_eq!(free.iter().map(|job| job.interruptions).collect::<Vec<_>>(), [1, 1, 0]);
        assert_eq!(bench.standing().await, (0, 2, 4, 1), "{meddle}");
        assert_eq!(bench.queue.dead_letters(9).await.unwrap()[0].reason, "no");
        assert_eq!(bench.queue.ack(&[of(0)]).await.unwrap(), [Held::Yours], "its holder never lost it");
        for name in ["job 0001", "job 0005"] {
            bench.expire_delay(name).await;
        }
        let due = bench.claim("two", 9).await;
        assert_eq!(names(&due), ["job 0001", "job 0005"]);
        assert!(due.iter().all(|job| job.attempts == 1), "{meddle}: {due:?}");
        assert!(bench.queue.retry(&id("job 0002")).await.unwrap());
        assert_eq!(names(&bench.claim("two", 9).await), ["job 0002"]);
    }
}

#[tokio::test]
async fn a_try_that_fails_where_the_group_is_gone_counts_once() {
    let bench = bench().await;
    bench.fill(2).await;
    let claimed = bench.claim("one", 2).await;
    bench.says::<Value>("XGROUP DESTROY jobs workers").await;
    assert_eq!(bench.queue.nack(&claimed[0].lease, ms(0), "no").await.unwrap(), Held::Yours);
    bench.says::<Value>("XGROUP DESTROY jobs workers").await;
    assert_eq!(bench.queue.dead_letter(&claimed[1].lease, "no").await.unwrap(), Held::Yours);
    let again = bench.claim("two", 9).await;
    assert_eq!((names(&again), again[0].attempts), (vec!["job 0000"], 1));
    assert_eq!(bench.queue.dead_letters(9).await.unwrap()[0].attempts, 1);
}

#[tokio::test]
async fn a_lease_that_ends_where_the_group_is_gone_is_a_crash_and_no_more() {
    let bench = bench().await;
    bench.fill(1).await;
    for crashes in 0..3 {
        let claimed = bench.claim("one", 9).await;
        assert_eq!((names(&claimed), claimed[0].crashes), (vec!["job 0000"], crashes));
        let entry = bench.entry("job 0000").await;
        bench.says::<Value>("XGROUP DESTROY jobs workers").await;
        bench.expire(&entry).await;
    }
}

#[tokio::test]
async fn a_job_that_was_claimed_by_somebody_else_while_it_is_held_is_its_holders_to_settle() {
    let bench = bench().await;
    bench.fill(3).await;
    let claimed = bench.claim("one", 3).await;
    bench.says::<Value>("XAUTOCLAIM jobs workers theirs 0 0").await;
    bench.tidied().await;
    assert_eq!(bench.queue.extend(&leases(&claimed), LEASE).await.unwrap(), [Held::Yours; 3]);
    assert_eq!(bench.queue.ack(&leases(&claimed[..1])).await.unwrap(), [Held::Yours]);
    assert_eq!(bench.queue.requeue(&interrupted(&claimed[1..2])).await.unwrap(), [Held::Yours]);
    assert_eq!(bench.queue.nack(&claimed[2].lease, ms(0), "no").await.unwrap(), Held::Yours);
    assert_eq!(names(&bench.claim("two", 9).await), ["job 0001", "job 0002"]);
}

#[tokio::test]
async fn no_name_is_an_error_to_ask_for() {
    let bench = bench().await;
    bench.says::<()>("XADD jobs 5-5 payload x").await;
    bench.add("\"a\"").await;
    for name in [
        "99999999999999999999-0",
        "1-99999999999999999999",
        "100000000000000000000-0",
        "05-5",
        "5-05",
        "-",
        "+",
        "1-1",
        "(1-0",
        "\u{e4} \u{1f375}",
    ] {
        assert_eq!(bench.queue.find(&id(name)).await.unwrap(), None, "{name}");
        assert!(!bench.queue.retry(&id(name)).await.unwrap(), "{name}");
    }
}

#[tokio::test]
async fn entries_of_hundreds_of_fields_are_jobs_like_others() {
    let bench = bench().await;
    for n in 0..1_100 {
        let mut add = redis::cmd("XADD");
        add.arg(&["jobs", "*"]);
        for field in 0..300 {
            add.arg(field).arg("x");
        }
        add.arg("payload").arg(format!("\"{n}\""));
        add.exec_async(&mut bench.connection.clone()).await.unwrap();
    }
    let claimed = bench.claim("one", 2_000).await;
    assert_eq!(claimed.len(), 1_000, "as many as one call brings");
    assert_eq!(bench.queue.requeue(&interrupted(&claimed)).await.unwrap(), [Held::Yours; 1_000]);
    let again = bench.claim("two", 2_000).await;
    assert_eq!(items(&again), items(&claimed));
    assert!(bench.queue.ack(&leases(&again)).await.unwrap().iter().all(|held| *held == Held::Yours));
    assert_eq!(bench.standing().await, (100, 0, 0, 0));
}

#[tokio::test]
async fn a_claim_that_the_server_did_after_the_next_one_is_taken_back_too() {
    let bench = bench().await;
    bench.fill(4).await;
    let known = bench.claim("one", 1).await;
    lose_a_claim(&bench, "one", 1).await;
    let next = bench.claim("one", 1).await;
    assert_eq!(names(&next), ["job 0001"]);
    // As a call that waited on a connection which was given up: what stands there is read in any order.
    let late = open(&bench.redis).await.claim(&owner("one"), 1, LEASE).await.unwrap();
    assert_eq!(names(&late), ["job 0002"]);
    // Within a second of the last that looked for such claims, those that follow go on side by side instead.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let rest = bench.claim("one", 9).await;
    assert_eq!(names(&rest), ["job 0002", "job 0003"]);
    assert!(rest.iter().all(|job| (job.interruptions, job.crashes) == (0, 0)));
    let late = open(&bench.redis).await;
    let held = [leases(&known), leases(&next), leases(&rest)].concat();
    assert_eq!(bench.queue.ack(&held).await.unwrap(), [Held::Yours; 4]);

    // And where nothing is claimed any more, by the beginning of the drain.
    bench.fill(2).await;
    assert_eq!(late.claim(&owner("one"), 1, LEASE).await.unwrap().len(), 1);
    bench.queue.begin_drain(&owner("one"), Some(LEASE)).await.unwrap();
    assert_eq!(bench.standing().await, (2, 0, 0, 0));
    let free = bench.claim("two", 9).await;
    assert!(free.iter().all(|job| (job.interruptions, job.crashes) == (0, 0)));
}
