//! Signals that a test sends, within the process and on its own clock: no real signal can hit a test beside it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::{Instant, sleep_until};

use crate::trigger::{Link, Signal, Signals, Told};

/// Sends signals to the coordinator that was given the [`Signals`] made with it.
///
/// What is sent is heard before `send` returns; what is sent before there is a coordinator is kept for it, as with real
/// signals. Clones are the same source.
#[derive(Clone)]
pub struct FakeSignals {
    link: Arc<Link>,
    exits: Arc<Mutex<Vec<Exit>>>,
    may_exit: bool,
}

/// The process would have been left here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// With this code.
    pub code: u8,
    /// At this time.
    pub at: Instant,
}

/// False signals, in a program whose process is not ours to exit, as with [`signal::none`](crate::signal::none).
///
/// ```
/// # use std::time::Duration;
/// use winddown::{Budget, ShutdownCoordinator, Signal, testing};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let (signals, fake) = testing::signals();
/// let shutdown = ShutdownCoordinator::new(Budget::given(Duration::from_secs(10), "test"), signals).unwrap();
/// fake.send(Signal::Terminate);
/// let report = shutdown.run().await;
/// assert_eq!(*report.reason(), Signal::Terminate.into());
/// # }
/// ```
pub fn signals() -> (Signals, FakeSignals) {
    let fake = FakeSignals { link: Link::new(), exits: Arc::default(), may_exit: false };
    (Signals::new(Arc::clone(&fake.link), "false signals", None), fake)
}

/// False signals that also give leave to exit, as with [`signal::terminate`](crate::signal::terminate): where the process
/// would be left, by a third signal or by the watchdog, [`FakeSignals::exits`] has it instead, and the program goes on.
///
/// The watchdog is driven by a task on the current runtime and its clock, so that it works on paused time. It cannot see
/// a blocked runtime: for that there is [`process`](super::process).
///
/// # Panics
///
/// There has to be a tokio runtime here.
///
/// ```
/// # use std::time::Duration;
/// # use tokio::time::Instant;
/// use winddown::{Budget, Phase, ShutdownCoordinator, Signal, testing};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let (signals, fake) = testing::signals_with_exit();
/// let mut shutdown = ShutdownCoordinator::new(Budget::given(Duration::from_secs(10), "test"), signals).unwrap();
/// shutdown.on(Phase::Close, "stuck", async |_| std::future::pending::<()>().await);
/// for ms in [0, 400, 800] {
///     fake.send_at(Instant::now() + Duration::from_millis(ms), Signal::Terminate);
/// }
/// shutdown.run().await;
/// assert_eq!(fake.exits()[0].code, 143);         // the third; a real process would have been gone here
/// # }
/// ```
pub fn signals_with_exit() -> (Signals, FakeSignals) {
    let fake = FakeSignals { link: Link::new(), exits: Arc::default(), may_exit: true };
    let exits = Arc::clone(&fake.exits);
    tokio::spawn(drive(Arc::clone(&fake.link), Arc::clone(&fake.exits)));
    let leave = move |code| leave(&exits, code);
    (Signals::new(Arc::clone(&fake.link), "false signals; the process may exit", Some(Arc::new(leave))), fake)
}

// === impl FakeSignals ===

impl FakeSignals {
    /// Sends a signal now, by the clock of tokio. Returns whether anybody heard it, or will.
    pub fn send(&self, signal: Signal) -> bool {
        let heard = self.link.tell(Told::Stop(signal), Instant::now());
        if !heard && self.may_exit {
            // What the system would have done.
            leave(&self.exits, 128_u8.saturating_add(signal.number()));
        }
        heard
    }

    /// Sends a signal at `at`, from a task of the current runtime.
    ///
    /// # Panics
    ///
    /// There has to be a tokio runtime here.
    pub fn send_at(&self, at: Instant, signal: Signal) {
        let fake = self.clone();
        tokio::spawn(async move {
            sleep_until(at).await;
            fake.send(signal);
        });
    }

    /// Pauses, as SIGTSTP does where it is asked for.
    pub fn pause(&self) -> bool {
        self.link.tell(Told::Pause, Instant::now())
    }

    /// Resumes, as SIGCONT does where it is asked for.
    pub fn resume(&self) -> bool {
        self.link.tell(Told::Resume, Instant::now())
    }

    /// Has what is in flight printed to standard error, as SIGUSR1 does where it is asked for.
    pub fn dump(&self) -> bool {
        self.link.tell(Told::Dump, Instant::now())
    }

    /// When and how the process would have been left; the first is the one that counts, since a real process would have
    /// been gone then.
    pub fn exits(&self) -> Vec<Exit> {
        self.exits.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for FakeSignals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeSignals").field("exits", &self.exits()).finish_non_exhaustive()
    }
}

fn leave(exits: &Mutex<Vec<Exit>>, code: u8) {
    exits.lock().unwrap_or_else(PoisonError::into_inner).push(Exit { code, at: Instant::now() });
}

/// Wakes the watchdog when its time has come, until it has left.
async fn drive(link: Arc<Link>, exits: Arc<Mutex<Vec<Exit>>>) {
    while exits.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
        match link.wake_at() {
            Some(at) => tokio::select! {
                biased;
                () = link.changed() => {}
                () = sleep_until(at) => link.tick(Instant::now()),
            },
            None => link.changed().await,
        }
    }
}
