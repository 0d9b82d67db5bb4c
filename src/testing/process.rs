//! Starts a real program, plays the platform that stops it, and judges how it ended.
//!
//! What no test inside the process can show is seen from here: a signal that arrives before `main` has taken hold of
//! it, an exit code, a process that has to be killed, a log pipe that nobody reads.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//! use winddown::testing::process::Process;
//!
//! let running = Process::new("sh")
//!     .args(["-c", "trap 'echo stopping; exit 0' TERM; echo ready; while :; do sleep 0.01; done"])
//!     .ready_line("ready")
//!     .start()
//!     .await?;
//!
//! let exit = running.kubelet(Duration::from_secs(5)).await;
//! exit.assert_code(0);
//! exit.assert_within(Duration::from_secs(1));
//! assert!(exit.stdout.contains("stopping"));
//! # Ok(())
//! # }
//! ```
//!
//! All times are real: a process does not know of tokio's paused clock, so use this on a runtime whose clock runs.
//!
//! The program gets a process group of its own, so that a Ctrl+C meant for the test does not reach it. Signals go to
//! the process alone, as kubelet, systemd's main process and Docker send them. When it has ended, what is left of its
//! group is killed, as the end of a container's first process does. It never outlives the test: dropping [`Running`]
//! kills and reaps it, and a helper (`sh`) kills it where the test itself is killed.

mod error;
mod exit;
mod ready;
mod running;
mod supervisor;
mod watch;

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub use self::error::{ProcessError, ProcessErrorKind};
pub use self::exit::{Exit, Line, Stream};
pub use self::running::{Running, Signal};
pub use self::supervisor::Supervisor;

use self::ready::Ready;
use self::watch::Watch;

/// A program that is to be started, as often as is wanted.
///
/// Nothing is passed on but what is named here and the environment; standard input is empty.
#[derive(Debug, Clone)]
#[must_use = "nothing runs until `start`"]
pub struct Process {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    current_dir: Option<PathBuf>,
    ready: Ready,
    patience: Duration,
    stalled_stderr: bool,
}

// === impl Process ===

impl Process {
    /// A program by its path, or by its name in `PATH`.
    ///
    /// Each wait for it (for its being ready, for a line, for its end) takes a minute at most, see [`patience`].
    ///
    /// [`patience`]: Process::patience
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Process {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            current_dir: None,
            ready: Ready::Started,
            patience: Duration::from_secs(60),
            stalled_stderr: false,
        }
    }

    /// An example of the package under test, from the target directory that the running test was built into.
    ///
    /// `cargo test` builds the examples; `cargo test --test NAME` does so only with `--examples` beside it, and would
    /// else find an older build, or none. One that is not there makes [`start`](Process::start) fail.
    ///
    /// ```no_run
    /// # async fn f() -> Result<(), winddown::testing::process::ProcessError> {
    /// use winddown::testing::process::Process;
    ///
    /// let orders = Process::example("orders").args(["--listen", "127.0.0.1:0"]).ready_line("ready").start().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn example(name: &str) -> Self {
        let exe = env::current_exe().unwrap_or_default();
        Process::new(example_beside(&exe, name))
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), Some(value.as_ref().to_owned())));
        self
    }

    /// Leaves a variable of the test's own environment out.
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), None));
        self
    }

    /// The directory it runs in; the test's own where none is given.
    pub fn current_dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.current_dir = Some(dir.as_ref().to_owned());
        self
    }

    /// Ready when a line on standard output is this, or starts with it.
    ///
    /// The last of `ready_line` and [`ready_url`](Process::ready_url) counts. With neither, it is ready when started.
    pub fn ready_line(mut self, start: impl Into<String>) -> Self {
        self.ready = Ready::Line(start.into());
        self
    }

    /// Ready when a GET of this address is answered with 200, asked every 20 ms.
    ///
    /// Plain `http://HOST:PORT/PATH` only; any other address makes [`start`](Process::start) fail.
    pub fn ready_url(mut self, url: impl Into<String>) -> Self {
        self.ready = Ready::Url(url.into());
        self
    }

    /// How long each wait for the process may take: until it is ready, until a line is seen, until it has ended.
    ///
    /// A minute where not given. A wait for its end that takes longer kills it.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Gives it a pipe for standard error that nobody reads, as a log collector that hangs does.
    ///
    /// The pipe takes 64 KiB on Linux until a write to it waits; [`Running::fill_stderr`] makes it full at once. What
    /// is written there is not kept.
    pub fn stalled_stderr(mut self) -> Self {
        self.stalled_stderr = true;
        self
    }

    /// Starts it, and waits until it is ready.
    ///
    /// # Errors
    ///
    /// [`ProcessErrorKind::NotStarted`] when there is no such program or the address to ask is none that can be asked;
    /// [`Exited`](ProcessErrorKind::Exited) when it ended before it was ready;
    /// [`TimedOut`](ProcessErrorKind::TimedOut) when it was not ready within its [`patience`](Process::patience), and
    /// has been killed. The error's `Debug` form shows all that it wrote.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the process is killed and reaped.
    pub async fn start(&self) -> Result<Running, ProcessError> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = &self.current_dir {
            command.current_dir(dir);
        }

        let name = Path::new(&self.program).display().to_string();
        let failed = |error| ProcessError::not_started(&name, error);
        self.ready.check().map_err(failed)?;
        let watch = Watch::start(&mut command, self.stalled_stderr).map_err(failed)?;
        let running = Running::new(name, watch, self.patience);
        self.ready.reached(&running).await?;
        Ok(running)
    }
}

/// Test binaries lie in `deps`, examples in `examples` beside it, whatever the profile and the target.
fn example_beside(exe: &Path, name: &str) -> PathBuf {
    let mut places = exe.ancestors().skip(1).map(|dir| dir.join("examples").join(name));
    let built = places.clone().find(|place| place.is_file());
    built.or_else(|| places.nth(1)).unwrap_or_else(|| Path::new("examples").join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_example_is_looked_for_beside_the_folder_of_the_test() {
        let dir = tempfile::tempdir().unwrap();
        let exe = dir.path().join("debug/deps/harness-0123");
        let missing = example_beside(&exe, "orders");
        assert_eq!(missing, dir.path().join("debug/examples/orders"));

        std::fs::create_dir_all(dir.path().join("debug/examples")).unwrap();
        std::fs::write(&missing, "").unwrap();
        assert_eq!(example_beside(&exe, "orders"), missing);
        assert_eq!(example_beside(&dir.path().join("debug/examples/minimal"), "orders"), missing);
    }
}
