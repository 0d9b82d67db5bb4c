//! What a queue in Redis costs, beside what others cost, in one run on one server.
//!
//! ```text
//! cargo run --release -p queues                    the whole table
//! cargo run --release -p queues -- --quick         with few rounds, and without the largest sizes
//! cargo run --release -p queues -- --only PART     speed, idle or slow
//! ```
//!
//! Times drift from run to run, so that they are printed as ratios to the plain loop and judged but never fail the run.

use std::process::ExitCode;

use speed::{Case, Seen};
use targets::Targets;
use ways::{Apalis, Batches, Loop, Ours, OursInMemory, Sidekiq, Way};

mod idle;
mod link;
mod measure;
mod run;
mod server;
mod slow;
mod speed;
mod targets;
mod ways;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let quick = args.iter().any(|arg| arg == "--quick");
    let parts: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.starts_with("--")).collect();
    if parts.iter().any(|part| !["speed", "idle", "slow"].contains(part)) {
        eprintln!("usage: queues [--quick] [speed] [idle] [slow]");
        return ExitCode::from(2);
    }
    let asked = |part| parts.is_empty() || parts.contains(&part);

    let server = server::Server::start();
    println!(
        "redis-server {}, on a unix socket; tokio with 2 threads; handlers that only count",
        server.version()
    );
    let memory = OursInMemory::default();
    let (default, batches) = (
        Apalis { name: "apalis-redis", batch: None },
        Apalis { name: "apalis-redis, batches of 256", batch: Some(256) },
    );
    if std::env::var("LOOP").is_ok() {
        let ways: [&dyn Way; 3] = [&Loop, &Ours, &memory];
        let case = Case { payload: 100, backlog: 200_000 };
        let seen = case.measure(&server, &ways, 5);
        case.print(&ways, &seen);
        return ExitCode::SUCCESS;
    }
    let ways: [&dyn Way; 5] = [&Loop, &Ours, &default, &batches, &Sidekiq];
    let mut targets = Targets::default();
    if asked("speed") {
        let rounds = if quick { 3 } else { 9 };
        let mut all: Vec<(Case, Vec<Seen>)> = Vec::new();
        for (payload, backlog) in [(100, 5_000), (100, 200_000), (4096, 5_000)] {
            let case = Case { payload, backlog };
            let seen = case.measure(&server, &ways, rounds);
            case.print(&ways, &seen);
            case.judge(&mut targets, &ways, &seen, 1);
            all.push((case, seen));
        }
    }
    if asked("idle") {
        idle::print(&server, &ways, 1, &mut targets, quick);
    }
    if asked("slow") {
        let ways: [&dyn Way; 3] = [&Batches, &Ours, &Loop];
        slow::print(&server, &ways, 1, &mut targets, if quick { 3 } else { 9 });
    }
    targets.print();
    ExitCode::SUCCESS
}
