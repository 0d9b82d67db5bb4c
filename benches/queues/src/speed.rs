//! How many jobs a second, and what one takes, while there is a backlog.

use std::time::Duration;

use crate::measure::{Load, Speed, Tally, figure, median};
use crate::run::{Worker, fill};
use crate::server::Server;
use crate::targets::Targets;
use crate::ways::Way;

pub const AT_ONCE: [usize; 3] = [1, 16, 256];

/// One table: all ways with the same jobs.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub payload: usize,
    pub backlog: u64,
}

/// What the rounds have shown of a way, by how many jobs ran at once.
#[derive(Clone, Default)]
pub struct Seen([Vec<Speed>; 3]);

/// How long one sample takes at the most, and at least where the backlog allows it.
const LONGEST: Duration = Duration::from_millis(400);
const ENOUGH: Duration = Duration::from_millis(80);
const TRIES: usize = 4;
/// Jobs of a large backlog that one sample looks at.
const JOBS: u64 = 40_000;

// === impl Case ===

impl Case {
    /// Measures all ways in turn, so often. The first is what the others are compared with.
    pub fn measure(self, server: &Server, ways: &[&dyn Way], rounds: usize) -> Vec<Seen> {
        let mut seen = vec![Seen::default(); ways.len()];
        for round in 0..rounds {
            // Who comes first is another each time: the machine may slow down within a round.
            for n in (0..ways.len()).map(|n| (n + round) % ways.len()) {
                server.flush();
                self.sample(server, ways[n], &mut seen[n]);
            }
        }
        server.flush();
        seen
    }

    fn sample(self, server: &Server, way: &dyn Way, seen: &mut Seen) {
        let load = Load::of(self.payload);
        let mut there = 0;
        for (n, at_once) in AT_ONCE.into_iter().enumerate() {
            let mut speed = Speed::default();
            for _ in 0..TRIES {
                fill(way, &server.url(), &load, self.backlog - there);
                let from = (self.backlog / 10).min(1000);
                let to = (self.backlog - from).min(from + JOBS);
                let tally = Tally::between(from, to, server.clock());
                let worker = Worker::start(way, &server.url(), at_once, &tally);
                let sample = tally.speed(LONGEST);
                worker.stop();
                // Some that were claimed are not there any more, but who counts them.
                there = self.backlog.saturating_sub(tally.done());
                let Some(sample) = sample else {
                    println!("{}: nothing was done", way.name());
                    break;
                };
                speed = speed.plus(sample);
                if speed.wall >= ENOUGH {
                    break;
                }
            }
            seen.push(n, speed);
        }
    }

    pub fn print(self, ways: &[&dyn Way], seen: &[Seen]) {
        println!("\nPayloads of {} B, a backlog of {}", self.payload, self.backlog);
        print!("{:<28}", "");
        AT_ONCE.iter().for_each(|n| {
            print!(" |{:>9} {:>6} {:>8} {:>8}", format!("{n} at once"), "ratio", "worker", "server")
        });
        println!();
        for (way, one) in ways.iter().zip(seen) {
            print!("{:<28}", way.name());
            for n in 0..AT_ONCE.len() {
                let ratio = one.ratio(&seen[0], n, Speed::a_second);
                print!(
                    " |{:>7}/s {:>6} {:>5} µs {:>5} µs",
                    figure(one.median(n, Speed::a_second), 0),
                    figure(ratio, 2),
                    figure(one.median(n, Speed::by_worker), 2),
                    figure(one.median(n, Speed::by_server), 2)
                );
            }
            println!();
        }
    }

    /// The first way is the loop, the next two are ours without and with jobs claimed ahead, and the others are the peers.
    pub fn judge(self, targets: &mut Targets, ways: &[&dyn Way], seen: &[Seen]) {
        let Case { payload, backlog } = self;
        for (ours, n, least) in [(1, 0, 1.0), (2, 0, 1.0), (1, 1, 0.85), (1, 2, 1.0)] {
            let ratio = seen[ours].ratio(&seen[0], n, Speed::a_second);
            let (name, at_once) = (ways[ours].name(), AT_ONCE[n]);
            let what = format!("{payload} B, {backlog}: {name}, {at_once} at once, of the loop's speed");
            targets.at_least(&what, ratio, least);
        }
        for peer in 3..ways.len() {
            for n in [1, 2] {
                let ratio = seen[1].ratio(&seen[peer], n, Speed::a_second);
                let what =
                    format!("{payload} B, {backlog}: {} at once, of {}", AT_ONCE[n], ways[peer].name());
                match seen[peer].did_nothing(n) {
                    true => targets.none(&what, "the peer did nothing"),
                    false => targets.at_least(&what, ratio, 3.0),
                }
            }
        }
    }
}

/// What a job takes, of both processes, must not grow with what waits behind it.
pub fn judge_flat(targets: &mut Targets, payload: usize, few: &Seen, many: &Seen) {
    for (n, at_once) in AT_ONCE.into_iter().enumerate() {
        let ratio = many.ratio(few, n, |speed| speed.by_worker() + speed.by_server());
        targets.at_most(&format!("{payload} B, {at_once} at once: CPU a job by backlog"), ratio, 1.25);
    }
}

// === impl Seen ===

impl Seen {
    pub fn push(&mut self, n: usize, speed: Speed) {
        self.0[n].push(speed);
    }

    /// Not one job in any round.
    pub fn did_nothing(&self, n: usize) -> bool {
        self.0[n].iter().all(|speed| speed.jobs == 0)
    }

    pub fn median(&self, n: usize, what: fn(&Speed) -> f64) -> f64 {
        median(self.0[n].iter().map(what).collect())
    }

    /// The median of the ratios within each round, since the machine's speed drifts between rounds.
    pub fn ratio(&self, to: &Seen, n: usize, what: fn(&Speed) -> f64) -> f64 {
        median(self.0[n].iter().zip(&to.0[n]).map(|(one, other)| what(one) / what(other)).collect())
    }
}
