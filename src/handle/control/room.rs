//! How a part fits into the time that its whole has for it.

use tokio::time::Instant;

use super::Control;
use crate::phase::Phase;
use crate::trigger::Signal;

// === impl Control ===

impl Control {
    /// As a part of a whole that drains no more: gives up on waiting, and makes the rest fit into the time in which the
    /// whole waits for it, also when that becomes less.
    pub(crate) async fn fit_into(&self, whole: &Control) {
        loop {
            // Both are asked before the end is: what changes in between is seen.
            let (was_forced, mut room) = (whole.forced.is_fired(), whole.room.subscribe());
            let end = whole.parts_end().unwrap_or_else(Instant::now);
            self.room.send_modify(|room| {
                let (from, to) = room.unwrap_or((Instant::now(), end));
                *room = Some((from, to.min(end)));
            });
            self.force(whole.forced_by().map_or(Signal::Terminate, |(_, signal)| signal), Instant::now());
            tokio::select! {
                () = whole.forced.fired(), if !was_forced => {}
                Ok(()) = room.changed() => {}
            }
        }
    }

    /// The planned end of a phase, or sooner where there is less room.
    pub(super) fn fitted(&self, phase: Phase, planned: Instant) -> Instant {
        let Some((from, to)) = *self.room.borrow() else { return planned };
        // An eighth is kept for what the whole has to do to see that its part has ended.
        let eighths = match phase {
            Phase::Unready => 0,
            Phase::StopIntake | Phase::Drain => 1,
            Phase::Requeue => 6,
            Phase::Close => 7,
        };
        planned.min(from + to.saturating_duration_since(from) * eighths / 8)
    }

    /// By when what this whole's parts have to hand back is to be back, whenever its intake stops.
    fn parts_end(&self) -> Option<Instant> {
        let state = self.state();
        let forced = state.forced.map(|(since, _)| since);
        let stop_intake_ended = state.stop_intake_ended.or(forced);
        self.deadline_of(Phase::Requeue, state.begun.as_ref()?.1, forced, stop_intake_ended)
    }
}
