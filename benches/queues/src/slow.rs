//! Over a link of one millisecond each way: how much of what batching allows, and what a single job pays for it.

use std::time::Duration;

use crate::idle::Idle;
use crate::link::{EACH_WAY, Link};
use crate::measure::{Load, Speed, Tally, figure};
use crate::run::{Worker, fill};
use crate::server::Server;
use crate::speed::{AT_ONCE, Seen};
use crate::targets::Targets;
use crate::ways::Way;

const LONGEST: Duration = Duration::from_millis(600);

/// The first way is what batching allows: as many jobs a round trip as may run at once.
pub fn print(server: &Server, ways: &[&dyn Way], ours: usize, targets: &mut Targets, rounds: usize) {
    let link = Link::to(&server.socket());
    let mut seen = vec![Seen::default(); ways.len()];
    for round in 0..rounds {
        for n in (0..ways.len()).map(|n| (n + round) % ways.len()) {
            for (nth, at_once) in AT_ONCE.into_iter().enumerate() {
                seen[n].push(nth, sample(server, ways[n], &link, at_once));
            }
        }
    }
    let millis = EACH_WAY.as_millis();
    println!(
        "\nOver a link of {millis} ms each way: as a part of what batching allows, and from push to start when idle"
    );
    print!("{:<28}", "");
    AT_ONCE.iter().for_each(|n| print!(" |{:>9} {:>6}", format!("{n} at once"), "ratio"));
    println!(" | {:>9} {:>9}", "p50", "p99");
    for (n, way) in ways.iter().enumerate() {
        print!("{:<28}", way.name());
        for nth in 0..AT_ONCE.len() {
            let ratio = seen[n].ratio(&seen[0], nth, Speed::a_second);
            let a_second = figure(seen[n].median(nth, Speed::a_second), 0);
            print!(" |{a_second:>7}/s {:>6}", figure(ratio, 2));
            if n == ours {
                let what = format!("slow link: {} at once, of what batching allows", AT_ONCE[nth]);
                targets.at_least(&what, ratio, 0.9);
            }
        }
        if n == 0 {
            // It asks again and again.
            println!();
            continue;
        }
        let idle = Idle::measure(server, *way, &link.url(), 50 * rounds, Duration::ZERO);
        println!(" | {:>6.2} ms {:>6.2} ms", idle.p50, idle.p99);
    }
}

fn sample(server: &Server, way: &dyn Way, link: &Link, at_once: usize) -> Speed {
    server.flush();
    // As many as a second takes.
    let jobs = at_once as u64 * 600;
    fill(way, &server.url(), &Load::of(100), jobs);
    let tally = Tally::between(at_once as u64 * 20, jobs, server.clock());
    let worker = Worker::start(way, &link.url(), at_once, &tally);
    let speed = tally.speed(LONGEST);
    worker.stop();
    speed.unwrap_or_default()
}
