//! A job that is pushed at the very moment of the stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use winddown::queue::{self, Leased, NewJob, Owner, Queue};
use winddown::{BoxError, Budget, Cx, ShutdownCoordinator, signal};

use super::crew::limits::times;
use super::crew::{Dice, QUEUE, SOON, eventually, ms, waiting};
use super::redis_server::Redis;
use winddown::queue::redis::{List, Server};

struct Count(Arc<AtomicU64>);

impl queue::Handler<u64> for Count {
    type Error = BoxError;

    async fn handle(&self, _: &Leased<u64>, _: &Cx) -> Result<(), BoxError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// So many microseconds: a timer knows only milliseconds.
async fn spin(us: u64) {
    let end = Instant::now() + Duration::from_micros(us);
    while Instant::now() < end {
        tokio::task::yield_now().await;
    }
}

/// I15. The worker waits at the server, where a job arrives as the program stops: it is done, or still there and free.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i15_what_is_pushed_at_the_moment_of_the_stop_is_done_or_still_there() {
    let redis = Redis::start();
    let mut dice = Dice::new(15);
    let pushing: List<u64> = List::open(Server::at(&redis.url()).unwrap(), QUEUE).await.unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let turns = times(50, 1_000);
    let (mut at_once, mut left) = (0, 0);
    let mut look = redis.connection().await;
    for turn in 0..turns {
        let budget = Budget::given(SOON, "test");
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        let jobs: List<u64> = List::open(Server::at(&redis.url()).unwrap(), QUEUE).await.unwrap();
        shutdown.add(queue::work("jobs", jobs, Count(Arc::clone(&done))).concurrency(2));
        let handle = shutdown.handle();
        let run = tokio::spawn(shutdown.run());
        // It has done what the turn before left, and waits at the server.
        eventually("the worker waits", async || {
            done.load(Ordering::SeqCst) == turn && waiting(&mut look).await == 1
        })
        .await;
        // A job is done about a millisecond after it was pushed: half of the stops come before that.
        let (early, late) = (dice.below(500), dice.below(3_000));
        let push = async {
            spin(early).await;
            let job = NewJob::new(format!("job-{turn}").parse().unwrap(), turn);
            pushing.enqueue(&job).await.unwrap();
        };
        let stop = async {
            spin(late).await;
            handle.trigger("test");
        };
        tokio::join!(push, stop);
        let report = run.await.unwrap();
        assert!(report.is_clean(), "{report}");
        assert!(report.took() < ms(10_000), "{report}");
        let counts = pushing.counts().await.unwrap();
        let now = done.load(Ordering::SeqCst);
        assert_eq!(
            (now + counts.pending, counts.active, counts.crashes),
            (turn + 1, 0, 0),
            "turn {turn}: {report}"
        );
        at_once += now - turn;
        left += counts.pending;
        assert_eq!(waiting(&mut look).await, 0, "turn {turn}: nothing goes on waiting at the server");
        if counts.pending > 0 {
            // Free at once for whoever is there, and untouched.
            let other = Owner::unique("other");
            let claimed = pushing.claim(&other, 1, SOON).await.unwrap();
            assert_eq!((claimed.len(), claimed[0].interruptions, claimed[0].attempts), (1, 0, 0));
            let held = pushing.ack(&[claimed[0].lease.clone()]).await.unwrap();
            assert!(held[0].is_yours());
            done.fetch_add(1, Ordering::SeqCst);
        }
    }
    eprintln!("{at_once} were done, {left} were left");
    assert_eq!(at_once + left, turns);
}
