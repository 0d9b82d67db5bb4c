//! A coordinator on paused time, with false signals, that records what happened in which order.

use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::signals::{Exit, FakeSignals, signals_with_exit};
use crate::budget::Budget;
use crate::coordinator::ShutdownCoordinator;
use crate::report::{GateReport, Report};
use crate::trigger::Signal;

/// A coordinator under test, with false signals and a recorder. Reads as the coordinator itself.
///
/// Use it on paused time, as with `#[tokio::test(start_paused = true)]`: then hours take no time, and durations are exact.
///
/// ```
/// # use std::time::Duration;
/// use winddown::testing::{Ledger, Rig};
/// use winddown::{Phase, Signal};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// let mut rig = Rig::new(Duration::from_secs(10));
/// let notes = rig.notes();
///
/// let uploads = rig.gate("uploads");
/// let (in_flight, done) = (uploads.enter().unwrap(), notes.clone());
/// tokio::spawn(async move {
///     let _ = in_flight.run(tokio::time::sleep(Duration::from_secs(3))).await;
///     done.note("uploaded");
/// });
/// let closed = notes.clone();
/// rig.on(Phase::Close, "db", async move |_| closed.note("closed db"));
///
/// rig.signals().send(Signal::Terminate);
/// let stopped = rig.run().await;
/// stopped.assert_clean();
/// stopped.assert_order(["uploaded", "closed db"]);
/// stopped.assert_took(Duration::from_secs(3));
/// stopped.assert_ledger("uploads", Ledger { held: 1, finished: 1, ..Ledger::default() });
/// # }
/// ```
#[must_use = "nothing runs before `run`"]
pub struct Rig {
    shutdown: ShutdownCoordinator,
    signals: FakeSignals,
    notes: Notes,
}

/// Records events in their order; cheap to clone into whatever is to be watched.
#[derive(Clone)]
pub struct Notes {
    made_at: Instant,
    events: Arc<Mutex<Vec<(Duration, String)>>>,
}

/// What came of a [`Rig`] that was run. Its assertions panic with the whole story: events and report.
pub struct Stopped {
    report: Report,
    signals: FakeSignals,
    notes: Notes,
}

/// What a gate's ledger is to say: `held + let_in = finished + handed_back + cut + lost`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger {
    /// What was in the gate when it closed.
    pub held: usize,
    /// Children that were let in after it closed.
    pub let_in: usize,
    /// What was finished.
    pub finished: usize,
    /// What was handed back.
    pub handed_back: usize,
    /// Peers that were cut, in whatever state.
    pub cut: usize,
    /// What was neither.
    pub lost: usize,
}

// === impl Rig ===

impl Rig {
    /// With a grace period that is given, and divided as ever.
    ///
    /// # Panics
    ///
    /// The budget is refused, or there is no tokio runtime here.
    #[track_caller]
    pub fn new(grace: Duration) -> Self {
        Self::with_budget(Budget::given(grace, "rig"))
    }

    /// With a budget of its own.
    ///
    /// # Panics
    ///
    /// The budget is refused, or there is no tokio runtime here.
    #[track_caller]
    pub fn with_budget(budget: Budget) -> Self {
        let (signals, fake) = signals_with_exit();
        let notes = Notes { made_at: Instant::now(), events: Arc::default() };
        match ShutdownCoordinator::new(budget, signals) {
            Ok(shutdown) => Rig { shutdown, signals: fake, notes },
            Err(error) => panic!("{error}"),
        }
    }

    /// The false signals. Exits are recorded, and the program goes on.
    pub fn signals(&self) -> FakeSignals {
        self.signals.clone()
    }

    /// The recorder.
    pub fn notes(&self) -> Notes {
        self.notes.clone()
    }

    /// Sends SIGTERM when that much time has passed from now.
    pub fn terminate_after(&self, delay: Duration) {
        self.signals.send_at(Instant::now() + delay, Signal::Terminate);
    }

    /// Runs the coordinator to its end.
    ///
    /// Without a signal, a trigger or a task that ends this never ends, on paused time at once: tokio has nothing left to wait
    /// for.
    pub async fn run(self) -> Stopped {
        let Rig { shutdown, signals, notes } = self;
        Stopped { report: shutdown.run().await, signals, notes }
    }
}

impl Deref for Rig {
    type Target = ShutdownCoordinator;

    fn deref(&self) -> &ShutdownCoordinator {
        &self.shutdown
    }
}

impl DerefMut for Rig {
    fn deref_mut(&mut self) -> &mut ShutdownCoordinator {
        &mut self.shutdown
    }
}

impl fmt::Debug for Rig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rig").field("shutdown", &self.shutdown).field("notes", &self.notes).finish()
    }
}

// === impl Notes ===

impl Notes {
    fn lock(&self) -> MutexGuard<'_, Vec<(Duration, String)>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this happened now.
    pub fn note(&self, event: impl Into<String>) {
        let at = self.made_at.elapsed();
        self.lock().push((at, event.into()));
    }

    /// All that was recorded, in its order, with the time since the rig was made.
    pub fn events(&self) -> Vec<(Duration, String)> {
        self.lock().clone()
    }

    /// When this happened first, from when the rig was made.
    pub fn at(&self, event: &str) -> Option<Duration> {
        self.lock().iter().find(|(_, name)| name == event).map(|(at, _)| *at)
    }
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.events()).finish()
    }
}

/// One event a line, with its time.
impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, event) in self.events() {
            let at = format!("+{:.3} s", at.as_secs_f64());
            writeln!(f, "  {at:>9}  {event}")?;
        }
        Ok(())
    }
}

// === impl Stopped ===

impl Stopped {
    /// The report.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// The recorder.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Where the process would have been left; see [`FakeSignals::exits`].
    pub fn exits(&self) -> Vec<Exit> {
        self.signals.exits()
    }

    /// The exit code is 0 (nothing was forced, failed or lost), the ledgers add up, and the watchdog slept.
    ///
    /// # Panics
    ///
    /// It was not so.
    #[track_caller]
    pub fn assert_clean(&self) {
        if !self.report.is_clean() {
            self.fail(format_args!("the stop was not clean: exit code {}", self.report.code()));
        }
        if let Some(exit) = self.exits().first() {
            self.fail(format_args!("the process would have been left, with exit code {}", exit.code));
        }
        self.assert_adds_up();
    }

    /// These events happened, each after the one before it. Others may have happened in between.
    ///
    /// # Panics
    ///
    /// It was not so.
    #[track_caller]
    pub fn assert_order<'a>(&self, events: impl IntoIterator<Item = &'a str>) {
        let happened = self.notes.events();
        let mut rest = happened.iter();
        let mut before: Cow<'_, str> = "the beginning".into();
        for event in events {
            if !rest.any(|(_, name)| name == event) {
                match self.notes.at(event) {
                    Some(_) => self.fail(format_args!("\"{event}\" did not happen after {before}")),
                    None => self.fail(format_args!("\"{event}\" did not happen")),
                }
            }
            before = format!("\"{event}\"").into();
        }
    }

    /// The stop took exactly that long, from the trigger.
    ///
    /// # Panics
    ///
    /// It was not so.
    #[track_caller]
    pub fn assert_took(&self, expected: Duration) {
        let took = self.report.took();
        if took != expected {
            self.fail(format_args!("the stop took {took:?}, and not {expected:?}"));
        }
    }

    /// The gate's ledger says this.
    ///
    /// # Panics
    ///
    /// It says something else, or there is no gate of that name.
    #[track_caller]
    pub fn assert_ledger(&self, gate: &str, expected: Ledger) {
        match self.report.gate(gate).map(Ledger::from) {
            Some(ledger) if ledger == expected => {}
            Some(ledger) => self.fail(format_args!(
                "the ledger of gate {gate} is not as expected\n  expected: {expected:?}\n  it says:  {ledger:?}"
            )),
            None => self.fail(format_args!("there is no gate {gate}")),
        }
    }

    /// All ledgers add up.
    ///
    /// # Panics
    ///
    /// It was not so.
    #[track_caller]
    pub fn assert_adds_up(&self) {
        if let Some(gate) = self.report.gates().iter().find(|gate| !gate.adds_up()) {
            self.fail(format_args!("the ledger of gate {} does not add up", gate.name));
        }
    }

    #[track_caller]
    fn fail(&self, what: fmt::Arguments<'_>) -> ! {
        panic!("{what}\nevents, from when the rig was made:\n{}{}", self.notes, self.report);
    }
}

impl fmt::Debug for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopped").field("notes", &self.notes).field("report", &self.report).finish()
    }
}

// === impl Ledger ===

impl From<&GateReport> for Ledger {
    fn from(report: &GateReport) -> Self {
        Ledger {
            held: report.held,
            let_in: report.let_in,
            finished: report.finished,
            handed_back: report.handed_back,
            cut: report.cut_in_all(),
            lost: report.lost,
        }
    }
}
