//! What the platform grants, and how that is known.

use std::fmt;
use std::time::Duration;

use super::duration::Human;

/// Where the grace period comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Grace {
    /// It is known; a budget that does not fit it is refused.
    Given {
        /// Who gave it: `code`, `WINDDOWN_GRACE`.
        by: &'static str,
    },
    /// It is what such a platform usually grants; a budget that does not fit it gets a warning.
    Assumed {
        /// Why that much.
        why: &'static str,
    },
}

/// What the platform grants, and what of it is used up before its signal comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Granted {
    pub(super) grace: Duration,
    pub(super) source: Grace,
    pub(super) prestop: Duration,
}

// === impl Granted ===

impl Granted {
    /// From the signal to the kill.
    pub(super) fn left(self) -> Duration {
        self.grace.saturating_sub(self.prestop)
    }
}

impl fmt::Display for Granted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Human(self.grace))?;
        if !self.prestop.is_zero() {
            write!(f, " less {} of preStop", Human(self.prestop))?;
        }
        write!(f, ", {}", self.source)
    }
}

// === impl Grace ===

impl fmt::Display for Grace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grace::Given { by } => write!(f, "given by {by}"),
            Grace::Assumed { why } => write!(f, "assumed ({why})"),
        }
    }
}
