//! What a queue in Redis costs, beside what others cost, in one run on one server.
//!
//! ```text
//! cargo run --release -p queues                    the whole table
//! cargo run --release -p queues -- --quick         with few rounds, and without the largest sizes
//! cargo run --release -p queues -- speed|idle|slow one part of it
//! cargo run --release -p queues -- once WAY N JOBS for callgrind: the difference of two runs is a job's price
//! ```
//!
//! Times drift from run to run, so that they are printed as ratios to the plain loop and judged but never fail the run.

use std::process::ExitCode;
use std::time::Duration;

use measure::{Load, Tally};
use server::Server;
use speed::Case;
use targets::Targets;
use ways::{Apalis, Batches, Loop, Ours, Sidekiq, Way};

mod idle;
mod link;
mod measure;
mod run;
mod server;
mod slow;
mod speed;
mod targets;
mod ways;

/// All that are compared with the plain loop, which is the first; then ours, then the peers.
static WAYS: [&dyn Way; 6] = [
    &Loop,
    &OURS,
    &AHEAD,
    &Apalis { name: "apalis-redis", batch: None },
    &Apalis { name: "apalis-redis, batches of 256", batch: Some(256) },
    &Sidekiq,
];
static OURS: Ours = Ours { name: "winddown", prefetch: 0 };
static AHEAD: Ours = Ours { name: "winddown, 16 claimed ahead", prefetch: 16 };

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["once", way, at_once, jobs] | ["fill", way, at_once, jobs, ..] = args[..] {
        let (Some(way), Ok(at_once), Ok(jobs)) =
            (WAYS.iter().find(|one| one.name() == way), at_once.parse(), jobs.parse())
        else {
            return usage();
        };
        match args.get(4) {
            Some(url) => run::fill(*way, url, &Load::of(100), jobs),
            None => once(*way, at_once, jobs),
        }
        return ExitCode::SUCCESS;
    }
    let quick = args.contains(&"--quick");
    let parts: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--quick").collect();
    if parts.iter().any(|part| !["speed", "idle", "slow"].contains(part)) {
        return usage();
    }
    let asked = |part: &str| parts.is_empty() || parts.iter().any(|one| *one == part);
    table(quick, asked)
}

fn usage() -> ExitCode {
    eprintln!("usage: queues [--quick] [speed] [idle] [slow]\n       queues once WAY AT_ONCE JOBS\nways:");
    WAYS.iter().for_each(|way| eprintln!("  {}", way.name()));
    ExitCode::from(2)
}

/// So many jobs of one way; they are enqueued by another process, so that this one shows what a worker does.
fn once(way: &dyn Way, at_once: usize, jobs: u64) {
    let server = Server::start();
    let myself = std::env::current_exe().expect("it runs");
    let filled = std::process::Command::new(myself)
        .args(["fill", way.name(), "1", &(jobs + 10_000).to_string(), &server.url()])
        .status();
    assert!(filled.is_ok_and(|status| status.success()));
    let tally = Tally::between(1000, jobs, server.clock());
    let worker = run::Worker::start(way, &server.url(), at_once, &tally);
    let speed = tally.speed(Duration::from_secs(60)).unwrap_or_default();
    worker.stop();
    println!("{:.2} µs of the worker, {:.2} µs of the server a job", speed.by_worker(), speed.by_server());
}

fn table(quick: bool, asked: impl Fn(&str) -> bool) -> ExitCode {
    let server = Server::start();
    println!(
        "redis-server {}, on a unix socket; tokio with 2 threads; handlers that only count",
        server.version()
    );
    let mut targets = Targets::default();
    if asked("speed") {
        let (rounds, large) = if quick { (3, 50_000) } else { (9, 200_000) };
        let cases = [(100, 5_000), (100, large), (4096, 5_000), (4096, large)];
        let mut all = Vec::new();
        for (payload, backlog) in cases {
            let case = Case { payload, backlog };
            let seen = case.measure(&server, &WAYS, rounds);
            case.print(&WAYS, &seen);
            case.judge(&mut targets, &WAYS, &seen);
            all.push(seen);
        }
        for (few, many) in [(0, 1), (2, 3)] {
            speed::judge_flat(&mut targets, cases[many].0, &all[few][1], &all[many][1]);
        }
    }
    if asked("idle") {
        idle::print(&server, &WAYS, 1, &mut targets, quick);
    }
    if asked("slow") {
        let ways: [&dyn Way; 4] = [&Batches, &OURS, &AHEAD, &Loop];
        slow::print(&server, &ways, 1, &mut targets, if quick { 3 } else { 9 });
    }
    targets.print();
    ExitCode::SUCCESS
}
