//! One step of a loop or a schedule: what it may return, and how it is run.

use std::borrow::Cow;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::budget::Human;
use crate::catch::caught;
use crate::coordinator::ShutdownCoordinator;
use crate::error::BoxError;
use crate::handle::ShutdownHandle;
use crate::outcome::Outcome;

/// Whether a step leaves more to do, so that the next may follow at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum More {
    /// There is more: the next step follows at once.
    Yes,
    /// There was nothing, or nothing is left: the next step follows after the idle delay.
    No,
}

/// What a step or a job may return: nothing or [`More`], or a result of either. Nothing is [`More::No`].
pub trait StepOutput {
    /// Turns it into a result with any error.
    fn into_step(self) -> Result<More, BoxError>;
}

/// What a loop or a schedule did so far.
#[derive(Debug, Clone, Default)]
pub struct Counts(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    runs: AtomicU64,
    failed: AtomicU64,
}

/// Runs steps one by one: an error or a panic is one step's, not the loop's.
pub(super) struct Runner {
    name: Cow<'static, str>,
    pub(super) handle: ShutdownHandle,
    pub(super) counts: Counts,
    limit: Option<Duration>,
}

// === impl StepOutput ===

impl StepOutput for () {
    fn into_step(self) -> Result<More, BoxError> {
        Ok(More::No)
    }
}

impl StepOutput for More {
    fn into_step(self) -> Result<More, BoxError> {
        Ok(self)
    }
}

impl<T: StepOutput, E: Into<BoxError>> StepOutput for Result<T, E> {
    fn into_step(self) -> Result<More, BoxError> {
        self.map_err(Into::into)?.into_step()
    }
}

// === impl Counts ===

impl Counts {
    /// How many steps were begun.
    pub fn runs(&self) -> u64 {
        self.0.runs.load(Ordering::Relaxed)
    }

    /// How many of them returned an error, panicked, or were longer than their limit.
    pub fn failed(&self) -> u64 {
        self.0.failed.load(Ordering::Relaxed)
    }
}

// === impl Runner ===

impl Runner {
    pub(super) fn new(
        name: Cow<'static, str>,
        shutdown: &ShutdownCoordinator,
        limit: Option<Duration>,
    ) -> Self {
        Runner { name, handle: shutdown.handle(), counts: Counts::default(), limit }
    }

    /// Waits out a pause; `false` once the stop has begun.
    pub(super) async fn may_start(&self) -> bool {
        self.handle.resumed().await;
        !self.handle.is_triggered()
    }

    /// Runs one step to its end. The error is logged and counted, and comes back in words.
    pub(super) async fn run<F, Fut>(&self, step: &mut F) -> Result<More, String>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output: StepOutput>,
    {
        self.counts.0.runs.fetch_add(1, Ordering::Relaxed);
        let mut more = More::No;
        let work = caught(Box::pin(async {
            let step = step();
            let output = match self.limit {
                Some(limit) => tokio::time::timeout(limit, step)
                    .await
                    .map_err(|_| format!("it took longer than its task_limit of {}", Human(limit)))?,
                None => step.await,
            };
            more = output.into_step()?;
            Ok(())
        }));
        let (outcome, error) = work.await;
        if outcome == Outcome::Finished {
            return Ok(more);
        }
        self.counts.0.failed.fetch_add(1, Ordering::Relaxed);
        let error = error.unwrap_or_default();
        tracing::warn!(target: "winddown", task = %self.name, %outcome, error, "step.failed");
        Err(error)
    }

    pub(super) async fn last_pass<F, Fut>(
        &self,
        step: &mut F,
        backoff: Backoff,
        mut failures: u32,
    ) -> Result<(), BoxError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output: StepOutput>,
    {
        while let Err(error) = self.run(step).await {
            tokio::select! {
                biased;
                // A step that is under way is left to the coordinator, which waits for shields.
                () = self.handle.cancelled() => return Err(format!("undelivered: {error}").into()),
                () = tokio::time::sleep(backoff.after(failures)) => failures += 1,
            }
        }
        Ok(())
    }
}
