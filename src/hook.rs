//! What users do in a phase: bounded, caught and timed, each by itself.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use tokio::time::Instant;

use crate::catch::Work;
use crate::error::BoxError;
use crate::phase::Phase;
use crate::trigger::Reason;

/// An instant by which something has to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

/// What a hook is told: the phase it runs in, by when it has to be done, and why the program stops.
#[derive(Debug, Clone)]
pub struct HookCx {
    phase: Phase,
    reason: Reason,
    deadline: Deadline,
}

/// In [`Phase::Close`]: what closes before what. Later ranks close later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Rank {
    /// What takes work from elsewhere.
    Consumers,
    /// What sends results elsewhere.
    Producers,
    /// Whatever else is held open; where a hook goes that does not say.
    #[default]
    Clients,
    /// Connection pools: last of what the work uses.
    Pools,
    /// Logs, traces, metrics: they tell of all the others.
    Telemetry,
}

/// What a hook or a task may return: nothing, or a result; a task that loops for ever returns neither.
pub trait IntoResult {
    /// Turns it into a result with any error.
    fn into_result(self) -> Result<(), BoxError>;
}

pub(crate) struct Hook {
    pub(crate) phase: Phase,
    pub(crate) name: Cow<'static, str>,
    pub(crate) rank: Rank,
    pub(crate) after: Vec<Cow<'static, str>>,
    pub(crate) limit: Option<Duration>,
    pub(crate) call: Call,
}

pub(crate) enum Call {
    Async(Box<dyn FnOnce(HookCx) -> Work + Send>),
    /// Runs on a thread of its own.
    Blocking(Box<dyn FnOnce(HookCx) -> Result<(), BoxError> + Send>),
}

/// Why hooks cannot be put in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum OrderError {
    Unknown { hook: String, after: String, phase: Phase },
    Cycle { hooks: Vec<String>, phase: Phase },
}

// === impl Deadline ===

impl Deadline {
    pub(crate) fn at(instant: Instant) -> Self {
        Deadline(instant)
    }

    /// The instant itself, for `tokio::time::timeout_at`.
    pub fn instant(self) -> Instant {
        self.0
    }

    /// The time that is left; zero when it has passed.
    pub fn remaining(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

// === impl HookCx ===

impl HookCx {
    pub(crate) fn new(phase: Phase, reason: Reason, deadline: Instant) -> Self {
        HookCx { phase, reason, deadline: Deadline(deadline) }
    }

    /// The phase in which the hook runs.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Why the program stops.
    pub fn reason(&self) -> &Reason {
        &self.reason
    }

    /// When the hook is given up, unless a signal brings that forward.
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }
}

// === impl IntoResult ===

impl IntoResult for () {
    fn into_result(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<T, E: Into<BoxError>> IntoResult for Result<T, E> {
    fn into_result(self) -> Result<(), BoxError> {
        self.map(drop).map_err(Into::into)
    }
}

/// What a loop without an end returns, `!`, under the one name that stable Rust has for it.
type Never = <fn() -> ! as HasOutput>::Output;

#[doc(hidden)]
pub trait HasOutput {
    type Output;
}

impl<T> HasOutput for fn() -> T {
    type Output = T;
}

impl IntoResult for Never {
    fn into_result(self) -> Result<(), BoxError> {
        self
    }
}

// === impl Hook ===

impl Hook {
    /// The hook as a future.
    pub(crate) fn start(self, cx: HookCx) -> Work {
        match self.call {
            // The call itself may panic before there is a future: inside one, that is caught with the rest.
            Call::Async(call) => Box::pin(async move { call(cx).await }),
            Call::Blocking(call) => Box::pin(on_a_thread(self.name.into_owned(), move || call(cx))),
        }
    }
}

async fn on_a_thread(
    name: String,
    call: impl FnOnce() -> Result<(), BoxError> + Send + 'static,
) -> Result<(), BoxError> {
    let (done, result) = tokio::sync::oneshot::channel();
    // Not the runtime's blocking pool: that may be full of the very work that will not end.
    // A thread's name ends at a NUL, and one that is inside is a panic.
    std::thread::Builder::new().name(name.replace('\0', " ")).spawn(move || {
        let ended = std::panic::catch_unwind(AssertUnwindSafe(call));
        // Nobody hears it where the hook was given up.
        let _ = done.send(ended);
    })?;
    match result.await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => std::panic::resume_unwind(panic),
        Err(_) => Err("the hook's thread went away".into()),
    }
}

/// What a hook's place depends on.
pub(crate) struct Place<'a> {
    pub(crate) name: &'a str,
    pub(crate) rank: Rank,
    pub(crate) after: &'a [Cow<'static, str>],
}

/// For each hook of one phase, in the order in which they start, the positions of those it waits for.
///
/// In [`Phase::Close`] that order is by rank, then in reverse order of registration, as `Drop` does; what a hook is
/// `after` goes first in any case. In the other phases hooks run side by side, and only `after` makes one wait.
pub(crate) fn in_order(phase: Phase, hooks: &[Place<'_>]) -> Result<Vec<(usize, Vec<usize>)>, OrderError> {
    let mut waits: Vec<Vec<usize>> = Vec::with_capacity(hooks.len());
    for hook in hooks {
        let mut these = Vec::new();
        for after in hook.after {
            let found: Vec<usize> =
                (0..hooks.len()).filter(|&other| hooks[other].name == after.as_ref()).collect();
            if found.is_empty() {
                return Err(OrderError::Unknown {
                    hook: hook.name.to_owned(),
                    after: after.to_string(),
                    phase,
                });
            }
            these.extend(found);
        }
        waits.push(these);
    }
    let mut left: BTreeSet<(Rank, std::cmp::Reverse<usize>)> = hooks
        .iter()
        .enumerate()
        .map(|(index, hook)| {
            (if phase == Phase::Close { hook.rank } else { Rank::default() }, std::cmp::Reverse(index))
        })
        .collect();
    let mut started = vec![false; hooks.len()];
    let mut order = Vec::with_capacity(hooks.len());
    while !left.is_empty() {
        let next = left.iter().find(|(_, index)| waits[index.0].iter().all(|&other| started[other])).copied();
        let Some(next) = next else {
            let hooks = left.iter().map(|(_, index)| hooks[index.0].name.to_owned()).collect();
            return Err(OrderError::Cycle { hooks, phase });
        };
        left.remove(&next);
        let index = next.1.0;
        started[index] = true;
        order.push((index, waits[index].clone()));
    }
    Ok(order)
}

// === impl OrderError ===

impl fmt::Display for OrderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OrderError::Unknown { hook, after, phase } => {
                write!(
                    f,
                    "hook \"{hook}\" is to run after \"{after}\", and phase {phase} has no hook of that name"
                )
            }
            OrderError::Cycle { hooks, phase } => {
                write!(f, "hooks of phase {phase} wait for each other: {}", hooks.join(", "))
            }
        }
    }
}

impl std::error::Error for OrderError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(
        phase: Phase,
        hooks: &[(&'static str, Rank, &[&'static str])],
    ) -> Result<Vec<String>, OrderError> {
        let after: Vec<Vec<Cow<'static, str>>> = hooks
            .iter()
            .map(|(_, _, after)| after.iter().map(|name| Cow::Borrowed(*name)).collect())
            .collect();
        let places: Vec<Place<'_>> = hooks
            .iter()
            .zip(&after)
            .map(|((name, rank, _), after)| Place { name, rank: *rank, after })
            .collect();
        Ok(in_order(phase, &places)?.into_iter().map(|(index, _)| hooks[index].0.to_owned()).collect())
    }

    #[test]
    fn pools_close_after_clients_wherever_they_were_registered() {
        let hooks = [
            ("logs", Rank::Telemetry, &[][..]),
            ("db", Rank::Pools, &[]),
            ("a", Rank::Clients, &[]),
            ("b", Rank::Clients, &[]),
            ("kafka", Rank::Consumers, &[]),
        ];
        assert_eq!(order(Phase::Close, &hooks).unwrap(), ["kafka", "b", "a", "db", "logs"]);
    }

    #[test]
    fn after_goes_before_rank_and_registration() {
        let hooks = [("a", Rank::Clients, &[][..]), ("b", Rank::Clients, &["db"]), ("db", Rank::Pools, &[])];
        assert_eq!(order(Phase::Close, &hooks).unwrap(), ["a", "db", "b"]);
    }

    #[test]
    fn an_unknown_name_and_a_cycle_are_refused() {
        let unknown = order(Phase::Close, &[("a", Rank::Clients, &["nobody"][..])]).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "hook \"a\" is to run after \"nobody\", and phase close has no hook of that name"
        );
        let cycle = order(Phase::Drain, &[("a", Rank::Clients, &["b"][..]), ("b", Rank::Clients, &["a"])]);
        assert_eq!(cycle.unwrap_err().to_string(), "hooks of phase drain wait for each other: b, a");
    }
}
