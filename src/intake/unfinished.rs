//! What comes back, and why.

use std::fmt;
use std::ops::Deref;

use super::{Refused, Unfinished, Why};
use crate::error::GateClosed;

// === impl Unfinished ===

impl<T> Unfinished<T> {
    /// Why it comes back.
    pub fn why(&self) -> Why {
        self.why
    }

    /// Its place in the order of admission: smaller is older.
    pub fn number(&self) -> u64 {
        self.item.number
    }
}

impl<T> Deref for Unfinished<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.item.value()
    }
}

impl<T: fmt::Debug> fmt::Debug for Unfinished<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unfinished").field("item", self.item.value()).field("why", &self.why()).finish()
    }
}

// === impl Refused ===

impl<T> Refused<T> {
    /// The item, to be given back to where it came from.
    pub fn into_inner(self) -> T {
        self.item
    }

    /// Why it was not let in.
    pub fn why(&self) -> GateClosed {
        self.why
    }
}

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("why", &self.why).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the item was not let in")
    }
}

impl<T> std::error::Error for Refused<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}

// === impl Why ===

impl Why {
    pub(super) const ALL: [Why; 6] =
        [Why::Interrupted, Why::Cancelled, Why::StillRunning, Why::Returned, Why::Dropped, Why::Panicked];

    /// Whether it is the stop that handed it back, and not a fault.
    pub fn is_shutdown(self) -> bool {
        matches!(self, Why::Interrupted | Why::Cancelled | Why::StillRunning)
    }

    /// The word that log and report use.
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Interrupted => "interrupted",
            Why::Cancelled => "cancelled",
            Why::StillRunning => "still running",
            Why::Returned => "returned",
            Why::Dropped => "dropped",
            Why::Panicked => "panicked",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
