//! A worker that has nothing to do: what it asks the server for, and how soon it begins what comes.

use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;

use crate::measure::{Load, Tally, now};
use crate::run::{Worker, numbers};
use crate::server::Server;
use crate::targets::Targets;
use crate::ways::Way;

/// How a way did.
pub struct Idle {
    /// From before it was sent until its handler ran, in milliseconds.
    pub p50: f64,
    pub p99: f64,
    pub requests: f64,
    pub commands: f64,
}

const AT_ONCE: usize = 16;
const SETTLED: Duration = Duration::from_millis(1500);
/// Who needs longer is not waited for.
const LONGEST: Duration = Duration::from_secs(3);

// === impl Idle ===

impl Idle {
    /// The worker goes by `url`, which may be a slow way; jobs are sent to the server itself.
    pub fn measure(server: &Server, way: &dyn Way, url: &str, jobs: usize, watched: Duration) -> Idle {
        server.flush();
        let tally = Tally::of_waits(server.clock());
        let worker = Worker::start(way, url, AT_ONCE, &tally);
        thread::sleep(SETTLED);
        let calls = server.calls();
        let began = Instant::now();
        let requests = server.requests(watched);
        let seconds = began.elapsed().as_secs_f64();
        let calls = server.calls() - calls;
        send(server, way, &tally, jobs);
        worker.stop();
        let mut waits: Vec<f64> = tally.waits().iter().map(|wait| wait.as_secs_f64() * 1e3).collect();
        waits.sort_by(f64::total_cmp);
        let part = |part: f64| {
            let nth = (jobs as f64 * part) as usize;
            waits.get(nth.min(jobs - 1)).copied().unwrap_or(f64::INFINITY)
        };
        Idle {
            p50: part(0.5),
            p99: part(0.99),
            requests: requests as f64 / seconds,
            commands: calls as f64 / seconds,
        }
    }

    pub fn print(&self, name: &str) {
        println!(
            "{name:<28} {:>9.2} ms {:>9.2} ms {:>9.1} {:>9.1}",
            self.p50, self.p99, self.requests, self.commands
        );
    }
}

/// One after another, each when the one before has begun.
fn send(server: &Server, way: &dyn Way, tally: &Tally, jobs: usize) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut sender = runtime.block_on(way.sender(&server.url()));
    for sent in 1..=jobs {
        // Not in step with anything that the worker does by the clock.
        thread::sleep(Duration::from_micros(10_000 + (sent as u64 * 7919) % 20_000));
        let number = numbers(1);
        runtime.block_on(async {
            sender.send(vec![Load { number, sent: now(), ..Load::of(100) }]).await;
        });
        if !tally.seen(sent, LONGEST) {
            break;
        }
    }
}

pub fn print(server: &Server, ways: &[&dyn Way], ours: usize, targets: &mut Targets, quick: bool) {
    let (jobs, watched) = if quick { (100, Duration::from_secs(4)) } else { (500, Duration::from_secs(20)) };
    println!(
        "\nIdle: from push to start, and what is asked of the server a second (apart, what its scripts call too)"
    );
    println!("{:<28} {:>12} {:>12} {:>9} {:>9}", "", "p50", "p99", "requests", "calls");
    for (n, way) in ways.iter().enumerate() {
        let idle = Idle::measure(server, *way, &server.url(), jobs, watched);
        idle.print(way.name());
        if n == ours {
            targets.at_most("idle: from push to start, p99 in ms", idle.p99, 5.0);
            targets.at_most("idle: requests a second", idle.requests, 2.0);
        }
    }
}
