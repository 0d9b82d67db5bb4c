//! Rounds that are interleaved, medians, ratios to the limit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::heap;

/// Does its operation so many times, on what all threads share.
pub type Run = dyn Fn(u64) + Send + Sync;

pub struct Op {
    pub name: &'static str,
    pub make: fn() -> Box<Run>,
    /// What one guard takes; none where there is no guard.
    pub bytes: Option<usize>,
    pub ours: bool,
}

/// One table: the first operation is what all are compared with.
pub struct Row {
    pub title: &'static str,
    pub times: u64,
    pub ops: Vec<Op>,
    /// Whether the first operation's time is to be taken off, since it is what the others are added to.
    pub added: bool,
    /// What ours may cost in nanoseconds, given the limit's and the number of threads.
    pub target: fn(limit: f64, threads: usize) -> f64,
}

// === impl Row ===

impl Row {
    /// Prints what each costs, with one thread and with two. Returns how many of our targets were missed.
    pub fn print(&self, rounds: usize) -> usize {
        println!("\n{}", self.title);
        println!(
            "{:<34} {:>9} {:>7} {:>9} {:>7} {:>6} {:>7}",
            "", "1 thread", "ratio", "2 threads", "ratio", "bytes", "allocs"
        );
        let (one, _) = self.medians(rounds, 1);
        let (two, apart) = self.medians(rounds, 2);
        let mut missed = 0;
        for (n, op) in self.ops.iter().enumerate() {
            let bytes = op.bytes.map_or("–".into(), |bytes| bytes.to_string());
            let line = format!(
                "{:<34} {:>6.2} ns {:>7} {:>6.2} ns {:>7} {:>6} {:>7.2}",
                op.name,
                one[n],
                self.ratio(&one, n),
                two[n],
                self.ratio(&two, n),
                bytes,
                allocations(op)
            );
            if op.ours {
                let verdict = [(&one, 1), (&two, 2)].map(|(medians, threads)| {
                    let target = (self.target)(medians[0], threads);
                    let met = medians[n] <= target;
                    missed += usize::from(!met);
                    format!("{} ≤ {target:.2} ns", if met { "met" } else { "MISSED" })
                });
                println!("{line}  ◀ {}, {}", verdict[0], verdict[1]);
            } else {
                println!("{line}");
            }
        }
        if apart > rounds * self.ops.len() / 4 {
            println!(
                "  NOTE: the two threads seldom ran at the same time; on a machine this busy their columns show too little"
            );
        }
        missed
    }

    fn ratio(&self, medians: &[f64], n: usize) -> String {
        if self.added { "–".into() } else { format!("{:.2}", medians[n] / medians[0]) }
    }

    /// The median of each operation, and how many samples are of threads that did not run side by side.
    fn medians(&self, rounds: usize, threads: usize) -> (Vec<f64>, usize) {
        let mut apart = 0;
        let runs: Vec<_> = self.ops.iter().map(|op| (op.make)()).collect();
        let mut samples = vec![Vec::with_capacity(rounds); runs.len()];
        for round in 0..=rounds {
            let mut base = 0.0;
            for (n, run) in runs.iter().enumerate() {
                let (taken, together) = elapsed(&**run, self.times, threads);
                let ns = taken.as_nanos() as f64 / self.times as f64;
                apart += usize::from(!together);
                // Taken off within the round, since the machine's speed drifts between rounds.
                let sample = if self.added && n > 0 { ns - base } else { ns };
                if n == 0 {
                    base = ns;
                }
                // The first round warms up.
                if round > 0 {
                    samples[n].push(sample);
                }
            }
        }
        (samples.into_iter().map(median).collect(), apart)
    }
}

/// The processor's time that doing it so many times takes one of the threads: by the clock on the wall, whoever else uses the machine
/// would be measured too.
fn elapsed(run: &Run, times: u64, threads: usize) -> (Duration, bool) {
    if threads == 1 {
        let before = cpu(libc::CLOCK_THREAD_CPUTIME_ID);
        run(times);
        return (cpu(libc::CLOCK_THREAD_CPUTIME_ID) - before, true);
    }
    // Only threads that run at the same time get in each other's way; on a busy machine that takes a few tries.
    let mut last = Duration::ZERO;
    for _ in 0..4 {
        let (cpu, wall) = together(run, times, threads);
        last = cpu;
        if wall < cpu.mul_f64(1.3) {
            return (cpu, true);
        }
    }
    (last, false)
}

/// The mean of the threads' processor time, and from the first one's start to the last one's end.
fn together(run: &Run, times: u64, threads: usize) -> (Duration, Duration) {
    let waiting = AtomicUsize::new(threads);
    let each = || {
        run(1);
        // A barrier that sleeps would wake one thread long before the other.
        waiting.fetch_sub(1, Ordering::AcqRel);
        while waiting.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
        let (before, started) = (cpu(libc::CLOCK_THREAD_CPUTIME_ID), Instant::now());
        run(times);
        (cpu(libc::CLOCK_THREAD_CPUTIME_ID) - before, started, Instant::now())
    };
    let ran: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(each)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panics")).collect()
    });
    let cpu = ran.iter().map(|(cpu, ..)| *cpu).sum::<Duration>() / threads as u32;
    let started = ran.iter().map(|(_, started, _)| *started).min();
    let ended = ran.iter().map(|(.., ended)| *ended).max();
    (cpu, started.zip(ended).map_or(cpu, |(started, ended)| ended - started))
}

/// Does it so many times with each of the threads, for callgrind, which runs one thread at a time.
pub fn once(run: &Run, times: u64, threads: usize) {
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(|| run(times)))));
}

/// The processor's time that the thread or the process has used.
pub fn cpu(clock: libc::clockid_t) -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes to the place that it is given, and to nothing else.
    unsafe { libc::clock_gettime(clock, &mut now) };
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn allocations(op: &Op) -> f64 {
    let run = (op.make)();
    run(1);
    let ((), counts) = heap::counted(|| run(1000));
    counts.allocations as f64 / 1000.0
}

pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
