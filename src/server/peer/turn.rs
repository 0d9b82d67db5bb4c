//! One request of a peer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::{PANICKED, Peer};

/// A request from its head to the end of its answer.
pub(in crate::server) struct Turn {
    pub(super) peer: Arc<Peer>,
    pub(super) answering: bool,
    pub(super) upgrade: bool,
}

pub(super) const BEGUN: u64 = 1;
pub(super) const ANSWERING: u64 = 1 << 32;

// === impl Turn ===

impl Turn {
    pub(in crate::server) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The handler has answered; the body is under way.
    pub(in crate::server) fn answer(&mut self, upgrade: bool) {
        self.peer.turns.fetch_add(ANSWERING, Relaxed);
        self.answering = true;
        self.upgrade = upgrade;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.peer.cut.compare_exchange(0, PANICKED, Relaxed, Relaxed);
        }
        // Before the turn is over, so that the peer is never taken for idle in between.
        if self.upgrade {
            self.peer.upgraded.store(true, Relaxed);
        } else if !self.peer.is_h2() {
            self.peer.unflushed.store(true, Relaxed);
        }
        self.peer.turns.fetch_sub(if self.answering { BEGUN | ANSWERING } else { BEGUN }, Relaxed);
        if self.peer.is_h2() {
            self.peer.driver.wake();
        }
    }
}
