//! Child processes that stop with the program.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Command;

use crate::{BoxError, Component, Phase, ShutdownCoordinator, ShutdownHandle};

/// A child process, made by [`child`].
#[must_use = "it is started once it is added to a coordinator"]
pub struct Child {
    name: Cow<'static, str>,
    command: Command,
    phase: Phase,
}

/// What is left of a process group is killed, however its task comes to its end.
struct Group(Option<Pid>);

/// Starts `command` when the set-up has returned, and stops it with the program.
///
/// It gets a process group of its own, so that Ctrl+C in a terminal reaches it through us and not beside us. It gets SIGTERM
/// when its [phase](Child::until) begins, [`Phase::Drain`] when not given, as does whatever it has started itself. What is
/// left of the group when that phase is over gets SIGKILL. Its end before the stop triggers the stop; an exit code other
/// than 0 is an error in the report.
///
/// ```no_run
/// # use winddown::{ShutdownCoordinator, process};
/// # fn example(shutdown: &mut ShutdownCoordinator) {
/// let mut command = tokio::process::Command::new("render");
/// command.arg("--watch");
/// shutdown.add(process::child("render", command));
/// # }
/// ```
pub fn child(name: impl Into<Cow<'static, str>>, command: Command) -> Child {
    Child { name: name.into(), command, phase: Phase::Drain }
}

// === impl Child ===

impl Child {
    /// The phase at whose beginning it is told, and at whose end it is killed; [`Phase::Drain`] at the earliest.
    pub fn until(mut self, phase: Phase) -> Self {
        self.phase = phase.max(Phase::Drain);
        self
    }
}

impl Component for Child {
    type Handle = ();

    fn register(self, shutdown: &mut ShutdownCoordinator) {
        let Child { name, command, phase } = self;
        let handle = shutdown.handle();
        shutdown.spawn(name, run(command, phase, handle)).until(phase).cooperative();
    }
}

impl fmt::Debug for Child {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Child").field("name", &self.name).field("phase", &self.phase).finish_non_exhaustive()
    }
}

async fn run(mut command: Command, phase: Phase, handle: ShutdownHandle) -> Result<(), BoxError> {
    // The leader is killed with its handle where the runtime ends first; the group is ours to kill.
    let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
    let group = Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
    tokio::select! {
        biased;
        ended = child.wait() => return judge(ended, false),
        () = handle.reached(phase) => group.signal(Signal::TERM),
    }
    tokio::select! {
        biased;
        ended = child.wait() => return judge(ended, true),
        () = handle.cancelled(), if phase == Phase::Drain => {}
    }
    drop(group);
    child.wait().await?;
    Err("it did not end in time, and was killed".into())
}

/// Ended by the signal that we sent is as good as ended by itself.
fn judge(ended: io::Result<ExitStatus>, told: bool) -> Result<(), BoxError> {
    use std::os::unix::process::ExitStatusExt;
    let status = ended?;
    if status.success() || told && status.signal() == Some(Signal::TERM.as_raw()) {
        return Ok(());
    }
    Err(format!("it ended with {status}").into())
}

// === impl Group ===

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // Gone already: there is nobody left to tell.
            let _ = kill_process_group(group, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}
