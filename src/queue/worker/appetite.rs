//! When the loop claims.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::Backoff;

/// How long to leave a queue alone that says that it has something, and then has nothing.
const PAUSE: Backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(250));

/// When to claim: not before the queue has hinted at something, and not again and again where it hints at nothing.
pub(super) struct Appetite {
    /// Either it was told by `ready`, or it has brought all that was asked for.
    hinted: bool,
    /// The last claim that was answered has brought all that it had asked for: it pays to have several under way.
    plenty: bool,
    empty: u32,
    emptied: Option<Instant>,
    not_before: Instant,
}

// === impl Appetite ===

impl Appetite {
    pub(super) fn new() -> Appetite {
        Appetite { hinted: true, plenty: false, empty: 0, emptied: None, not_before: Instant::now() }
    }

    pub(super) fn hinted(&mut self) {
        self.hinted = true;
    }

    pub(super) fn is_hinted(&self) -> bool {
        self.hinted
    }

    pub(super) fn is_due(&self) -> bool {
        self.hinted && Instant::now() >= self.not_before
    }

    /// When it is due, where the queue has hinted at something and is to be left alone for a while.
    pub(super) fn due_later(&self) -> Option<Instant> {
        Some(self.not_before).filter(|at| self.hinted && *at > Instant::now())
    }

    pub(super) fn has_plenty(&self) -> bool {
        self.plenty
    }

    /// What a claim has brought that began at `asked`.
    ///
    /// Of several under way the last answer counts, although the call may have been the first: nothing is missed, since `ready` looks
    /// at what is there.
    pub(super) fn had(&mut self, claimed: usize, max: usize, asked: Instant) {
        self.plenty = claimed == max;
        self.hinted = self.plenty;
        if claimed > 0 {
            self.empty = 0;
            return;
        }
        // Claims that were under way together found one and the same emptiness.
        if self.emptied.is_some_and(|emptied| asked < emptied) {
            return;
        }
        // The first may have been taken by somebody else; a queue that goes on saying so is not to be asked in a circle.
        let pause = match self.empty {
            0 => Duration::ZERO,
            empty => PAUSE.after(empty - 1),
        };
        self.empty = self.empty.saturating_add(1);
        let now = Instant::now();
        self.emptied = Some(now);
        self.not_before = now + pause;
    }
}
