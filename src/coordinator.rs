//! Registers what a program has to stop, and runs the stop.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::budget::{Budget, BudgetError, Plan};
use crate::catch::{Work, quietly};
use crate::error::{BoxError, debug};
use crate::escalation::Escalation;
use crate::gate::Gate;
use crate::handle::ShutdownHandle;
use crate::handle::control::Control;
use crate::handle::unit::Unit;
use crate::hook::{Call, Hook, HookCx, IntoResult, Rank};
use crate::phase::Phase;
use crate::readiness::Readiness;
use crate::trigger::{Reason, Signals};

mod account;
mod options;
mod part;
mod phases;
mod run;

pub use options::{HookOptions, TaskOptions};

/// Stops a program well: takes no new work, finishes what it has, hands back the rest, closes what it holds.
///
/// What is registered runs when [`run`](Self::run) does. It has no `Clone`: who owns it runs the stop, once; the clonable
/// end is the [`ShutdownHandle`]. Dropped before that, it closes its gates, fires all signals, and says so in the log.
///
/// ```no_run
/// use winddown::{Budget, Phase, ShutdownCoordinator, signal};
///
/// #[tokio::main]
/// async fn main() -> Result<std::process::ExitCode, Box<dyn std::error::Error>> {
///     let mut shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
///     shutdown.on(Phase::Close, "index", async |_| println!("flushed"));
///     let report = shutdown.run().await;
///     report.print();
///     Ok(report.exit_code())
/// }
/// ```
#[must_use = "a coordinator that is dropped stops everything"]
pub struct ShutdownCoordinator {
    control: Arc<Control>,
    runtime: Handle,
    caught: &'static str,
    name: Cow<'static, str>,
    hooks: Vec<Hook>,
    tasks: Vec<Task>,
    finished: bool,
}

/// A part that registers its own hooks, gates and tasks.
pub trait Component {
    /// What the program keeps of it.
    type Handle;

    /// Registers it. Nothing that it registers runs before the set-up has returned.
    fn register(self, shutdown: &mut ShutdownCoordinator) -> Self::Handle;
}

/// Why there can be no coordinator.
pub struct NewError(NewErrorKind);

/// Why a part was not started.
pub struct StartError {
    name: String,
    source: Option<BoxError>,
}

#[derive(Debug)]
enum NewErrorKind {
    Budget(BudgetError),
    NoRuntime,
    NoClock,
}

struct Task {
    unit: Arc<Unit>,
    work: Option<Work>,
    /// Its end, error or panic triggers the stop.
    critical: bool,
    /// Told at the hard signal and given the cancel window, rather than dropped at once.
    cooperative: bool,
    /// A coordinator of its own. Started also where the stop comes during the set-up, since it has something to close, and
    /// given the time for handing back, since it may have something to hand back.
    part: bool,
    until: Phase,
    /// The gate whose work it is there for.
    serves: Option<Cow<'static, str>>,
}

// === impl ShutdownCoordinator ===

impl ShutdownCoordinator {
    /// Divides the budget and takes the signals in hand; a signal that came before is not lost.
    ///
    /// # Errors
    ///
    /// A budget that does not fit a given grace period is refused, with the ladder and the rung that is too long. There
    /// has to be a tokio runtime here, with its clock enabled: its handle is kept.
    pub fn new(budget: Budget, signals: Signals) -> Result<Self, NewError> {
        let runtime = Handle::try_current().map_err(|_| NewError(NewErrorKind::NoRuntime))?;
        // It has no question for that but to make a timer, which panics.
        if quietly(|| drop(tokio::time::sleep(Duration::ZERO))).is_none() {
            return Err(NewError(NewErrorKind::NoClock));
        }
        let plan = budget.plan().map_err(|error| NewError(NewErrorKind::Budget(error)))?;
        let caught = signals.caught();
        let (link, leave) = signals.claim();
        let control = Control::new(plan, Arc::clone(&link), leave);
        link.listen(Arc::clone(&control) as Arc<_>);
        Ok(ShutdownCoordinator {
            control,
            runtime,
            caught,
            name: Cow::Borrowed("part"),
            hooks: Vec::new(),
            tasks: Vec::new(),
            finished: false,
        })
    }

    /// How the coordinator is called where it is a part of another one.
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    /// What the second and the third signal mean, and which are doubles; see [`Escalation`].
    pub fn escalate_as(&mut self, escalation: Escalation) {
        self.control.escalate_as(escalation);
    }

    /// The clonable end.
    pub fn handle(&self) -> ShutdownHandle {
        ShutdownHandle::new(Arc::clone(&self.control))
    }

    /// The plan of the stop, as a timeline.
    pub fn plan(&self) -> &Plan {
        &self.control.plan
    }

    /// Whether to send traffic here, for `/readyz` and `/livez`.
    pub fn readiness(&self) -> Readiness {
        self.control.readiness.clone()
    }

    /// A gate that closes at [`Phase::StopIntake`], or at the trigger where it is [pulled](Gate::pulled).
    pub fn gate(&mut self, name: impl Into<Cow<'static, str>>) -> Gate {
        let gate = Gate::new(name, Some(self.runtime.clone()), self.control.drain_end.clone());
        self.control.add_gate(gate.clone());
        gate
    }

    /// Adds a part: it registers its own hooks, gates and tasks.
    pub fn add<C: Component>(&mut self, part: C) -> C::Handle {
        part.register(self)
    }

    /// Registers what is to be done in a phase.
    ///
    /// Hooks of a phase run side by side, except in [`Phase::Close`], which goes by [`Rank`] and within a rank in reverse
    /// order of registration. Each runs once, is bounded, caught and timed by itself: none can stop the next.
    ///
    /// ```
    /// # use winddown::{Phase, Rank, ShutdownCoordinator};
    /// # fn example(shutdown: &mut ShutdownCoordinator) {
    /// shutdown.on(Phase::Close, "search index", async move |cx| {
    ///     println!("{:?} left", cx.deadline().remaining());
    ///     Ok::<(), std::io::Error>(())
    /// }).rank(Rank::Clients);
    /// # }
    /// ```
    pub fn on<F, Fut>(&mut self, phase: Phase, name: impl Into<Cow<'static, str>>, hook: F) -> HookOptions<'_>
    where
        F: FnOnce(HookCx) -> Fut + Send + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoResult,
    {
        let call = Call::Async(Box::new(move |cx| {
            let work = hook(cx);
            Box::pin(async move { work.await.into_result() })
        }));
        self.add_hook(phase, name.into(), call)
    }

    /// As [`on`](Self::on), for what blocks: it runs on a thread of its own, and its limit is of the real clock.
    ///
    /// A thread cannot be ended: past its limit the hook is *overdue* and no longer waited for.
    pub fn on_blocking<F, R>(
        &mut self,
        phase: Phase,
        name: impl Into<Cow<'static, str>>,
        hook: F,
    ) -> HookOptions<'_>
    where
        F: FnOnce(HookCx) -> R + Send + 'static,
        R: IntoResult,
    {
        self.add_hook(phase, name.into(), Call::Blocking(Box::new(move |cx| hook(cx).into_result())))
    }

    fn add_hook(&mut self, phase: Phase, name: Cow<'static, str>, call: Call) -> HookOptions<'_> {
        let index = self.hooks.len();
        self.hooks.push(Hook { phase, name, rank: Rank::default(), after: Vec::new(), limit: None, call });
        HookOptions(&mut self.hooks[index])
    }

    /// Registers a task: started when the set-up has returned, awaited in [`Phase::Drain`].
    ///
    /// Its end, error or panic before that triggers the stop, unless it is [optional](TaskOptions::optional). What still
    /// runs when the drain is over is dropped at its next `.await`; a [`shield`](crate::Cx::shield) that is up is waited for.
    pub fn spawn<Fut>(&mut self, name: impl Into<Cow<'static, str>>, task: Fut) -> TaskOptions<'_>
    where
        Fut: Future + Send + 'static,
        Fut::Output: IntoResult,
    {
        let index = self.tasks.len();
        self.tasks.push(Task {
            unit: Unit::new("task", name.into()),
            work: Some(Box::pin(async move { task.await.into_result() })),
            critical: true,
            cooperative: false,
            part: false,
            until: Phase::Drain,
            serves: None,
        });
        TaskOptions(&mut self.tasks[index])
    }

    /// Awaits a part of the set-up, such as a connection, and gives it up if the stop begins first.
    ///
    /// # Errors
    ///
    /// The part's own error, or that the stop has begun: return it with `?`, and what was opened before is closed.
    ///
    /// # Cancel safety
    ///
    /// When the stop begins, the future is dropped.
    pub async fn start<T, E: Into<BoxError>>(
        &mut self,
        name: impl Into<String>,
        part: impl Future<Output = Result<T, E>>,
    ) -> Result<T, StartError> {
        let name = name.into();
        tokio::select! {
            biased;
            () = self.control.triggered.fired() => Err(StartError { name, source: None }),
            started = part => started.map_err(|error| StartError { name, source: Some(error.into()) }),
        }
    }
}

impl Drop for ShutdownCoordinator {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // Nobody runs the stop any more: what can still be told is told, and whoever waits is not left waiting.
        tracing::error!(target: "winddown", "shutdown.dropped");
        self.control.begin(Reason::Dropped, tokio::time::Instant::now());
        self.control.stop_intake();
        self.control.cancel();
        for unit in self.control.units() {
            unit.give_up();
        }
        let report = self.account(account::Log::default());
        for phase in Phase::ALL {
            self.control.latch(phase).fire();
        }
        self.control.end(report);
        self.control.let_go();
    }
}

impl fmt::Debug for ShutdownCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownCoordinator")
            .field("phase", &self.control.phase())
            .field("hooks", &self.hooks.len())
            .field("tasks", &self.tasks.len())
            .finish()
    }
}

// === impl NewError ===

impl fmt::Debug for NewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(self, f)
    }
}

impl fmt::Display for NewError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            NewErrorKind::Budget(error) => error.fmt(f),
            NewErrorKind::NoClock => {
                f.write_str("the tokio runtime here has no clock: call enable_time or enable_all")
            }
            NewErrorKind::NoRuntime => f.write_str("there is no tokio runtime here"),
        }
    }
}

impl std::error::Error for NewError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0 {
            NewErrorKind::Budget(error) => error.source(),
            NewErrorKind::NoRuntime | NewErrorKind::NoClock => None,
        }
    }
}

// === impl StartError ===

impl StartError {
    /// Whether it was given up because the stop had begun.
    pub fn is_stopping(&self) -> bool {
        self.source.is_none()
    }
}

impl fmt::Debug for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(self, f)
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Some(_) => write!(f, "{} could not be started", self.name),
            None => write!(f, "{} was not started: the stop has begun", self.name),
        }
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
