//! What a probe is told: ready for traffic or not, and alive in any case.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const STARTING: u8 = 0;
const READY: u8 = 1;
const STOPPING: u8 = 2;

/// Tells probes whether to send traffic here.
///
/// It turns ready once set-up is done and not ready at the first trigger, and never ready again after that. Liveness stays true
/// while draining: a process that stops well is not to be killed for it. Clones are the same.
///
/// `Display` is what a `/readyz` answers: `ready`, `not ready: starting`, `not ready: stopping`.
#[derive(Clone)]
pub struct Readiness(Arc<AtomicU8>);

// === impl Readiness ===

impl Readiness {
    pub(crate) fn new() -> Self {
        Self(Arc::new(AtomicU8::new(STARTING)))
    }

    /// Whether balancers are to send traffic here.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.state() == READY
    }

    /// Whether the process is to be left alive: always, also while draining.
    #[inline]
    pub fn is_live(&self) -> bool {
        true
    }

    /// `true`: set-up is done. `false`: the stop has begun, which is not taken back.
    pub(crate) fn set(&self, ready: bool) {
        if ready {
            // Loses against a stop that came first.
            let _ = self.0.compare_exchange(STARTING, READY, Ordering::AcqRel, Ordering::Acquire);
        } else {
            self.0.store(STOPPING, Ordering::Release);
        }
    }

    fn state(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }
}

impl fmt::Display for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state() {
            STARTING => "not ready: starting",
            READY => "ready",
            _ => "not ready: stopping",
        })
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Readiness").field(&format_args!("{self}")).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_is_not_taken_back_and_never_ends_liveness() {
        let readiness = Readiness::new();
        assert!(!readiness.is_ready());
        assert_eq!(readiness.to_string(), "not ready: starting");
        readiness.set(true);
        assert!(readiness.is_ready());
        assert_eq!(readiness.to_string(), "ready");
        readiness.clone().set(false);
        readiness.set(true);
        assert!(!readiness.is_ready());
        assert!(readiness.is_live());
        assert_eq!(readiness.to_string(), "not ready: stopping");
    }
}
