//! Queues of which one goes before the next: each job is its own queue's, and no error of one loses what is another's.

#[path = "support/log.rs"]
mod log;
#[path = "worker/probe.rs"]
#[allow(dead_code, reason = "the half of it that is not about workers")]
mod probe;

use std::sync::atomic::Ordering;
use std::time::Duration;

use probe::{Act, Does, Probe, ids, ms};
use tokio::time::{Instant, sleep};
use winddown::queue::{self, Claimed, HandBack, Held, Lease, NewJob, Owner, Queue, Strict};
use winddown::{Budget, ShutdownCoordinator, signal};

const LEASE: Duration = Duration::from_secs(30);

fn me() -> Owner {
    "me".parse().unwrap()
}

/// With the jobs 1 and 2, 3 and 4, 5 and 6.
fn three() -> ([Probe; 3], Strict<Probe>) {
    let all = [1, 3, 5].map(|first| Probe::with(first..first + 2));
    (all.clone(), Strict::new(all))
}

fn leases(jobs: &[Claimed<String>]) -> Vec<Lease> {
    jobs.iter().map(|job| job.lease.clone()).collect()
}

fn claims(probe: &Probe) -> Vec<String> {
    probe.calls("claim").into_iter().map(|(_, call)| call).collect()
}

fn down(probe: &Probe, down: bool) {
    probe.down.store(down, Ordering::SeqCst);
}

#[tokio::test(start_paused = true)]
async fn a_queue_is_asked_only_for_what_those_before_it_lack() {
    for (max, asked) in [(2, ["claim 2", "", ""]), (3, ["claim 3", "claim 1", ""])] {
        let (probes, strict) = three();
        let claimed = strict.claim(&me(), max, LEASE).await.unwrap();
        assert_eq!(ids(&claimed), (1..=max).map(|n| format!("job-{n}")).collect::<Vec<_>>());
        assert_eq!(probes.each_ref().map(|probe| claims(probe).concat()), asked);
    }
    let (probes, strict) = three();
    strict.claim(&me(), 2, LEASE).await.unwrap();
    probes[2].enqueue(7);
    probes[0].enqueue(8);
    let claimed = strict.claim(&me(), 100, LEASE).await.unwrap();
    assert_eq!(ids(&claimed), ["job-8", "job-3", "job-4", "job-5", "job-6", "job-7"]);
    assert_eq!(claims(&probes[2]), ["claim 97"]);
}

#[tokio::test(start_paused = true)]
async fn every_call_finds_the_queue_that_a_job_is_from() {
    let (probes, strict) = three();
    let mut jobs = strict.claim(&me(), 6, LEASE).await.unwrap();
    // Out of order, so that answers and questions must be matched.
    jobs.swap(0, 5);
    jobs.swap(1, 3);
    let owners: Vec<&str> = jobs.iter().map(|job| job.lease.owner.as_str()).collect();
    assert_eq!(owners, ["me/2", "me/1", "me/1", "me/0", "me/2", "me/0"]);
    let all = leases(&jobs);
    assert_eq!(strict.extend(&all, ms(60_000)).await.unwrap(), [Held::Yours; 6]);
    sleep(LEASE + ms(1)).await;
    assert_eq!(strict.ack(&all[..2]).await.unwrap(), [Held::Yours; 2]);
    assert_eq!(strict.ack(&all[..3]).await.unwrap(), [Held::Gone, Held::Gone, Held::Yours]);
    assert_eq!(strict.nack(&all[3], Duration::ZERO, "no").await.unwrap(), Held::Yours);
    assert_eq!(strict.dead_letter(&all[4], "never").await.unwrap(), Held::Yours);
    let back = [&all[5], &all[0]].map(|lease| HandBack::interrupted(lease.clone()));
    assert_eq!(strict.requeue(&back).await.unwrap(), [Held::Yours, Held::Gone]);
    let left: Vec<String> = probes.iter().map(|probe| format!("{:?}", probe.jobs)).collect();
    for (n, kept) in [(0, ["job-1", "job-2"].as_slice()), (1, &[]), (2, &["job-5"])] {
        let counts = probes[n].counts().await.unwrap();
        assert_eq!((counts.pending + counts.dead) as usize, kept.len(), "{}", left[n]);
        assert!(kept.iter().all(|id| left[n].contains(id)), "{}", left[n]);
    }
}

#[tokio::test(start_paused = true)]
async fn queues_are_told_side_by_side() {
    for takes in [300, 900] {
        let (probes, strict) = three();
        let jobs = strict.claim(&me(), 6, LEASE).await.unwrap();
        for probe in &probes {
            *probe.ack_takes.lock().unwrap() = ms(takes);
        }
        let began = Instant::now();
        assert_eq!(strict.ack(&leases(&jobs)).await.unwrap(), [Held::Yours; 6]);
        assert_eq!(began.elapsed(), ms(takes));
        for probe in &probes {
            *probe.stop_takes.lock().unwrap() = ms(takes);
        }
        strict.stop_waiting().await;
        assert_eq!(began.elapsed(), ms(2 * takes));
        assert!(probes.iter().all(|probe| probe.calls("stopped").len() == 1));
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_claimed_from_one_queue_is_not_lost_by_the_error_of_the_next() {
    let (probes, strict) = three();
    down(&probes[1], true);
    assert_eq!(ids(&strict.claim(&me(), 6, LEASE).await.unwrap()), ["job-1", "job-2"]);
    assert!(strict.claim(&me(), 6, LEASE).await.is_err(), "nothing else can be told by then");
    assert!(claims(&probes[2]).is_empty(), "one further back does not go before it");
    down(&probes[1], false);
    assert_eq!(strict.claim(&me(), 6, LEASE).await.unwrap().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_step_whose_acks_fail_claims_nothing_and_may_be_repeated() {
    for failing in [0, 1, 2] {
        let (probes, strict) = three();
        let jobs = strict.claim(&me(), 6, LEASE).await.unwrap();
        let done = leases(&jobs);
        probes[0].enqueue(7);
        down(&probes[failing], true);
        assert!(strict.step(&done, &me(), 9, LEASE).await.is_err());
        assert_eq!(probes[0].counts().await.unwrap().pending, 1, "it is back, or was never claimed");
        down(&probes[failing], false);
        let stepped = strict.step(&done, &me(), 9, LEASE).await.unwrap();
        let yours = |n: usize| n / 2 == failing || failing == 0;
        let told = (0..6).map(|n| if yours(n) { Held::Yours } else { Held::Gone });
        assert_eq!(stepped.held, told.collect::<Vec<_>>(), "{failing}");
        assert_eq!(ids(&stepped.claimed), ["job-7"]);
        assert_eq!((stepped.claimed[0].interruptions, stepped.claimed[0].crashes), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn one_step_acks_at_each_queue_and_claims_in_their_order() {
    let (probes, strict) = three();
    let jobs = strict.claim(&me(), 4, LEASE).await.unwrap();
    let mut done = leases(&jobs);
    done.reverse();
    probes[1].enqueue(7);
    let stepped = strict.step(&done, &me(), 2, LEASE).await.unwrap();
    assert_eq!(stepped.held, [Held::Yours; 4]);
    assert_eq!(ids(&stepped.claimed), ["job-7", "job-5"]);
    let nothing = strict.step(&leases(&stepped.claimed), &me(), 0, LEASE).await.unwrap();
    assert_eq!((nothing.held, nothing.claimed.len()), (vec![Held::Yours; 2], 0));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_comes_to_any_of_them_is_hinted_at() {
    for number in [0, 2] {
        let strict = Strict::new([0, 1, 2].map(|_| Probe::with([])));
        let began = Instant::now();
        let waiting = strict.clone();
        let ready = tokio::spawn(async move { waiting.ready().await });
        sleep(ms(50)).await;
        assert!(!ready.is_finished());
        strict.queues()[number].enqueue(1);
        ready.await.unwrap();
        assert_eq!(began.elapsed(), ms(50));
    }
    let none = Strict::<Probe>::new([]);
    assert!(tokio::time::timeout(ms(1_000), none.ready()).await.is_err());
    assert!(none.claim(&me(), 1, LEASE).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn counts_are_sums_and_dead_letters_are_told_by_age() {
    let (probes, strict) = three();
    probes[0].jobs.enqueue(NewJob::new("later".parse().unwrap(), String::new()).delay(ms(60_000)));
    sleep(ms(500)).await;
    probes[1].enqueue(9);
    let jobs = strict.claim(&me(), 6, LEASE).await.unwrap();
    for n in [4, 0, 2] {
        sleep(ms(100)).await;
        assert!(strict.dead_letter(&jobs[n].lease, "never").await.unwrap().is_yours());
    }
    let counts = strict.counts().await.unwrap();
    assert_eq!((counts.pending, counts.scheduled, counts.active, counts.dead), (1, 1, 3, 3));
    assert_eq!(counts.oldest, Some(ms(800)));
    let dead = |max| {
        let strict = strict.clone();
        async move {
            let dead = strict.dead_letters(max).await.unwrap();
            dead.into_iter().map(|dead| dead.id.to_string()).collect::<Vec<_>>()
        }
    };
    let names = [4, 0, 2].map(|n| jobs[n].lease.id.to_string());
    assert_eq!(dead(10).await, names);
    assert_eq!(dead(2).await, names[..2]);
    for name in &names {
        assert!(strict.retry(&name.parse().unwrap()).await.unwrap());
        assert!(!strict.retry(&name.parse().unwrap()).await.unwrap());
    }
    assert_eq!(strict.counts().await.unwrap().pending, 4);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_ends_ends_at_all_of_them() {
    let (probes, strict) = three();
    let held = strict.claim(&me(), 3, LEASE).await.unwrap();
    strict.begin_drain(&me(), Some(ms(500))).await.unwrap();
    assert!(strict.claim(&me(), 9, LEASE).await.unwrap().is_empty());
    sleep(ms(501)).await;
    for (probe, jobs) in probes.iter().zip([2, 2, 2]) {
        let theirs = probe.claimable().await;
        assert_eq!(theirs.len(), jobs);
        assert!(theirs.iter().all(|job| job.crashes == 0));
    }
    assert_eq!(strict.counts().await.unwrap().interruptions, held.len() as u64);
    strict.end_drain(&me()).await.unwrap();
    probes[2].enqueue(9);
    assert_eq!(strict.claim(&me(), 9, LEASE).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_from_elsewhere_is_lost_and_changes_nothing() {
    let (probes, strict) = three();
    let jobs = strict.claim(&me(), 6, LEASE).await.unwrap();
    let before: Vec<String> = probes.iter().map(|probe| format!("{:?}", probe.jobs)).collect();
    for owner in ["me", "me/3", "me/x", "me/1"] {
        let lease = Lease { owner: owner.parse().unwrap(), ..jobs[0].lease.clone() };
        let lost = if owner == "me/1" { Held::Gone } else { Held::Lost };
        assert_eq!(strict.ack(std::slice::from_ref(&lease)).await.unwrap(), [lost], "{owner}");
        assert_eq!(strict.requeue(&[HandBack::interrupted(lease.clone())]).await.unwrap(), [lost]);
        assert_eq!(strict.nack(&lease, ms(1), "no").await.unwrap(), lost);
        assert_eq!(strict.dead_letter(&lease, "no").await.unwrap(), lost);
        assert_eq!(strict.step(&[lease], &me(), 0, LEASE).await.unwrap().held, [lost]);
    }
    let after: Vec<String> = probes.iter().map(|probe| format!("{:?}", probe.jobs)).collect();
    assert_eq!(before, after);
}

#[tokio::test(start_paused = true)]
async fn an_owner_whose_name_leaves_no_room_is_refused_in_words() {
    let (_, strict) = three();
    let long: Owner = "x".repeat(255).parse().unwrap();
    let error = strict.claim(&long, 1, LEASE).await.unwrap_err();
    assert_eq!(error.to_string(), "could not name the owner at its queue");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.ends_with("must not be longer than 255 bytes"), "{source}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_takes_the_first_queue_first_and_hands_back_to_each() {
    let (probes, does) =
        ([1, 4].map(|first| Probe::with(first..first + 3)), Does::new(Act::Sleep(ms(1_000))));
    let budget = Budget::given(ms(10_000), "test").drain(ms(100));
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    shutdown.add(queue::work("jobs", Strict::new(probes.clone()), does.clone()).concurrency(2).owner(me()));
    let handle = shutdown.handle();
    let run = tokio::spawn(shutdown.run());
    sleep(ms(500)).await;
    probes[0].enqueue(9);
    sleep(ms(2_000)).await;
    handle.trigger("test");
    let report = run.await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(does.ran(), ["job-1", "job-2", "job-3", "job-9", "job-4", "job-5"]);
    assert_eq!(ids(&probes[0].claimable().await).len(), 0);
    let left = probes[1].claimable().await;
    assert_eq!(ids(&left), ["job-4", "job-5", "job-6"]);
    assert_eq!(left.iter().map(|job| job.interruptions).collect::<Vec<_>>(), [1, 1, 0]);
}

/// A name may have 255 bytes, and the number of the eleventh queue has two digits.
#[tokio::test(start_paused = true)]
async fn what_was_claimed_is_not_lost_over_a_queue_for_which_the_owners_name_is_too_long() {
    for length in [252, 253] {
        let probes: Vec<Probe> = (0..11).map(|number| Probe::with(number..number + 1)).collect();
        let strict = Strict::new(probes.clone());
        let owner: Owner = "o".repeat(length).parse().unwrap();
        let claimed = strict.claim(&owner, 100, LEASE).await.unwrap();
        assert_eq!(claimed.len(), if length == 252 { 11 } else { 10 });
    }
}

fn start(
    queues: &[Probe],
    does: &Does,
) -> (winddown::ShutdownHandle, tokio::task::JoinHandle<winddown::Report>) {
    let budget = Budget::given(ms(10_000), "test").drain(ms(500));
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    let work = queue::work("jobs", Strict::new(queues.to_vec()), does.clone());
    shutdown.add(work.concurrency(4).owner(me()).lease(ms(6_000)));
    (shutdown.handle(), tokio::spawn(shutdown.run()))
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_away_ends_only_its_own_leases_and_only_its_own_jobs_cannot_go_back() {
    for away in [0, 1] {
        let (probes, does) =
            ([1, 3].map(|first| Probe::with(first..first + 2)), Does::new(Act::Forever { shielded: false }));
        let (handle, run) = start(&probes, &does);
        sleep(ms(500)).await;
        down(&probes[away], true);
        sleep(ms(20_000)).await;
        let cut: Vec<String> =
            does.runs().into_iter().filter(|run| run.to.is_some()).map(|run| run.id).collect();
        let theirs = [1, 2].map(|n| format!("job-{}", 2 * away + n));
        assert_eq!(cut, theirs);
        assert_eq!(does.runs().len(), 4, "each has begun once");
        handle.trigger("test");
        let report = run.await.unwrap();
        let gate = report.gate("jobs").unwrap();
        assert_eq!((gate.held, gate.finished, gate.handed_back, gate.lost), (4, 0, 2, 2), "{report}");
        let lost: Vec<&str> = report.lost().iter().map(|lost| lost.item.as_str()).collect();
        assert_eq!(lost, theirs);
        let why =
            format!("could not ask one of the queues: number {away}: could not ask the queue: it is down;");
        assert!(report.lost().iter().all(|lost| lost.why.starts_with(&why)), "{report}");
        let at = probes[1 - away].calls("requeue")[0].0;
        assert!(at >= ms(21_000) && at < ms(21_200), "as soon as the drain is over: {at:?}");
        let back = probes[1 - away].claimable().await;
        assert_eq!(ids(&back).len(), 2);
        assert!(back.iter().all(|job| (job.interruptions, job.crashes) == (1, 0)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_does_not_answer_holds_up_no_renewal_at_another() {
    for hangs in [0, 1] {
        let (probes, does) =
            ([1, 3].map(|first| Probe::with(first..first + 2)), Does::new(Act::Forever { shielded: true }));
        *probes[hangs].extend_takes.lock().unwrap() = ms(5_000);
        probes[hangs].extend_down.store(true, Ordering::SeqCst);
        let (handle, run) = start(&probes, &does);
        sleep(ms(20_000)).await;
        let others = [1, 2].map(|n| format!("job-{}", 2 * (1 - hangs) + n));
        let runs: Vec<_> = does.runs().into_iter().filter(|run| others.contains(&run.id)).collect();
        assert!(runs.len() == 2 && runs.iter().all(|run| run.to.is_none()), "{runs:?}");
        assert!(does.runs().len() > 4, "those of the other were cut, and have begun again");
        handle.trigger("test");
        run.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_queue_further_back_is_told_where_those_before_it_bring_jobs() {
    let (lines, _guard) = log::keep();
    let told = |event: &str| {
        let lines = lines.lock().unwrap();
        lines.iter().filter(|line| line.contains(event)).cloned().collect::<Vec<_>>()
    };
    let (probes, strict) = three();
    down(&probes[1], true);
    for number in 10..20 {
        probes[0].enqueue(number);
        assert!(!strict.claim(&me(), 6, LEASE).await.unwrap().is_empty());
        sleep(ms(100)).await;
    }
    let lost = told("queue.unreachable");
    assert_eq!(lost.len(), 1, "not again each time: {lost:?}");
    assert!(lost[0].contains("queue=me/1") && lost[0].contains("it is down"), "{lost:?}");
    down(&probes[1], false);
    probes[0].enqueue(20);
    assert_eq!(strict.claim(&me(), 4, LEASE).await.unwrap().len(), 4);
    let back = told("queue.reachable");
    assert!(back.len() == 1 && back[0].contains("queue=me/1"), "{back:?}");
}

#[tokio::test(start_paused = true)]
async fn the_oldest_job_of_all_is_told_whichever_queue_it_is_in() {
    for old in 0..3 {
        let strict = Strict::new([0, 1, 2].map(|_| Probe::with([])));
        strict.queues()[old].enqueue(1);
        sleep(ms(500)).await;
        for probe in strict.queues() {
            probe.enqueue(2);
        }
        sleep(ms(100)).await;
        assert_eq!(strict.counts().await.unwrap().oldest, Some(ms(600)), "{old}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_is_looked_for_in_all_queues_and_one_that_cannot_be_asked_is_an_error_only_where_none_has_it()
 {
    let (probes, strict) = three();
    let jobs = strict.claim(&me(), 6, LEASE).await.unwrap();
    assert!(strict.dead_letter(&jobs[4].lease, "never").await.unwrap().is_yours());
    let (last, nobody) = (jobs[4].lease.id.clone(), "nobody".parse().unwrap());
    assert!(!strict.retry(&nobody).await.unwrap());
    down(&probes[0], true);
    assert!(strict.retry(&nobody).await.is_err(), "it may be there");
    assert!(strict.retry(&last).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_step_that_claims_nothing_only_acks_and_at_all_queues_side_by_side() {
    let (probes, strict) = three();
    let done = leases(&strict.claim(&me(), 6, LEASE).await.unwrap());
    for probe in &probes {
        *probe.ack_takes.lock().unwrap() = ms(300);
    }
    let (began, claimed) = (Instant::now(), probes.each_ref().map(claims));
    assert_eq!(strict.step(&done, &me(), 0, LEASE).await.unwrap().held, [Held::Yours; 6]);
    assert_eq!(began.elapsed(), ms(300));
    assert_eq!(probes.each_ref().map(claims), claimed);
}
