//! How a phase, a hook or a task ended.

use std::fmt;

/// How a phase, a hook or a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It was done within its limit.
    Finished,
    /// Its limit passed first.
    Overdue,
    /// A second signal cut its time short.
    Forced,
    /// It returned an error.
    Failed,
    /// It panicked.
    Panicked,
    /// Its turn never came.
    NotStarted,
}

// === impl Outcome ===

impl Outcome {
    /// The word that log, report and JSON use.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Finished => "finished",
            Outcome::Overdue => "overdue",
            Outcome::Forced => "forced",
            Outcome::Failed => "failed",
            Outcome::Panicked => "panicked",
            Outcome::NotStarted => "not started",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
