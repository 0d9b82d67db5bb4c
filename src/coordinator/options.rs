//! What may be said of a hook or a task beside its name.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use super::Task;
use crate::hook::{Hook, Rank};
use crate::phase::Phase;

/// Says more of a hook that was just registered.
pub struct HookOptions<'a>(pub(super) &'a mut Hook);

/// Says more of a task that was just registered.
pub struct TaskOptions<'a>(pub(super) &'a mut Task);

// === impl HookOptions ===

impl HookOptions<'_> {
    /// The most that the hook may take; its phase's deadline holds in any case.
    pub fn limit(self, limit: Duration) -> Self {
        self.0.limit = Some(limit);
        self
    }

    /// In [`Phase::Close`]: what it closes with.
    pub fn rank(self, rank: Rank) -> Self {
        self.0.rank = rank;
        self
    }

    /// Runs after the hook of that name in the same phase. An unknown name, or a cycle, is refused at start-up.
    pub fn after(self, name: impl Into<Cow<'static, str>>) -> Self {
        self.0.after.push(name.into());
        self
    }
}

impl fmt::Debug for HookOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookOptions")
            .field("name", &self.0.name)
            .field("phase", &self.0.phase)
            .field("rank", &self.0.rank)
            .field("after", &self.0.after)
            .field("limit", &self.0.limit)
            .finish()
    }
}

// === impl TaskOptions ===

impl TaskOptions<'_> {
    /// Its end before the stop is no reason to stop; its error or panic is still in the report.
    pub fn optional(self) -> Self {
        self.0.critical = false;
        self
    }

    /// The phase in which it is awaited: [`Phase::Drain`] when not given.
    ///
    /// Later ones are for what serves the work itself, such as the renewal of leases ([`Phase::Requeue`]) or a listener
    /// for probes ([`Phase::Close`]). Earlier ones are taken as the drain.
    pub fn until(self, phase: Phase) -> Self {
        self.0.until = phase.max(Phase::Drain);
        self
    }

    /// It is there for the work of a gate: where work of that is lost, an abort of this is no news of its own.
    pub(crate) fn serving(self, gate: impl Into<Cow<'static, str>>) -> Self {
        self.0.serves = Some(gate.into());
        self
    }

    /// It is a coordinator of its own.
    pub(super) fn part(self) -> Self {
        self.0.part = true;
        self
    }

    /// When the drain is over it hears [`ShutdownHandle::cancelled`](crate::ShutdownHandle::cancelled) and gets half of the time for handing back to end by
    /// itself, rather than being dropped at once.
    pub fn cooperative(self) -> Self {
        self.0.cooperative = true;
        self
    }
}

impl fmt::Debug for TaskOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskOptions")
            .field("name", &self.0.unit.name)
            .field("until", &self.0.until)
            .field("critical", &self.0.critical)
            .field("cooperative", &self.0.cooperative)
            .finish()
    }
}
