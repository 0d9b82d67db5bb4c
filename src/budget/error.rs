//! Why a budget is refused.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use super::duration::{DurationError, Human};
use crate::error::debug;

/// A budget, or a limit, that cannot be kept.
///
/// Its text names the setting, its value and the bound it broke, and prints the ladder where there is one.
#[derive(Clone, PartialEq, Eq)]
pub struct BudgetError(Box<Kind>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// Below or beyond what can be kept, with the reason and, where it helps, the ladder.
    Bound { setting: String, value: Duration, bound: Duration, why: String, ladder: String },
    /// A setting of the environment that is no duration.
    Unreadable { setting: &'static str, value: String, source: DurationError },
}

// === impl BudgetError ===

impl BudgetError {
    /// The name of the setting that is refused: `drain`, `grace (WINDDOWN_GRACE)`, `task_limit of gate "orders"`.
    pub fn setting(&self) -> &str {
        match &*self.0 {
            Kind::Bound { setting, .. } => setting,
            Kind::Unreadable { setting, .. } => setting,
        }
    }

    /// The value that is refused, where it could be read.
    pub fn value(&self) -> Option<Duration> {
        match &*self.0 {
            Kind::Bound { value, .. } => Some(*value),
            Kind::Unreadable { .. } => None,
        }
    }

    /// The bound that it broke.
    pub fn bound(&self) -> Option<Duration> {
        match &*self.0 {
            Kind::Bound { bound, .. } => Some(*bound),
            Kind::Unreadable { .. } => None,
        }
    }

    pub(super) fn bounded(
        setting: impl Into<String>,
        value: Duration,
        bound: Duration,
        why: impl Into<String>,
    ) -> Self {
        Self(Box::new(Kind::Bound {
            setting: setting.into(),
            value,
            bound,
            why: why.into(),
            ladder: String::new(),
        }))
    }

    pub(super) fn unreadable(setting: &'static str, value: String, source: DurationError) -> Self {
        Self(Box::new(Kind::Unreadable { setting, value, source }))
    }

    pub(super) fn with_ladder(mut self, text: String) -> Self {
        if let Kind::Bound { ladder, .. } = &mut *self.0 {
            *ladder = text;
        }
        self
    }
}

impl fmt::Debug for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug(self, f)
    }
}

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            Kind::Bound { setting, value, why, ladder, .. } => {
                write!(f, "{setting} is {}: {why}", Human(*value))?;
                if !ladder.is_empty() {
                    write!(f, "\n{}", ladder.trim_end())?;
                }
                Ok(())
            }
            Kind::Unreadable { setting, value, .. } => {
                write!(
                    f,
                    "{setting} is `{}`: it must be a duration such as 500ms, 8s or 1m30s",
                    value.escape_debug()
                )
            }
        }
    }
}

impl Error for BudgetError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &*self.0 {
            Kind::Bound { .. } => None,
            Kind::Unreadable { source, .. } => Some(source),
        }
    }
}
