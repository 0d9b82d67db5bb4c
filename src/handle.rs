//! What all parts of a program share of its coordinator.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::budget::Plan;
use crate::error::Interrupted;
use crate::hook::Deadline;
use crate::phase::Phase;
use crate::readiness::Readiness;
use crate::report::Report;
use crate::trigger::Reason;

pub(crate) mod control;
pub(crate) mod unit;

use control::Control;

/// The clonable end of a coordinator: triggers the stop, and tells how far it has come.
///
/// It keeps nothing from stopping, and may outlive its coordinator.
#[derive(Clone)]
pub struct ShutdownHandle {
    control: Arc<Control>,
}

// === impl ShutdownHandle ===

impl ShutdownHandle {
    pub(crate) fn new(control: Arc<Control>) -> Self {
        ShutdownHandle { control }
    }

    /// Starts the stop. The first reason wins; later ones are kept in the report and change nothing.
    ///
    /// Returns whether this was the first. It may be called from any thread, also one without a runtime.
    pub fn trigger(&self, reason: impl Into<Reason>) -> bool {
        self.control.begin(reason.into(), tokio::time::Instant::now())
    }

    /// The phase that is under way; `None` before the trigger and after the end.
    pub fn phase(&self) -> Option<Phase> {
        self.control.phase()
    }

    /// Waits until the phase has begun; who asks late hears at once.
    pub fn reached(&self, phase: Phase) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        self.control.latch(phase).fired_owned()
    }

    /// Waits until the stop has begun: the moment at which whatever *pulls* its work stops pulling.
    pub fn triggered(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        self.control.triggered.fired_owned()
    }

    /// Whether the stop has begun. One plain load.
    pub fn is_triggered(&self) -> bool {
        self.control.triggered.is_fired()
    }

    /// Waits until no new work gets in, at [`Phase::StopIntake`]: for what serves requests until then.
    ///
    /// What pulls its work waits for [`triggered`](Self::triggered), which is earlier where a balancer has to be told.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        self.control.stopping.fired_owned()
    }

    /// Whether no new work gets in any more. One plain load.
    pub fn is_stopping(&self) -> bool {
        self.control.stopping.is_fired()
    }

    /// Waits until the drain is over, and what is still in flight is to end at once.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        self.control.cancelled.fired_owned()
    }

    /// Whether the drain is over. One plain load.
    pub fn is_cancelled(&self) -> bool {
        self.control.cancelled.is_fired()
    }

    /// [`stopping`](Self::stopping) as a token, for code that speaks tokio-util. Cancelling it stops nothing else.
    pub fn stopping_token(&self) -> CancellationToken {
        self.control.stopping_token.child_token()
    }

    /// [`triggered`](Self::triggered) as a token, for code that pulls its work and speaks tokio-util.
    pub fn triggered_token(&self) -> CancellationToken {
        self.control.triggered_token.child_token()
    }

    /// Waits for the end of the stop. All callers get the same report, also those that call later.
    ///
    /// A task or a hook that waits for this is left out of the phase that it would hold up, for as long as it waits. Work
    /// that a gate let in is not: it holds the drain until that is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    pub async fn ended(&self) -> Report {
        let _left_out = if self.control.ended.is_fired() { None } else { unit::leave_out() };
        self.control.ended.fired().await;
        self.control.report().expect("the report is there before its latch fires")
    }

    /// Whether to send traffic here, for `/readyz` and `/livez`.
    pub fn readiness(&self) -> Readiness {
        self.control.readiness.clone()
    }

    /// Stops pulling work, as SIGTSTP does: gates that are [pulled](crate::Gate::pulled) refuse, loops and schedulers
    /// wait. What is in flight is finished, and requests are served. Without effect once the stop has begun.
    pub fn pause(&self) {
        self.control.set_paused(true);
    }

    /// Ends a pause. Without effect once the stop has begun.
    pub fn resume(&self) {
        self.control.set_paused(false);
    }

    /// Whether pulling is paused.
    pub fn is_paused(&self) -> bool {
        self.control.is_paused()
    }

    /// Waits until nothing is paused; at once where nothing is, and also when the stop begins.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    pub async fn resumed(&self) {
        self.control.resumed().await;
    }

    /// Waits until pulling is paused; not of use once the stop has begun.
    pub(crate) async fn paused(&self) {
        self.control.paused_is(true).await;
    }

    /// Sleeps, but no longer than until the stop begins: for back-off and idle times.
    ///
    /// # Errors
    ///
    /// [`Interrupted`] when the stop began first.
    ///
    /// # Cancel safety
    ///
    /// Dropping it loses nothing.
    pub async fn sleep(&self, duration: Duration) -> Result<(), Interrupted> {
        tokio::select! {
            biased;
            () = self.control.triggered.fired() => Err(Interrupted),
            () = tokio::time::sleep(duration) => Ok(()),
        }
    }

    /// By when the phase ends at the latest; `None` before the trigger. A second signal brings it forward.
    pub fn deadline(&self, phase: Phase) -> Option<Deadline> {
        self.control.deadline(phase).map(Deadline::at)
    }

    /// When the platform kills; `None` before the trigger.
    pub fn kill(&self) -> Option<Deadline> {
        self.control.kill().map(Deadline::at)
    }

    /// Whether the process is the crate's to exit, so that it will be gone at [`kill`](Self::kill) and leases may end there.
    pub fn may_exit(&self) -> bool {
        self.control.may_exit()
    }

    /// The plan of the stop, as a timeline.
    pub fn plan(&self) -> &Plan {
        &self.control.plan
    }

    /// What is in flight now, a line each: phase, hooks, tasks, gates, items.
    pub fn in_flight(&self) -> Vec<String> {
        self.control.in_flight()
    }
}

impl std::fmt::Debug for ShutdownHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShutdownHandle").field("phase", &self.phase()).finish_non_exhaustive()
    }
}
