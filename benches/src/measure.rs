//! Rounds that are interleaved, medians, ratios to the limit.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

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
        let one = self.medians(rounds, 1);
        let two = self.medians(rounds, 2);
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
        missed
    }

    fn ratio(&self, medians: &[f64], n: usize) -> String {
        if self.added { "–".into() } else { format!("{:.2}", medians[n] / medians[0]) }
    }

    fn medians(&self, rounds: usize, threads: usize) -> Vec<f64> {
        let runs: Vec<_> = self.ops.iter().map(|op| (op.make)()).collect();
        let mut samples = vec![Vec::with_capacity(rounds); runs.len()];
        for round in 0..=rounds {
            let mut base = 0.0;
            for (n, run) in runs.iter().enumerate() {
                let ns = elapsed(&**run, self.times, threads).as_nanos() as f64 / self.times as f64;
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
        samples.into_iter().map(median).collect()
    }
}

/// The processor's time that doing it so many times takes one of the threads: by the clock on the wall, whoever else uses the machine
/// would be measured too.
pub fn elapsed(run: &Run, times: u64, threads: usize) -> Duration {
    if threads == 1 {
        let before = cpu(libc::CLOCK_THREAD_CPUTIME_ID);
        run(times);
        return cpu(libc::CLOCK_THREAD_CPUTIME_ID) - before;
    }
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        let each = || {
            run(1);
            start.wait();
            let before = cpu(libc::CLOCK_THREAD_CPUTIME_ID);
            run(times);
            cpu(libc::CLOCK_THREAD_CPUTIME_ID) - before
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(each)).collect();
        let count = threads.len() as u32;
        threads.into_iter().map(|thread| thread.join().expect("no panics")).sum::<Duration>() / count
    })
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
    let before = heap::allocations();
    run(1000);
    (heap::allocations() - before) as f64 / 1000.0
}

pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
