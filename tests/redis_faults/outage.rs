//! A Redis that is gone for a while, or for good.

use std::time::Duration;

use winddown::testing::process::Signal;

use crate::crew::{QUEUE, Scene, duty, ended, eventually, freeze, ms, overlaps, term};
use crate::redis_server::Redis;

const KEPT: [&str; 6] = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_with_what_is_on_its_disk_costs_no_job() {
    let (mut redis, noted) = (Redis::start_with(&KEPT), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    scene.push_all(400, |_| duty("shield", &[20])).await;
    let crew = ["first", "second"].map(|owner| scene.crew(owner).args(["--lease", "8000"]));
    let mut running = Vec::new();
    for process in crew {
        running.push(process.start().await.unwrap());
    }
    for part in 1..=3 {
        eventually("some are done", async || scene.effects().await.len() >= part * 60).await;
        redis.start_again();
    }
    scene.until_done().await;
    let mut acked = 0;
    for running in running {
        let ended = term(running).await;
        ended.exit.assert_code(0).assert_line("queue.unreachable").assert_line("queue.reachable");
        acked += ended.count("acked");
        assert_eq!(ended.count("lost"), 0, "{}", ended.exit);
    }
    let (stamps, effects) = (scene.stamps().await, scene.effects().await);
    assert!(overlaps(&stamps, None).is_empty(), "{stamps:?}");
    assert_eq!(effects.len(), 400);
    // An ack whose answer was lost is repeated, and counted by neither.
    assert!(acked <= 400, "{acked}");
    let counts = scene.counts().await;
    // Nobody died. A claim whose answer was lost is given back, or runs out: only then it has crashed.
    assert_eq!((counts.dead, counts.interruptions), (0, 0));
    assert!(stamps.iter().all(|stamp| stamp.attempts == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_on_time_though_the_server_is_gone_and_names_what_could_not_be_handed_back() {
    // The last one's leases end within the drain, so that its handlers are cut before it is over.
    for (grace, lease, drain) in
        [(ms(2_500), "20000", "300"), (ms(4_000), "20000", "300"), (ms(4_000), "1000", "2500")]
    {
        let (mut redis, noted) = (Redis::start_with(&KEPT), Redis::start());
        let scene = Scene::apart(&redis.url(), &noted).await;
        scene.push_all(3, |_| duty("sleep", &[60_000, 10])).await;
        let grace_ms = grace.as_millis().to_string();
        let first = scene.crew("first").args(["--grace", &grace_ms, "--lease", lease, "--drain", drain]);
        let first = first.start().await.unwrap();
        scene.begun(first.id(), 3).await;
        redis.kill();
        let asked = scene.now_us().await;
        first.signal(Signal::Term);
        let ended = ended(first).await;
        // Not by the watchdog, and with a report.
        ended.exit.assert_code(1).assert_within(grace);
        let lost = ended.report["lost"].as_array().unwrap();
        let mut named: Vec<&str> = lost.iter().map(|item| item["item"].as_str().unwrap()).collect();
        named.sort_unstable();
        assert_eq!(named, ["job-0", "job-1", "job-2"], "{}", ended.exit);
        for item in lost {
            let why = item["why"].as_str().unwrap();
            assert!(why.contains("hand back") && why.contains("when its lease ends"), "{why}");
        }
        // What was cut by the end of its lease had no need of a longer drain; and in no case of more time for handing back.
        let advice: Vec<&str> =
            ended.report["advice"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        let too_short = advice.iter().filter(|line| line.contains("was too short for 3 of 3")).count();
        assert_eq!((too_short, advice.len() - too_short), (usize::from(lease == "20000"), 1), "{advice:?}");
        let told = advice[too_short];
        assert!(told.starts_with("3 of 3 in gate") && told.contains("could not hand back"), "{told}");
        assert!(told.contains("when its lease ends, in "), "{told}");
        // What makes the code 1 is the loss, and not what was there for the jobs.
        assert!(!ended.exit.stderr.contains("did not end when"), "{}", ended.exit);

        // The server comes back, and knows of no stop: leases end when they would have.
        redis.start_again();
        let next = scene.crew("next").start().await.unwrap();
        scene.until_done().await;
        let counts = scene.counts().await;
        assert_eq!((counts.interruptions, counts.crashes, counts.dead), (0, 3, 0));
        let begun = scene.stamps().await.into_iter().find(|stamp| stamp.pid == next.id()).unwrap();
        assert!(begun.us > asked, "{begun:?}");
        term(next).await.exit.assert_code(0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stop_could_not_hand_back_is_free_at_the_kill_where_the_server_was_told_of_the_stop() {
    let (mut redis, noted) = (Redis::start_with(&KEPT), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    scene.push_all(3, |_| duty("sleep", &[60_000, 10])).await;
    let first = scene.crew("first").args(["--grace", "5000", "--lease", "60000", "--drain", "1500"]);
    let first = first.start().await.unwrap();
    scene.begun(first.id(), 3).await;
    let asked = scene.now_us().await;
    first.signal(Signal::Term);
    // Its leases are moved to the kill; then the server dies, and is back only when the process is gone.
    let ending = async || {
        let mut connection = redis.connection().await;
        let mut marked = redis::cmd("HEXISTS");
        let marked = marked.arg(format!("{{{QUEUE}}}:ending")).arg("first");
        marked.query_async::<bool>(&mut connection).await.unwrap()
    };
    eventually("the owner is marked", ending).await;
    redis.kill();
    let ended = ended(first).await;
    ended.exit.assert_code(1).assert_within(ms(5_000));
    assert_eq!(ended.report["lost"].as_array().unwrap().len(), 3, "{}", ended.exit);
    let why = ended.report["lost"][0]["why"].as_str().unwrap();
    assert!(why.ends_with("when its lease ends, at the kill at the latest"), "{why}");
    redis.start_again();
    let next = scene.crew("next").start().await.unwrap();
    scene.until_done().await;
    let stamps = scene.stamps().await;
    let begun: Vec<u64> =
        stamps.iter().filter(|stamp| stamp.pid == next.id()).map(|stamp| stamp.us).collect();
    assert!(begun.iter().all(|&us| us + 100_000 > asked + 5_000_000), "not before the kill");
    assert!(begun.iter().any(|&us| us < asked + 15_000_000), "long before the lease would have ended");
    let counts = scene.counts().await;
    assert_eq!((counts.interruptions, counts.crashes, counts.dead), (3, 0, 0));
    term(next).await.exit.assert_code(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handler_is_cut_before_another_can_have_its_job_where_the_lease_cannot_be_renewed() {
    for lease in [ms(1_500), ms(3_000)] {
        let (mut redis, noted) = (Redis::start_with(&KEPT), Redis::start());
        let scene = Scene::apart(&redis.url(), &noted).await;
        scene.push_all(2, |_| duty("sleep", &[60_000, 10])).await;
        let lease_ms = lease.as_millis().to_string();
        let first = scene.crew("first").args(["--lease", &lease_ms]).start().await.unwrap();
        scene.begun(first.id(), 2).await;
        redis.kill();
        let killed = scene.now_us().await;
        let first_pid = first.id();
        first.wait_for_line("lease.lost").await.unwrap();
        eventually("both are cut", async || {
            first.stderr().lines().filter(|line| line.contains("lease.lost")).count() == 2
        })
        .await;
        let last = async || {
            let stamps = scene.stamps().await;
            stamps.iter().filter(|stamp| stamp.pid == first_pid).map(|stamp| stamp.us).max().unwrap()
        };
        let cut = last().await;
        assert!(cut < killed + lease.as_micros() as u64 + 500_000, "it ran on for {} us", cut - killed);
        redis.start_again();
        let next = scene.crew("next").start().await.unwrap();
        scene.until_done().await;
        let stamps = scene.stamps().await;
        assert_eq!(last().await.max(cut), last().await);
        assert!(overlaps(&stamps, None).is_empty(), "{stamps:?}");
        let counts = scene.counts().await;
        // Handed back by its holder as soon as the server is there again, or taken from it before that.
        assert_eq!((counts.interruptions + counts.crashes, counts.dead), (2, 0), "{counts:?}");
        term(first).await.exit.assert_code(0);
        term(next).await.exit.assert_code(0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_paused_is_waited_for_and_a_longer_pause_cuts_the_handlers_in_time() {
    // Shorter than the lease: nothing happens. Longer: it is cut, and runs again.
    for (pause, lease, cut) in [(ms(1_500), ms(6_000), false), (ms(4_000), ms(1_500), true)] {
        let (redis, noted) = (Redis::start(), Redis::start());
        let scene = Scene::apart(&redis.url(), &noted).await;
        scene.push_all(2, |_| duty("sleep", &[3_500, 10])).await;
        let lease_ms = lease.as_millis().to_string();
        let first = scene.crew("first").args(["--lease", &lease_ms]).start().await.unwrap();
        scene.begun(first.id(), 2).await;
        let mut connection = redis.connection().await;
        let mut command = redis::cmd("CLIENT");
        let command = command.arg("PAUSE").arg(pause.as_millis() as u64).arg("ALL");
        let _: () = command.query_async(&mut connection).await.unwrap();
        tokio::time::sleep(pause).await;
        scene.until_done().await;
        let (stamps, counts) = (scene.stamps().await, scene.counts().await);
        assert!(overlaps(&stamps, None).is_empty(), "{stamps:?}");
        assert_eq!(counts.interruptions + counts.crashes, if cut { 2 } else { 0 }, "{pause:?}");
        let ended = term(first).await;
        ended.exit.assert_code(0);
        assert_eq!(ended.exit.stderr.contains("lease.lost"), cut, "{}", ended.exit);
        assert!(stamps.iter().all(|stamp| stamp.attempts == 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_writes_holds_up_jobs_and_no_stop() {
    let (redis, noted) = (Redis::start(), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    let mut connection = redis.connection().await;
    let refuse = async |connection: &mut redis::aio::MultiplexedConnection, replicas: u32| {
        let mut command = redis::cmd("CONFIG");
        let command = command.arg("SET").arg("min-replicas-to-write").arg(replicas);
        let _: () = command.query_async(connection).await.unwrap();
    };
    scene.push_all(40, |_| duty("shield", &[50])).await;
    let first = scene.crew("first").args(["--lease", "20000", "--grace", "3000"]).start().await.unwrap();
    scene.begun(first.id(), 8).await;
    refuse(&mut connection, 1).await;
    first.wait_for_line("queue.unreachable").await.unwrap();
    refuse(&mut connection, 0).await;
    first.wait_for_line("queue.reachable").await.unwrap();
    scene.begun(first.id(), 20).await;
    refuse(&mut connection, 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let ended = term(first).await;
    ended.exit.assert_within(ms(3_000));
    refuse(&mut connection, 0).await;
    let left = scene.counts().await;
    let lost = ended.report["lost"].as_array().map_or(0, Vec::len) as u64;
    assert!(left.active <= lost, "what is still held is named: {left:?}, {}", ended.exit);
    let next = scene.crew("next").start().await.unwrap();
    scene.until_done().await;
    let (stamps, counts) = (scene.stamps().await, scene.counts().await);
    assert!(overlaps(&stamps, None).is_empty(), "{stamps:?}");
    assert_eq!(scene.effects().await.len(), 40);
    assert_eq!(counts.dead, 0);
    assert!(stamps.iter().all(|stamp| stamp.attempts == 0));
    term(next).await.exit.assert_code(0);
}

/// Nothing is on a disk, as with a server that is a cache first: jobs are lost with it, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_empty_is_worked_with_as_before_also_by_who_comes_later() {
    let (mut redis, noted) = (Redis::start(), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    scene.push("kept", duty("sleep", &[1_000])).await;
    let first = scene.crew("first").args(["--lease", "5000"]).start().await.unwrap();
    scene.begun(first.id(), 1).await;
    redis.start_again();
    // Its job is gone when it is done; which is no reason to do anything twice, or to fall over.
    first.wait_for_line("queue.reachable").await.unwrap();
    eventually("it is done", async || scene.effects().await.len() == 1).await;
    // The test itself has to find it again, too.
    scene.counts().await;
    let early = scene.crew("early").start().await.unwrap();
    scene.push_all(20, |_| duty("sleep", &[20])).await;
    eventually("all are done", async || scene.effects().await.len() == 21).await;
    scene.until_done().await;
    term(early).await.exit.assert_code(0);
    redis.start_again();
    scene.counts().await;
    // The stop of a process that was there before leaves nothing that another could take for somebody else's.
    term(first).await.exit.assert_code(0);
    scene.push("late", duty("sleep", &[20])).await;
    let late = scene.crew("late").start().await.unwrap();
    scene.until_done().await;
    term(late).await.exit.assert_code(0);
    assert!(scene.effects().await.values().all(|&effects| effects == 1));
}

/// It does not close what it has, and does not answer: nobody knows what has become of what was asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_for_longer_than_a_call_costs_no_job() {
    let (redis, noted) = (Redis::start(), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    scene.push_all(300, |_| duty("shield", &[20])).await;
    let mut running = Vec::new();
    for owner in ["first", "second"] {
        running.push(scene.crew(owner).args(["--lease", "30000"]).start().await.unwrap());
    }
    eventually("some are done", async || scene.effects().await.len() >= 50).await;
    freeze(&redis, true);
    tokio::time::sleep(ms(7_000)).await;
    freeze(&redis, false);
    scene.until_done().await;
    for running in running {
        let ended = term(running).await;
        ended.exit.assert_code(0).assert_line("queue.unreachable");
        assert_eq!(ended.count("lost"), 0, "{}", ended.exit);
    }
    let (stamps, effects, counts) = (scene.stamps().await, scene.effects().await, scene.counts().await);
    assert!(overlaps(&stamps, None).is_empty());
    assert_eq!((effects.len(), counts.dead, counts.interruptions, counts.crashes), (300, 0, 0, 0));
    assert!(effects.values().all(|&effects| effects == 1), "{effects:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_cuts_handlers_in_time_and_holds_up_no_stop() {
    let (redis, noted) = (Redis::start(), Redis::start());
    let scene = Scene::apart(&redis.url(), &noted).await;
    scene.push_all(3, |_| duty("sleep", &[60_000, 10])).await;
    let first = scene.crew("first").args(["--lease", "2000", "--concurrency", "2"]).start().await.unwrap();
    scene.begun(first.id(), 2).await;
    freeze(&redis, true);
    eventually("both are cut", async || {
        first.stderr().lines().filter(|line| line.contains("lease.lost")).count() == 2
    })
    .await;
    let ended = term(first).await;
    ended.exit.assert_within(ms(5_000));
    assert!(ended.report.is_object(), "by the watchdog: {}", ended.exit);
    freeze(&redis, false);
    let next = scene.crew("next").start().await.unwrap();
    scene.until_done().await;
    term(next).await.exit.assert_code(0);
    let (stamps, counts) = (scene.stamps().await, scene.counts().await);
    assert!(overlaps(&stamps, None).is_empty(), "{stamps:?}");
    assert_eq!((scene.effects().await.len(), counts.dead), (3, 0));
    assert!(stamps.iter().all(|stamp| stamp.attempts == 0));
}
