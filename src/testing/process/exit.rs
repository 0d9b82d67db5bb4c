//! How a process ended, and what a test has to say about it.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use super::running::Signal;

/// How a process ended, and all that it wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exit {
    /// The exit code, where it left by itself.
    pub code: Option<i32>,
    /// The number of the signal that ended it, where one did: 15 for a SIGTERM that nothing caught.
    pub signal: Option<i32>,
    /// From the first signal that was sent to it to its end; from its start where none was sent.
    pub took: Duration,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error; empty where that was left unread.
    pub stderr: String,
    /// The lines of both streams in the order in which they came.
    pub lines: Vec<Line>,
}

/// One line that a process wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Line {
    /// When it was complete, counted from the start of the process.
    pub at: Duration,
    /// Where it was written to.
    pub stream: Stream,
    /// The line without its end.
    pub text: String,
}

/// One of the two streams a process writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

// === impl Exit ===

impl Exit {
    /// Whether it had to be killed: by the platform, by the test, or because the test's patience was over.
    pub fn was_killed(&self) -> bool {
        self.signal == Some(Signal::Kill.number())
    }

    /// The number that a shell shows: the code, or 128 and the signal.
    pub fn shell_code(&self) -> i32 {
        self.code.unwrap_or_else(|| 128 + self.signal.unwrap_or(0))
    }

    /// Asserts that it left by itself, with this code.
    ///
    /// # Panics
    ///
    /// Where it did not, with all that it wrote.
    #[track_caller]
    pub fn assert_code(&self, code: i32) -> &Self {
        assert!(self.code == Some(code), "should have left with code {code}, but {self}");
        self
    }

    /// Asserts that it ended within this time of the first signal.
    ///
    /// # Panics
    ///
    /// Where it took longer, with all that it wrote.
    #[track_caller]
    pub fn assert_within(&self, limit: Duration) -> &Self {
        assert!(self.took <= limit, "should have ended within {limit:?}, but {self}");
        self
    }

    /// Asserts that a line of either stream contains this.
    ///
    /// # Panics
    ///
    /// Where none does, with all that it wrote.
    #[track_caller]
    pub fn assert_line(&self, pattern: &str) -> &Self {
        assert!(self.lines.iter().any(|line| line.text.contains(pattern)), "no line has `{pattern}`: {self}");
        self
    }

    pub(super) fn new(
        status: ExitStatus,
        took: Duration,
        stdout: &[u8],
        stderr: &[u8],
        lines: Vec<Line>,
    ) -> Self {
        Exit {
            code: status.code(),
            signal: status.signal(),
            took,
            stdout: String::from_utf8_lossy(stdout).into_owned(),
            stderr: String::from_utf8_lossy(stderr).into_owned(),
            lines,
        }
    }
}

/// One line on the end, and under it every line of output with its time.
impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "it left with code {code}")?,
            (None, Some(signal)) => write!(f, "it was ended by signal {signal}")?,
            (None, None) => f.write_str("it ended")?,
        }
        write!(f, " after {:?}; it wrote:\n{}", self.took, transcript(&self.lines))
    }
}

// === impl Line ===

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = match self.stream {
            Stream::Stdout => "out",
            Stream::Stderr => "err",
        };
        write!(f, "{:>9.3} {stream} | {}", self.at.as_secs_f64(), self.text)
    }
}

pub(super) fn transcript(lines: &[Line]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}
