//! Signals as a source: in hand from the line that asks for them, on a thread that nothing can block.

use std::io;
use std::sync::Arc;

use tokio::time::Instant;

use crate::trigger::{Link, Signals, Told};
use crate::watchdog;

#[cfg(unix)]
use unix as os;
#[cfg(windows)]
use windows as os;

/// Says which signals are caught.
///
/// ```no_run
/// # fn main() -> std::io::Result<()> {
/// let signals = winddown::signal::Builder::new().pause(true).dump(true).listen()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "nothing is caught before `listen`"]
pub struct Builder {
    pause: bool,
    dump: bool,
}

/// Takes SIGTERM and SIGINT in hand (on Windows the five console events), and with them the leave to exit the process.
///
/// From here on a signal stops the program instead of killing it, also while it still starts, and as PID 1. They are
/// seen by a thread of their own, so that a second one forces and a third one exits, and the watchdog leaves before the
/// platform kills, also when every worker of the runtime is blocked.
///
/// # Errors
///
/// The signals could not be registered, or there is no thread to be had.
pub fn terminate() -> io::Result<Signals> {
    Builder::new().listen()
}

/// No signals: for a program whose signals belong to somebody else. Its owner calls
/// [`ShutdownHandle::trigger`](crate::ShutdownHandle::trigger), and nothing ever exits the process.
pub fn none() -> Signals {
    Signals::new(Link::new(), "no signals", None)
}

// === impl Builder ===

impl Builder {
    /// SIGTERM and SIGINT.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also catches SIGTSTP, which pauses, and SIGCONT, which resumes. Not on Windows.
    pub fn pause(mut self, yes: bool) -> Self {
        self.pause = yes;
        self
    }

    /// Also catches SIGUSR1, which prints what is in flight to standard error. Not on Windows.
    pub fn dump(mut self, yes: bool) -> Self {
        self.dump = yes;
        self
    }

    /// Registers them, before it returns.
    ///
    /// # Errors
    ///
    /// As [`terminate`].
    pub fn listen(self) -> io::Result<Signals> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let sources = {
            let _in_its_context = runtime.enter();
            os::register(&self)?
        };
        let link = Link::new();
        let told = Arc::clone(&link);
        std::thread::Builder::new()
            .name("winddown-signals".to_owned())
            .spawn(move || runtime.block_on(see(sources, told)))?;
        Ok(Signals::new(link, os::caught(&self), Some(Arc::new(|code| watchdog::leave(code)))))
    }
}

/// Tells what it sees, and wakes the watchdog when its time has come.
async fn see(mut sources: os::Sources, link: Arc<Link>) {
    loop {
        let wake_at = link.wake_at();
        let wake = async {
            match wake_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            what = sources.next() => {
                // Nobody has a coordinator for it: what the system would have done without us.
                let heard = link.tell(what, Instant::now());
                if let (false, Told::Stop(signal)) = (heard, what) {
                    watchdog::leave(128_u8.saturating_add(signal.number()));
                }
            }
            () = link.changed() => {}
            () = wake => link.tick(Instant::now()),
        }
    }
}

#[cfg(unix)]
mod unix {
    use std::io;

    use tokio::signal::unix::{Signal as Source, SignalKind, signal};

    use super::Builder;
    use crate::trigger::{Signal, Told};

    pub(super) struct Sources(Vec<(Source, Told)>);

    pub(super) fn caught(wanted: &Builder) -> &'static str {
        match (wanted.pause, wanted.dump) {
            (false, false) => "SIGTERM, SIGINT: stop; twice: now",
            (true, false) => "SIGTERM, SIGINT: stop; twice: now; SIGTSTP: pause; SIGCONT: resume",
            (false, true) => "SIGTERM, SIGINT: stop; twice: now; SIGUSR1: print what is in flight",
            (true, true) => {
                "SIGTERM, SIGINT: stop; twice: now; SIGTSTP: pause; SIGCONT: resume; SIGUSR1: print what is in flight"
            }
        }
    }

    pub(super) fn register(wanted: &Builder) -> io::Result<Sources> {
        let mut kinds = vec![
            (SignalKind::terminate(), Told::Stop(Signal::Terminate)),
            (SignalKind::interrupt(), Told::Stop(Signal::Interrupt)),
        ];
        if wanted.pause {
            kinds.push((SignalKind::from_raw(signal_hook::consts::SIGTSTP), Told::Pause));
            kinds.push((SignalKind::from_raw(signal_hook::consts::SIGCONT), Told::Resume));
        }
        if wanted.dump {
            kinds.push((SignalKind::user_defined1(), Told::Dump));
        }
        let sources = kinds.into_iter().map(|(kind, told)| Ok((signal(kind)?, told)));
        Ok(Sources(sources.collect::<io::Result<_>>()?))
    }

    impl Sources {
        pub(super) async fn next(&mut self) -> Told {
            std::future::poll_fn(|cx| {
                for (source, told) in &mut self.0 {
                    if source.poll_recv(cx).is_ready() {
                        return std::task::Poll::Ready(*told);
                    }
                }
                std::task::Poll::Pending
            })
            .await
        }
    }
}

#[cfg(windows)]
mod windows {
    use std::io;

    use tokio::signal::windows;

    use super::Builder;
    use crate::trigger::{Signal, Told};

    pub(super) struct Sources {
        c: windows::CtrlC,
        break_: windows::CtrlBreak,
        close: windows::CtrlClose,
        logoff: windows::CtrlLogoff,
        shutdown: windows::CtrlShutdown,
    }

    pub(super) fn caught(_: &Builder) -> &'static str {
        "Ctrl+C, Ctrl+Break, close, log-off, shutdown: stop; twice: now"
    }

    pub(super) fn register(_: &Builder) -> io::Result<Sources> {
        Ok(Sources {
            c: windows::ctrl_c()?,
            break_: windows::ctrl_break()?,
            close: windows::ctrl_close()?,
            logoff: windows::ctrl_logoff()?,
            shutdown: windows::ctrl_shutdown()?,
        })
    }

    impl Sources {
        pub(super) async fn next(&mut self) -> Told {
            let signal = tokio::select! {
                _ = self.c.recv() => Signal::CtrlC,
                _ = self.break_.recv() => Signal::CtrlBreak,
                _ = self.close.recv() => Signal::CtrlClose,
                _ = self.logoff.recv() => Signal::CtrlLogoff,
                _ = self.shutdown.recv() => Signal::CtrlShutdown,
            };
            Told::Stop(signal)
        }
    }
}
