//! Many callers at once, over lines that lose answers: no job is lost, held twice, or counted for what nobody did.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use winddown::queue::redis::{List, Server};
use winddown::queue::{HandBack, Held, NewJob, Owner, Queue};

use crate::dice::Dice;
use crate::proxy::Proxy;
use crate::server::Redis;
use crate::{Jobs, SOON, id};

const JOBS: usize = 400;
const LEASE: Duration = Duration::from_secs(600);

#[derive(Default)]
struct Ledger {
    held: Mutex<HashSet<String>>,
    done: AtomicUsize,
    interrupted: AtomicUsize,
}

async fn play(jobs: Jobs, owner: Owner, ledger: Arc<Ledger>, mut dice: Dice) {
    let began = Instant::now();
    while ledger.done.load(Ordering::SeqCst) < JOBS {
        assert!(began.elapsed() < SOON, "{} done", ledger.done.load(Ordering::SeqCst));
        let Ok(claimed) = jobs.claim(&owner, dice.roll(8) + 1, LEASE).await else { continue };
        if claimed.is_empty() {
            sleep(Duration::from_millis(2)).await;
        }
        let (mut back, mut done) = (Vec::new(), Vec::new());
        for job in claimed {
            assert!(
                ledger.held.lock().unwrap().insert(job.lease.id.to_string()),
                "{:?} is held twice",
                job.lease
            );
            assert_eq!((job.crashes, job.attempts), (0, 0));
            match dice.roll(3) {
                0 => back.push(HandBack::untouched(job.lease)),
                1 => back.push(HandBack::interrupted(job.lease)),
                _ => done.push(job.lease),
            }
        }
        for lease in back.iter().map(|back| &back.lease).chain(&done) {
            ledger.held.lock().unwrap().remove(lease.id.as_str());
        }
        let begun = back.iter().filter(|back| back.begun).count();
        ledger.interrupted.fetch_add(begun, Ordering::SeqCst);
        let mut again = false;
        while !back.is_empty() {
            if let Ok(held) = jobs.requeue(&back).await {
                // Repeated, somebody else may have it by now, or be done with it.
                assert!(again || held.iter().all(|held| *held == Held::Yours), "{held:?}");
                break;
            }
            again = true;
        }
        let (count, mut again) = (done.len(), false);
        while !done.is_empty() {
            if let Ok(held) = jobs.ack(&done).await {
                assert!(
                    held.iter().all(|held| *held == Held::Yours || again && *held == Held::Gone),
                    "{held:?}"
                );
                break;
            }
            again = true;
        }
        ledger.done.fetch_add(count, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_whose_answers_are_lost_now_and_then_does_every_job_once() {
    for seed in 0..3 {
        let redis = Redis::start();
        let jobs: Jobs = List::open(Server::at(&redis.url()).unwrap(), "crowd").await.unwrap();
        let all: Vec<_> = (0..JOBS).map(|n| NewJob::new(id(&format!("job {n}")), "x".to_owned())).collect();
        jobs.enqueue_all(&all).await.unwrap();
        let (ledger, mut lines, mut players) = (Arc::new(Ledger::default()), Vec::new(), Vec::new());
        for process in 0..3 {
            let line = Proxy::to(&redis.socket()).await;
            let jobs: Jobs = List::open(Server::at(&line.url()).unwrap(), "crowd").await.unwrap();
            lines.push(line);
            // Two that claim as one owner, and one beside them.
            for (number, owner) in [0, 0, 1].into_iter().enumerate() {
                let owner = format!("owner-{process}-{owner}").parse().unwrap();
                let dice = Dice::new(100 * seed + 10 * process + number as u64 + 1);
                players.push(tokio::spawn(play(jobs.clone(), owner, Arc::clone(&ledger), dice)));
            }
        }
        let cutter = tokio::spawn(async move {
            let mut dice = Dice::new(seed + 7);
            loop {
                sleep(Duration::from_millis(dice.roll(30) as u64)).await;
                dice.pick(&lines).lose_the_next_answer();
            }
        });
        for player in players {
            player.await.unwrap();
        }
        cutter.abort();
        let counts = jobs.counts().await.unwrap();
        let interrupted = ledger.interrupted.load(Ordering::SeqCst) as u64;
        assert_eq!((counts.pending, counts.active, counts.dead, counts.crashes), (0, 0, 0, 0));
        assert_eq!(counts.interruptions, interrupted, "seed {seed}");
    }
}
