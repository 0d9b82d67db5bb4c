//! What starts a stop: a reason, and the sources that signals come from.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

/// Why the program stops. The first one wins; later ones are kept in the report.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The operating system, or whoever runs the program, sent a signal.
    Signal(Signal),
    /// The program asked for it, with its own words.
    Requested(Cow<'static, str>),
    /// A task that was to run until the stop came to its end.
    TaskEnded {
        /// The task's name.
        task: String,
    },
    /// A task that was to run until the stop returned an error.
    TaskFailed {
        /// The task's name.
        task: String,
        /// The error with its sources.
        error: String,
    },
    /// A task that was to run until the stop panicked.
    TaskPanicked {
        /// The task's name.
        task: String,
        /// What the panic said.
        message: String,
    },
    /// The set-up failed, or what was registered does not fit together.
    StartFailed {
        /// The error with its sources.
        error: String,
    },
    /// The coordinator was dropped, or its `run` was cancelled.
    Dropped,
}

/// A signal, or a console event of Windows, that asks a program to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Signal {
    /// SIGTERM: how platforms ask.
    Terminate,
    /// SIGINT: how a terminal asks, on Ctrl+C.
    Interrupt,
    /// SIGQUIT: how a terminal asks, on Ctrl+\.
    Quit,
    /// SIGHUP: the terminal is gone.
    Hangup,
    /// Windows: Ctrl+C.
    CtrlC,
    /// Windows: Ctrl+Break.
    CtrlBreak,
    /// Windows: the console's window is closed.
    CtrlClose,
    /// Windows: the user logs off.
    CtrlLogoff,
    /// Windows: the machine shuts down.
    CtrlShutdown,
}

/// Where signals come from, and whether the process is the crate's to exit.
///
/// It is made by [`signal::terminate`](crate::signal::terminate), which takes SIGTERM and SIGINT in hand from that line
/// on, or by [`signal::none`](crate::signal::none) in a program whose signals belong to somebody else.
#[must_use = "signals are caught as long as a coordinator has this; dropped, the first signal ends the process"]
pub struct Signals {
    link: Arc<Link>,
    caught: &'static str,
    leave: Option<Leave>,
    claimed: bool,
}

/// How the process is left when exiting is ours: with a code, at once.
pub(crate) type Leave = Arc<dyn Fn(u8) + Send + Sync>;

/// What a source tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Stop(Signal),
    Pause,
    Resume,
    /// Print what is in flight.
    Dump,
}

/// Who hears a source; called on the source's thread, never on a worker of the program's runtime.
pub(crate) trait Listener: Send + Sync {
    fn told(&self, what: Told, at: Instant);
    /// When the source is to call [`Listener::tick`] next.
    fn wake_at(&self) -> Option<Instant>;
    fn tick(&self, now: Instant);
}

/// Joins a source to its coordinator: what is told before there is a listener is kept.
pub(crate) struct Link {
    end: Mutex<End>,
    changed: Notify,
}

enum End {
    Waiting(Vec<(Told, Instant)>),
    Listening(Arc<dyn Listener>),
    Gone,
}

// === impl Reason ===

impl Reason {
    /// A reason in the program's own words.
    pub fn requested(why: impl Into<Cow<'static, str>>) -> Self {
        Reason::Requested(why.into())
    }

    /// Whether the reason is itself a failure: of a task, or of the start-up.
    pub fn is_failure(&self) -> bool {
        !matches!(self, Reason::Signal(_) | Reason::Requested(_) | Reason::TaskEnded { .. })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Signal(signal) => write!(f, "{signal}"),
            Reason::Requested(why) => f.write_str(why),
            Reason::TaskEnded { task } => write!(f, "task \"{task}\" ended"),
            Reason::TaskFailed { task, error } => write!(f, "task \"{task}\" failed: {error}"),
            Reason::TaskPanicked { task, message } => write!(f, "task \"{task}\" panicked: {message}"),
            Reason::StartFailed { error } => write!(f, "start-up failed: {error}"),
            Reason::Dropped => f.write_str("the coordinator was dropped"),
        }
    }
}

impl From<Signal> for Reason {
    fn from(signal: Signal) -> Self {
        Reason::Signal(signal)
    }
}

impl From<&'static str> for Reason {
    fn from(why: &'static str) -> Self {
        Reason::Requested(Cow::Borrowed(why))
    }
}

impl From<String> for Reason {
    fn from(why: String) -> Self {
        Reason::Requested(Cow::Owned(why))
    }
}

// === impl Signal ===

impl Signal {
    /// All signals that winddown knows.
    pub const ALL: [Signal; 9] = [
        Signal::Terminate,
        Signal::Interrupt,
        Signal::Quit,
        Signal::Hangup,
        Signal::CtrlC,
        Signal::CtrlBreak,
        Signal::CtrlClose,
        Signal::CtrlLogoff,
        Signal::CtrlShutdown,
    ];

    /// The name that log and report use: `SIGTERM`, `CTRL_CLOSE`.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Terminate => "SIGTERM",
            Signal::Interrupt => "SIGINT",
            Signal::Quit => "SIGQUIT",
            Signal::Hangup => "SIGHUP",
            Signal::CtrlC => "CTRL_C",
            Signal::CtrlBreak => "CTRL_BREAK",
            Signal::CtrlClose => "CTRL_CLOSE",
            Signal::CtrlLogoff => "CTRL_LOGOFF",
            Signal::CtrlShutdown => "CTRL_SHUTDOWN",
        }
    }

    /// The number, as in the exit code 128 + n.
    ///
    /// The console events of Windows have the number of the signal that means the same, so that an exit code means
    /// the same everywhere: what a user's keys send is SIGINT's, the rest is SIGTERM's.
    pub fn number(self) -> u8 {
        match self {
            Signal::Hangup => 1,
            Signal::Interrupt | Signal::CtrlC | Signal::CtrlBreak => 2,
            Signal::Quit => 3,
            Signal::Terminate | Signal::CtrlClose | Signal::CtrlLogoff | Signal::CtrlShutdown => 15,
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

// === impl Signals ===

impl Signals {
    pub(crate) fn new(link: Arc<Link>, caught: &'static str, leave: Option<Leave>) -> Self {
        Signals { link, caught, leave, claimed: false }
    }

    /// What is caught and what it does, as the start line says it.
    pub fn caught(&self) -> &'static str {
        self.caught
    }

    /// Whether the process is ours to exit.
    pub fn may_exit(&self) -> bool {
        self.leave.is_some()
    }

    /// Takes both over: from here on it is the coordinator that lets go.
    pub(crate) fn claim(mut self) -> (Arc<Link>, Option<Leave>) {
        self.claimed = true;
        (Arc::clone(&self.link), self.leave.take())
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").field("caught", &self.caught).field("may_exit", &self.may_exit()).finish()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        if !self.claimed {
            self.link.let_go();
        }
    }
}

// === impl Link ===

impl Link {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Link { end: Mutex::new(End::Waiting(Vec::new())), changed: Notify::new() })
    }

    /// Tells what was seen; `false` when nobody is left to hear it.
    pub(crate) fn tell(&self, what: Told, at: Instant) -> bool {
        let listener = match &mut *self.end.lock().unwrap_or_else(PoisonError::into_inner) {
            End::Waiting(kept) => {
                kept.push((what, at));
                return true;
            }
            End::Listening(listener) => Arc::clone(listener),
            End::Gone => return false,
        };
        // Outside the lock: a listener may let go of the link.
        listener.told(what, at);
        true
    }

    /// Puts a listener in place and gives it what was told before, in order.
    pub(crate) fn listen(&self, listener: Arc<dyn Listener>) {
        let kept = {
            let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
            match std::mem::replace(&mut *end, End::Listening(Arc::clone(&listener))) {
                End::Waiting(kept) => kept,
                _ => Vec::new(),
            }
        };
        for (what, at) in kept {
            listener.told(what, at);
        }
        self.changed.notify_one();
    }

    /// Nobody listens any more: from here on the source acts as if nothing had been registered.
    pub(crate) fn let_go(&self) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = End::Gone;
        self.changed.notify_one();
    }

    /// Asks the source's thread to look at [`Link::wake_at`] again.
    pub(crate) fn nudge(&self) {
        self.changed.notify_one();
    }

    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn wake_at(&self) -> Option<Instant> {
        self.listener().and_then(|listener| listener.wake_at())
    }

    pub(crate) fn tick(&self, now: Instant) {
        if let Some(listener) = self.listener() {
            listener.tick(now);
        }
    }

    fn listener(&self) -> Option<Arc<dyn Listener>> {
        match &*self.end.lock().unwrap_or_else(PoisonError::into_inner) {
            End::Listening(listener) => Some(Arc::clone(listener)),
            _ => None,
        }
    }
}
