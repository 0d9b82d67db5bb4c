//! Who stops a process, and with which clock.

use std::time::Duration;

use super::running::Signal;

/// What kubelet gives a container after its preStop hook, however long that took.
const KUBELET_MINIMUM: Duration = Duration::from_secs(2);

/// A platform as its process sees it: when it asks, how often, and when it kills.
///
/// ```
/// use std::time::Duration;
/// use winddown::testing::process::Supervisor;
///
/// let kubelet = Supervisor::kubelet(Duration::from_secs(30)).prestop(Duration::from_secs(5));
/// let systemd = Supervisor::systemd(Duration::from_secs(90));
/// # let _ = (kubelet, systemd);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "nothing is stopped until it is given to `Running::stop`"]
pub struct Supervisor {
    pub(super) signals: &'static [Signal],
    /// From the decision to stop until the first signal.
    pub(super) before: Duration,
    /// From the decision to stop until the kill.
    pub(super) kill: Duration,
}

// === impl Supervisor ===

impl Supervisor {
    /// SIGTERM, and SIGKILL at the end of `terminationGracePeriodSeconds`.
    ///
    /// A grace below kubelet's own minimum of 2 s is taken as it is, to keep tests short.
    pub fn kubelet(grace: Duration) -> Self {
        Supervisor { signals: &[Signal::Term], before: Duration::ZERO, kill: grace }
    }

    /// SIGTERM and at once SIGCONT, and SIGKILL after `TimeoutStopSec`.
    ///
    /// The SIGCONT is for a process that was stopped and could not take the SIGTERM; systemd sends it always.
    pub fn systemd(timeout_stop: Duration) -> Self {
        Supervisor { signals: &[Signal::Term, Signal::Cont], before: Duration::ZERO, kill: timeout_stop }
    }

    /// What `docker stop -t` does: SIGTERM, and SIGKILL after the timeout, 10 s where the user names none.
    pub fn docker(timeout: Duration) -> Self {
        Supervisor { signals: &[Signal::Term], before: Duration::ZERO, kill: timeout }
    }

    /// A preStop hook of this length, before the first signal and within the grace, as kubelet counts it.
    ///
    /// A hook that leaves less than 2 s of the grace is cut at its end, and the kill comes 2 s after the signal.
    pub fn prestop(mut self, length: Duration) -> Self {
        self.before = length.min(self.kill);
        self.kill = self.kill.max(self.before + KUBELET_MINIMUM);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prestop_hook_eats_the_grace_down_to_two_seconds() {
        let secs = Duration::from_secs;
        let times = |prestop| {
            let kubelet = Supervisor::kubelet(secs(30)).prestop(secs(prestop));
            (kubelet.before, kubelet.kill)
        };
        assert_eq!(times(5), (secs(5), secs(30)));
        assert_eq!(times(29), (secs(29), secs(31)));
        assert_eq!(times(60), (secs(30), secs(32)));
    }
}
