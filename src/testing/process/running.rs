//! A process that runs: what it says, and what is sent to it.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use tokio::time::{Instant as Deadline, sleep_until, timeout};

use super::error::ProcessError;
use super::exit::{Exit, Line, Stream, transcript};
use super::supervisor::Supervisor;
use super::watch::{State, Watch};

/// How long output may follow the end of its process, where one that left the group still holds the pipe.
const OUTPUT_AFTER_END: Duration = Duration::from_secs(1);

/// A started process; killed and reaped when dropped.
#[must_use = "dropping this kills the process"]
pub struct Running {
    program: String,
    watch: Watch,
    patience: Duration,
}

/// A signal that can be sent to a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Signal {
    /// SIGTERM: how every platform asks.
    Term,
    /// SIGINT: Ctrl+C.
    Int,
    /// SIGHUP: the terminal is gone.
    Hup,
    /// SIGQUIT: Ctrl+\.
    Quit,
    /// SIGKILL: not to be caught.
    Kill,
    /// SIGSTOP: freezes it, not to be caught.
    Stop,
    /// SIGCONT: thaws it.
    Cont,
    /// SIGTSTP: Ctrl+Z.
    Tstp,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

// === impl Running ===

impl Running {
    /// The number of the process.
    pub fn id(&self) -> u32 {
        self.watch.id()
    }

    /// Sends a signal to the process, not to its group, and says whether it was there to take it.
    ///
    /// The first one starts the clock of [`Exit::took`]. One that has ended is sent nothing, so no other process can
    /// be hit that got its number since.
    pub fn signal(&self, signal: Signal) -> bool {
        self.watch.signal(signal)
    }

    /// What it has written to standard output so far.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(self.watch.state().bytes(Stream::Stdout)).into_owned()
    }

    /// What it has written to standard error so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(self.watch.state().bytes(Stream::Stderr)).into_owned()
    }

    /// The lines of both streams so far, in the order in which they came.
    pub fn lines(&self) -> Vec<Line> {
        self.watch.state().lines.clone()
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.watch.state().ended().is_some()
    }

    /// Waits for the first line of either stream that contains this; one that came already counts.
    ///
    /// # Errors
    ///
    /// When it ended without it, or did not write it within the [`patience`](super::Process::patience).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it: lines stay and are found again.
    pub async fn wait_for_line(&self, pattern: &str) -> Result<Line, ProcessError> {
        let found = |state: &State| state.lines.iter().find(|line| line.text.contains(pattern)).cloned();
        self.until(&format!("a line with `{pattern}`"), found).await
    }

    /// Waits for the first byte on either stream, whether or not its line is complete.
    ///
    /// The moment from which a program owes an answer to a signal: what it says, it says after having taken it in hand.
    ///
    /// # Errors
    ///
    /// As for [`wait_for_line`](Running::wait_for_line).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by dropping it.
    pub async fn first_output(&self) -> Result<(), ProcessError> {
        let written = |state: &State| {
            let silent = state.bytes(Stream::Stdout).is_empty() && state.bytes(Stream::Stderr).is_empty();
            (!silent).then_some(())
        };
        self.until("its first output", written).await
    }

    /// Fills the pipe of [`stalled_stderr`](super::Process::stalled_stderr): from here on each write to it waits.
    ///
    /// # Errors
    ///
    /// When standard error is not stalled, or the system gives no second end of a pipe: other than Linux.
    pub fn fill_stderr(&self) -> io::Result<()> {
        self.watch.fill_stalled()
    }

    /// Waits for its end. One that outlasts the [`patience`](super::Process::patience) is killed.
    ///
    /// # Cancel safety
    ///
    /// Dropped before its end, the process is killed and reaped, as with [`Running`] itself.
    pub async fn wait(self) -> Exit {
        let patience = Deadline::now() + self.patience;
        self.killed_at(patience).await
    }

    /// Has it stopped by this platform, with that platform's clock, and waits for its end.
    ///
    /// # Cancel safety
    ///
    /// As for [`wait`](Running::wait).
    pub async fn stop(self, by: Supervisor) -> Exit {
        // A process may end during the preStop hook as well.
        let mut changes = self.watch.changes();
        let before = async { while !self.has_ended() && changes.changed().await.is_ok() {} };
        let _ = timeout(by.before, before).await;
        for &signal in by.signals {
            self.signal(signal);
        }
        self.killed_at(Deadline::now() + (by.kill - by.before)).await
    }

    /// [`stop`](Running::stop) by a [kubelet](Supervisor::kubelet) without a preStop hook.
    pub async fn kubelet(self, grace: Duration) -> Exit {
        self.stop(Supervisor::kubelet(grace)).await
    }

    /// [`stop`](Running::stop) by [systemd](Supervisor::systemd).
    pub async fn systemd(self, timeout_stop: Duration) -> Exit {
        self.stop(Supervisor::systemd(timeout_stop)).await
    }

    /// [`stop`](Running::stop) by [`docker stop`](Supervisor::docker).
    pub async fn docker_stop(self, timeout: Duration) -> Exit {
        self.stop(Supervisor::docker(timeout)).await
    }

    pub(super) fn new(program: String, watch: Watch, patience: Duration) -> Self {
        Running { program, watch, patience }
    }

    /// What `found` finds in the state, now or after any change of it.
    pub(super) async fn until<T>(
        &self,
        awaited: &str,
        mut found: impl FnMut(&State) -> Option<T>,
    ) -> Result<T, ProcessError> {
        let mut changes = self.watch.changes();
        let mut outlasted: Option<Instant> = None;
        let looked = async {
            loop {
                {
                    let state = self.watch.state();
                    if let Some(found) = found(&state) {
                        return Ok(found);
                    }
                    if let Some((status, _)) = state.ended() {
                        let since = *outlasted.get_or_insert_with(Instant::now);
                        if state.is_read() || since.elapsed() >= OUTPUT_AFTER_END {
                            let ended = format!("ended ({status})");
                            return Err(ProcessError::exited(
                                &self.program,
                                ended,
                                awaited,
                                transcript(&state.lines),
                            ));
                        }
                    }
                }
                if outlasted.is_some() {
                    let _ = timeout(OUTPUT_AFTER_END, changes.changed()).await;
                } else {
                    let _ = changes.changed().await;
                }
            }
        };
        match timeout(self.patience, looked).await {
            Ok(found) => found,
            Err(_) => {
                let output = transcript(&self.watch.state().lines);
                Err(ProcessError::timed_out(&self.program, self.patience, awaited, output))
            }
        }
    }

    async fn killed_at(self, deadline: Deadline) -> Exit {
        let mut changes = self.watch.changes();
        let mut killed = false;
        let ended = loop {
            let ended = self.watch.state().ended();
            if let Some(ended) = ended {
                break ended;
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = sleep_until(deadline), if !killed => {
                    killed = true;
                    self.watch.kill();
                }
            }
        };
        let all_read = async { while !self.watch.state().is_read() && changes.changed().await.is_ok() {} };
        let _ = timeout(OUTPUT_AFTER_END, all_read).await;
        self.watch.state().exit(ended)
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running")
            .field("program", &self.program)
            .field("id", &self.id())
            .finish_non_exhaustive()
    }
}

// === impl Signal ===

impl Signal {
    /// Its number on this system.
    pub fn number(self) -> i32 {
        self.to_rustix().as_raw()
    }

    pub(super) fn to_rustix(self) -> rustix::process::Signal {
        use rustix::process::Signal as System;
        match self {
            Signal::Term => System::TERM,
            Signal::Int => System::INT,
            Signal::Hup => System::HUP,
            Signal::Quit => System::QUIT,
            Signal::Kill => System::KILL,
            Signal::Stop => System::STOP,
            Signal::Cont => System::CONT,
            Signal::Tstp => System::TSTP,
            Signal::Usr1 => System::USR1,
            Signal::Usr2 => System::USR2,
        }
    }
}
