//! What every queue promises, told once and run on each technology.

use std::future::Future;
use std::time::Duration;

use winddown::queue::{Claimed, HandBack, Held, JobId, Lease, NewJob, Owner, Queue, Stepped};

const LEASE: Duration = Duration::from_secs(30);

/// A queue under test, whose clock can be moved.
trait Bench {
    type Queue: Queue<Item = String>;

    fn queue(&self) -> &Self::Queue;
    fn enqueue(&self, job: NewJob<String>) -> impl Future<Output = ()>;
    /// Lets time pass at the queue.
    fn pass(&self, time: Duration) -> impl Future<Output = ()>;
    /// All that the queue stores, so that two moments can be compared.
    fn dump(&self) -> impl Future<Output = String>;
}

fn id(name: &str) -> JobId {
    name.parse().unwrap()
}

fn owner(name: &str) -> Owner {
    name.parse().unwrap()
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

async fn fill(bench: &impl Bench, names: &[&str]) {
    for name in names {
        bench.enqueue(NewJob::new(id(name), format!("item {name}"))).await;
    }
}

async fn claim(bench: &impl Bench, who: &str, max: usize) -> Vec<Claimed<String>> {
    bench.queue().claim(&owner(who), max, LEASE).await.unwrap()
}

async fn claim_one(bench: &impl Bench, who: &str) -> Claimed<String> {
    let mut claimed = claim(bench, who, 1).await;
    claimed.pop().expect("a job to claim")
}

fn names(claimed: &[Claimed<String>]) -> Vec<&str> {
    claimed.iter().map(|job| job.lease.id.as_str()).collect()
}

fn leases(claimed: &[Claimed<String>]) -> Vec<Lease> {
    claimed.iter().map(|job| job.lease.clone()).collect()
}

fn interrupted(claimed: &[Claimed<String>]) -> Vec<HandBack> {
    claimed.iter().map(|job| HandBack::interrupted(job.lease.clone())).collect()
}

// === What is promised ===

async fn jobs_are_claimed_by_priority_and_then_in_order_of_enqueuing(bench: impl Bench) {
    fill(&bench, &["a", "b"]).await;
    bench.enqueue(NewJob::new(id("urgent"), "u".into()).priority(5)).await;
    bench.enqueue(NewJob::new(id("idle"), "i".into()).priority(-5)).await;
    fill(&bench, &["c"]).await;
    assert_eq!(names(&claim(&bench, "one", 2).await), ["urgent", "a"]);
    assert_eq!(names(&claim(&bench, "two", 9).await), ["b", "c", "idle"]);
    assert!(claim(&bench, "two", 9).await.is_empty());
}

async fn a_job_is_held_by_one_owner_at_a_time(bench: impl Bench) {
    fill(&bench, &["a", "b", "c", "d", "e"]).await;
    let (one, two) = tokio::join!(claim(&bench, "one", 3), claim(&bench, "two", 3));
    let mut all = [names(&one), names(&two)].concat();
    all.sort_unstable();
    assert_eq!(all, ["a", "b", "c", "d", "e"]);
}

async fn an_enqueued_name_that_is_there_is_left_as_it_is(bench: impl Bench) {
    fill(&bench, &["a"]).await;
    let before = bench.dump().await;
    bench.enqueue(NewJob::new(id("a"), "another".into()).priority(7)).await;
    assert_eq!(bench.dump().await, before);
}

async fn a_job_that_is_acked_is_gone(bench: impl Bench) {
    fill(&bench, &["a", "b"]).await;
    let claimed = claim(&bench, "one", 2).await;
    assert_eq!(bench.queue().ack(&leases(&claimed)).await.unwrap(), [Held::Yours, Held::Yours]);
    assert_eq!(bench.queue().ack(&leases(&claimed)).await.unwrap(), [Held::Gone, Held::Gone]);
    let counts = bench.queue().counts().await.unwrap();
    assert_eq!((counts.pending, counts.active, counts.dead, counts.oldest), (0, 0, 0, None));
}

async fn the_epoch_grows_with_every_claim_and_over_the_end_of_a_job(bench: impl Bench) {
    let mut last = 0;
    for round in 0..3 {
        fill(&bench, &["a"]).await;
        for _ in 0..3 {
            let job = claim_one(&bench, "one").await;
            assert!(job.lease.epoch > last, "round {round}: {} after {last}", job.lease.epoch);
            last = job.lease.epoch;
            bench.queue().requeue(&[HandBack::interrupted(job.lease)]).await.unwrap();
        }
        let job = claim_one(&bench, "one").await;
        last = job.lease.epoch;
        assert_eq!(bench.queue().ack(&[job.lease]).await.unwrap(), [Held::Yours]);
    }
}

/// I17
async fn an_interrupted_job_keeps_attempts_payload_and_place(bench: impl Bench) {
    bench.enqueue(NewJob::new(id("a"), "tea \u{0} \"€\"\n".into()).priority(3)).await;
    for attempt in 1..=2 {
        let job = claim_one(&bench, "one").await;
        assert_eq!(bench.queue().nack(&job.lease, Duration::ZERO, "no luck").await.unwrap(), Held::Yours);
        assert_eq!(job.attempts + 1, attempt);
    }
    bench.enqueue(NewJob::new(id("b"), "b".into()).priority(3)).await;
    bench.enqueue(NewJob::new(id("c"), "c".into())).await;
    let before = claim(&bench, "one", 2).await;
    assert_eq!(names(&before), ["a", "b"]);
    // Handed back in the wrong order, and with one in front that had come later.
    let backwards: Vec<_> = interrupted(&before).into_iter().rev().collect();
    assert_eq!(bench.queue().requeue(&backwards).await.unwrap(), [Held::Yours, Held::Yours]);
    bench.enqueue(NewJob::new(id("d"), "d".into())).await;

    let after = claim(&bench, "two", 9).await;
    assert_eq!(names(&after), ["a", "b", "c", "d"]);
    assert_eq!(after[0].item, "tea \u{0} \"€\"\n");
    assert_eq!((after[0].attempts, after[0].interruptions, after[0].crashes), (2, 1, 0));
    assert_eq!((after[0].priority, after[0].order), (before[0].priority, before[0].order));
}

async fn a_hand_back_may_be_repeated(bench: impl Bench) {
    fill(&bench, &["a", "b"]).await;
    let claimed = claim(&bench, "one", 2).await;
    let back = interrupted(&claimed);
    assert_eq!(bench.queue().requeue(&back[..1]).await.unwrap(), [Held::Yours]);
    assert_eq!(bench.queue().requeue(&back).await.unwrap(), [Held::Already, Held::Yours]);
    let before = bench.dump().await;
    assert_eq!(bench.queue().requeue(&back).await.unwrap(), [Held::Already, Held::Already]);
    assert_eq!(bench.dump().await, before);
    assert_eq!(bench.queue().counts().await.unwrap().interruptions, 2);
}

async fn a_job_that_nobody_had_begun_goes_back_without_counting(bench: impl Bench) {
    fill(&bench, &["a"]).await;
    let job = claim_one(&bench, "one").await;
    assert_eq!(bench.queue().requeue(&[HandBack::untouched(job.lease)]).await.unwrap(), [Held::Yours]);
    assert_eq!(claim_one(&bench, "one").await.interruptions, 0);
    assert_eq!(bench.queue().counts().await.unwrap().interruptions, 0);
}

async fn a_checkpoint_is_told_to_whoever_goes_on(bench: impl Bench) {
    fill(&bench, &["a"]).await;
    let job = claim_one(&bench, "one").await;
    assert_eq!(job.checkpoint, None);
    bench.queue().requeue(&[HandBack::interrupted(job.lease).checkpoint("charged")]).await.unwrap();
    let job = claim_one(&bench, "two").await;
    assert_eq!(job.checkpoint.as_deref(), Some("charged"));
    bench.queue().requeue(&[HandBack::interrupted(job.lease)]).await.unwrap();
    assert_eq!(claim_one(&bench, "three").await.checkpoint.as_deref(), Some("charged"));
}

async fn a_holder_that_lost_its_lease_changes_no_byte(bench: impl Bench) {
    fill(&bench, &["a", "b"]).await;
    let old = claim_one(&bench, "one").await.lease;
    bench.pass(LEASE).await;
    let new = claim_one(&bench, "one").await.lease;
    assert_eq!(new.id, old.id);
    assert!(new.epoch > old.epoch);
    let other_owner = Lease { owner: owner("two"), ..new.clone() };
    let before = bench.dump().await;
    for stale in [old, other_owner] {
        let queue = bench.queue();
        let one = std::slice::from_ref(&stale);
        assert_eq!(queue.ack(one).await.unwrap(), [Held::Lost]);
        assert_eq!(queue.extend(one, secs(900)).await.unwrap(), [Held::Lost]);
        assert_eq!(queue.nack(&stale, secs(1), "late").await.unwrap(), Held::Lost);
        assert_eq!(queue.dead_letter(&stale, "late").await.unwrap(), Held::Lost);
        assert_eq!(
            queue.requeue(&[HandBack::interrupted(stale.clone()).checkpoint("x")]).await.unwrap(),
            [Held::Lost]
        );
        assert_eq!(bench.dump().await, before);
        assert!(Held::Lost.or_lost(&stale).unwrap_err().to_string().contains("lost the lease of job a"));
    }
    let gone = Lease { id: id("nobody"), ..new.clone() };
    assert_eq!(bench.queue().ack(&[gone, new]).await.unwrap(), [Held::Gone, Held::Yours]);
}

async fn a_handed_back_job_is_not_its_last_holders_any_more(bench: impl Bench) {
    fill(&bench, &["a"]).await;
    let job = claim_one(&bench, "one").await;
    bench.queue().requeue(&[HandBack::interrupted(job.lease.clone())]).await.unwrap();
    let before = bench.dump().await;
    assert_eq!(bench.queue().ack(std::slice::from_ref(&job.lease)).await.unwrap(), [Held::Lost]);
    assert_eq!(bench.queue().nack(&job.lease, secs(1), "late").await.unwrap(), Held::Lost);
    assert_eq!(bench.dump().await, before);
    let stale = [HandBack::interrupted(job.lease)];
    let next = claim_one(&bench, "two").await;
    assert_eq!(bench.queue().requeue(&stale).await.unwrap(), [Held::Lost]);
    assert_eq!(bench.queue().requeue(&[HandBack::interrupted(next.lease)]).await.unwrap(), [Held::Yours]);
    assert_eq!(bench.queue().requeue(&stale).await.unwrap(), [Held::Lost]);
    let next = claim_one(&bench, "two").await.lease;
    assert_eq!(bench.queue().nack(&next, Duration::ZERO, "no luck").await.unwrap(), Held::Yours);
    assert_eq!(bench.queue().requeue(&[HandBack::interrupted(next)]).await.unwrap(), [Held::Lost]);
}

async fn an_expired_lease_counts_a_crash_and_the_job_is_free_at_that_moment(bench: impl Bench) {
    fill(&bench, &["a", "b"]).await;
    claim_one(&bench, "one").await;
    bench.pass(LEASE - secs(5)).await;
    assert_eq!(names(&claim(&bench, "two", 1).await), ["b"]);
    bench.pass(secs(5)).await;
    let job = claim_one(&bench, "two").await;
    assert_eq!((job.lease.id.as_str(), job.attempts, job.interruptions, job.crashes), ("a", 0, 0, 1));
    let counts = bench.queue().counts().await.unwrap();
    assert_eq!((counts.interruptions, counts.crashes, counts.active), (0, 1, 2));
}

async fn an_expired_lease_is_still_its_holders_until_somebody_claims(bench: impl Bench) {
    fill(&bench, &["a", "b", "c"]).await;
    let claimed = claim(&bench, "one", 3).await;
    bench.pass(LEASE + secs(1)).await;
    assert_eq!(bench.queue().ack(&leases(&claimed[1..2])).await.unwrap(), [Held::Yours]);
    assert_eq!(bench.queue().extend(&leases(&claimed[..1]), LEASE).await.unwrap(), [Held::Yours]);
    assert_eq!(bench.queue().ack(&leases(&claimed[2..])).await.unwrap(), [Held::Yours]);
    assert!(claim(&bench, "two", 9).await.is_empty());
}

async fn an_extended_lease_ends_later(bench: impl Bench) {
    fill(&bench, &["a"]).await;
    let job = claim_one(&bench, "one").await;
    for _ in 0..3 {
        bench.pass(LEASE - secs(5)).await;
        let held = bench.queue().extend(std::slice::from_ref(&job.lease), LEASE).await.unwrap();
        assert_eq!(held, [Held::Yours]);
        assert!(claim(&bench, "two", 1).await.is_empty());
    }
    bench.pass(LEASE).await;
    assert_eq!(claim_one(&bench, "two").await.crashes, 1);
}

async fn a_job_that_crashes_its_holders_too_often_is_given_up(bench: impl Bench) {
    fill(&bench, &["poison", "good"]).await;
    for crashes in 0..=winddown::queue::MAX_CRASHES {
        let job = claim_one(&bench, "one").await;
        assert_eq!((job.lease.id.as_str(), job.crashes), ("poison", crashes));
        bench.pass(LEASE).await;
    }
    assert_eq!(names(&claim(&bench, "one", 2).await), ["good"]);
    let dead = bench.queue().dead_letters(9).await.unwrap();
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].id.as_str(), dead[0].crashes, dead[0].attempts), ("poison", 6, 0));
    assert_eq!(dead[0].reason, "its lease ran out 6 times without a word");
}

async fn a_failed_job_waits_for_its_delay(bench: impl Bench) {
    fill(&bench, &["a", "b"]).await;
    let job = claim_one(&bench, "one").await;
    assert_eq!(bench.queue().nack(&job.lease, secs(20), "peer is down").await.unwrap(), Held::Yours);
    assert_eq!(bench.queue().counts().await.unwrap().scheduled, 1);
    bench.pass(secs(15)).await;
    assert_eq!(names(&claim(&bench, "one", 9).await), ["b"]);
    bench.pass(secs(5)).await;
    let job = claim_one(&bench, "one").await;
    assert_eq!((job.lease.id.as_str(), job.attempts, job.interruptions, job.crashes), ("a", 1, 0, 0));
}

async fn a_delayed_job_waits_from_when_it_was_enqueued(bench: impl Bench) {
    bench.enqueue(NewJob::new(id("a"), "a".into()).delay(secs(20))).await;
    assert!(claim(&bench, "one", 1).await.is_empty());
    bench.pass(secs(20)).await;
    assert_eq!(names(&claim(&bench, "one", 1).await), ["a"]);
}

async fn a_dead_letter_is_kept_listed_and_can_be_retried(bench: impl Bench) {
    fill(&bench, &["a", "b", "c"]).await;
    for name in ["a", "b"] {
        let job = claim_one(&bench, "one").await;
        assert_eq!(bench.queue().dead_letter(&job.lease, &format!("no {name}")).await.unwrap(), Held::Yours);
        bench.pass(secs(60)).await;
    }
    let dead = bench.queue().dead_letters(9).await.unwrap();
    let told: Vec<_> =
        dead.iter().map(|dead| (dead.id.as_str(), dead.reason.as_str(), dead.attempts)).collect();
    assert_eq!(told, [("a", "no a", 1), ("b", "no b", 1)]);
    assert!(dead[0].age >= secs(120) && dead[1].age >= secs(60) && dead[1].age < secs(120));
    assert_eq!(bench.queue().dead_letters(1).await.unwrap().len(), 1);
    assert!(bench.queue().dead_letters(0).await.unwrap().is_empty());
    assert!(bench.queue().retry(&id("b")).await.unwrap());
    assert!(!bench.queue().retry(&id("b")).await.unwrap());
    assert!(!bench.queue().retry(&id("c")).await.unwrap());
    let claimed = claim(&bench, "one", 9).await;
    assert_eq!(names(&claimed), ["b", "c"]);
    assert_eq!(claimed[0].attempts, 0);
    assert_eq!(bench.queue().counts().await.unwrap().dead, 1);
}

async fn an_ending_owner_claims_nothing_and_others_do(bench: impl Bench) {
    fill(&bench, &["a"]).await;
    bench.queue().begin_drain(&owner("one"), Some(secs(5))).await.unwrap();
    assert!(claim(&bench, "one", 1).await.is_empty());
    assert_eq!(bench.queue().step(&[], &owner("one"), 1, LEASE).await.unwrap().claimed.len(), 0);
    assert_eq!(names(&claim(&bench, "two", 1).await), ["a"]);
}

async fn what_an_ending_owner_holds_is_free_at_the_kill_and_was_interrupted(bench: impl Bench) {
    fill(&bench, &["a", "b", "c"]).await;
    claim(&bench, "one", 2).await;
    claim(&bench, "two", 1).await;
    bench.queue().begin_drain(&owner("one"), Some(secs(10))).await.unwrap();
    bench.pass(secs(5)).await;
    assert!(claim(&bench, "three", 9).await.is_empty());
    bench.pass(secs(5)).await;
    let claimed = claim(&bench, "three", 9).await;
    assert_eq!(names(&claimed), ["a", "b"]);
    assert_eq!((claimed[0].attempts, claimed[0].interruptions, claimed[0].crashes), (0, 1, 0));
    let counts = bench.queue().counts().await.unwrap();
    assert_eq!((counts.interruptions, counts.crashes), (2, 0));
    // The mark was the last owner's, not the job's.
    bench.pass(LEASE).await;
    let claimed = claim(&bench, "three", 1).await;
    assert_eq!((claimed[0].interruptions, claimed[0].crashes), (1, 1));
}

async fn a_second_drain_shortens_and_never_lengthens(bench: impl Bench) {
    for (first, second, end) in [(10, 20, 10), (20, 10, 10)] {
        let names = [format!("job {first}")];
        fill(&bench, &[&names[0]]).await;
        let me = format!("owner {first}");
        let job = claim_one(&bench, &me).await;
        bench.queue().begin_drain(&owner(&me), Some(secs(first))).await.unwrap();
        bench.queue().begin_drain(&owner(&me), Some(secs(second))).await.unwrap();
        bench.queue().begin_drain(&owner(&me), None).await.unwrap();
        assert_eq!(
            bench.queue().extend(std::slice::from_ref(&job.lease), LEASE).await.unwrap(),
            [Held::Yours]
        );
        bench.pass(secs(end - 3)).await;
        assert!(claim(&bench, "next", 1).await.is_empty());
        bench.pass(secs(3)).await;
        let job = claim_one(&bench, "next").await;
        assert_eq!(job.interruptions, 1);
        assert_eq!(bench.queue().ack(&[job.lease]).await.unwrap(), [Held::Yours]);
    }
}

async fn a_lease_that_ends_before_the_kill_still_does(bench: impl Bench) {
    fill(&bench, &["a", "b"]).await;
    let job = bench.queue().claim(&owner("one"), 1, secs(10)).await.unwrap().remove(0);
    bench.queue().claim(&owner("one"), 1, secs(5)).await.unwrap();
    bench.queue().begin_drain(&owner("one"), Some(secs(20))).await.unwrap();
    assert!(claim(&bench, "two", 9).await.is_empty());
    assert_eq!(bench.queue().extend(std::slice::from_ref(&job.lease), secs(8)).await.unwrap(), [Held::Yours]);
    bench.pass(secs(5)).await;
    let claimed = claim(&bench, "two", 9).await;
    assert_eq!((names(&claimed), claimed[0].interruptions), (vec!["b"], 1));
    bench.pass(secs(3)).await;
    assert_eq!(claim_one(&bench, "two").await.interruptions, 1);
}

async fn leases_keep_their_length_where_the_kill_is_not_known(bench: impl Bench) {
    fill(&bench, &["a", "b"]).await;
    let job = claim_one(&bench, "one").await;
    bench.queue().begin_drain(&owner("one"), None).await.unwrap();
    assert!(claim(&bench, "one", 1).await.is_empty());
    bench.pass(LEASE - secs(5)).await;
    assert_eq!(bench.queue().extend(std::slice::from_ref(&job.lease), LEASE).await.unwrap(), [Held::Yours]);
    bench.pass(LEASE - secs(5)).await;
    assert_eq!(names(&claim(&bench, "two", 9).await), ["b"]);
    bench.pass(secs(5)).await;
    let job = claim_one(&bench, "two").await;
    assert_eq!((job.interruptions, job.crashes), (1, 0));
}

async fn an_owner_whose_mark_was_taken_away_goes_on(bench: impl Bench) {
    fill(&bench, &["a", "b"]).await;
    let job = claim_one(&bench, "one").await;
    bench.queue().begin_drain(&owner("one"), Some(secs(5))).await.unwrap();
    bench.queue().end_drain(&owner("one")).await.unwrap();
    assert_eq!(names(&claim(&bench, "one", 1).await), ["b"]);
    assert_eq!(bench.queue().extend(std::slice::from_ref(&job.lease), LEASE).await.unwrap(), [Held::Yours]);
    bench.pass(LEASE - secs(5)).await;
    assert!(claim(&bench, "two", 9).await.is_empty());
    bench.pass(secs(5)).await;
    assert_eq!(claim_one(&bench, "two").await.crashes, 1);
}

async fn totals_outlive_the_jobs(bench: impl Bench) {
    fill(&bench, &["a"]).await;
    let job = claim_one(&bench, "one").await;
    bench.queue().requeue(&[HandBack::interrupted(job.lease)]).await.unwrap();
    claim_one(&bench, "one").await;
    bench.pass(LEASE).await;
    let job = claim_one(&bench, "one").await;
    assert_eq!(bench.queue().ack(&[job.lease]).await.unwrap(), [Held::Yours]);
    let counts = bench.queue().counts().await.unwrap();
    assert_eq!((counts.interruptions, counts.crashes, counts.active), (1, 1, 0));
}

async fn the_age_of_the_oldest_job_is_told(bench: impl Bench) {
    fill(&bench, &["a"]).await;
    bench.pass(secs(60)).await;
    fill(&bench, &["b"]).await;
    let oldest = |counts: winddown::queue::Counts| counts.oldest.unwrap();
    let age = oldest(bench.queue().counts().await.unwrap());
    assert!(age >= secs(60) && age < secs(70), "{age:?}");
    let job = claim_one(&bench, "one").await;
    assert!(job.age >= secs(60) && job.age < secs(70), "{:?}", job.age);
    assert_eq!(bench.queue().ack(&[job.lease]).await.unwrap(), [Held::Yours]);
    assert!(oldest(bench.queue().counts().await.unwrap()) < secs(10));
}

async fn one_step_acks_and_claims(bench: impl Bench) {
    fill(&bench, &["a", "b", "c"]).await;
    let me = owner("one");
    let Stepped { held, claimed } = bench.queue().step(&[], &me, 1, LEASE).await.unwrap();
    assert!(held.is_empty());
    let done = leases(&claimed);
    let Stepped { held, claimed } = bench.queue().step(&done, &me, 1, LEASE).await.unwrap();
    assert_eq!((held, names(&claimed)), (vec![Held::Yours], vec!["b"]));
    let Stepped { held, claimed } = bench.queue().step(&done, &me, 1, LEASE).await.unwrap();
    assert_eq!((held, names(&claimed)), (vec![Held::Gone], vec!["c"]));
}

async fn many_jobs_go_back_in_their_order(bench: impl Bench) {
    let all: Vec<String> = (0..300).map(|n| format!("job {n:03}")).collect();
    fill(&bench, &all.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let mut claimed = claim(&bench, "one", 200).await;
    assert_eq!(names(&claimed), all[..200]);
    claimed.sort_by_key(|job| job.lease.epoch % 7);
    assert!(
        bench.queue().requeue(&interrupted(&claimed)).await.unwrap().iter().all(|held| *held == Held::Yours)
    );
    assert_eq!(names(&claim(&bench, "two", 999).await), all);
}

async fn a_waiter_is_woken_by_a_job_that_comes_and_by_one_that_is_handed_back(bench: impl Bench) {
    let (_, ()) = tokio::join!(bench.queue().ready(), fill(&bench, &["a"]));
    let job = claim_one(&bench, "one").await;
    let back = [HandBack::interrupted(job.lease)];
    let (_, held) = tokio::join!(bench.queue().ready(), bench.queue().requeue(&back));
    assert_eq!(held.unwrap(), [Held::Yours]);
    bench.queue().ready().await;
    claim_one(&bench, "one").await;
}

/// All promises on each queue, and on a stream those of the first list.
macro_rules! promises {
    ([$($name:ident)*] [$($but_on_a_stream:ident)*]) => {
        mod on_memory {
            promises! { #[tokio::test(start_paused = true)] async memory: $($name)* $($but_on_a_stream)* }
        }
        mod on_strict {
            promises! { #[tokio::test(start_paused = true)] async strict: $($name)* $($but_on_a_stream)* }
        }
        #[cfg(all(feature = "redis", unix))]
        mod on_list {
            promises! { #[tokio::test] async list: $($name)* $($but_on_a_stream)* }
        }
        #[cfg(all(feature = "redis", unix))]
        mod on_stream {
            promises! { #[tokio::test] async stream: $($name)* }
        }
        #[cfg(feature = "sqlx-sqlite")]
        mod on_sqlite {
            promises! { #[tokio::test] async sqlite: $($name)* $($but_on_a_stream)* }
        }
    };
    (#[$test:meta] async $queue:ident: $($name:ident)*) => {
        $(#[$test] async fn $name() { super::$name(super::$queue::bench().await).await })*
    };
}

promises! {
    [
    a_job_is_held_by_one_owner_at_a_time
    an_enqueued_name_that_is_there_is_left_as_it_is
    a_job_that_is_acked_is_gone
    the_epoch_grows_with_every_claim_and_over_the_end_of_a_job
    an_interrupted_job_keeps_attempts_payload_and_place
    a_hand_back_may_be_repeated
    a_job_that_nobody_had_begun_goes_back_without_counting
    a_checkpoint_is_told_to_whoever_goes_on
    a_holder_that_lost_its_lease_changes_no_byte
    a_handed_back_job_is_not_its_last_holders_any_more
    an_expired_lease_counts_a_crash_and_the_job_is_free_at_that_moment
    an_expired_lease_is_still_its_holders_until_somebody_claims
    an_extended_lease_ends_later
    a_job_that_crashes_its_holders_too_often_is_given_up
    a_failed_job_waits_for_its_delay
    a_delayed_job_waits_from_when_it_was_enqueued
    a_dead_letter_is_kept_listed_and_can_be_retried
    an_ending_owner_claims_nothing_and_others_do
    what_an_ending_owner_holds_is_free_at_the_kill_and_was_interrupted
    a_second_drain_shortens_and_never_lengthens
    a_lease_that_ends_before_the_kill_still_does
    leases_keep_their_length_where_the_kill_is_not_known
    an_owner_whose_mark_was_taken_away_goes_on
    totals_outlive_the_jobs
    one_step_acks_and_claims
    many_jobs_go_back_in_their_order
    a_waiter_is_woken_by_a_job_that_comes_and_by_one_that_is_handed_back
    ]
    // A stream has no priorities, and the age of a job is in the ID of its entry, which cannot be made older; see
    // `tests/queue_stream.rs` for what is promised instead.
    [
    jobs_are_claimed_by_priority_and_then_in_order_of_enqueuing
    the_age_of_the_oldest_job_is_told
    ]
}

#[cfg(all(feature = "redis", unix))]
#[path = "queue_port/stream.rs"]
mod stream;

mod memory {
    use super::*;
    use winddown::queue::memory::Memory;

    pub struct OnMemory(Memory<String>);

    pub async fn bench() -> OnMemory {
        OnMemory(Memory::new())
    }

    impl Bench for OnMemory {
        type Queue = Memory<String>;

        fn queue(&self) -> &Memory<String> {
            &self.0
        }

        async fn enqueue(&self, job: NewJob<String>) {
            self.0.enqueue(job);
        }

        async fn pass(&self, time: Duration) {
            tokio::time::advance(time).await;
        }

        async fn dump(&self) -> String {
            format!("{:?}", self.0)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_is_woken_at_the_moment_a_lease_or_a_delay_ends() {
        let bench = bench().await;
        let start = tokio::time::Instant::now();
        bench.enqueue(NewJob::new(id("a"), "a".into()).delay(Duration::from_millis(12_345))).await;
        bench.queue().ready().await;
        assert_eq!(start.elapsed(), Duration::from_millis(12_345));
        claim_one(&bench, "one").await;
        bench.queue().ready().await;
        assert_eq!(start.elapsed(), Duration::from_millis(12_345) + LEASE);
        claim_one(&bench, "one").await;
        bench.queue().begin_drain(&owner("one"), Some(secs(7))).await.unwrap();
        bench.queue().ready().await;
        assert_eq!(start.elapsed(), Duration::from_millis(12_345) + LEASE + secs(7));
    }
}

mod strict {
    use super::*;
    use winddown::queue::{Strict, memory::Memory};

    /// What is promised of one queue is promised of one among others.
    pub struct OnStrict(Strict<Memory<String>>);

    pub async fn bench() -> OnStrict {
        OnStrict(Strict::new([Memory::new(), Memory::new(), Memory::new()]))
    }

    impl Bench for OnStrict {
        type Queue = Strict<Memory<String>>;

        fn queue(&self) -> &Strict<Memory<String>> {
            &self.0
        }

        async fn enqueue(&self, job: NewJob<String>) {
            self.0.queues()[1].enqueue(job);
        }

        async fn pass(&self, time: Duration) {
            tokio::time::advance(time).await;
        }

        async fn dump(&self) -> String {
            format!("{:?}", self.0)
        }
    }
}

#[cfg(all(feature = "redis", unix))]
#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "support/redis.rs"]
mod server;

#[cfg(all(feature = "redis", unix))]
mod list {
    use super::server::Redis;
    use super::*;
    use redis::{Cmd, Value};
    use winddown::queue::redis::{List, Server};

    pub struct OnList {
        queue: List<String>,
        server: Redis,
    }

    pub async fn bench() -> OnList {
        let server = Redis::start();
        let queue = List::open(Server::at(&server.url()).unwrap(), "port").await.unwrap();
        OnList { queue, server }
    }

    impl OnList {
        async fn run(&self, script: &str, args: &[&str]) -> Value {
            let mut connection = self.server.connection().await;
            let mut command = Cmd::new();
            command.arg("EVAL").arg(script).arg(0).arg(args);
            connection.send_packed_command(&command).await.unwrap()
        }
    }

    impl Bench for OnList {
        type Queue = List<String>;

        fn queue(&self) -> &List<String> {
            &self.queue
        }

        async fn enqueue(&self, job: NewJob<String>) {
            self.queue.enqueue(&job).await.unwrap();
        }

        // The clock is the server's, so what it is compared with is moved instead.
        async fn pass(&self, time: Duration) {
            let script = "
                local by = tonumber(ARGV[1])
                for _, key in ipairs({'leases', 'scheduled', 'dead', 'once'}) do
                    key = '{port}:' .. key
                    for _, member in ipairs(redis.call('ZRANGE', key, 0, -1)) do
                        redis.call('ZINCRBY', key, -by, member)
                    end
                end
                local function each(key, change)
                    local all = redis.call('HGETALL', key)
                    for i = 1, #all, 2 do redis.call('HSET', key, all[i], change(all[i + 1])) end
                end
                each('{port}:ending', function(mark)
                    return (mark:gsub('%d+', function(time) return tonumber(time) - by end))
                end)
                each('{port}:jobs', function(value)
                    local seq, time, rest = value:match('^(%d+) (%d+)(.*)$')
                    return seq .. ' ' .. (tonumber(time) - by) .. rest
                end)
            ";
            self.run(script, &[&time.as_millis().to_string()]).await;
        }

        async fn dump(&self) -> String {
            let script = "
                local all, read = {}, {
                    string = function(key) return redis.call('GET', key) end,
                    list = function(key) return redis.call('LRANGE', key, 0, -1) end,
                    hash = function(key) return redis.call('HGETALL', key) end,
                    set = function(key) return redis.call('SORT', key, 'ALPHA') end,
                    zset = function(key) return redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end,
                }
                local keys = redis.call('KEYS', '*')
                table.sort(keys)
                for i, key in ipairs(keys) do all[i] = {key, read[redis.call('TYPE', key).ok](key)} end
                return all
            ";
            format!("{:?}", self.run(script, &[]).await)
        }
    }
}

#[cfg(feature = "sqlx-sqlite")]
mod sqlite {
    use super::*;
    use sqlx::{Row, SqlitePool};
    use winddown::queue::sql::{self, Sqlite};

    pub struct OnSqlite {
        queue: Sqlite<String>,
        pool: SqlitePool,
        _dir: tempfile::TempDir,
    }

    pub async fn bench() -> OnSqlite {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("queue.db").display());
        let options = sql::options(&url).unwrap().synchronous(sqlx::sqlite::SqliteSynchronous::Normal);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        let queue = Sqlite::open(pool.clone(), sql::TABLE).await.unwrap();
        OnSqlite { queue, pool, _dir: dir }
    }

    impl Bench for OnSqlite {
        type Queue = Sqlite<String>;

        fn queue(&self) -> &Sqlite<String> {
            &self.queue
        }

        async fn enqueue(&self, job: NewJob<String>) {
            self.queue.enqueue(&job).await.unwrap();
        }

        // The clock is the database's, so what it is compared with is moved instead.
        async fn pass(&self, time: Duration) {
            let millis = i64::try_from(time.as_millis()).unwrap();
            sqlx::query(
                "UPDATE winddown_jobs SET due = due - ?1, enqueued_at = enqueued_at - ?1, kill_at = kill_at - ?1
                 WHERE state IN ('scheduled', 'active', 'dead', 'pending', 'ending')",
            )
            .bind(millis)
            .execute(&self.pool)
            .await
            .unwrap();
        }

        async fn dump(&self) -> String {
            let rows = sqlx::query(
                "SELECT json_array(seq, id, state, due, priority, payload, enqueued_at, attempts, interruptions, crashes,
                    owner, epoch, kill_at, checkpoint, reason) FROM winddown_jobs ORDER BY seq",
            )
            .fetch_all(&self.pool)
            .await
            .unwrap();
            rows.iter().map(|row| row.get::<String, _>(0) + "\n").collect()
        }
    }
}
