//! What starts a stop.

use std::fmt;

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
