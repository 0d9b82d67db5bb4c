//! What a gate's place in a coordinator gives it: a runtime, the drain's end, and the counts of its ledger.

use std::collections::BTreeMap;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

#[cfg(feature = "http")]
use super::{CLOSED, DETAILED, ONE, here};
use super::{Gate, InFlight};
#[cfg(feature = "http")]
use crate::latch::FiredOwned;
use crate::overrun::Overrun;

/// Hands back what a gate let in and what was not finished.
pub(crate) trait Returns: Send + Sync {
    /// Up to `most` items that are neither finished nor handed back, a line each; nothing rather than a wait.
    fn names(&self, most: usize) -> Vec<String>;

    /// Waits until every item is finished, handed back or lost.
    fn settled(&self) -> Settled<'_>;

    /// Takes away what has not ended, gives it to the *still running* callback, and waits for that.
    fn still_running(self: Arc<Self>) -> Settled<'static>;

    /// Ends all callbacks: what they have not brought back is lost, by name.
    fn give_up(&self);
}

pub(crate) type Settled<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Holds a drain open without being work itself; made by [`InFlight::keep_open`].
///
/// For what brings in work after the close, such as a listener with its backlog: the ledger counts what it lets in, and
/// not the keeper. One that is never dropped is in it, as work that did not end.
#[must_use = "dropping this lets the drain end"]
pub struct Keeper(pub(super) ManuallyDrop<InFlight>);

/// When the drain ends, once that is known; shared by the gates of a coordinator.
#[derive(Debug, Clone, Default)]
pub(crate) struct DrainEnd(Arc<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Set after `at`, from the trigger on: so that whoever only asks whether there is a stop takes no lock.
    is: AtomicBool,
    at: Mutex<Option<Instant>>,
}

/// The counts are of what happened after the close: before it, nothing has to add up.
pub(crate) struct Seat {
    pub(crate) runtime: Option<Handle>,
    /// How many shields are up.
    pub(crate) shields: AtomicUsize,
    /// Those that went after the close: they are in the count of what was held then, or in that of children since.
    keepers: AtomicUsize,
    /// Those that were made after the close, whether they are gone or not.
    late_keepers: AtomicUsize,
    drain_end: DrainEnd,
    /// One for each intake that was made of the gate.
    returns: Mutex<Vec<Weak<dyn Returns>>>,
    task_limit: Mutex<(Option<Duration>, Overrun)>,
    handed_back: AtomicUsize,
    still_running: Mutex<Vec<String>>,
    /// Given up as still running, their guards not dropped: counted elsewhere in the ledger already.
    accounted: AtomicUsize,
    lost: Mutex<Vec<Lost>>,
    cut: Mutex<BTreeMap<&'static str, usize>>,
    overdue: AtomicUsize,
}

/// An item that was neither finished nor handed back.
#[derive(Debug, Clone)]
pub(crate) struct Lost {
    pub(crate) item: String,
    pub(crate) why: String,
    /// It is the callback that says why, and not the clock.
    pub(crate) refused: bool,
}

// === impl DrainEnd ===

impl DrainEnd {
    pub(crate) fn set(&self, at: Instant) {
        *lock(&self.0.at) = Some(at);
        self.0.is.store(true, Ordering::Release);
    }

    pub(crate) fn remaining(&self) -> Option<Duration> {
        lock(&self.0.at).map(|at| at.saturating_duration_since(Instant::now()))
    }
}

// === impl Seat ===

impl Seat {
    pub(super) fn new(runtime: Option<Handle>, drain_end: DrainEnd) -> Self {
        Seat {
            runtime,
            shields: AtomicUsize::new(0),
            keepers: AtomicUsize::new(0),
            late_keepers: AtomicUsize::new(0),
            drain_end,
            returns: Mutex::new(Vec::new()),
            task_limit: Mutex::new((None, Overrun::default())),
            handed_back: AtomicUsize::new(0),
            still_running: Mutex::new(Vec::new()),
            accounted: AtomicUsize::new(0),
            lost: Mutex::new(Vec::new()),
            cut: Mutex::new(BTreeMap::new()),
            overdue: AtomicUsize::new(0),
        }
    }

    pub(crate) fn attach(&self, returns: Weak<dyn Returns>) {
        let mut all = lock(&self.returns);
        all.retain(|returns| returns.strong_count() > 0);
        all.push(returns);
    }

    pub(crate) fn returns(&self) -> Vec<Arc<dyn Returns>> {
        lock(&self.returns).iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn set_task_limit(&self, limit: Option<Duration>, overrun: Overrun) {
        *lock(&self.task_limit) = (limit, overrun);
    }

    pub(crate) fn task_limit(&self) -> (Option<Duration>, Overrun) {
        *lock(&self.task_limit)
    }

    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.drain_end.remaining()
    }

    /// An item went back; its guard ends here.
    pub(crate) fn handed_back(&self, guard: InFlight) {
        guard.leave(|_| {
            self.handed_back.fetch_add(1, Ordering::AcqRel);
        });
    }

    /// An item was given up as still running; its guard is somewhere on its thread.
    pub(crate) fn account(&self) {
        self.accounted.fetch_add(1, Ordering::AcqRel);
    }

    /// The thread of an item that was given up has come back after all.
    pub(crate) fn back_after_all(&self, guard: InFlight) {
        drop(guard);
        self.accounted.fetch_sub(1, Ordering::AcqRel);
    }

    /// An item that may still be running was taken over by the callback for these.
    pub(crate) fn taken_over(&self, item: String) {
        self.handed_back.fetch_add(1, Ordering::AcqRel);
        lock(&self.still_running).push(item);
    }

    pub(crate) fn lost(&self, lost: Lost) {
        lock(&self.lost).push(lost);
    }

    pub(crate) fn cut(&self, state: &'static str, overdue: bool) {
        *lock(&self.cut).entry(state).or_default() += 1;
        self.overdue.fetch_add(usize::from(overdue), Ordering::AcqRel);
    }

    /// The end of the drain came before that of a handler.
    pub(crate) fn item_overdue(&self) {
        self.overdue.fetch_add(1, Ordering::AcqRel);
    }

    /// Items and peers that the drain was too short for: not those that met a limit of their own, or came back for another reason.
    pub(crate) fn overdue(&self) -> usize {
        self.overdue.load(Ordering::Acquire)
    }

    pub(super) fn keeper_gone(&self) {
        self.keepers.fetch_add(1, Ordering::AcqRel);
    }

    /// The keepers that are no work, by the count that they are in: of what was held at the close, and of children since.
    pub(crate) fn keepers(&self) -> (usize, usize) {
        let gone = self.keepers.load(Ordering::Acquire);
        let late = self.late_keepers.load(Ordering::Acquire).min(gone);
        (gone - late, late)
    }

    pub(crate) fn handed_back_count(&self) -> usize {
        self.handed_back.load(Ordering::Acquire)
    }

    pub(crate) fn still_running(&self) -> Vec<String> {
        lock(&self.still_running).clone()
    }

    pub(crate) fn accounted_count(&self) -> usize {
        self.accounted.load(Ordering::Acquire)
    }

    pub(crate) fn lost_items(&self) -> Vec<Lost> {
        lock(&self.lost).clone()
    }

    pub(crate) fn cuts(&self) -> Vec<(String, usize)> {
        lock(&self.cut).iter().map(|(state, count)| ((*state).to_owned(), *count)).collect()
    }
}

// === impl Keeper ===

impl InFlight {
    /// Turns a guard into one that holds the drain open and does not count as work.
    #[inline]
    pub fn keep_open(self) -> Keeper {
        if self.is_gate_closed() {
            self.seat().late_keepers.fetch_add(1, Ordering::AcqRel);
        }
        Keeper(ManuallyDrop::new(self))
    }
}

impl Keeper {
    /// Lets in a piece of work, also after the close.
    #[inline]
    #[track_caller]
    pub fn child(&self) -> InFlight {
        self.0.child()
    }
}

#[cfg(feature = "http")]
impl Keeper {
    /// The guard that it was made of.
    #[inline]
    pub(crate) fn in_flight(&self) -> &InFlight {
        &self.0
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Keeper").field(&*self.0).finish()
    }
}

/// For futures and extensions that own their guard: they must neither borrow nor allocate, and hold no more than it.
#[cfg(feature = "http")]
impl InFlight {
    /// Whether a stop has begun, of the coordinator that the gate belongs to. One plain load.
    #[cfg(feature = "tower")]
    #[inline]
    pub(crate) fn is_triggered(&self) -> bool {
        self.seat().drain_end.0.is.load(Ordering::Acquire)
    }

    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.seat().remaining()
    }

    /// A child that is a keeper. Its own addition has told whether the gate is closed, so that no word is read again.
    #[inline]
    #[track_caller]
    pub(crate) fn keeper(&self) -> Keeper {
        let before = self.block().words[here()].0.fetch_add(ONE, Ordering::Relaxed);
        if before & (CLOSED | DETAILED) == 0 {
            Keeper(ManuallyDrop::new(InFlight(self.block_ptr().cast())))
        } else {
            self.child_marked(before).keep_open()
        }
    }

    pub(crate) fn stopping_owned(&self) -> FiredOwned {
        self.block().stopping.fired_owned()
    }

    pub(crate) fn cancelled_owned(&self) -> FiredOwned {
        self.block().cancelled.fired_owned()
    }

    pub(crate) fn gate_name(&self) -> &str {
        &self.block().name
    }
}

impl Gate {
    /// The time until the drain is over; `None` as long as no stop has begun, and for a gate of its own.
    pub fn remaining(&self) -> Option<Duration> {
        self.seat().remaining()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
