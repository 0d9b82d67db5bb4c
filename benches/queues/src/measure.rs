//! Jobs that are counted where they run, and the clocks that are read when the count says so.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// What every job carries.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Load {
    pub number: u64,
    /// Nanoseconds of the machine's clock, where it counts when the job was sent.
    pub sent: u64,
    pub text: String,
}

/// A clock of processor time: one process', with all its threads.
#[derive(Debug, Clone, Copy)]
pub struct Clock(libc::clockid_t);

/// All clocks at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    at: Instant,
    jobs: u64,
    worker: Duration,
    server: Duration,
}

/// How fast jobs were done, and what one took.
#[derive(Debug, Clone, Copy, Default)]
pub struct Speed {
    pub jobs: u64,
    pub wall: Duration,
    pub worker: Duration,
    pub server: Duration,
}

/// What the handlers share: counts the jobs, and reads the clocks at two of them.
pub struct Tally {
    done: AtomicU64,
    from: u64,
    to: u64,
    server: Clock,
    marks: Mutex<(Option<Mark>, Option<Mark>)>,
    ended: Condvar,
    /// How long after it was sent each job began, where that is what counts.
    waits: Option<Mutex<Vec<Duration>>>,
}

// === impl Load ===

impl Load {
    /// One that takes about so many bytes as JSON.
    pub fn of(bytes: usize) -> Load {
        let bare = serde_json::to_string(&Load { number: 1_000_000, sent: 0, text: String::new() });
        let text = "x".repeat(bytes.saturating_sub(bare.map_or(0, |bare| bare.len())));
        Load { number: 0, sent: 0, text }
    }

    pub fn many(&self, numbers: std::ops::Range<u64>) -> Vec<Load> {
        numbers.map(|number| Load { number: 1_000_000 + number, ..self.clone() }).collect()
    }

    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("it is plain")
    }
}

// === impl Clock ===

impl Clock {
    pub const OURS: Clock = Clock(libc::CLOCK_PROCESS_CPUTIME_ID);

    #[allow(unsafe_code)]
    pub fn of_process(id: u32) -> Clock {
        let mut clock = 0;
        // SAFETY: writes to the place that it is given, and to nothing else.
        let failed = unsafe { libc::clock_getcpuclockid(id as libc::pid_t, &raw mut clock) };
        assert_eq!(failed, 0, "the process lives");
        Clock(clock)
    }

    #[allow(unsafe_code)]
    pub fn read(self) -> Duration {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: as above.
        unsafe { libc::clock_gettime(self.0, &raw mut now) };
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }
}

/// The machine's clock, which all processes share.
pub fn now() -> u64 {
    Clock(libc::CLOCK_MONOTONIC).read().as_nanos() as u64
}

// === impl Tally ===

impl Tally {
    /// Measures from one job to another.
    pub fn between(from: u64, to: u64, server: Clock) -> Arc<Tally> {
        Arc::new(Tally {
            done: AtomicU64::new(0),
            from,
            to,
            server,
            marks: Mutex::default(),
            ended: Condvar::new(),
            waits: None,
        })
    }

    /// Notes how long each job waited.
    pub fn of_waits(server: Clock) -> Arc<Tally> {
        let tally = Tally::between(u64::MAX, u64::MAX, server);
        let mut tally = Arc::into_inner(tally).expect("it is new");
        tally.waits = Some(Mutex::default());
        Arc::new(tally)
    }

    /// What every handler does, and all that it does.
    pub fn job(&self, load: &Load) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if done == self.from {
            self.marks.lock().expect("no panics").0 = Some(self.mark(done));
        } else if done == self.to {
            let mark = self.mark(done);
            self.marks.lock().expect("no panics").1 = Some(mark);
            self.ended.notify_all();
        } else if let Some(waits) = &self.waits {
            let wait = Duration::from_nanos(now().saturating_sub(load.sent));
            waits.lock().expect("no panics").push(wait);
            self.ended.notify_all();
        }
    }

    /// Whether there is always a next job.
    pub fn has_backlog(&self) -> bool {
        self.waits.is_none()
    }

    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    fn mark(&self, jobs: u64) -> Mark {
        Mark { at: Instant::now(), jobs, worker: Clock::OURS.read(), server: self.server.read() }
    }

    /// Waits for the last job, or for so long after the first, whichever is sooner. Nothing where not even the first comes.
    pub fn speed(&self, longest: Duration) -> Option<Speed> {
        let began = Instant::now();
        let mut marks = self.marks.lock().expect("no panics");
        loop {
            match *marks {
                (Some(from), Some(to)) => return Some(from.until(to)),
                (Some(from), None) if from.at.elapsed() >= longest => {
                    return Some(from.until(self.mark(self.done())));
                }
                (None, _) if began.elapsed() >= longest * 20 => return None,
                _ => {}
            }
            marks = self.ended.wait_timeout(marks, Duration::from_millis(5)).expect("no panics").0;
        }
    }

    /// Waits until so many jobs have been seen, for so long at the most; whether they were.
    pub fn seen(&self, jobs: usize, longest: Duration) -> bool {
        let began = Instant::now();
        let waits = self.waits.as_ref().expect("it notes waits");
        let mut waits = waits.lock().expect("no panics");
        while waits.len() < jobs {
            let Some(left) = longest.checked_sub(began.elapsed()) else { return false };
            waits = self.ended.wait_timeout(waits, left).expect("no panics").0;
        }
        true
    }

    pub fn waits(&self) -> Vec<Duration> {
        self.waits.as_ref().map(|waits| waits.lock().expect("no panics").clone()).unwrap_or_default()
    }
}

// === impl Mark ===

impl Mark {
    fn until(self, to: Mark) -> Speed {
        Speed {
            jobs: to.jobs - self.jobs,
            wall: to.at - self.at,
            worker: to.worker - self.worker,
            server: to.server - self.server,
        }
    }
}

// === impl Speed ===

impl Speed {
    pub fn plus(self, other: Speed) -> Speed {
        Speed {
            jobs: self.jobs + other.jobs,
            wall: self.wall + other.wall,
            worker: self.worker + other.worker,
            server: self.server + other.server,
        }
    }

    pub fn a_second(&self) -> f64 {
        self.jobs as f64 / self.wall.as_secs_f64()
    }

    /// Microseconds of the worker's processor time a job.
    pub fn by_worker(&self) -> f64 {
        self.worker.as_secs_f64() * 1e6 / self.jobs as f64
    }

    pub fn by_server(&self) -> f64 {
        self.server.as_secs_f64() * 1e6 / self.jobs as f64
    }
}

pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.retain(|sample| sample.is_finite());
    samples.sort_by(f64::total_cmp);
    samples.get(samples.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A number in a table; a dash where there is none.
pub fn figure(value: f64, digits: usize) -> String {
    match value.is_finite() {
        true => format!("{value:.digits$}"),
        false => "-".to_owned(),
    }
}
