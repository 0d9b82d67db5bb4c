//! What can go wrong, in the words of the part that refused.

use std::error::Error;
use std::fmt;

/// Any error, as hooks and handlers return it.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// What `main` prints of an error that it returns: what an operator is to read, with its reasons, and not how it is kept.
pub(crate) fn debug(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{error}")?;
    let mut source = error.source();
    while let Some(error) = source {
        write!(f, ": {error}")?;
        source = error.source();
    }
    Ok(())
}

/// The gate lets nothing in: intake has stopped, or is paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateClosed {
    pub(crate) paused: bool,
}

/// The drain is over: the work was stopped before it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancelled;

/// The job is to be handed back here, at a point between two of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted;

/// The job had been handed back, or given up, before it was finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLate;

// === impl GateClosed ===

impl GateClosed {
    /// Whether the gate is only paused and may open again.
    pub fn is_paused(&self) -> bool {
        self.paused
    }
}

impl fmt::Display for GateClosed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.paused { "the gate is paused" } else { "the gate is closed: intake has stopped" })
    }
}

impl Error for GateClosed {}

// === impl Cancelled ===

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stopped before it was done: the drain is over")
    }
}

impl Error for Cancelled {}

// === impl Interrupted ===

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted between two steps, to be handed back")
    }
}

impl Error for Interrupted {}

// === impl TooLate ===

impl fmt::Display for TooLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the job was handed back before it was finished")
    }
}

impl Error for TooLate {}
