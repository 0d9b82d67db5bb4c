//! The one loop: set-up, trigger, five phases, report.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::account::Log;
use super::{ShutdownCoordinator, StartError, Task};
use crate::budget::Human;
use crate::catch::{panic_message, with_sources};
use crate::error::BoxError;
use crate::handle::control::Control;
use crate::hook::{Place, in_order};
use crate::outcome::Outcome;
use crate::phase::Phase;
use crate::report::Report;
use crate::trigger::Reason;

impl ShutdownCoordinator {
    /// Runs what was registered until the stop begins, then stops, and reports what became of everything.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, all gates close and all signals fire, tasks and hooks under way are aborted, and what hooks
    /// were to close stays open: await it to its end.
    pub async fn run(mut self) -> Report {
        let runtime = self.runtime.clone();
        in_context(runtime, self.run_to_the_end(Ok(()))).await
    }

    /// As [`run`](Self::run), after a set-up that may fail or be interrupted.
    ///
    /// What the set-up adds runs once it has returned. An error in it is the reason of a stop that closes what was
    /// opened before. When the stop begins during the set-up, [`start`](Self::start) gives up what it awaits; a set-up
    /// that goes on all the same is dropped when the drain would be over.
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn run_with(mut self, set_up: impl AsyncFnOnce(&mut Self) -> Result<(), BoxError>) -> Report {
        let runtime = self.runtime.clone();
        in_context(runtime, self.set_up_and_run(set_up)).await
    }

    async fn set_up_and_run(
        &mut self,
        set_up: impl AsyncFnOnce(&mut Self) -> Result<(), BoxError>,
    ) -> Report {
        let control = Arc::clone(&self.control);
        let result = {
            let set_up = pin!(AssertUnwindSafe(set_up(&mut *self)).catch_unwind());
            tokio::select! {
                biased;
                done = set_up => match done {
                    Ok(result) => result,
                    Err(panic) => Err(format!("the set-up panicked: {}", panic_message(panic)).into()),
                },
                () = async {
                    control.triggered.fired().await;
                    control.passed(Phase::Drain, None).await;
                } => Err("the set-up was still not done when the drain was over".into()),
            }
        };
        self.run_to_the_end(result).await
    }

    async fn run_to_the_end(&mut self, set_up: Result<(), BoxError>) -> Report {
        let control = Arc::clone(&self.control);
        if let Err(error) = set_up.and_then(|()| self.check()) {
            let given_up = error.downcast_ref::<StartError>().is_some_and(StartError::is_stopping);
            if !given_up || !control.triggered.is_fired() {
                control.begin(Reason::StartFailed { error: with_sources(&*error) }, Instant::now());
            }
        }
        if control.triggered.is_fired() {
            self.start_tasks(|task| task.part);
        } else {
            self.begin_work();
            wait_for_the_trigger(&control).await;
        }

        let mut log = Log::default();
        let reason = control.reason().unwrap_or(Reason::Dropped);
        let grace = Human(control.plan.kill());
        match reason.is_failure() {
            true => tracing::error!(target: "winddown", %reason, %grace, "shutdown.begin"),
            false => tracing::info!(target: "winddown", %reason, %grace, "shutdown.begin"),
        }
        for phase in Phase::ALL {
            let began = Instant::now();
            control.enter(phase);
            let done = match phase {
                Phase::Unready => self.unready(&mut log).await,
                Phase::StopIntake => self.stop_intake(&mut log).await,
                Phase::Drain => self.drain(&mut log).await,
                Phase::Requeue => self.requeue(&mut log).await,
                Phase::Close => self.close(&mut log).await,
            };
            let outcome = match done {
                true => Outcome::Finished,
                false if control.forced.is_fired() => Outcome::Forced,
                false => Outcome::Overdue,
            };
            log.phase(&control, phase, outcome, began);
        }
        let report = self.account(log);
        self.finished = true;
        let (code, took) = (report.code(), format!("{:.3}", Human(report.took())));
        match report.faults() {
            faults if faults.is_empty() => {
                tracing::info!(target: "winddown", code, took, "shutdown.complete")
            }
            faults => {
                tracing::error!(target: "winddown", code, took, because = faults.join("; "), "shutdown.complete")
            }
        }
        control.end(report.clone());
        report
    }

    /// What is wrong with what was registered, found before any of it runs.
    fn check(&self) -> Result<(), BoxError> {
        for phase in Phase::ALL {
            let places: Vec<Place<'_>> = self
                .hooks
                .iter()
                .filter(|hook| hook.phase == phase)
                .map(|hook| Place { name: &hook.name, rank: hook.rank, after: &hook.after })
                .collect();
            in_order(phase, &places)?;
        }
        for gate in self.control.gates() {
            if let (Some(limit), overrun) = gate.seat().task_limit() {
                self.control.plan.check_task(gate.name(), limit, overrun)?;
            }
        }
        Ok(())
    }

    /// The set-up is done: tasks run, and traffic may come.
    fn begin_work(&mut self) {
        let plan = &self.control.plan;
        for warning in plan.warnings() {
            tracing::warn!(target: "winddown", warning, "budget.warning");
        }
        if plan.deadline(Phase::Unready, None, None).is_zero() {
            for hook in self.hooks.iter().filter(|hook| hook.phase == Phase::Unready) {
                tracing::warn!(target: "winddown", hook = %hook.name, warning = "a hook of phase unready has no time: unready is 0",
                    "budget.warning");
            }
        }
        tracing::info!(target: "winddown", signals = self.caught, grace = %Human(plan.kill()), "shutdown.ready");
        // Those that were made before they were called pulled.
        self.control.tell_gates_of_pause();
        // Before the tasks: one of them may tell somebody that it runs, who then asks.
        self.control.readiness.set(true);
        self.start_tasks(|_| true);
    }

    fn start_tasks(&mut self, which: impl Fn(&Task) -> bool) {
        for task in self.tasks.iter_mut().filter(|task| which(task)) {
            let Some(work) = task.work.take() else { continue };
            let (control, critical) = (Arc::clone(&self.control), task.critical);
            let name = task.unit.name.clone();
            self.control.add_unit(Arc::clone(&task.unit));
            task.unit.start(&self.runtime, work, move |(outcome, error)| {
                let (task, error) = (name, error.clone().unwrap_or_default());
                let reason = match outcome {
                    Outcome::Failed => Reason::TaskFailed { task, error },
                    Outcome::Panicked => Reason::TaskPanicked { task, message: error },
                    _ => Reason::TaskEnded { task },
                };
                if critical && !control.triggered.is_fired() {
                    control.begin(reason, Instant::now());
                }
            });
        }
    }
}

/// Polled by whatever executor, it finds a runtime: else its first timer would be a panic, and that is at the stop.
async fn in_context<F: Future>(runtime: Handle, work: F) -> F::Output {
    let mut work = pin!(work);
    std::future::poll_fn(|cx| {
        let _entered = Handle::try_current().is_err().then(|| runtime.enter());
        work.as_mut().poll(cx)
    })
    .await
}

async fn wait_for_the_trigger(control: &Control) {
    let mut paused = false;
    loop {
        tokio::select! {
            biased;
            () = control.triggered.fired() => return,
            () = control.paused_is(!paused) => {
                paused = !paused;
                let event = if paused { "intake.paused" } else { "intake.resumed" };
                tracing::info!(target: "winddown", "{event}");
            }
        }
    }
}
