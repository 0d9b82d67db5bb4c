//! The queue worker: what it claims it finishes, hands back, or leaves to its lease.

#[path = "worker/probe.rs"]
mod probe;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use probe::{Act, Does, Probe, ids, ms};
use tokio::time::{Instant, sleep};
use winddown::queue::{self, Held, Leased, NewJob, Owner, Queue, Work};
use winddown::{BoxError, Budget, Cx, Phase, Report, ShutdownCoordinator, ShutdownHandle, signal};

fn coordinator(grace: Duration) -> ShutdownCoordinator {
    ShutdownCoordinator::new(Budget::given(grace, "test"), signal::none()).unwrap()
}

/// As in a program of ours. The grace is long: the thread that sees signals leaves the process at its end, by the real clock.
fn may_exit() -> ShutdownCoordinator {
    let budget = Budget::given(ms(300_000), "test").drain(ms(100)).requeue(ms(200));
    ShutdownCoordinator::new(budget, signal::terminate().unwrap()).unwrap()
}

fn start(mut shutdown: ShutdownCoordinator, work: Work<Probe, Does>) -> Running {
    shutdown.add(work);
    Running { handle: shutdown.handle(), run: tokio::spawn(shutdown.run()) }
}

struct Running {
    handle: ShutdownHandle,
    run: tokio::task::JoinHandle<Report>,
}

impl Running {
    async fn stop_after(self, time: Duration) -> Report {
        sleep(time).await;
        self.handle.trigger("test");
        self.run.await.unwrap()
    }
}

/// Lets a blocked thread go, also where the test fails: the runtime waits for it.
struct Release(Arc<AtomicBool>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Let in (before the stop and held), finished, handed back, lost.
fn ledger(report: &Report) -> (usize, usize, usize, usize) {
    let gate = report.gate("jobs").unwrap();
    (gate.held, gate.finished, gate.handed_back, gate.lost)
}

// === the stop ===

#[tokio::test(start_paused = true)]
async fn i13_the_backlog_is_not_pulled_after_the_stop() {
    for length in [100, 700] {
        let (jobs, does) = (Probe::with(1..=10), Does::new(Act::Sleep(ms(length))));
        let work = queue::work("jobs", jobs.clone(), does.clone()).concurrency(1);
        let report = start(coordinator(ms(10_000)), work).stop_after(ms(50)).await;
        assert_eq!(report.took(), ms(length - 50), "about one job: {report}");
        assert_eq!(ledger(&report), (1, 1, 0, 0));
        assert_eq!(does.ran(), ["job-1"]);
        let left = jobs.claimable().await;
        assert_eq!(ids(&left), (2..=10).map(|n| format!("job-{n}")).collect::<Vec<_>>());
        assert!(left.iter().all(|job| job.attempts == 0 && job.interruptions == 0 && job.crashes == 0));
    }
}

#[tokio::test(start_paused = true)]
async fn i14_what_a_claim_brings_after_the_stop_goes_back_untouched_and_no_other_begins() {
    let (jobs, does) = (Probe::with(1..=3), Does::new(Act::Sleep(ms(100))));
    *jobs.claim_takes.lock().unwrap() = ms(100);
    let work = queue::work("jobs", jobs.clone(), does.clone()).concurrency(2);
    let report = start(coordinator(ms(10_000)), work).stop_after(ms(50)).await;
    assert_eq!(report.took(), ms(50), "{report}");
    assert_eq!(jobs.calls("claim").len(), 1);
    assert_eq!(jobs.calls("requeue"), [(ms(100), "requeue job-1 job-2".to_owned())]);
    assert!(does.ran().is_empty());
    let left = jobs.claimable().await;
    assert_eq!(ids(&left), ["job-1", "job-2", "job-3"]);
    assert!(left.iter().all(|job| job.interruptions == 0 && job.crashes == 0 && job.attempts == 0));
}

#[tokio::test(start_paused = true)]
async fn i16_fifty_jobs_that_ignore_the_stop_are_back_before_the_budget_ends() {
    for shielded in [false, true] {
        let (jobs, does) = (Probe::with(1..=50), Does::new(Act::Forever { shielded }));
        let work = queue::work("jobs", jobs.clone(), does.clone()).concurrency(50);
        let report = start(coordinator(ms(2_000)), work).stop_after(ms(50)).await;
        assert!(report.took() < ms(2_000), "{report}");
        assert_eq!(ledger(&report), (50, 0, 50, 0));
        let left = jobs.claimable().await;
        assert_eq!(ids(&left), (1..=50).map(|n| format!("job-{n}")).collect::<Vec<_>>());
        assert!(left.iter().all(|job| job.attempts == 0 && job.interruptions == 1 && job.crashes == 0));
    }
}

#[tokio::test(start_paused = true)]
async fn i17_interrupted_jobs_keep_attempts_payload_and_place() {
    let (jobs, does) = (Probe::with([]), Does::new(Act::Forever { shielded: false }));
    for (name, priority) in [("low", 0), ("first", 5), ("second", 5), ("high", 9)] {
        jobs.jobs.enqueue(NewJob::new(name.parse().unwrap(), format!("{name}\0é")).priority(priority));
    }
    let earlier = Owner::unique("earlier");
    for _ in 0..2 {
        let tried = jobs.claim(&earlier, 4, ms(1_000)).await.unwrap();
        for job in tried {
            assert_eq!(jobs.nack(&job.lease, Duration::ZERO, "tried").await.unwrap(), Held::Yours);
        }
    }
    let work = queue::work("jobs", jobs.clone(), does.clone()).attempts(3);
    let report = start(coordinator(ms(2_000)), work).stop_after(ms(50)).await;
    assert_eq!(ledger(&report), (4, 0, 4, 0), "{report}");
    let left = jobs.claimable().await;
    assert_eq!(ids(&left), ["high", "first", "second", "low"]);
    for job in left {
        assert_eq!((job.attempts, job.interruptions, job.crashes), (2, 1, 0));
        assert_eq!(job.item, format!("{}\0é", job.lease.id));
        assert_eq!(job.checkpoint, Some(format!("halfway through {}", job.item)));
    }
}

#[tokio::test(start_paused = true)]
async fn i18_a_job_that_will_not_be_cancelled_does_not_stretch_the_deadline() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Sleep(ms(60_000))));
    let budget = Budget::given(ms(10_000), "test").drain(ms(1_000));
    let shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    let report = start(shutdown, queue::work("jobs", jobs.clone(), does.clone())).stop_after(ms(50)).await;
    assert_eq!(does.runs()[0].to.unwrap() - does.runs()[0].from, ms(1_050), "cut when the drain ends");
    assert!(report.took() <= ms(1_100), "{report}");
    assert_eq!(ledger(&report), (1, 0, 1, 0));
    assert_eq!(jobs.claimable().await[0].interruptions, 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_stops_at_a_checkpoint_goes_back_with_how_far_it_came() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Steps(ms(60_000))));
    let work = queue::work("jobs", jobs.clone(), does.clone()).overrun(winddown::Overrun::Step(ms(500)));
    let report = start(coordinator(ms(10_000)), work).stop_after(ms(50)).await;
    assert_eq!(ledger(&report), (1, 0, 1, 0), "{report}");
    assert!(report.took() > ms(7_400) && report.took() < ms(7_700), "8 s of drain, less one step: {report}");
    let left = jobs.claimable().await;
    assert_eq!((left[0].interruptions, left[0].checkpoint.as_deref()), (1, Some("75")));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_done_although_a_checkpoint_refused_does_not_run_again() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::IgnoreCheckpoint(ms(8_200))));
    let report = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()))
        .stop_after(ms(50))
        .await;
    assert!(does.runs()[0].returned, "{report}");
    assert!(jobs.claimable().await.is_empty());
    assert_eq!(jobs.counts().await.unwrap().active, 0);
    assert_eq!(jobs.calls("requeue"), []);
}

#[tokio::test(start_paused = true)]
async fn invariant_9_what_is_acked_is_acked_before_anything_closes() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Sleep(ms(100))));
    *jobs.ack_takes.lock().unwrap() = ms(500);
    let mut shutdown = coordinator(ms(10_000));
    let seen = jobs.clone();
    shutdown.on(Phase::Close, "db", async move |_| {
        assert_eq!(seen.counts().await.unwrap().active, 0);
        assert_eq!(seen.calls("end_drain").len(), 1);
    });
    let report = start(shutdown, queue::work("jobs", jobs.clone(), does.clone())).stop_after(ms(50)).await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.took(), ms(550));
    assert_eq!(ledger(&report), (1, 1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn leases_end_at_the_kill_where_exiting_is_ours_and_keep_their_length_where_not() {
    for (ours, kill_in) in [(true, "Some(300s)"), (false, "None")] {
        let (jobs, does) = (Probe::with([1]), Does::new(Act::Sleep(ms(100))));
        let shutdown = if ours { may_exit() } else { coordinator(ms(10_000)) };
        let report =
            start(shutdown, queue::work("jobs", jobs.clone(), does.clone())).stop_after(ms(50)).await;
        assert!(report.is_clean(), "{report}");
        assert_eq!(jobs.calls("begin_drain"), [(ms(50), format!("begin_drain {kill_in}"))]);
        assert_eq!(jobs.calls("end_drain"), [(ms(100), "end_drain".to_owned())], "after the last is settled");
    }
}

/// In a process of its own, which is left at the end of its grace, by the real clock.
#[test]
fn a_job_that_blocks_its_thread_keeps_its_lease_until_the_process_is_dead() {
    let me = std::env::current_exe().unwrap();
    let child = std::process::Command::new(me)
        .args(["--exact", "child_with_a_blocked_thread", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(said.contains("kept its lease"), "{said}{}", String::from_utf8_lossy(&child.stderr));
    assert_eq!(child.status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "run by another test"]
async fn child_with_a_blocked_thread() {
    if !std::env::args().any(|arg| arg == "--exact") {
        return;
    }
    let released = Arc::new(AtomicBool::new(false));
    let _release = Release(Arc::clone(&released));
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Block(released)));
    let work = queue::work("jobs", jobs.clone(), does.clone()).lease(ms(300));
    let budget = Budget::given(ms(3_000), "test").drain(ms(200));
    let shutdown = ShutdownCoordinator::new(budget, signal::terminate().unwrap()).unwrap();
    let report = start(shutdown, work).stop_after(ms(100)).await;
    let gate = report.gate("jobs").unwrap();
    assert_eq!((gate.held, gate.handed_back, gate.still_running, gate.lost), (1, 1, 1, 0), "{report}");
    assert_eq!(report.code(), 0);
    let left = ms(3_000) - report.took();
    assert!(left > ms(800), "{report}");
    sleep(left - ms(400)).await;
    let other = Owner::unique("other");
    assert!(jobs.claim(&other, 1, ms(1)).await.unwrap().is_empty(), "beyond its lease of 300 ms");
    assert_eq!((jobs.calls("requeue").len(), jobs.calls("end_drain").len()), (0, 0));
    println!("kept its lease");
    // The watchdog leaves here, by the report's code; before that the lease has not ended.
    sleep(ms(2_000)).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_stops_without_asking_the_queue() {
    for down in [false, true] {
        let (jobs, does) = (Probe::with([]), Does::new(Act::Fail));
        let running = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does));
        sleep(ms(50)).await;
        jobs.down.store(down, Ordering::SeqCst);
        let report = running.stop_after(ms(0)).await;
        assert!(report.is_clean() && report.took() == Duration::ZERO, "{report}");
        assert_eq!(jobs.calls("").len() - jobs.calls("stopped waiting").len(), 1, "only the first claim");
    }
}

#[tokio::test(start_paused = true)]
async fn a_coordinator_that_is_dropped_hands_its_jobs_back() {
    let (jobs, does) = (Probe::with(1..=3), Does::new(Act::Forever { shielded: false }));
    let running = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()));
    sleep(ms(50)).await;
    running.run.abort();
    sleep(ms(100)).await;
    assert_eq!(ids(&jobs.claimable().await), ["job-1", "job-2", "job-3"]);
}

#[tokio::test(start_paused = true)]
async fn what_waits_at_the_server_is_ended_before_the_worker_is_and_holds_nothing_up() {
    for takes in [300, 700] {
        let (jobs, does) = (Probe::with([1]), Does::new(Act::Sleep(ms(100))));
        *jobs.stop_takes.lock().unwrap() = ms(takes);
        let work = queue::work("jobs", jobs.clone(), does).concurrency(2);
        let report = start(coordinator(ms(10_000)), work).stop_after(ms(50)).await;
        assert!(report.is_clean(), "{report}");
        assert_eq!(report.took(), ms(takes), "{report}");
        assert_eq!(jobs.calls("stopped"), [(ms(50 + takes), "stopped waiting".to_owned())]);
        assert_eq!(jobs.calls("ack"), [(ms(100), "ack job-1".to_owned())]);
        assert_eq!(jobs.calls("end_drain"), [(ms(100), "end_drain".to_owned())], "nothing is held any more");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_end_a_wait_holds_up_neither_the_hand_back_nor_the_end() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Forever { shielded: false }));
    *jobs.stop_takes.lock().unwrap() = ms(3_600_000);
    let work = queue::work("jobs", jobs.clone(), does).concurrency(2);
    let report = start(coordinator(ms(10_000)), work).stop_after(ms(50)).await;
    assert!(report.took() < ms(10_000), "{report}");
    assert_eq!(ledger(&report), (1, 0, 1, 0), "{report}");
    assert_eq!(jobs.calls("requeue"), [(ms(8_050), "requeue job-1".to_owned())], "when the drain was over");
    assert_eq!(jobs.calls("stopped"), []);
}

#[tokio::test(start_paused = true)]
async fn a_pause_ends_the_wait_too_and_the_queue_is_not_asked_again_before_that_is_over() {
    for takes in [100, 300] {
        let (jobs, does) = (Probe::with([]), Does::new(Act::Sleep(ms(10))));
        let began = Instant::now();
        *jobs.stop_takes.lock().unwrap() = ms(takes);
        let running = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()));
        sleep(ms(50)).await;
        running.handle.pause();
        sleep(ms(10)).await;
        running.handle.resume();
        jobs.enqueue(1);
        sleep(ms(1_000)).await;
        assert_eq!(does.runs()[0].from - began, ms(50 + takes));
        assert_eq!(jobs.asked_while_ending.load(Ordering::SeqCst), 0);
        assert_eq!(jobs.calls("stopped"), [(ms(50 + takes), "stopped waiting".to_owned())]);
        running.handle.pause();
        sleep(ms(1_000)).await;
        assert_eq!(jobs.calls("stopped").len(), 2);
        let report = running.stop_after(ms(1_000)).await;
        assert_eq!(report.took(), Duration::ZERO, "nothing has waited since the pause: {report}");
        assert_eq!(jobs.calls("stopped").len(), 2);
    }
}

// === leases ===

#[tokio::test(start_paused = true)]
async fn invariant_8_leases_outlive_the_work() {
    for lease in [ms(300), ms(1_000)] {
        let (jobs, does) = (Probe::with(1..=4), Does::new(Act::Sleep(ms(9_000))));
        let work = queue::work("jobs", jobs.clone(), does.clone()).lease(lease);
        let running = start(coordinator(ms(10_000)), work);
        let handle = running.handle.clone();
        let stop = tokio::spawn(running.stop_after(ms(5_000)));
        for _ in 0..899 {
            sleep(ms(10)).await;
            assert!(jobs.claimable().await.is_empty(), "at work until 9 s, stopping from 5 s");
        }
        assert!(handle.is_triggered());
        let report = stop.await.unwrap();
        assert_eq!(ledger(&report), (4, 4, 0, 0), "{report}");
        assert_eq!(jobs.counts().await.unwrap().crashes, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn i34_leases_are_let_go_on_a_clean_exit_and_not_before() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Forever { shielded: false }));
    let work = queue::work("jobs", jobs.clone(), does.clone()).lease(ms(15_000));
    let running = start(coordinator(ms(5_000)), work);
    sleep(ms(50)).await;
    running.handle.trigger("test");
    sleep(ms(3_400)).await;
    assert!(jobs.claimable().await.is_empty(), "the drain of 3.5 s is not over");
    let report = running.run.await.unwrap();
    assert!(report.took() < ms(5_000), "{report}");
    assert_eq!(ids(&jobs.claimable().await), ["job-1"], "with no wait for the lease");
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_lease_cannot_be_renewed_is_gone_before_somebody_else_may_have_it() {
    for lease in [ms(900), ms(12_000)] {
        let (jobs, does) = (Probe::with([1]), Does::new(Act::Forever { shielded: true }));
        let work = queue::work("jobs", jobs.clone(), does.clone()).lease(lease);
        let running = start(coordinator(ms(10_000)), work);
        while does.runs().is_empty() {
            tokio::task::yield_now().await;
        }
        // From here on the queue does not answer, so that nothing can be handed back either.
        jobs.down.store(true, Ordering::SeqCst);
        let began = Instant::now();
        let theirs = loop {
            sleep(ms(10)).await;
            if jobs.counts().await.unwrap().active == 1 && began.elapsed() >= lease {
                break jobs.claimable().await;
            }
        };
        assert_eq!(ids(&theirs), ["job-1"]);
        let gone = does.runs()[0].to.expect("it is gone by now") - began;
        assert!(gone < lease && gone * 10 > lease * 8, "{gone:?} of {lease:?}");
        let report = running.stop_after(ms(50)).await;
        assert_eq!(ledger(&report), (1, 0, 0, 1), "what could not be handed back is named: {report}");
        assert!(report.lost()[0].why.contains("when its lease ends"), "{report}");
        let [advice] = report.advice() else { panic!("not the drain was too short: {report}") };
        assert!(advice.contains("1 of 1 in gate jobs") && advice.contains("it is down"), "{advice}");
        assert_eq!((jobs.calls("ack").len(), jobs.calls("nack").len()), (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_lease_the_queue_calls_lost_is_cut_at_once() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Forever { shielded: true }));
    jobs.extend_says_lost.store(true, Ordering::SeqCst);
    let work = queue::work("jobs", jobs.clone(), does.clone()).lease(ms(3_000));
    let running = start(coordinator(ms(10_000)), work);
    sleep(ms(1_100)).await;
    assert_eq!(does.runs()[0].to.unwrap() - does.runs()[0].from, ms(1_000), "at the first renewal");
    let report = running.stop_after(ms(50)).await;
    assert_eq!(report.took(), Duration::ZERO, "{report}");
    assert_eq!((jobs.calls("ack").len(), jobs.calls("nack").len(), jobs.calls("requeue").len()), (0, 0, 0));
}

/// With whoever has it now, it is back where it came from: it was not finished here, and is not lost.
#[tokio::test(start_paused = true)]
async fn a_job_that_the_queue_has_given_to_somebody_else_counts_as_handed_back_and_is_not_asked_about_again()
{
    for renewal in [true, false] {
        let (jobs, does) = (Probe::with(1..=2), Does::new(Act::Forever { shielded: false }));
        let told = if renewal { &jobs.extend_says_lost } else { &jobs.settling_says_lost };
        told.store(true, Ordering::SeqCst);
        let mut work = queue::work("jobs", jobs.clone(), does.clone()).lease(ms(3_000));
        if !renewal {
            work = work.task_limit(ms(1_000));
        }
        let report = start(coordinator(ms(10_000)), work).stop_after(ms(50)).await;
        assert_eq!(ledger(&report), (2, 0, 2, 0), "{report}");
        assert!(report.is_clean() && report.gate("jobs").unwrap().adds_up(), "{report}");
        assert!(
            report.took() >= ms(950) && report.took() < ms(1_100),
            "once the queue has said so: {report}"
        );
        assert_eq!(jobs.calls("requeue"), []);
        assert_eq!(jobs.calls("nack").len(), if renewal { 0 } else { 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_done_is_finished_though_somebody_else_has_it_too() {
    let (jobs, does) = (Probe::with(1..=2), Does::new(Act::Sleep(ms(100))));
    jobs.settling_says_lost.store(true, Ordering::SeqCst);
    let work = queue::work("jobs", jobs.clone(), does.clone());
    let report = start(coordinator(ms(10_000)), work).stop_after(ms(50)).await;
    assert_eq!(ledger(&report), (2, 2, 0, 0), "{report}");
    assert!(report.is_clean(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_job_is_cut_in_time_also_while_a_renewal_hangs() {
    for lease in [ms(900), ms(12_000)] {
        let (jobs, does) = (Probe::with([1]), Does::new(Act::Forever { shielded: true }));
        *jobs.extend_takes.lock().unwrap() = ms(3_600_000);
        let work = queue::work("jobs", jobs.clone(), does.clone()).lease(lease);
        let running = start(coordinator(ms(10_000)), work);
        sleep(lease).await;
        let gone = does.runs()[0].to.expect("it is gone by now") - does.runs()[0].from;
        assert_eq!(gone, lease - (lease / 10).min(ms(1_000)));
        running.stop_after(ms(0)).await;
    }
}

/// Its lease ends sooner than the worker had meant to look again.
#[tokio::test(start_paused = true)]
async fn a_job_of_a_slow_claim_is_cut_in_time() {
    for takes in [450, 500] {
        let (jobs, does) = (Probe::with([]), Does::new(Act::Forever { shielded: true }));
        let began = Instant::now();
        jobs.extend_down.store(true, Ordering::SeqCst);
        let work = queue::work("jobs", jobs.clone(), does.clone()).lease(ms(1_000));
        let running = start(coordinator(ms(10_000)), work);
        *jobs.claim_takes.lock().unwrap() = ms(takes);
        sleep(ms(1_400)).await;
        jobs.enqueue(1);
        sleep(ms(910)).await;
        assert_eq!(does.runs()[0].from - began, ms(1_400 + takes));
        assert_eq!(does.runs()[0].to.expect("it is gone by now") - began, ms(2_300));
        running.stop_after(ms(0)).await;
    }
}

/// When a frozen process goes on, what the handler waits for may be there before any timer of ours has fired.
#[tokio::test(start_paused = true)]
async fn a_handler_whose_lease_ended_while_the_process_was_frozen_is_not_polled_again() {
    for (frozen, in_time) in [(ms(500), true), (ms(901), false)] {
        let go = Arc::new(tokio::sync::Notify::new());
        let (jobs, does) = (Probe::with([1]), Does::new(Act::Until(Arc::clone(&go))));
        let work = queue::work("jobs", jobs.clone(), does.clone()).lease(ms(1_000));
        let running = start(coordinator(ms(10_000)), work);
        while does.runs().is_empty() {
            tokio::task::yield_now().await;
        }
        go.notify_one();
        tokio::time::advance(frozen).await;
        sleep(ms(50)).await;
        assert!(does.runs()[0].to.is_some());
        assert_eq!(does.runs()[0].returned, in_time, "{frozen:?}");
        // What was cut has gone back, since the queue still held it for us, and is done by the next run.
        assert_eq!((jobs.calls("requeue").len(), does.runs().len()), if in_time { (0, 1) } else { (1, 2) });
        assert_eq!(jobs.calls("ack").len(), 1);
        running.stop_after(ms(0)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_took_as_long_as_its_lease_starts_nothing() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Sleep(ms(10))));
    *jobs.claim_takes.lock().unwrap() = ms(950);
    let work = queue::work("jobs", jobs.clone(), does.clone()).lease(ms(1_000));
    let running = start(coordinator(ms(10_000)), work);
    sleep(ms(940)).await;
    *jobs.claim_takes.lock().unwrap() = Duration::ZERO;
    sleep(ms(100)).await;
    let runs = does.runs();
    assert_eq!(runs.len(), 1, "only with the second claim");
    assert_eq!(jobs.calls("requeue"), [(ms(950), "requeue job-1".to_owned())]);
    running.stop_after(ms(0)).await;
}

// === failures ===

#[tokio::test(start_paused = true)]
async fn a_job_that_fails_comes_again_after_a_back_off_and_is_kept_aside_in_the_end() {
    for first in [1_000, 8_000] {
        let (jobs, does) = (Probe::with([1]), Does::new(Act::Fail));
        let work = queue::work("jobs", jobs.clone(), does.clone()).attempts(4).backoff(ms(first), ms(20_000));
        let running = start(coordinator(ms(10_000)), work);
        sleep(ms(100_000)).await;
        let starts: Vec<Instant> = does.runs().iter().map(|run| run.from).collect();
        assert_eq!(starts.len(), 4);
        for (failures, pair) in starts.windows(2).enumerate() {
            let (waited, whole) = (pair[1] - pair[0], ms((first << failures).min(20_000)));
            assert!(waited <= whole + ms(1) && waited * 2 >= whole, "{waited:?} of {whole:?}");
        }
        let dead = jobs.dead_letters(10).await.unwrap();
        assert_eq!((dead[0].attempts, dead[0].reason.as_str()), (4, "cannot brew: no tea"));
        let report = running.stop_after(ms(0)).await;
        assert!(report.is_clean(), "a job's failure is not the program's: {report}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_uses_an_attempt() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Panic(ms(0))));
    let work = queue::work("jobs", jobs.clone(), does.clone()).attempts(2);
    let running = start(coordinator(ms(10_000)), work);
    sleep(ms(10_000)).await;
    let dead = jobs.dead_letters(10).await.unwrap();
    assert_eq!((dead[0].attempts, dead[0].reason.as_str()), (2, "it panicked: spilled"));
    assert!(running.stop_after(ms(0)).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_the_program_stops_uses_none() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Panic(ms(100))));
    let report = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()))
        .stop_after(ms(50))
        .await;
    assert_eq!(ledger(&report), (1, 0, 1, 0), "{report}");
    let left = jobs.claimable().await;
    assert_eq!((left[0].attempts, left[0].interruptions), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_job_beyond_its_task_limit_has_failed() {
    for limit in [300, 900] {
        let (jobs, does) = (Probe::with([1]), Does::new(Act::Forever { shielded: false }));
        let work = queue::work("jobs", jobs.clone(), does.clone()).attempts(1).task_limit(ms(limit));
        let running = start(coordinator(ms(10_000)), work);
        sleep(ms(2_000)).await;
        assert_eq!(does.runs()[0].to.unwrap() - does.runs()[0].from, ms(limit));
        let dead = jobs.dead_letters(10).await.unwrap();
        assert_eq!(dead[0].reason, format!("it took longer than its task_limit of {limit} ms"));
        running.stop_after(ms(0)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_ack_whose_answer_was_lost_is_repeated_and_the_job_runs_once() {
    let (jobs, does) = (Probe::with(1..=2), Does::new(Act::Sleep(ms(100))));
    jobs.lost_acks.store(3, Ordering::SeqCst);
    let report = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()))
        .stop_after(ms(50))
        .await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(ledger(&report), (2, 2, 0, 0));
    assert_eq!(jobs.calls("ack job-1 job-2").len(), 4);
    assert_eq!(does.ran(), ["job-1", "job-2"]);
}

#[tokio::test(start_paused = true)]
async fn a_done_job_is_acked_although_the_queue_was_down_until_the_drain_was_over() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Sleep(ms(100))));
    let running = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()));
    sleep(ms(50)).await;
    jobs.down.store(true, Ordering::SeqCst);
    running.handle.trigger("test");
    let back = jobs.clone();
    tokio::spawn(async move {
        sleep(ms(8_300)).await;
        back.down.store(false, Ordering::SeqCst);
    });
    let report = running.run.await.unwrap();
    assert_eq!(ledger(&report), (1, 1, 0, 0), "{report}");
    assert_eq!(jobs.counts().await.unwrap().active, 0);
    assert!(report.took() > ms(8_000) && report.took() < ms(9_000), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_done_job_that_is_acked_at_the_last_moment_is_not_said_to_be_still_running() {
    for back_at in [8_300, 8_700] {
        let (jobs, does) = (Probe::with([1]), Does::new(Act::Sleep(ms(100))));
        let running = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()));
        sleep(ms(50)).await;
        jobs.down.store(true, Ordering::SeqCst);
        running.handle.trigger("test");
        sleep(ms(back_at)).await;
        jobs.down.store(false, Ordering::SeqCst);
        let report = running.run.await.unwrap();
        assert_eq!(report.gate("jobs").unwrap().still_running, 0, "{report}");
        assert_eq!(ledger(&report), (1, 1, 0, 0), "{report}");
        assert!(report.is_clean() && report.advice().is_empty(), "{report}");
    }
}

/// That is an answer, however late: the job is not said to be waiting for one, nor is it waited for.
#[tokio::test(start_paused = true)]
async fn a_failed_job_that_is_called_lost_at_the_last_moment_holds_up_nothing_and_is_not_named() {
    for answers_after in [7_000, 8_300, 8_800] {
        let (jobs, does) = (Probe::with([1]), Does::new(Act::Fail));
        jobs.settling_says_lost.store(true, Ordering::SeqCst);
        *jobs.ack_takes.lock().unwrap() = ms(answers_after);
        let work = queue::work("jobs", jobs.clone(), does.clone());
        let report = start(coordinator(ms(10_000)), work).stop_after(ms(50)).await;
        assert!(report.took() < ms(answers_after), "{report}");
        let gate = report.gate("jobs").unwrap();
        assert!(report.is_clean() && gate.adds_up() && report.advice().is_empty(), "{report}");
        assert_eq!((gate.lost, gate.still_running), (0, 0), "{report}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_done_job_whose_ack_never_comes_through_is_named() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Sleep(ms(100))));
    let running = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()));
    sleep(ms(50)).await;
    jobs.down.store(true, Ordering::SeqCst);
    let report = running.stop_after(ms(0)).await;
    assert!(report.took() < ms(10_000), "{report}");
    assert_eq!(ledger(&report).3, 1, "{report}");
    assert!(report.to_string().contains("job-1"), "{report}");
    let [advice] = report.advice() else { panic!("its handler had time enough: {report}") };
    assert!(advice.contains("1 of 1 in gate jobs"), "{advice}");
    for part in ["its handler was done", "it is down", "when its lease ends, in 30 s at the latest"] {
        assert!(report.lost()[0].why.contains(part) && advice.contains(part), "{part}: {report}");
    }
}

#[tokio::test(start_paused = true)]
async fn advice_tells_what_the_drain_was_too_short_for_from_what_the_queue_did_not_take() {
    for down in [false, true] {
        // Two run, and three more wait, which go back at the trigger.
        let (jobs, does) = (Probe::with(1..=5), Does::new(Act::Forever { shielded: false }));
        let work =
            queue::work("jobs", jobs.clone(), does.clone()).concurrency(2).prefetch(3).lease(ms(60_000));
        let running = start(coordinator(ms(10_000)), work);
        sleep(ms(50)).await;
        running.handle.trigger("test");
        sleep(ms(50)).await;
        jobs.down.store(down, Ordering::SeqCst);
        let report = running.run.await.unwrap();
        assert_eq!(ledger(&report), if down { (5, 0, 3, 2) } else { (5, 0, 5, 0) }, "{report}");
        let advice = report.advice();
        assert!(advice[0].starts_with("the drain of 8 s was too short for 2 of 5:"), "{report}");
        assert_eq!(advice.len(), if down { 2 } else { 1 }, "{report}");
        if down {
            let said = "2 of 5 in gate jobs could be neither finished nor handed back, such as job-1: \
                        could not ask the queue: it is down; it is free again when its lease ends, in 1 m at the latest";
            assert_eq!(advice[1], said);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_handed_back_is_said_to_be_free_at_the_kill_where_the_queue_was_told_of_that() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Forever { shielded: false }));
    let running = start(may_exit(), queue::work("jobs", jobs.clone(), does.clone()));
    sleep(ms(50)).await;
    running.handle.trigger("test");
    sleep(ms(50)).await;
    jobs.down.store(true, Ordering::SeqCst);
    let report = running.run.await.unwrap();
    let why = &report.lost()[0].why;
    assert!(why.ends_with("it is free again when its lease ends, at the kill at the latest"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_nothing_and_is_not_a_busy_loop() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Sleep(ms(100))));
    jobs.down.store(true, Ordering::SeqCst);
    let running = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()));
    sleep(ms(60_000)).await;
    let tries = jobs.calls("claim").len();
    assert!((10..60).contains(&tries), "{tries} in a minute");
    jobs.down.store(false, Ordering::SeqCst);
    sleep(ms(6_000)).await;
    assert_eq!(does.ran(), ["job-1"]);
    jobs.down.store(true, Ordering::SeqCst);
    sleep(ms(20_000)).await;
    let report = running.stop_after(ms(0)).await;
    assert!(report.took() < ms(10_000), "{report}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_hints_at_nothing_is_not_asked_in_a_circle() {
    let (jobs, does) = (Probe::with([]), Does::new(Act::Sleep(ms(100))));
    let owner = Owner::unique("worker");
    // An owner that is ending gets nothing, while there is something for others.
    jobs.jobs.begin_drain(&owner, None).await.unwrap();
    jobs.enqueue(1);
    let running =
        start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()).owner(owner));
    sleep(ms(10_000)).await;
    let tries = jobs.calls("claim").len();
    assert!((30..60).contains(&tries), "{tries} in 10 s");
    running.stop_after(ms(0)).await;
}

// === flow ===

#[tokio::test(start_paused = true)]
async fn no_more_is_claimed_than_runs_at_once() {
    for concurrency in [1, 3] {
        let (jobs, does) = (Probe::with(1..=20), Does::new(Act::Sleep(ms(100))));
        let work = queue::work("jobs", jobs.clone(), does.clone()).concurrency(concurrency);
        let running = start(coordinator(ms(10_000)), work);
        sleep(ms(3_000)).await;
        assert_eq!(jobs.most_active.load(Ordering::SeqCst), concurrency);
        assert_eq!(does.ran(), (1..=20).map(|n| format!("job-{n}")).collect::<Vec<_>>());
        let last = does.runs()[19].to.unwrap() - does.runs()[0].from;
        assert_eq!(last, ms(100) * 20_u32.div_ceil(concurrency as u32), "all side by side");
        assert_eq!(jobs.counts().await.unwrap().active, 0);
        running.stop_after(ms(0)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_at_a_time_each_job_takes_one_call() {
    for length in [0, 10] {
        let act = if length == 0 { Act::Nothing } else { Act::Sleep(ms(length)) };
        let (jobs, does) = (Probe::with(1..=20), Does::new(act));
        let work = queue::work("jobs", jobs.clone(), does.clone()).concurrency(1);
        let running = start(coordinator(ms(10_000)), work);
        sleep(ms(1_000)).await;
        // The port's own `step` is an ack and a claim, with nothing in between.
        let mut expected = vec!["claim 1".to_owned()];
        expected.extend((1..=20).flat_map(|n| [format!("ack job-{n}"), "claim 1".to_owned()]));
        let called: Vec<String> = jobs.calls("").into_iter().map(|(_, call)| call).collect();
        assert_eq!(called, expected);
        running.stop_after(ms(0)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_claimed_ahead_begin_without_asking_the_queue() {
    for (prefetch, apart) in [(0, ms(210)), (16, ms(10))] {
        let (jobs, does) = (Probe::with(1..=10), Does::new(Act::Sleep(ms(10))));
        *jobs.claim_takes.lock().unwrap() = ms(100);
        *jobs.ack_takes.lock().unwrap() = ms(100);
        let work = queue::work("jobs", jobs.clone(), does.clone()).concurrency(1).prefetch(prefetch);
        let running = start(coordinator(ms(10_000)), work);
        sleep(ms(3_000)).await;
        let runs = does.runs();
        assert_eq!(does.ran(), (1..=10).map(|n| format!("job-{n}")).collect::<Vec<_>>(), "in their order");
        assert!(runs.windows(2).all(|pair| pair[1].from - pair[0].from == apart), "one at a time: {runs:?}");
        assert_eq!(jobs.counts().await.unwrap().active, 0);
        running.stop_after(ms(0)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_is_claimed_ahead_than_is_said() {
    for (concurrency, prefetch) in [(1, 3), (4, 2)] {
        let (jobs, does) = (Probe::with(1..=40), Does::new(Act::Sleep(ms(10))));
        let work =
            queue::work("jobs", jobs.clone(), does.clone()).concurrency(concurrency).prefetch(prefetch);
        let running = start(coordinator(ms(10_000)), work);
        sleep(ms(3_000)).await;
        assert_eq!(jobs.most_active.load(Ordering::SeqCst), concurrency + prefetch);
        let last = does.runs()[39].to.unwrap() - does.runs()[0].from;
        assert_eq!(last, ms(10) * 40_u32.div_ceil(concurrency as u32), "all places are in use");
        running.stop_after(ms(0)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_claimed_ahead_go_back_untouched_at_the_stop() {
    for hung in [false, true] {
        let (jobs, does) = (Probe::with(1..=10), Does::new(Act::Sleep(ms(400))));
        let work = queue::work("jobs", jobs.clone(), does.clone()).concurrency(2).prefetch(5);
        let running = start(coordinator(ms(10_000)), work);
        sleep(ms(450)).await;
        if hung {
            // The answer about jobs 1 and 2 was there; that about 3 and 4 is under way when the stop begins.
            *jobs.ack_takes.lock().unwrap() = ms(2_000);
            sleep(ms(400)).await;
        }
        let report = running.stop_after(ms(0)).await;
        assert!(report.is_clean(), "{report}");
        let begun = if hung { 6 } else { 4 };
        assert_eq!(does.ran(), (1..=begun).map(|n| format!("job-{n}")).collect::<Vec<_>>());
        let at = jobs.calls("requeue")[0].0;
        assert_eq!(at, if hung { ms(850) } else { ms(450) }, "at once");
        let left = jobs.claimable().await;
        assert_eq!(ids(&left), (begun + 1..=10).map(|n| format!("job-{n}")).collect::<Vec<_>>());
        assert!(left.iter().all(|job| (job.attempts, job.interruptions, job.crashes) == (0, 0, 0)));
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_claimed_ahead_are_given_up_at_a_pause_and_their_leases_are_kept_until_then() {
    let (jobs, does) = (Probe::with(1..=4), Does::new(Act::Sleep(ms(2_000))));
    let work = queue::work("jobs", jobs.clone(), does.clone()).concurrency(1).prefetch(3).lease(ms(600));
    let running = start(coordinator(ms(10_000)), work);
    sleep(ms(1_500)).await;
    assert!(jobs.claimable().await.is_empty(), "renewed also while they wait");
    running.handle.pause();
    sleep(ms(50)).await;
    assert_eq!(jobs.counts().await.unwrap().pending, 3);
    sleep(ms(1_000)).await;
    running.handle.resume();
    sleep(ms(10_000)).await;
    assert_eq!(does.ran(), ["job-1", "job-2", "job-3", "job-4"]);
    let report = running.stop_after(ms(0)).await;
    assert!(report.is_clean(), "{report}");
}

#[tokio::test(start_paused = true)]
async fn handlers_that_need_not_wait_are_acked_together() {
    for concurrency in [16, 256] {
        let (jobs, does) = (Probe::with(1..=1024), Does::new(Act::Nothing));
        let work = queue::work("jobs", jobs.clone(), does.clone()).concurrency(concurrency);
        let running = start(coordinator(ms(10_000)), work);
        sleep(ms(1_000)).await;
        assert_eq!(does.runs().len(), 1024);
        assert_eq!(jobs.calls("ack").len(), 1024 / concurrency);
        running.stop_after(ms(0)).await;
    }
}

/// With threads enough to be acked one by one: each call would be for the few that were done when it began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_that_need_not_wait_are_acked_together_also_by_several_threads() {
    let (jobs, does) = (Probe::with(1..=4096), Does::new(Act::Nothing));
    let running =
        start(coordinator(ms(60_000)), queue::work("jobs", jobs.clone(), does.clone()).concurrency(16));
    while jobs.counts().await.unwrap().pending + jobs.counts().await.unwrap().active > 0 {
        sleep(ms(10)).await;
    }
    let report = running.stop_after(ms(0)).await;
    assert!(report.is_clean(), "{report}");
    let acks = jobs.calls("ack").len();
    assert!(acks < 4096 / 8, "{acks} calls, for 16 jobs at once");
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_the_pulling_and_nothing_else() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Sleep(ms(1_000))));
    let running = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()));
    sleep(ms(50)).await;
    running.handle.pause();
    jobs.enqueue(2);
    sleep(ms(5_000)).await;
    assert_eq!(does.ran(), ["job-1"]);
    assert_eq!(jobs.calls("ack job-1").len(), 1, "what ran is finished");
    assert_eq!(jobs.counts().await.unwrap().pending, 1);
    running.handle.resume();
    sleep(ms(1_100)).await;
    assert_eq!(does.ran(), ["job-1", "job-2"]);
    running.handle.pause();
    assert!(running.stop_after(ms(50)).await.is_clean(), "a pause does not hold up the stop");
}

#[tokio::test(start_paused = true)]
async fn a_hint_that_is_half_way_through_asking_is_given_up_before_the_queue_is_asked_for_more() {
    for takes in [60, 100] {
        let probe = Probe::with(0..1);
        *probe.ready_takes.lock().unwrap() = ms(takes);
        let does = Does::new(Act::Sleep(ms(50)));
        let work = queue::work("jobs", probe.clone(), does.clone()).concurrency(2);
        let report = start(coordinator(ms(10_000)), work).stop_after(ms(500)).await;
        assert_eq!((does.ran().len(), report.code()), (1, 0), "{report}");
        assert!(!probe.calls("ack").is_empty());
        assert_eq!(
            probe.crossed.load(Ordering::SeqCst),
            0,
            "it may hold the one connection: {:?}",
            probe.calls("")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_comes_later_is_begun_at_once() {
    let (jobs, does) = (Probe::with([]), Does::new(Act::Sleep(ms(10))));
    let running = start(coordinator(ms(10_000)), queue::work("jobs", jobs.clone(), does.clone()));
    for number in 1..=5 {
        sleep(ms(7_000)).await;
        let before = Instant::now();
        jobs.enqueue(number);
        sleep(ms(1)).await;
        assert!(does.runs().last().unwrap().from - before < ms(1));
    }
    running.stop_after(ms(50)).await;
}

#[tokio::test(start_paused = true)]
async fn the_longest_lease_is_no_panic() {
    let (jobs, does) = (Probe::with([1]), Does::new(Act::Forever { shielded: false }));
    let work = queue::work("jobs", jobs.clone(), does.clone()).lease(Duration::MAX);
    let report = start(coordinator(ms(10_000)), work).stop_after(ms(50)).await;
    assert_eq!(ledger(&report), (1, 0, 1, 0), "{report}");
}

async fn plain(job: &Leased<String>, cx: &Cx) -> Result<(), std::io::Error> {
    cx.shield(sleep(ms(10))).await;
    drop(job.item.clone());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn functions_and_closures_are_handlers() {
    let jobs = Probe::with([1]);
    let others = Probe::with([1]);
    let mut shutdown = coordinator(ms(10_000));
    shutdown.add(queue::work("plain", jobs.clone(), plain));
    shutdown.add(queue::work("closure", others.clone(), async |job: &Leased<String>, cx: &Cx| {
        cx.checkpoint()?;
        plain(job, cx).await?;
        Ok::<(), BoxError>(())
    }));
    let handle = shutdown.handle();
    let run = tokio::spawn(shutdown.run());
    sleep(ms(50)).await;
    handle.trigger("test");
    assert!(run.await.unwrap().is_clean());
    assert_eq!((jobs.calls("ack job-1").len(), others.calls("ack job-1").len()), (1, 1));
}
