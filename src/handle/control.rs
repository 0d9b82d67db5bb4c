//! The state that a coordinator shares with its handles, its hooks and the thread that sees the signals.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::unit::Unit;
use crate::budget::Plan;
use crate::catch::quietly;
use crate::escalation::Escalation;
use crate::gate::{DrainEnd, Gate};
use crate::latch::Latch;
use crate::phase::Phase;
use crate::readiness::Readiness;
use crate::report::Report;
use crate::trigger::{Leave, Link, Reason, Signal};

mod in_flight;
mod listener;
mod room;

pub(crate) use in_flight::still_in_flight;

/// How many later reasons are kept: the first few tell what happened.
const LATER_REASONS: usize = 32;

pub(crate) struct Control {
    pub(crate) plan: Plan,
    pub(crate) readiness: Readiness,
    pub(crate) triggered: Latch,
    pub(crate) triggered_token: CancellationToken,
    pub(crate) stopping: Latch,
    pub(crate) stopping_token: CancellationToken,
    pub(crate) cancelled: Latch,
    pub(crate) forced: Latch,
    pub(crate) ended: Latch,
    pub(crate) drain_end: DrainEnd,
    phases: [Latch; 5],
    report: OnceLock<Report>,
    /// For a part whose whole drains no more: from when until when the rest of its stop has to fit in.
    room: watch::Sender<Option<(Instant, Instant)>>,
    paused: watch::Sender<bool>,
    state: Mutex<State>,
    gates: Mutex<Vec<Gate>>,
    units: Mutex<Vec<Arc<Unit>>>,
    link: Arc<Link>,
    leave: Option<Leave>,
    me: Weak<Control>,
}

struct State {
    phase: Option<Phase>,
    begun: Option<(Reason, Instant)>,
    later: Vec<(Duration, Reason)>,
    forced: Option<(Duration, Signal)>,
    stop_intake_ended: Option<Duration>,
    escalation: Escalation,
    /// The first signal, which may have come before there was a coordinator.
    signalled: Option<Instant>,
    /// Dropped at the end: tells the thread that watches where exiting is not ours.
    watched: Option<mpsc::Sender<()>>,
}

// === impl Control ===

impl Control {
    pub(crate) fn new(plan: Plan, link: Arc<Link>, leave: Option<Leave>) -> Arc<Self> {
        Arc::new_cyclic(|me| Control {
            plan,
            readiness: Readiness::new(),
            triggered: Latch::new(),
            triggered_token: CancellationToken::new(),
            stopping: Latch::new(),
            stopping_token: CancellationToken::new(),
            cancelled: Latch::new(),
            forced: Latch::new(),
            ended: Latch::new(),
            drain_end: DrainEnd::default(),
            phases: std::array::from_fn(|_| Latch::new()),
            report: OnceLock::new(),
            room: watch::Sender::new(None),
            paused: watch::Sender::new(false),
            state: Mutex::new(State {
                phase: None,
                begun: None,
                later: Vec::new(),
                forced: None,
                stop_intake_ended: None,
                escalation: Escalation::new(),
                signalled: None,
                watched: None,
            }),
            gates: Mutex::new(Vec::new()),
            units: Mutex::new(Vec::new()),
            link,
            leave,
            me: Weak::clone(me),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn escalate_as(&self, escalation: Escalation) {
        self.state().escalation = escalation;
    }

    pub(crate) fn may_exit(&self) -> bool {
        self.leave.is_some()
    }

    /// Begins the stop: the first reason wins.
    pub(crate) fn begin(&self, reason: Reason, at: Instant) -> bool {
        {
            let mut state = self.state();
            if let Some((_, begun)) = &state.begun {
                let since = at.saturating_duration_since(*begun);
                if state.later.len() < LATER_REASONS && self.report.get().is_none() {
                    state.later.push((since, reason));
                }
                return false;
            }
            state.begun = Some((reason, at));
        }
        // Before anything else changes: a balancer that looks now must not send more.
        self.readiness.set(false);
        self.set_drain_end();
        for gate in self.gates().iter().filter(|gate| gate.is_pulled()) {
            gate.close();
        }
        self.triggered.fire();
        quietly(|| self.triggered_token.cancel());
        match &self.leave {
            Some(_) => self.link.nudge(),
            None => self.watch(),
        }
        true
    }

    fn force(&self, signal: Signal, at: Instant) {
        {
            let mut state = self.state();
            let Some((_, begun)) = state.begun else { return };
            state.forced.get_or_insert((at.saturating_duration_since(begun), signal));
        }
        self.set_drain_end();
        self.forced.fire();
    }

    pub(crate) fn reason(&self) -> Option<Reason> {
        self.state().begun.as_ref().map(|(reason, _)| reason.clone())
    }

    pub(crate) fn triggered_at(&self) -> Option<Instant> {
        self.state().begun.as_ref().map(|(_, at)| *at)
    }

    pub(crate) fn later(&self) -> Vec<(Duration, Reason)> {
        self.state().later.clone()
    }

    pub(crate) fn forced_by(&self) -> Option<(Duration, Signal)> {
        self.state().forced
    }

    pub(crate) fn phase(&self) -> Option<Phase> {
        self.state().phase
    }

    /// Phases only go forward; whoever waits for this one is woken.
    pub(crate) fn enter(&self, phase: Phase) {
        self.state().phase = Some(phase);
        self.latch(phase).fire();
        if phase == Phase::StopIntake {
            self.stop_intake();
        }
    }

    /// No new work gets in, whoever feeds it.
    pub(crate) fn stop_intake(&self) {
        for gate in self.gates() {
            gate.close();
        }
        self.stopping.fire();
        quietly(|| self.stopping_token.cancel());
    }

    /// The drain is over.
    pub(crate) fn cancel(&self) {
        for gate in self.gates() {
            gate.cancel();
        }
        self.cancelled.fire();
    }

    pub(crate) fn intake_stopped(&self) {
        let mut state = self.state();
        let since = state.begun.as_ref().map_or(Duration::ZERO, |(_, at)| at.elapsed());
        state.stop_intake_ended = Some(since);
    }

    pub(crate) fn latch(&self, phase: Phase) -> &Latch {
        &self.phases[phase as usize]
    }

    /// When the phase ends at the latest, as things stand.
    pub(crate) fn deadline(&self, phase: Phase) -> Option<Instant> {
        let state = self.state();
        let forced = state.forced.map(|(since, _)| since);
        self.deadline_of(phase, state.begun.as_ref()?.1, forced, state.stop_intake_ended)
    }

    fn deadline_of(
        &self,
        phase: Phase,
        begun: Instant,
        forced: Option<Duration>,
        stop_intake_ended: Option<Duration>,
    ) -> Option<Instant> {
        let planned = later_by(begun, self.plan.deadline(phase, forced, stop_intake_ended));
        Some(self.fitted(phase, planned))
    }

    pub(crate) fn kill(&self) -> Option<Instant> {
        self.triggered_at().map(|at| later_by(at, self.plan.kill()))
    }

    fn set_drain_end(&self) {
        if let Some(at) = self.deadline(Phase::Drain) {
            self.drain_end.set(at);
        }
    }

    /// Waits until the phase's deadline has passed, or the limit, which may be sooner. A forced stop moves both.
    pub(crate) async fn passed(&self, phase: Phase, limit: Option<Instant>) {
        loop {
            // Asked before the deadline: a force that comes in between is seen by one of the two.
            let (was_forced, mut room) = (self.forced.is_fired(), self.room.subscribe());
            let Some(deadline) = self.deadline(phase) else { return std::future::pending().await };
            let until = limit.map_or(deadline, |limit| limit.min(deadline));
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(until) => return,
                () = self.forced.fired(), if !was_forced => {}
                Ok(()) = room.changed() => {}
            }
        }
    }

    pub(crate) fn add_gate(&self, gate: Gate) {
        if *self.paused.borrow() && gate.is_pulled() {
            gate.pause();
        }
        self.gates.lock().unwrap_or_else(PoisonError::into_inner).push(gate);
    }

    pub(crate) fn gates(&self) -> Vec<Gate> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The unit shows among what is in flight while it runs.
    pub(crate) fn add_unit(&self, unit: Arc<Unit>) {
        let mut units = self.units.lock().unwrap_or_else(PoisonError::into_inner);
        units.retain(|unit| !unit.gone.is_fired());
        units.push(unit);
    }

    /// All tasks and hooks whose futures are still there.
    pub(crate) fn units(&self) -> Vec<Arc<Unit>> {
        self.units.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        // A waker that panics must not keep the gates from hearing of it. The flag is set before any is woken.
        if self.triggered.is_fired() || quietly(|| self.paused.send_replace(paused)) == Some(paused) {
            return;
        }
        self.tell_gates_of_pause();
    }

    /// Brings the gates that pull to what the flag says.
    ///
    /// No lock spans the flag and the gates. Whoever has told the gates looks at the flag once more, so that the last to
    /// tell them, whoever that is, tells them what it says last.
    pub(crate) fn tell_gates_of_pause(&self) {
        loop {
            let paused = *self.paused.borrow();
            for gate in self.gates().iter().filter(|gate| gate.is_pulled()) {
                if paused { gate.pause() } else { gate.resume() }
            }
            if *self.paused.borrow() == paused {
                return;
            }
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        *self.paused.borrow() && !self.triggered.is_fired()
    }

    pub(crate) async fn resumed(&self) {
        tokio::select! {
            biased;
            () = self.triggered.fired() => {}
            () = self.paused_is(false) => {}
        }
    }

    /// Waits until pulling is paused, or is not.
    pub(crate) async fn paused_is(&self, wanted: bool) {
        let mut paused = self.paused.subscribe();
        // The sender is ours, so that there is always an answer.
        let _ = paused.wait_for(|paused| *paused == wanted).await;
    }

    pub(crate) fn report(&self) -> Option<Report> {
        self.report.get().cloned()
    }

    /// The end: everybody who waits gets this report.
    pub(crate) fn end(&self, report: Report) {
        {
            let mut state = self.state();
            state.phase = None;
            state.watched = None;
        }
        // The first one stays: it is what everybody was told.
        let _ = self.report.set(report);
        self.ended.fire();
        if self.leave.is_none() {
            // Nothing that a source could tell changes anything now, and each of the two would keep the other for ever.
            self.let_go();
        }
    }

    /// Where exiting is not ours: a thread that says what is stuck when the process should be gone.
    fn watch(&self) {
        let (watched, end) = mpsc::channel();
        self.state().watched = Some(watched);
        let (limit, me) = (self.plan.watchdog_at(), Weak::clone(&self.me));
        let thread = std::thread::Builder::new().name("winddown-watchdog".to_owned()).spawn(move || {
            let overdue = end.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
            // The end may have come before it could tell this thread.
            let Some(control) = me.upgrade().filter(|control| overdue && control.report.get().is_none())
            else {
                return;
            };
            let stuck = control.in_flight();
            tracing::error!(target: "winddown", stuck = stuck.join("; "), "shutdown.stuck");
        });
        if let Err(error) = thread {
            tracing::error!(target: "winddown", %error, "watchdog.failed");
        }
    }

    /// Nobody listens to the signals any more.
    pub(crate) fn let_go(&self) {
        self.link.let_go();
    }
}

/// An instant that much later, or as late as an instant can be.
fn later_by(at: Instant, by: Duration) -> Instant {
    // tokio's own far future: 30 years.
    at.checked_add(by).unwrap_or_else(|| at + Duration::from_secs(86_400 * 365 * 30))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    #[tokio::test(start_paused = true)]
    async fn nothing_of_a_coordinator_is_alive_after_the_last_handle() {
        for runs in [true, false] {
            let budget = Budget::given(Duration::from_secs(10), "test");
            let mut shutdown =
                crate::coordinator::ShutdownCoordinator::new(budget, crate::signal::none()).unwrap();
            let gate = shutdown.gate("uploads");
            let handle = shutdown.handle();
            let control = Weak::clone(&handle.control.me);
            handle.trigger("test");
            if runs {
                drop(shutdown.run().await)
            } else {
                drop(shutdown)
            }
            drop((gate, handle));
            assert!(control.upgrade().is_none());
        }
    }
}
