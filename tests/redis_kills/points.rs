//! A process that dies, or freezes for longer than its lease, between any two steps.

use std::collections::BTreeSet;

use winddown::queue::Counts;
use winddown::testing::process::{Running, Signal};

use super::crew::{Scene, Stamp, duty, eventually, held_by, is_frozen, kill, overlaps, term, told};
use super::redis_server::Redis;

const LEASE_MS: u64 = 900;
const JOBS: u64 = 5;
/// Of the process that will stop where it is told; so many jobs it has at once.
const AT_ONCE: usize = 2;

struct Point {
    name: &'static str,
    /// At which pass.
    at: u32,
    /// How long a first run takes.
    first_ms: u64,
    kind: &'static str,
    /// The process has been asked to stop, with next to no drain, once it has begun [`AT_ONCE`] jobs.
    stopping: bool,
    /// Its owner is known to be ending by then: what it holds was interrupted.
    marked: bool,
    /// A process died before with jobs in its hands.
    after_a_crash: bool,
}

const POINT: Point = Point {
    name: "",
    at: 1,
    first_ms: 20,
    kind: "shield",
    stopping: false,
    marked: false,
    after_a_crash: false,
};
const LONG: u64 = 60_000;

const POINTS: [Point; 17] = [
    Point { name: "claim.before", ..POINT },
    Point { name: "claim.after", ..POINT },
    Point { name: "run.start", ..POINT },
    Point { name: "run.middle", ..POINT },
    Point { name: "run.end", ..POINT },
    Point { name: "ack.before", ..POINT },
    Point { name: "ack.after", ..POINT },
    Point { name: "nack.before", kind: "fail", ..POINT },
    Point { name: "nack.after", kind: "fail", ..POINT },
    Point { name: "extend.before", first_ms: 3_000, ..POINT },
    Point { name: "extend.after", first_ms: 3_000, ..POINT },
    Point { name: "claim.before", after_a_crash: true, ..POINT },
    Point { name: "reclaim.after", after_a_crash: true, ..POINT },
    Point { name: "begin_drain.before", first_ms: LONG, stopping: true, ..POINT },
    Point { name: "begin_drain.after", first_ms: LONG, stopping: true, marked: true, ..POINT },
    Point { name: "requeue.before", first_ms: LONG, stopping: true, marked: true, ..POINT },
    Point { name: "requeue.after", first_ms: LONG, stopping: true, marked: true, ..POINT },
];

/// One process at its point, dead or frozen.
struct There {
    redis: Redis,
    scene: Scene,
    running: Running,
    pid: u32,
    held: BTreeSet<String>,
    /// Crashes before the point was reached.
    crashes: u64,
}

/// `again_ms` is what a run takes of a job that was in its hands before.
async fn go_to(point: &Point, on_a_stream: bool, how: &str, again_ms: u64) -> There {
    let redis = Redis::start();
    let scene = if on_a_stream { Scene::on_a_stream(&redis).await } else { Scene::on(&redis).await };
    let lease = LEASE_MS.to_string();
    let crew = |owner: &str| {
        scene.crew(owner).args(["--lease", &lease, "--concurrency", &AT_ONCE.to_string(), "--grace", "6000"])
    };
    let lengths = |n| match n {
        n if n >= AT_ONCE as u64 => vec![POINT.first_ms, again_ms],
        _ if point.after_a_crash => vec![LONG, point.first_ms, again_ms],
        _ => vec![point.first_ms, again_ms],
    };
    scene.push_all(JOBS, |n| duty(point.kind, &lengths(n))).await;
    let mut crashes = 0;
    if point.after_a_crash {
        let earlier = crew("earlier").start().await.unwrap();
        scene.begun(earlier.id(), AT_ONCE).await;
        kill(earlier).await;
        crashes = held_by(&redis, "earlier").await.len() as u64;
        assert_eq!(crashes, AT_ONCE as u64);
        // Only when it has run out is its lease there to be reclaimed.
        tokio::time::sleep(std::time::Duration::from_millis(LEASE_MS + 100)).await;
    }
    let at = format!("{}:{}:{how}", point.name, point.at);
    let running = crew("there").args(["--drain", "50", "--fail", &at]).start().await.unwrap();
    let pid = running.id();
    if point.stopping {
        scene.begun(pid, AT_ONCE).await;
        running.signal(Signal::Term);
    }
    eventually(point.name, async || running.has_ended() || is_frozen(pid)).await;
    assert_eq!(running.has_ended(), how == "kill", "{}: {}", point.name, running.stderr());
    let held = held_by(&redis, "there").await;
    There { redis, scene, running, pid, held, crashes }
}

impl Point {
    /// What was held was interrupted where the queue knew of the stop, and crashed otherwise; `crashes` were there before.
    fn assert_counted(&self, counts: Counts, stamps: &[Stamp], held: &BTreeSet<String>, crashes: u64) {
        let name = self.name;
        let lost = held.len() as u64;
        let (interruptions, crashes) =
            if self.marked { (AT_ONCE as u64, crashes) } else { (0, crashes + lost) };
        assert_eq!(
            (counts.interruptions, counts.crashes, counts.dead),
            (interruptions, crashes, 0),
            "{name}: {held:?}"
        );
        assert_eq!(told(stamps), (interruptions, crashes), "{name}");
        let failed = stamps.iter().filter(|stamp| stamp.attempts > 0).count();
        assert!(self.kind == "fail" || failed == 0, "{name}: an attempt was used");
    }
}

async fn killed_at(point: &Point, on_a_stream: bool) {
    let name = point.name;
    let There { redis, scene, running, pid: _, held, crashes } = go_to(point, on_a_stream, "kill", 10).await;
    assert!(running.wait().await.was_killed());
    let next = scene.crew("next").args(["--lease", "900"]).start().await.unwrap();
    scene.until_done().await;
    term(next).await.exit.assert_code(0);

    let (stamps, effects, counts) = (scene.stamps().await, scene.effects().await, scene.counts().await);
    assert_eq!(effects.len() as u64, JOBS, "{name}");
    assert!(overlaps(&stamps, None).is_empty(), "{name}: {stamps:?}");
    point.assert_counted(counts, &stamps, &held, crashes);
    // What had taken effect, and was not acked, does so again; nothing else does.
    let again = effects.values().filter(|&&effects| effects > 1).count();
    assert!(effects.values().all(|&effects| effects <= 2), "{name}: {effects:?}");
    let expected = usize::from(name == "run.end" || name == "ack.before");
    assert!(
        again == 0 && expected == 0 || expected > 0 && (1..=held.len()).contains(&again),
        "{name}: {effects:?}"
    );
    drop(redis);
}

async fn frozen_at(point: &Point, on_a_stream: bool) {
    let name = point.name;
    let There { redis, scene, running: frozen, pid, held, crashes } =
        go_to(point, on_a_stream, "stop", 2_000).await;
    let before = scene.effects().await;
    let next = scene.crew("next").args(["--lease", "2000", "--concurrency", "5"]).start().await.unwrap();
    // It has what the frozen one held, and all else.
    let waiting = JOBS - before.len() as u64;
    eventually("the jobs run elsewhere", async || {
        held_by(&redis, "next").await.is_superset(&held) && scene.counts().await.active <= waiting
    })
    .await;
    let next_pid = next.id();
    eventually("they are begun", async || {
        let stamps = scene.stamps().await;
        held.iter().all(|id| stamps.iter().any(|stamp| stamp.pid == next_pid && stamp.job == *id))
    })
    .await;
    frozen.signal(Signal::Cont);
    scene.until_done().await;
    let next = term(next).await;
    next.exit.assert_code(0);
    assert_eq!(next.count("lost") + next.count("gone"), 0, "{name}: the other was disturbed: {}", next.exit);
    let frozen = term(frozen).await;
    frozen.exit.assert_code(0);

    let (stamps, effects, counts) = (scene.stamps().await, scene.effects().await, scene.counts().await);
    assert_eq!(effects.len() as u64, JOBS, "{name}");
    assert!(overlaps(&stamps, Some(pid)).is_empty(), "{name}: {stamps:?}");
    point.assert_counted(counts, &stamps, &held, crashes);
    for id in &held {
        let told =
            frozen.exit.stderr.lines().any(|line| line.contains("lease.lost") && line.contains(id.as_str()));
        assert!(told, "{name}: {id} was lost without a word: {}", frozen.exit);
        // What it did before it froze has taken effect, and what the other did; nothing that came later.
        let expected = before.get(id).copied().unwrap_or(0) + 1;
        assert_eq!(effects[id], expected, "{name}: {id}: {stamps:?}");
    }
    drop(redis);
}

async fn killed_at_each(on_a_stream: bool) {
    for point in &POINTS {
        eprintln!("killed at {}", point.name);
        killed_at(point, on_a_stream).await;
    }
}

async fn frozen_at_each(on_a_stream: bool) {
    for point in &POINTS {
        eprintln!("frozen at {}", point.name);
        frozen_at(point, on_a_stream).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_may_die_between_any_two_steps() {
    killed_at_each(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_froze_between_any_two_steps_has_lost_its_leases_and_changes_nothing() {
    frozen_at_each(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_stream_a_process_may_die_between_any_two_steps() {
    killed_at_each(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_stream_a_process_that_froze_has_lost_its_leases_and_changes_nothing() {
    frozen_at_each(true).await;
}
