//! Why a process did not come to what was waited for.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

/// A process did not start, ended early, or kept the test waiting.
///
/// `Display` is one line; `Debug`, which `unwrap` and a test that returns it print, adds all that the process wrote.
pub struct ProcessError {
    program: String,
    why: Why,
    output: String,
}

/// What kind of [`ProcessError`] it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProcessErrorKind {
    /// It could not be started.
    NotStarted,
    /// It ended first.
    Exited,
    /// It took longer than the patience for it.
    TimedOut,
}

enum Why {
    NotStarted(io::Error),
    Exited { ended: String, awaited: String },
    TimedOut { patience: Duration, awaited: String },
}

// === impl ProcessError ===

impl ProcessError {
    /// What kind of error it is.
    pub fn kind(&self) -> ProcessErrorKind {
        match self.why {
            Why::NotStarted(_) => ProcessErrorKind::NotStarted,
            Why::Exited { .. } => ProcessErrorKind::Exited,
            Why::TimedOut { .. } => ProcessErrorKind::TimedOut,
        }
    }

    /// What the process wrote until then, on both streams, each line with its time.
    pub fn output(&self) -> &str {
        &self.output
    }

    pub(super) fn not_started(program: &str, error: io::Error) -> Self {
        ProcessError { program: program.to_owned(), why: Why::NotStarted(error), output: String::new() }
    }

    pub(super) fn exited(program: &str, ended: String, awaited: &str, output: String) -> Self {
        ProcessError {
            program: program.to_owned(),
            why: Why::Exited { ended, awaited: awaited.to_owned() },
            output,
        }
    }

    pub(super) fn timed_out(program: &str, patience: Duration, awaited: &str, output: String) -> Self {
        let awaited = awaited.to_owned();
        ProcessError { program: program.to_owned(), why: Why::TimedOut { patience, awaited }, output }
    }
}

impl fmt::Display for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = &self.program;
        match &self.why {
            Why::NotStarted(_) => write!(f, "`{program}` could not be started"),
            Why::Exited { ended, awaited } => write!(f, "`{program}` {ended} before {awaited}"),
            Why::TimedOut { patience, awaited } => {
                write!(f, "`{program}` kept the test waiting for more than {patience:?} for {awaited}")
            }
        }
    }
}

impl fmt::Debug for ProcessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")?;
        if let Some(source) = self.source() {
            write!(f, ": {source}")?;
        }
        write!(f, "\n{}", self.output)
    }
}

impl Error for ProcessError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.why {
            Why::NotStarted(error) => Some(error),
            Why::Exited { .. } | Why::TimedOut { .. } => None,
        }
    }
}
