//! What the first, the second and the third signal mean: a table of the signals seen and their times.

use std::time::Duration;

use crate::trigger::Signal;

/// Signals this close to the last one that counted are the same key press, or the same platform, told twice.
const WINDOW: Duration = Duration::from_millis(250);

/// Decides what a signal means from the signals before it: the first begins the stop, the second forces it, the third
/// exits at once.
///
/// It never goes back, and it knows no clock: times are given with the signals, counted from any fixed moment.
///
/// Only signals escalate. A stop that was begun by code leaves this untouched, so the first signal during such a stop is
/// still the first: whoever presses Ctrl+C once asked for a stop, not for a forced one, whatever the program had begun
/// by itself. It is answered with [`Step::Begin`], which changes nothing in a stop that runs; the next one forces.
///
/// ```
/// use std::time::Duration;
/// use winddown::{Escalation, Signal, Step};
///
/// let mut escalation = Escalation::new();
/// let ms = Duration::from_millis;
/// assert_eq!(escalation.see(Signal::Terminate, ms(0)), Step::Begin);
/// assert_eq!(escalation.see(Signal::Interrupt, ms(100)), Step::Doubled);
/// assert_eq!(escalation.see(Signal::Interrupt, ms(400)), Step::Force);
/// assert_eq!(escalation.see(Signal::Interrupt, ms(900)), Step::Exit);
/// ```
#[derive(Debug, Clone)]
pub struct Escalation {
    window: Duration,
    forces: bool,
    exits: bool,
    terminate_repeats: bool,
    level: Level,
    counted_at: Duration,
    forced_by: Option<Signal>,
}

/// What a signal means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Begin the stop; where it runs already, only take note.
    Begin,
    /// The last signal once more: does not count.
    Doubled,
    /// Give up on waiting, not on handing back or closing.
    Force,
    /// Leave the process at once.
    Exit,
    /// Seen, and nothing left that it could change.
    Repeated,
}

/// How far signals have brought it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Running,
    Begun,
    Forced,
    Exited,
}

// === impl Escalation ===

impl Escalation {
    /// The usual meaning: stop, force, exit; doubled within 250 ms counts once.
    pub fn new() -> Self {
        Self {
            window: WINDOW,
            forces: true,
            exits: true,
            terminate_repeats: false,
            level: Level::Running,
            counted_at: Duration::ZERO,
            forced_by: None,
        }
    }

    /// How long after a signal that counted another one, of any kind, is a double of it; the last moment is included.
    /// With zero only signals of the same moment are doubles.
    pub fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// Whether a second signal forces. Where it does not, the second one already exits, unless that is off too.
    pub fn forces(mut self, yes: bool) -> Self {
        self.forces = yes;
        self
    }

    /// Whether the signal after the last other step exits at once.
    pub fn exits(mut self, yes: bool) -> Self {
        self.exits = yes;
        self
    }

    /// For platforms that send SIGTERM again and again: it then begins a stop and never escalates one. Others still do.
    pub fn terminate_repeats(mut self, yes: bool) -> Self {
        self.terminate_repeats = yes;
        self
    }

    /// Takes the next signal, seen `at` that time, and says what it means.
    ///
    /// A time before that of the last signal that counted is taken as that time.
    pub fn see(&mut self, signal: Signal, at: Duration) -> Step {
        // Doubles are counted from the last signal that counted and not from the last seen: else a hail of signals,
        // each close to the one before it, would never escalate.
        let doubled = self.level != Level::Running && at.saturating_sub(self.counted_at) <= self.window;
        let (level, step) = match self.level {
            Level::Running => (Level::Begun, Step::Begin),
            _ if doubled => return Step::Doubled,
            _ if self.terminate_repeats && signal == Signal::Terminate => return Step::Repeated,
            Level::Begun if self.forces => (Level::Forced, Step::Force),
            Level::Begun | Level::Forced if self.exits => (Level::Exited, Step::Exit),
            Level::Begun | Level::Forced | Level::Exited => return Step::Repeated,
        };
        if step == Step::Force {
            self.forced_by = Some(signal);
        }
        self.level = level;
        self.counted_at = at;
        step
    }

    /// The signal that forced, for the exit code 128 + n.
    pub fn forced_by(&self) -> Option<Signal> {
        self.forced_by
    }
}

impl Default for Escalation {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Step ===

impl Step {
    /// The word that log and report use.
    pub fn as_str(self) -> &'static str {
        match self {
            Step::Begin => "begin",
            Step::Doubled => "doubled",
            Step::Force => "force",
            Step::Exit => "exit",
            Step::Repeated => "repeated",
        }
    }
}
