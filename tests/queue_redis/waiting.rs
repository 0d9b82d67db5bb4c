//! Waiting for jobs, and its end.

use super::*;

#[tokio::test]
async fn a_waiter_is_told_of_a_job_when_it_comes_and_not_when_it_next_looks() {
    let redis = Redis::start();
    let (here, there) = (open(&redis, "wake").await, open(&redis, "wake").await);
    let mut took = Vec::new();
    for round in 0..20 {
        let woken = async {
            here.ready().await;
            Instant::now()
        };
        let pushed = async {
            sleep(Duration::from_millis(20 + round)).await;
            let pushed = Instant::now();
            there.enqueue(&job(&format!("job {round}"))).await.unwrap();
            pushed
        };
        let (woken, pushed) = tokio::join!(timeout(SOON, woken), pushed);
        took.push(woken.unwrap().saturating_duration_since(pushed));
        let held = claim(&here, "one", 1).await;
        assert_eq!(here.ack(&leases(&held)).await.unwrap(), [Held::Yours], "{round}");
    }
    took.sort_unstable();
    eprintln!("push to start: median {:?}, longest {:?}", took[10], took[19]);
    // A waiter that looks by itself would need a second on the average.
    assert!(took[10] < Duration::from_millis(200), "{took:?}");
}

#[tokio::test]
async fn an_idle_waiter_asks_about_once_a_second() {
    let redis = Redis::start();
    let jobs = open(&redis, "idle").await;
    assert!(claim(&jobs, "one", 1).await.is_empty());
    let asked = async || calls(&redis, "evalsha").await.0 + calls(&redis, "blpop").await.0;
    let before = asked().await;
    // As a worker does that is told of something else meanwhile: the wait at the server goes on.
    let began = Instant::now();
    while began.elapsed() < secs(9) {
        assert!(timeout(Duration::from_millis(50), jobs.ready()).await.is_err());
    }
    let asked = asked().await - before;
    let most = began.elapsed().as_secs() + 2;
    assert!((4..=most).contains(&asked), "{asked} in {:?}", began.elapsed());
}

#[tokio::test]
async fn a_delay_and_a_lease_that_end_wake_a_waiter() {
    let redis = Redis::start();
    let jobs = open(&redis, "due").await;
    let other = open(&redis, "due").await;
    // A waiter that only looks by itself does so after 2 s or more.
    let slack = Duration::from_millis(900);
    for delay in [300, 800] {
        let delay = Duration::from_millis(delay);
        jobs.stop_waiting().await;
        let began = Instant::now();
        jobs.enqueue(&job("a").delay(delay)).await.unwrap();
        claim_next(&jobs, "one").await;
        let took = began.elapsed();
        assert!(took >= delay && took < delay + slack, "{took:?} after {delay:?}");
        // What another process makes due earlier than was known is learnt at once, too.
        jobs.stop_waiting().await;
        let began = Instant::now();
        let ends = async {
            sleep(Duration::from_millis(100)).await;
            other.begin_drain(&owner("one"), Some(delay)).await.unwrap();
        };
        let (held, ()) = tokio::join!(claim_next(&jobs, "two"), ends);
        let took = began.elapsed();
        assert!(took >= delay && took < delay + slack, "{took:?} after {delay:?}");
        assert_eq!(jobs.ack(&[held.lease]).await.unwrap(), [Held::Yours]);
        jobs.end_drain(&owner("one")).await.unwrap();
    }
}

async fn blocked(redis: &Redis) -> bool {
    let info: String = run(redis, &["INFO", "clients"]).await;
    !info.contains("blocked_clients:0")
}

#[tokio::test]
async fn a_waiter_that_stops_leaves_nothing_at_the_server_and_can_wait_again() {
    let redis = Redis::start();
    let jobs = open(&redis, "stop").await;
    jobs.stop_waiting().await;
    for _ in 0..3 {
        let began = Instant::now();
        assert!(timeout(Duration::from_millis(30), jobs.ready()).await.is_err());
        while !blocked(&redis).await {
            assert!(began.elapsed() < SOON);
        }
        let stop = Instant::now();
        jobs.stop_waiting().await;
        assert!(!blocked(&redis).await);
        // It is ended, not waited out; the pop lasts 2 s or more.
        assert!(stop.elapsed() < Duration::from_millis(900), "{:?}", stop.elapsed());
    }
    let comes = job("a");
    let (woken, added) = tokio::join!(timeout(SOON, jobs.ready()), jobs.enqueue(&comes));
    woken.unwrap();
    assert_eq!(added.unwrap(), Enqueued::Added);
}

/// I15
#[tokio::test]
async fn a_job_that_comes_at_the_very_moment_of_the_stop_wakes_somebody_else() {
    let redis = Redis::start();
    let (stops, stays, pushes) =
        (open(&redis, "race").await, open(&redis, "race").await, open(&redis, "race").await);
    for round in 0..200_u64 {
        let waits = tokio::spawn({
            let stops = stops.clone();
            async move { drop(timeout(Duration::from_micros(500 * (round % 10)), stops.ready()).await) }
        });
        let pushed = async {
            sleep(Duration::from_micros(370 * (round % 13))).await;
            pushes.enqueue(&job("a")).await.unwrap();
        };
        let (waited, ()) = tokio::join!(waits, pushed);
        waited.unwrap();
        stops.stop_waiting().await;
        // Not by looking for itself: that would take 2 s or more, each time.
        let began = Instant::now();
        timeout(SOON, stays.ready()).await.unwrap();
        let held = claim(&stays, "one", 9).await;
        assert_eq!(names(&held), ["a"], "{round}");
        assert!(began.elapsed() < Duration::from_millis(1_500), "{round}: {:?}", began.elapsed());
        assert_eq!(stays.ack(&leases(&held)).await.unwrap(), [Held::Yours]);
    }
}

#[tokio::test]
async fn a_server_that_is_gone_does_not_keep_a_waiter_from_stopping() {
    let mut redis = Redis::start();
    let jobs = open(&redis, "gone").await;
    assert!(timeout(Duration::from_millis(300), jobs.ready()).await.is_err());
    redis.kill();
    // The claim that follows says what is wrong.
    timeout(SOON, jobs.ready()).await.unwrap();
    jobs.claim(&owner("one"), 1, LEASE).await.unwrap_err();
    timeout(SOON, jobs.stop_waiting()).await.unwrap();
}

// === Bad input ===
