//! The worker's calls to a queue that takes long to answer: several are under way, and every rule holds for all of them together.

#[path = "worker_calls/line.rs"]
mod line;

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use line::{Fate, Line, ms};
use tokio::time::{Instant, sleep};
use winddown::queue::{self, Leased, Owner, Queue};
use winddown::{BoxError, Budget, Cx, Report, ShutdownCoordinator, ShutdownHandle, signal};

struct Running {
    handle: ShutdownHandle,
    run: tokio::task::JoinHandle<Report>,
    began: Instant,
    /// Which jobs have run, and when each was begun.
    ran: Arc<Mutex<Vec<(u32, Duration)>>>,
}

/// Handlers take so long, some longer by a bit, so that they do not end together.
fn start(line: &Line, concurrency: usize, prefetch: usize, length: Duration) -> Running {
    let budget = Budget::given(ms(60_000), "test");
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
    let ran: Arc<Mutex<Vec<(u32, Duration)>>> = Arc::default();
    let (runs, began) = (Arc::clone(&ran), Instant::now());
    let handler = move |job: &Leased<u32>, _: &Cx| {
        let (number, runs) = (job.item, Arc::clone(&runs));
        async move {
            runs.lock().unwrap().push((number, began.elapsed()));
            if !length.is_zero() {
                sleep(length + Duration::from_micros(u64::from(number) * 700 % 9_000)).await;
            }
            Ok::<(), BoxError>(())
        }
    };
    shutdown.add(queue::work("jobs", line.clone(), handler).concurrency(concurrency).prefetch(prefetch));
    Running { handle: shutdown.handle(), run: tokio::spawn(shutdown.run()), began, ran }
}

impl Running {
    async fn stop(self) -> Report {
        self.handle.trigger("test");
        self.run.await.unwrap()
    }

    async fn until_done(&self, line: &Line) -> Duration {
        let counts = || async { line.counts().await.unwrap() };
        while counts().await.pending + counts().await.active > 0 {
            assert!(self.began.elapsed() < ms(600_000), "it stands still: {:?}", counts().await);
            sleep(ms(10)).await;
        }
        self.began.elapsed()
    }

    fn ran_once(&self, jobs: u32) {
        let mut times = HashMap::new();
        self.ran.lock().unwrap().iter().for_each(|(number, _)| *times.entry(*number).or_insert(0) += 1);
        assert_eq!(times.len(), jobs as usize);
        assert!(times.values().all(|times| *times == 1), "{times:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_a_call_takes_long_others_are_under_way_as_many_as_the_queue_says() {
    let mut took = Vec::new();
    for at_once in [1, 2, 4] {
        let line = Line::new(at_once, ms(20), 2_000);
        let running = start(&line, 64, 0, ms(10));
        took.push(running.until_done(&line).await);
        running.ran_once(2_000);
        assert_eq!(line.most_under_way.load(Ordering::SeqCst), at_once);
        assert!(running.stop().await.is_clean());
    }
    assert!(took[2] * 100 < took[0] * 95, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_quick_queue_is_asked_once_at_a_time_for_all_that_there_is_room_for() {
    for concurrency in [16, 256] {
        let line = Line::new(4, Duration::ZERO, 1_024);
        let running = start(&line, concurrency, 0, Duration::ZERO);
        running.until_done(&line).await;
        assert_eq!(line.calls().len(), 1_024 / concurrency + 1, "with the first claim");
        assert!(line.calls().iter().all(|call| call.max == concurrency && call.acks % concurrency == 0));
        assert_eq!(line.most_under_way.load(Ordering::SeqCst), 1);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn never_more_is_held_than_said_whatever_the_order_of_the_answers() {
    for (concurrency, prefetch) in [(64, 0), (16, 48), (1, 99)] {
        let line = Line::new(4, ms(20), 3_000);
        line.fates.lock().unwrap().extend((0..4_000_u64).map(|n| Fate::Takes(ms(n * 7_919 % 41))));
        let running = start(&line, concurrency, prefetch, ms(2));
        running.until_done(&line).await;
        running.ran_once(3_000);
        assert!(concurrency == 1 || line.most_under_way.load(Ordering::SeqCst) > 1);
        assert_eq!(line.most_held.load(Ordering::SeqCst), concurrency + prefetch);
        running.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_all_claims_bring_after_the_stop_goes_back_untouched_and_in_its_order() {
    let line = Line::new(4, ms(200), 1_000);
    let running = start(&line, 64, 0, ms(5));
    // All that the first claim has brought was done by 220 ms, and went in parts with other claims, which have got there by 320 ms.
    sleep(ms(350)).await;
    let claims = line.calls().iter().filter(|call| call.max > 0).count() - 1;
    assert!(claims > 1, "{:?}", line.calls());
    let (ran, said) = (running.ran.clone(), line.clone());
    let report = running.stop().await;
    assert!(report.is_clean(), "{report}");
    assert_eq!(ran.lock().unwrap().len(), 64, "none is begun after the stop");
    assert_eq!(said.others("requeue").len(), claims, "{:?}", said.others(""));
    assert_eq!(said.others("end_drain").len(), 1, "after all were settled");
    let left = line.jobs.claim(&Owner::unique("other"), 1_000, ms(1_000)).await.unwrap();
    assert_eq!(left.iter().map(|job| job.item).collect::<Vec<_>>(), (65..=1_000).collect::<Vec<_>>());
    assert!(left.iter().all(|job| (job.attempts, job.interruptions, job.crashes) == (0, 0, 0)));
}

/// The answer to an older claim says nothing of the lost one; that of a later claim, or of the mark, does.
#[tokio::test(start_paused = true)]
async fn a_claim_without_an_answer_is_not_forgotten_for_the_answer_to_another_one() {
    for later in [false, true] {
        let line = Line::new(4, ms(200), 10_000);
        let running = start(&line, 64, 0, ms(5));
        sleep(ms(201)).await;
        // Of those that go out by 220 ms the first is lost; the others are answered after that.
        line.fates.lock().unwrap().extend([Fate::Lost, Fate::Takes(ms(300)), Fate::Takes(ms(300))]);
        sleep(if later { ms(1_500) } else { ms(260) }).await;
        let said = line.clone();
        let report = running.stop().await;
        // Where nobody has put back what it may have brought, the mark stays to keep that out.
        assert_eq!(said.others("end_drain").len(), usize::from(later), "{:?} {report}", said.others(""));
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_fails_is_left_alone_by_all_calls_together_and_then_asked_by_one() {
    let line = Line::new(4, ms(20), 10_000);
    let running = start(&line, 64, 0, ms(2));
    sleep(ms(200)).await;
    let before = line.calls().len();
    line.fates.lock().unwrap().extend([Fate::Fails; 1_000]);
    sleep(ms(20_000)).await;
    let calls = line.calls();
    let during = calls.len() - before;
    assert!(during < 20, "{during} calls in 20 s");
    let probes: Vec<Duration> = calls[before + 4..].iter().map(|call| call.at).collect();
    assert!(probes.windows(2).all(|pair| pair[1] - pair[0] > ms(45)), "one at a time: {probes:?}");
    line.fates.lock().unwrap().clear();
    running.until_done(&line).await;
    running.ran_once(10_000);
    assert!(running.stop().await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_lost_now_and_then_lose_no_ack_and_run_nothing_twice() {
    let line = Line::new(4, ms(20), 3_000);
    // Only acks: what a lost claim has brought stays with us in this queue.
    let running = start(&line, 32, 0, ms(2));
    sleep(ms(100)).await;
    for _ in 0..30 {
        line.fates.lock().unwrap().extend([Fate::Fails, Fate::Takes(ms(20)), Fate::Takes(ms(35))]);
        sleep(ms(150)).await;
    }
    line.fates.lock().unwrap().clear();
    running.until_done(&line).await;
    running.ran_once(3_000);
    assert_eq!(line.most_held.load(Ordering::SeqCst), 32);
    assert!(running.stop().await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_holds_up_no_acks() {
    for stops in [false, true] {
        let line = Line::new(4, ms(1), 40);
        let running = start(&line, 64, 0, ms(1_000));
        sleep(ms(500)).await;
        // Nothing is left to be claimed: the first that are done go alone.
        line.fates.lock().unwrap().push_back(Fate::Takes(ms(30_000)));
        sleep(ms(600)).await;
        if stops {
            running.handle.trigger("test");
        }
        sleep(ms(200)).await;
        let active = line.counts().await.unwrap().active;
        assert!(active < 20, "{active} of 40 are not acked: {:?}", line.calls());
        assert!(line.most_under_way.load(Ordering::SeqCst) > 1);
        drop(running.stop().await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_comes_alone_costs_one_claim_and_one_ack_also_over_a_slow_line() {
    let line = Line::new(4, ms(20), 1_000);
    let running = start(&line, 64, 0, Duration::ZERO);
    running.until_done(&line).await;
    sleep(ms(1_000)).await;
    for number in 1_001..=1_010 {
        let before = line.calls().len();
        let now = running.began.elapsed();
        line.enqueue(number);
        sleep(ms(500)).await;
        assert_eq!(running.ran.lock().unwrap().last(), Some(&(number, now + ms(20))));
        assert_eq!(line.calls().len() - before, 2, "{:?}", &line.calls()[before..]);
    }
    let before = line.calls().len();
    sleep(ms(60_000)).await;
    assert_eq!(line.calls().len(), before, "nothing is asked of an empty queue");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_hint_is_heard_while_acks_are_under_way() {
    let line = Line::new(4, ms(2_000), 8);
    let running = start(&line, 64, 0, ms(10));
    // All eight were claimed by 2 s, and are being acked until 4 s.
    sleep(ms(2_500)).await;
    line.enqueue(9);
    sleep(ms(2_100)).await;
    let ran = running.ran.lock().unwrap().iter().find(|(number, _)| *number == 9).copied();
    assert_eq!(ran, Some((9, ms(4_500))), "claimed at once");
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_one_call_at_a_time_is_not_asked_for_a_hint_meanwhile() {
    let line = Line::new(1, ms(2_000), 8);
    let running = start(&line, 64, 0, ms(10));
    sleep(ms(2_500)).await;
    line.enqueue(9);
    sleep(ms(4_100)).await;
    assert_eq!(line.most_under_way.load(Ordering::SeqCst), 1);
    assert!(running.ran.lock().unwrap().iter().all(|(number, at)| *number < 9 || *at >= ms(6_000)));
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn places_that_failed_jobs_leave_are_not_promised_to_several_claims() {
    let line = Line::new(4, ms(20), 3_000);
    let mut shutdown = ShutdownCoordinator::new(Budget::given(ms(60_000), "test"), signal::none()).unwrap();
    let handler = async |job: &Leased<u32>, _: &Cx| {
        sleep(ms(u64::from(job.item % 7))).await;
        if job.item % 3 > 0 { Err("no") } else { Ok(()) }
    };
    shutdown.add(queue::work("jobs", line.clone(), handler).concurrency(64).attempts(1));
    let (handle, run) = (shutdown.handle(), tokio::spawn(shutdown.run()));
    sleep(ms(5_000)).await;
    assert_eq!(line.most_held.load(Ordering::SeqCst), 64);
    handle.trigger("test");
    assert!(run.await.unwrap().is_clean());
}

/// Also where another call has failed meanwhile: how the queue is now is asked beside the one that hangs.
#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_holds_up_no_acks_after_another_one_has_failed() {
    for stops in [false, true] {
        let line = Line::new(4, ms(1), 40);
        let running = start(&line, 64, 0, ms(1_000));
        sleep(ms(500)).await;
        line.fates.lock().unwrap().extend([Fate::Takes(ms(30_000)), Fate::Fails]);
        sleep(ms(600)).await;
        if stops {
            running.handle.trigger("test");
        }
        sleep(ms(1_000)).await;
        let active = line.counts().await.unwrap().active;
        assert!(active < 20, "{active} of 40 are not acked: {:?}", line.calls());
        drop(running.stop().await);
    }
}
