//! What a handler is given beside its item.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::error::Interrupted;
use crate::gate::Gate;
use crate::overrun::Overrun;

/// A handler's view of the stop: where it may be interrupted, and where it must not be cut.
#[derive(Debug)]
pub struct Cx {
    gate: Gate,
    overrun: Overrun,
    interrupted: AtomicBool,
    shields: AtomicU32,
}

/// Counts a shield for as long as it is held, also when its future is dropped half-way.
struct Shield<'a> {
    cx: &'a Cx,
    done: bool,
}

// === impl Cx ===

impl Cx {
    pub(super) fn new(gate: Gate, overrun: Overrun) -> Self {
        Cx { gate, overrun, interrupted: AtomicBool::new(false), shields: AtomicU32::new(0) }
    }

    /// Says between two steps whether to go on.
    ///
    /// It refuses once the drain is over; with [`Overrun::Step`] already when less than one step's limit is left of it.
    ///
    /// # Errors
    ///
    /// [`Interrupted`]: return it with `?`, and the item is handed back with no attempt used.
    pub fn checkpoint(&self) -> Result<(), Interrupted> {
        let refuse = self.gate.is_cancelled()
            || match self.overrun {
                Overrun::Step(limit) => self.remaining().is_some_and(|left| left < limit),
                _ => false,
            };
        if refuse {
            self.interrupted.store(true, Ordering::Relaxed);
            return Err(Interrupted);
        }
        Ok(())
    }

    /// Runs what must not be cut in the middle, such as an effect and the note that it was done.
    ///
    /// It may last beyond the drain, until items have to be handed back; it is not begun after the drain is over, and
    /// it does not survive SIGKILL.
    ///
    /// # Cancel safety
    ///
    /// As safe as the future itself: where the task around it is aborted, it is dropped.
    pub async fn shield<F: Future>(&self, work: F) -> F::Output {
        let mut shield = Shield::raise(self);
        if self.gate.is_cancelled() {
            // Not begun any more: without a shield the handler is cut here.
            shield.done = true;
            drop(shield);
            return std::future::pending().await;
        }
        let output = work.await;
        shield.done = true;
        output
    }

    /// The time until the drain is over; `None` as long as the program is not stopping.
    pub fn remaining(&self) -> Option<Duration> {
        self.gate.remaining()
    }

    /// Whether no new work is taken any more.
    pub fn is_stopping(&self) -> bool {
        self.gate.is_stopping()
    }

    /// Waits until no new work is taken any more.
    pub async fn stopping(&self) {
        self.gate.stopping().await;
    }

    /// Waits until the drain is over. Of use within a [`shield`](Self::shield): outside one the handler is cut then.
    pub async fn cancelled(&self) {
        self.gate.cancelled().await;
    }

    /// Whether the drain is over.
    pub fn is_cancelled(&self) -> bool {
        self.gate.is_cancelled()
    }

    pub(super) fn was_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub(super) fn is_shielded(&self) -> bool {
        self.shields.load(Ordering::Relaxed) > 0
    }
}

// === impl Shield ===

impl<'a> Shield<'a> {
    fn raise(cx: &'a Cx) -> Self {
        cx.shields.fetch_add(1, Ordering::Relaxed);
        cx.gate.seat().shields.fetch_add(1, Ordering::SeqCst);
        Shield { cx, done: false }
    }
}

impl Drop for Shield<'_> {
    fn drop(&mut self) {
        if !self.done && self.cx.gate.is_cancelled() {
            tracing::warn!(target: "winddown", gate = self.cx.gate.name(), "shield.cut");
        }
        self.cx.gate.seat().shields.fetch_sub(1, Ordering::SeqCst);
        self.cx.shields.fetch_sub(1, Ordering::Relaxed);
    }
}
