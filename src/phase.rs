//! The five phases of a stop.

use std::fmt;

/// One of the five steps of a stop: always all of them, always in this order.
///
/// The order is the promise: work ends before what it uses is closed, and what did not end is handed back in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Balancers are told; traffic is still served; whatever pulls its work has stopped pulling. Its hooks have the time that
    /// [`Budget::unready`](crate::Budget::unready) gives, which is none when nothing is said.
    Unready,
    /// No new work gets in.
    StopIntake,
    /// What got in is finished.
    Drain,
    /// What did not finish is handed back to where it came from.
    Requeue,
    /// What the program holds is closed: clients, then pools, telemetry last.
    Close,
}

// === impl Phase ===

impl Phase {
    /// All phases, in their order.
    pub const ALL: [Phase; 5] =
        [Phase::Unready, Phase::StopIntake, Phase::Drain, Phase::Requeue, Phase::Close];

    /// The word that log, report and JSON use.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Unready => "unready",
            Phase::StopIntake => "stop intake",
            Phase::Drain => "drain",
            Phase::Requeue => "requeue",
            Phase::Close => "close",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
