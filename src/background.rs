//! Loops and schedules that run beside the work, and end between two of their steps.
//!
//! Both kinds pull their work, so that they start nothing more once the stop has begun, whatever balancers have to be
//! told first. What is running then is awaited in [`Phase::Drain`](crate::Phase::Drain).
//!
//! ```no_run
//! # use std::time::Duration;
//! # use winddown::{Budget, ShutdownCoordinator, background, background::More, signal};
//! # async fn publish_batch() -> Result<More, std::io::Error> { Ok(More::No) }
//! # async fn sweep() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let mut shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
//! shutdown.add(background::repeat("outbox", publish_batch).idle(Duration::from_millis(200)));
//! shutdown.add(background::every("sweep", Duration::from_secs(60), sweep));
//! shutdown.run().await.print();
//! # Ok(()) }
//! ```

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::coordinator::{Component, ShutdownCoordinator};
#[cfg(doc)]
use crate::handle::ShutdownHandle;
use step::Runner;
pub use step::{Counts, More, StepOutput};

mod step;

/// A step again and again, until the stop begins; made by [`repeat`].
#[must_use = "it runs once it is added to a coordinator"]
pub struct Repeat<F> {
    name: Cow<'static, str>,
    step: F,
    idle: Duration,
    backoff: Backoff,
    limit: Option<Duration>,
    last_pass: bool,
}

/// A job once in a period, until the stop begins; made by [`every`].
#[must_use = "it runs once it is added to a coordinator"]
pub struct Every<F> {
    name: Cow<'static, str>,
    job: F,
    period: Duration,
    limit: Option<Duration>,
    immediately: bool,
}

const IDLE: Duration = Duration::from_secs(1);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// What no period or delay goes beyond, so that an instant can still be that much later.
const LONGEST: Duration = Duration::from_secs(86_400 * 365);
const SHORTEST: Duration = Duration::from_millis(1);

/// Runs `step` again and again; it ends between two steps, never inside one.
///
/// The running step is finished, unless the drain is over first, and none is started after the trigger. A step says with
/// [`More`] whether the next follows at once or after the [idle delay](Repeat::idle). After an error or a panic, which
/// is logged and counted, the loop goes on with a growing [delay](Repeat::backoff). The stop ends both delays at once. While
/// pulling is [paused](ShutdownHandle::pause) no step is started.
///
/// ```
/// # use winddown::{ShutdownCoordinator, background, background::More};
/// # fn example(shutdown: &mut ShutdownCoordinator) {
/// let outbox = shutdown.add(background::repeat("outbox", async || {
///     let published = 3;
///     Ok::<_, std::io::Error>(if published > 0 { More::Yes } else { More::No })
/// }));
/// assert_eq!(outbox.runs(), 0);
/// # }
/// ```
pub fn repeat<F, Fut>(name: impl Into<Cow<'static, str>>, step: F) -> Repeat<F>
where
    F: FnMut() -> Fut + Send + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: StepOutput,
{
    let (min, max) = BACKOFF;
    let backoff = Backoff::new(min, max);
    Repeat { name: name.into(), step, idle: IDLE, backoff, limit: None, last_pass: false }
}

/// Runs `job` once in a `period` (at least 1 ms), for the first time when one has passed.
///
/// Jobs never overlap. A tick that comes while the job still runs, or while pulling is
/// [paused](ShutdownHandle::pause), is skipped: the next run is at the next tick of the old rhythm. There is no tick
/// after the trigger; the job that runs then is awaited. An error or a panic is logged and counted, and the rhythm goes on.
///
/// ```
/// # use std::time::Duration;
/// # use winddown::{ShutdownCoordinator, background};
/// # fn example(shutdown: &mut ShutdownCoordinator) {
/// shutdown.add(background::every("sweep", Duration::from_secs(60), async || println!("swept")).immediately());
/// # }
/// ```
pub fn every<F, Fut>(name: impl Into<Cow<'static, str>>, period: Duration, job: F) -> Every<F>
where
    F: FnMut() -> Fut + Send + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: StepOutput,
{
    let period = period.clamp(SHORTEST, LONGEST);
    Every { name: name.into(), job, period, limit: None, immediately: false }
}

// === impl Repeat ===

impl<F> Repeat<F> {
    /// How long to wait when there was nothing to do; 1 s when not given. Zero yields to other tasks and goes on.
    pub fn idle(mut self, delay: Duration) -> Self {
        self.idle = delay.min(LONGEST);
        self
    }

    /// How long to wait after an error or a panic: `min` (at least 1 ms) at first, twice as long with each that follows, `max` at the
    /// most. From 100 ms to 30 s when not given.
    pub fn backoff(mut self, min: Duration, max: Duration) -> Self {
        let min = min.clamp(SHORTEST, LONGEST);
        self.backoff = Backoff::new(min, max.clamp(min, LONGEST));
        self
    }

    /// How long one step may take. Beyond it the step is dropped, and counts as failed.
    pub fn task_limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit.min(LONGEST));
        self
    }

    /// Runs the step once more after the trigger, as to flush what a batch holds.
    ///
    /// Where that fails it is tried again, with the [delays](Self::backoff) of other failures, until the drain is over; then
    /// the loop ends with the error of the last try, and the report has it.
    pub fn last_pass(mut self) -> Self {
        self.last_pass = true;
        self
    }
}

impl<F, Fut> Component for Repeat<F>
where
    F: FnMut() -> Fut + Send + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: StepOutput,
{
    type Handle = Counts;

    fn register(self, shutdown: &mut ShutdownCoordinator) -> Counts {
        let runner = Runner::new(self.name.clone(), shutdown, self.limit);
        let counts = runner.counts.clone();
        let Repeat { name, mut step, idle, backoff, last_pass, .. } = self;
        shutdown.spawn(name, async move {
            let mut failures = 0;
            while runner.may_start().await {
                let delay = match runner.run(&mut step).await {
                    Ok(More::Yes) => Duration::ZERO,
                    Ok(More::No) => idle,
                    Err(_) => {
                        let _ = runner.handle.sleep(backoff.after(failures)).await;
                        failures = failures.saturating_add(1);
                        continue;
                    }
                };
                failures = 0;
                if delay.is_zero() {
                    // A step that is always ready must not keep its worker from all other tasks.
                    tokio::task::yield_now().await;
                } else {
                    let _ = runner.handle.sleep(delay).await;
                }
            }
            if last_pass { runner.last_pass(&mut step, backoff, failures).await } else { Ok(()) }
        });
        counts
    }
}

impl<F> fmt::Debug for Repeat<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Repeat")
            .field("name", &self.name)
            .field("idle", &self.idle)
            .field("last_pass", &self.last_pass)
            .finish_non_exhaustive()
    }
}

// === impl Every ===

impl<F> Every<F> {
    /// The first run is at once, not after a period.
    pub fn immediately(mut self) -> Self {
        self.immediately = true;
        self
    }

    /// How long one run may take. Beyond it the job is dropped, and counts as failed.
    pub fn task_limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit.min(LONGEST));
        self
    }
}

impl<F, Fut> Component for Every<F>
where
    F: FnMut() -> Fut + Send + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: StepOutput,
{
    type Handle = Counts;

    fn register(self, shutdown: &mut ShutdownCoordinator) -> Counts {
        let runner = Runner::new(self.name.clone(), shutdown, self.limit);
        let counts = runner.counts.clone();
        let Every { name, mut job, period, immediately, .. } = self;
        shutdown.spawn(name, async move {
            let first = Instant::now() + if immediately { Duration::ZERO } else { period };
            let mut tick = first;
            loop {
                tokio::select! {
                    biased;
                    () = runner.handle.triggered() => return,
                    () = tokio::time::sleep_until(tick) => {}
                }
                if !runner.handle.is_paused() {
                    // A failure is logged and counted; the rhythm is the same with it.
                    let _ = runner.run(&mut job).await;
                }
                tick = next_tick(first, period, Instant::now());
            }
        });
        counts
    }
}

impl<F> fmt::Debug for Every<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Every")
            .field("name", &self.name)
            .field("period", &self.period)
            .finish_non_exhaustive()
    }
}

/// The first tick of the rhythm after `now`, whatever was missed.
fn next_tick(first: Instant, period: Duration, now: Instant) -> Instant {
    let into = now.saturating_duration_since(first).as_nanos() % period.as_nanos();
    // Less than a period, which is less than what the type can hold.
    now + period.saturating_sub(Duration::from_nanos(u64::try_from(into).unwrap_or(0)))
}
