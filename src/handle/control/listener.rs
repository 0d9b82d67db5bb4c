//! What a signal does to the shared state, and what the watchdog does when the time is over.

use std::sync::Weak;

use tokio::time::Instant;

use super::{Control, later_by};
use crate::escalation::Step;
use crate::phase::Phase;
use crate::trigger::{Listener, Reason, Told};
use crate::watchdog;

// === impl Control ===

impl Control {
    fn leave_now(&self, head: String, code: u8) {
        if let Some(leave) = &self.leave {
            watchdog::say(self.list(head, "stuck: "));
            leave(code);
        }
    }

    /// Made where it is written, piece by piece: to name an item is the user's code, and may block.
    fn list(&self, head: String, mark: &'static str) -> impl Iterator<Item = String> + Send + 'static {
        let (me, them) = (Weak::clone(&self.me), Weak::clone(&self.me));
        let head = self.phase().map_or_else(|| head.clone(), |phase| format!("{head}, in phase {phase}"));
        let units = move || me.upgrade().map(|me| me.units_in_flight()).unwrap_or_default();
        let items = move || them.upgrade().map(|me| me.items()).unwrap_or_default();
        let first = std::iter::once_with(move || watchdog::list(&head, mark, &units()));
        first.chain(std::iter::once_with(move || watchdog::lines(mark, &items())))
    }
}

// On the thread that sees the signals, which nothing may hold up: no logging here, since a subscriber may block.
impl Listener for Control {
    fn told(&self, what: Told, at: Instant) {
        let signal = match what {
            Told::Pause => return self.set_paused(true),
            Told::Resume => return self.set_paused(false),
            Told::Dump => return watchdog::say(self.list("in flight".to_owned(), "")),
            Told::Stop(signal) => signal,
        };
        let step = {
            let mut state = self.state();
            let first = *state.signalled.get_or_insert(at);
            state.escalation.see(signal, at.saturating_duration_since(first))
        };
        match (step, self.report.get()) {
            (Step::Doubled, _) => {}
            // All is closed: whoever still asks wants what holds the process up to be left behind.
            (_, Some(report)) => {
                if let Some(leave) = &self.leave {
                    leave(report.code());
                }
            }
            (Step::Begin, None) => {
                self.begin(Reason::Signal(signal), at);
            }
            (Step::Force, None) => {
                self.begin(Reason::Signal(signal), at);
                self.force(signal, at);
            }
            (Step::Exit, None) => {
                let code = 128_u8.saturating_add(signal.number());
                self.leave_now(format!("{signal} again: leaving at once"), code);
            }
            (Step::Repeated, None) => {}
        }
    }

    fn wake_at(&self) -> Option<Instant> {
        let at = later_by(self.triggered_at()?, self.plan.watchdog_at());
        // Once forced, all is over sooner; whoever forced is not to wait for the rest of the grace.
        let forced = self.forced.is_fired() && self.report.get().is_none();
        let sooner = self.deadline(Phase::Close).filter(|_| forced);
        sooner.map_or(at, |end| at.min(later_by(end, self.plan.margin() / 2))).into()
    }

    fn tick(&self, now: Instant) {
        if self.wake_at().is_none_or(|at| now < at) {
            return;
        }
        match self.report.get() {
            // `run` has returned and the process is still there: something holds the runtime's drop.
            Some(report) => {
                if let Some(leave) = &self.leave {
                    leave(report.code());
                }
            }
            None => self.leave_now("the grace period is over: leaving".to_owned(), watchdog::EXIT_CODE),
        }
    }
}
