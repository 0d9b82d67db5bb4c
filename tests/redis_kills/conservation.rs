//! A crew that is killed and asked to stop at random, and what adds up in the end.

use std::time::{Duration, Instant};

use winddown::testing::process::Process;

use super::crew::limits::times;
use super::crew::{Dice, Scene, duty, eventually, held_by, kill, ms, overlaps, term, told};
use super::redis_server::Redis;

const CREW: usize = 4;
/// Long enough for a machine that stands still, since a lease that runs out while its holder lives is in nobody's ledger.
const LEASE: &str = "5000";

/// What the processes of one place have left behind.
#[derive(Debug, Default)]
struct Ledger {
    /// Handed back with work begun, by those that were asked to stop.
    interrupted: u64,
    acked: u64,
    lost: u64,
    terms: u64,
    kills: u64,
    /// Held by those that were killed.
    held: u64,
    untouched: u64,
    longest_start: Duration,
    longest_stop: Duration,
}

/// Some claim ahead: what they have not begun goes back untouched, or crashes with them.
fn process(scene: &Scene, owner: &str, prefetch: usize, drain: Duration) -> Process {
    let (drain, prefetch) = (drain.as_millis().to_string(), prefetch.to_string());
    scene.crew(owner).args(["--concurrency", "4", "--prefetch", &prefetch, "--lease", LEASE]).args([
        "--grace",
        "20000",
        "--drain",
        &drain,
        "--requeue",
        "10000",
    ])
}

/// Processes one after the other, each ended after 0.5 to 2 s.
async fn one_place(redis: &Redis, scene: &Scene, place: usize, until: Instant, kills: bool) -> Ledger {
    let mut dice = Dice::new(place as u64);
    let mut ledger = Ledger::default();
    for turn in 0.. {
        if Instant::now() >= until {
            break;
        }
        let owner = format!("crew-{place}-{turn}");
        let began = Instant::now();
        let running = process(scene, &owner, place % 2 * 6, ms(dice.below(40))).start().await.unwrap();
        ledger.longest_start = ledger.longest_start.max(began.elapsed());
        tokio::time::sleep(ms(500 + dice.below(1500))).await;
        if kills && dice.below(2) == 0 {
            ledger.kills += 1;
            kill(running).await;
            ledger.held += held_by(redis, &owner).await.len() as u64;
        } else {
            ledger.terms += 1;
            let ended = term(running).await;
            ended.exit.assert_code(0);
            ledger.interrupted += ended.count("interrupted");
            ledger.longest_stop = ledger.longest_stop.max(ended.exit.took);
            ledger.untouched += ended.count("untouched");
            ledger.acked += ended.count("acked");
            ledger.lost += ended.count("lost") + ended.count("gone");
        }
    }
    ledger
}

async fn conserved(redis: &Redis, scene: &Scene, kills: bool) {
    let (count, length) = (times(3_000, 20_000), Duration::from_secs(times(6, 60)));
    let mut dice = Dice::new(7);
    scene
        .push_all(count, |n| {
            let kind = if kills && n % 2 == 0 { "sleep" } else { "shield" };
            duty(kind, &[dice.below(51)])
        })
        .await;

    let until = Instant::now() + length;
    let places = (0..CREW).map(|place| one_place(redis, scene, place, until, kills));
    let mut ledgers = futures_util::future::join_all(places).await;
    // Those that see to the rest are asked to stop when it is done.
    let mut rest = Vec::new();
    for place in 0..CREW {
        rest.push(process(scene, &format!("rest-{place}"), 0, ms(5_000)).start().await.unwrap());
    }
    scene.until_done().await;
    for running in rest {
        let ended = term(running).await;
        ended.exit.assert_code(0);
        ledgers.push(Ledger {
            acked: ended.count("acked"),
            lost: ended.count("lost") + ended.count("gone"),
            ..Ledger::default()
        });
    }
    let sum = |of: fn(&Ledger) -> u64| ledgers.iter().map(of).sum::<u64>();
    let (interrupted, held, lost) = (sum(|l| l.interrupted), sum(|l| l.held), sum(|l| l.lost));
    eprintln!(
        "{count} jobs, {} asked, {} killed, {interrupted} interrupted, {held} held at a kill",
        sum(|l| l.terms),
        sum(|l| l.kills)
    );

    let longest = |of: fn(&Ledger) -> Duration| ledgers.iter().map(of).max().unwrap_or_default();
    let (start, stop) = (longest(|l| l.longest_start), longest(|l| l.longest_stop));
    eprintln!("the longest start took {start:?}, the longest stop {stop:?}");
    // Drains of 40 ms at most, and all can be handed back: no stop waits for the end of its grace of 20 s.
    assert!(stop < Duration::from_secs(8), "a stop took {stop:?}");

    let (stamps, effects, counts) = (scene.stamps().await, scene.effects().await, scene.counts().await);
    assert_eq!(effects.len() as u64, count, "each job took effect");
    assert_eq!(counts.dead, 0);
    let overlaps = overlaps(&stamps, None);
    assert!(overlaps.is_empty(), "run twice at once: {:?}", &overlaps[..overlaps.len().min(9)]);
    assert!(stamps.iter().all(|stamp| stamp.attempts == 0 && !stamp.stale));
    assert_eq!(
        lost, 0,
        "a lease was lost by one that lived: the machine stood still for longer than a lease"
    );
    // A hand-back is an interruption, and what was held at a kill is a crash: nothing else is, and none is counted twice.
    assert_eq!(counts.interruptions, interrupted, "{ledgers:?}");
    assert_eq!(counts.crashes, held, "{ledgers:?}");
    // And the last run of each job was told of all that had happened to it.
    assert_eq!(told(&stamps), (interrupted, held));
    assert!(sum(|l| l.untouched) > 0, "nothing was claimed ahead when a stop came");
    assert!(interrupted > 0, "the drains were too long to interrupt anything");
    let again: u64 = effects.values().map(|effects| effects - 1).sum();
    if kills {
        assert!(held > 0, "no kill hit a job");
        assert!(again <= held + interrupted, "{again} took effect again");
    } else {
        assert_eq!(again, 0, "a shielded effect took place twice, though nobody was killed");
        assert_eq!(sum(|l| l.acked), count);
    }
    eventually("nothing is held", async || scene.counts().await.active == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_processes_do_that_are_killed_and_asked_to_stop_at_random_adds_up() {
    let redis = Redis::start();
    conserved(&redis, &Scene::on(&redis).await, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shielded_effect_takes_place_exactly_once_where_processes_are_asked_to_stop() {
    let redis = Redis::start();
    conserved(&redis, &Scene::on(&redis).await, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_stream_what_processes_do_that_are_killed_and_asked_to_stop_at_random_adds_up() {
    let redis = Redis::start();
    conserved(&redis, &Scene::on_a_stream(&redis).await, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_stream_a_shielded_effect_takes_place_exactly_once_where_processes_are_asked_to_stop() {
    let redis = Redis::start();
    conserved(&redis, &Scene::on_a_stream(&redis).await, false).await;
}
