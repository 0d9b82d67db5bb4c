//! Takes in what was not finished and brings it back: in order, side by side, again and again until it worked.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use super::{Cx, HANDED, Held, Item, Job, LIVE, LOST, OWED, Unfinished, Why};
use crate::budget::Overrun;
use crate::error::BoxError;
use crate::gate::{Gate, InFlight, Returns};
use crate::hook::caught;
use crate::latch::Latch;

/// How many calls of a single callback run side by side when nothing is said.
pub(super) const CALLS_AT_ONCE: usize = 64;
/// How many items one batch holds at the most.
const BATCH: usize = 1000;
/// At a stop, how long to wait for more items so that they go back in their old order, and how often.
const STRAGGLERS: Duration = Duration::from_millis(10);
const STRAGGLER_WAITS: u32 = 5;
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

pub(super) type Call = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
pub(super) type Callback<T> = Box<dyn Fn(Vec<Unfinished<T>>) -> Call + Send + Sync>;
type OneCallback<T> = Arc<dyn Fn(Unfinished<T>) -> Call + Send + Sync>;

#[derive(Clone, Copy)]
pub(super) enum Width {
    Single(usize),
    Batch,
}

pub(super) struct Core<T: Send + Sync + 'static> {
    pub(super) gate: Gate,
    width: Width,
    callback: Callback<T>,
    config: Mutex<Config<T>>,
    book: Mutex<Book<T>>,
    /// Something was pushed to `owed`.
    arrived: Notify,
    /// A job was ended or an item settled.
    settled: Notify,
    give_up: Latch,
}

pub(super) struct Config<T> {
    pub(super) name: Option<Arc<dyn Fn(&T) -> String + Send + Sync>>,
    pub(super) last_resort: Option<Arc<dyn Fn(&T, &str) + Send + Sync>>,
    pub(super) still_running: Option<OneCallback<T>>,
    pub(super) limit: Option<Duration>,
    pub(super) overrun: Overrun,
    pub(super) calls: Option<usize>,
}

/// Who holds what. An item is in `items` from its admission until both its job is gone and it is settled.
struct Book<T> {
    items: Vec<Slot<T>>,
    free: u32,
    filled: usize,
    /// Items whose handlers have not ended.
    running: usize,
    admitted: u64,
    owed: Vec<Owed<T>>,
    collecting: bool,
}

enum Slot<T> {
    Item(Arc<Item<T>>),
    Free(u32),
}

/// An item on its way back; the guard keeps the drain from ending before it got there.
struct Owed<T> {
    item: Arc<Item<T>>,
    guard: InFlight,
}

const NONE: u32 = u32::MAX;

// === impl Core ===

impl<T: Send + Sync + 'static> Core<T> {
    pub(super) fn new(gate: Gate, width: Width, callback: Callback<T>) -> Arc<Self> {
        let core = Arc::new(Core {
            gate,
            width,
            callback,
            config: Mutex::new(Config {
                name: None,
                last_resort: None,
                still_running: None,
                limit: None,
                overrun: Overrun::Requeue,
                calls: None,
            }),
            book: Mutex::new(Book {
                items: Vec::new(),
                free: NONE,
                filled: 0,
                running: 0,
                admitted: 0,
                owed: Vec::new(),
                collecting: false,
            }),
            arrived: Notify::new(),
            settled: Notify::new(),
            give_up: Latch::new(),
        });
        // Weak: the gate must not keep alive what keeps the gate alive.
        let weak = Arc::downgrade(&core);
        core.gate.seat().attach(weak);
        core
    }

    pub(super) fn config(&self) -> MutexGuard<'_, Config<T>> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn book(&self) -> MutexGuard<'_, Book<T>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell_limit(&self) {
        let (limit, overrun) = {
            let config = self.config();
            (config.limit, config.overrun)
        };
        self.gate.seat().set_task_limit(limit, overrun);
    }

    pub(super) fn cx(&self) -> Cx {
        Cx::new(self.gate.clone(), self.config().overrun)
    }

    pub(super) fn register(self: &Arc<Self>, value: T, guard: InFlight) -> Job<T> {
        let mut book = self.book();
        let number = book.admitted;
        book.admitted += 1;
        let slot = if book.free == NONE { book.items.len() as u32 } else { book.free };
        let item = Arc::new(Item {
            value,
            number,
            slot,
            state: AtomicU8::new(LIVE),
            why: AtomicU8::new(Why::Dropped as u8),
        });
        book.fill(slot, Arc::clone(&item));
        drop(book);
        Job { held: Some(Held { core: Arc::clone(self), item, guard }) }
    }

    /// The job has ended, and its item is settled, or is somebody else's to settle.
    pub(super) fn job_is_gone(&self, item: &Item<T>) {
        let gone = {
            let mut book = self.book();
            book.running -= 1;
            book.remove(item.slot)
        };
        // The item's own drop may be anything: not under the lock.
        drop(gone);
        self.settled.notify_one();
    }

    /// Takes the item of a job that has ended; brings up a collector where none is at work.
    pub(super) fn owe(core: &Arc<Self>, item: Arc<Item<T>>, guard: InFlight) {
        let start = {
            let mut book = core.book();
            book.running -= 1;
            book.owed.push(Owed { item, guard });
            !std::mem::replace(&mut book.collecting, true)
        };
        if start {
            core.collect_in_background();
        }
        core.arrived.notify_one();
    }

    fn collect_in_background(self: &Arc<Self>) {
        let collector = Collector(Arc::clone(self));
        match &self.gate.seat().runtime {
            // On a runtime that is shutting down the collector is dropped, and its drop loses nothing unnamed.
            Some(runtime) => drop(runtime.spawn(collector.run())),
            None => drop(collector),
        }
    }

    fn name(&self, item: &Item<T>) -> String {
        let name = self.config().name.clone();
        name.and_then(|name| std::panic::catch_unwind(AssertUnwindSafe(|| name(&item.value))).ok())
            .unwrap_or_else(|| format!("#{}", item.number))
    }

    /// The item reached its queue.
    fn handed(&self, owed: Owed<T>) {
        if owed.item.settle(HANDED) {
            tracing::info!(target: "winddown", gate = self.gate.name(), item = self.name(&owed.item),
                why = owed.item.why().as_str(), "item.requeued");
            self.book().remove(owed.item.slot);
            self.gate.seat().handed_back(owed.guard);
        } else {
            drop(owed.guard);
        }
        self.settled.notify_one();
    }

    /// The item did not reach its queue: it goes to the last-resort sink and by name into the report.
    fn lose(&self, item: &Arc<Item<T>>, guard: Option<InFlight>, why: &str) {
        if item.settle(LOST) {
            let name = self.name(item);
            tracing::error!(target: "winddown", gate = self.gate.name(), item = name, why, "item.lost");
            if let Some(sink) = self.config().last_resort.clone() {
                // A panicking sink must not take the other items with it.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(|| sink(&item.value, why)));
            }
            self.gate.seat().lost(name, why);
        }
        if let Some(guard) = guard {
            self.book().remove(item.slot);
            self.gate.seat().lost_guard(guard);
        }
        self.settled.notify_one();
    }

    /// At a stop: waits a little for items that come at the same time, so that they go back in their old order.
    async fn stragglers(&self) {
        for _ in 0..STRAGGLER_WAITS {
            if !self.gate.is_cancelled() || self.book().running == 0 {
                return;
            }
            if tokio::time::timeout(STRAGGLERS, self.arrived.notified()).await.is_err() {
                return;
            }
        }
    }

    fn take_owed(&self) -> Vec<Owed<T>> {
        let mut owed = std::mem::take(&mut self.book().owed);
        owed.sort_unstable_by_key(|owed| owed.item.number);
        owed
    }

    /// Calls back until it worked or is given up; what is left is dropped into the last resort.
    async fn bring_back(self: Arc<Self>, owed: Vec<Owed<T>>) {
        let mut load = Load { core: &self, owed, why: None };
        let mut pause = FIRST_RETRY;
        loop {
            let items = load.owed.iter().map(|owed| Unfinished { item: Arc::clone(&owed.item) }).collect();
            let call = (self.callback)(items);
            let (_, error) = tokio::select! {
                biased;
                ended = caught(call) => ended,
                () = self.give_up.fired() => {
                    load.why.get_or_insert_with(|| "the callback was not done in time".to_owned());
                    return;
                }
            };
            let Some(error) = error else {
                for owed in std::mem::take(&mut load.owed) {
                    self.handed(owed);
                }
                return;
            };
            tracing::warn!(target: "winddown", gate = self.gate.name(), items = load.owed.len(), error,
                "requeue.failed");
            load.why = Some(error);
            tokio::select! {
                biased;
                () = self.give_up.fired() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_RETRY),
            }
        }
    }
}

/// Items that are being handed back: dropped before that worked, they are lost by name.
struct Load<'a, T: Send + Sync + 'static> {
    core: &'a Arc<Core<T>>,
    owed: Vec<Owed<T>>,
    why: Option<String>,
}

impl<T: Send + Sync + 'static> Drop for Load<'_, T> {
    fn drop(&mut self) {
        let why = self.why.as_deref().unwrap_or("the runtime ended before it was handed back");
        for owed in self.owed.drain(..) {
            self.core.lose(&owed.item, Some(owed.guard), why);
        }
    }
}

/// The one that brings items back; there is at most one for an intake, and none when nothing is owed.
struct Collector<T: Send + Sync + 'static>(Arc<Core<T>>);

impl<T: Send + Sync + 'static> Collector<T> {
    async fn run(self) {
        let core = &self.0;
        let at_once = match core.width {
            Width::Single(calls) => core.config().calls.unwrap_or(calls),
            Width::Batch => 1,
        };
        let mut calls = FuturesUnordered::new();
        let mut waiting: VecDeque<Owed<T>> = VecDeque::new();
        loop {
            if calls.is_empty() && waiting.is_empty() {
                core.stragglers().await;
            }
            waiting.extend(core.take_owed());
            if calls.is_empty() && waiting.is_empty() && self.is_done() {
                return;
            }
            while calls.len() < at_once && !waiting.is_empty() {
                let load = match core.width {
                    // The newest first: pushed to the front one by one, they stand in their old order.
                    Width::Single(_) => waiting.pop_back().into_iter().collect(),
                    Width::Batch => waiting.drain(..waiting.len().min(BATCH)).collect(),
                };
                calls.push(Arc::clone(core).bring_back(load));
            }
            tokio::select! {
                biased;
                Some(()) = calls.next() => {}
                () = core.arrived.notified() => {}
                () = core.give_up.fired() => {
                    for owed in waiting.drain(..).chain(core.take_owed()) {
                        core.lose(&owed.item, Some(owed.guard), "its turn to be handed back did not come in time");
                    }
                    while calls.next().await.is_some() {}
                    if self.is_done() {
                        return;
                    }
                }
            }
        }
    }

    /// Ends the collector where nothing is owed; under the lock, so that whoever owes next starts another.
    fn is_done(&self) -> bool {
        let mut book = self.0.book();
        if book.owed.is_empty() {
            book.collecting = false;
        }
        !book.collecting
    }
}

impl<T: Send + Sync + 'static> Drop for Collector<T> {
    fn drop(&mut self) {
        let core = &self.0;
        let left = {
            let mut book = core.book();
            book.collecting = false;
            std::mem::take(&mut book.owed)
        };
        for owed in left {
            core.lose(&owed.item, Some(owed.guard), "the runtime ended before it was handed back");
        }
    }
}

// === impl Returns ===

impl<T: Send + Sync + 'static> Returns for Core<T> {
    fn names(&self, most: usize) -> Vec<String> {
        // For a thread that must not be held up: nothing rather than a wait.
        let Ok(book) = self.book.try_lock() else { return Vec::new() };
        let items: Vec<Arc<Item<T>>> = book.items().take(most).map(Arc::clone).collect();
        drop(book);
        items.iter().map(|item| self.name(item)).collect()
    }

    fn settled(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            loop {
                let settled = self.settled.notified();
                {
                    let book = self.book();
                    if book.running == 0 && book.filled == 0 {
                        return;
                    }
                }
                settled.await;
            }
        })
    }

    fn still_running(&self) -> Vec<Pin<Box<dyn Future<Output = ()> + Send>>> {
        Vec::new()
    }

    fn give_up(&self) {
        self.give_up.fire();
    }
}

// === impl Book ===

impl<T> Book<T> {
    fn fill(&mut self, slot: u32, item: Arc<Item<T>>) {
        let entry = Slot::Item(item);
        match self.items.get_mut(slot as usize) {
            Some(place) => {
                if let Slot::Free(next) = std::mem::replace(place, entry) {
                    self.free = next;
                }
            }
            None => self.items.push(entry),
        }
        self.filled += 1;
        self.running += 1;
    }

    fn remove(&mut self, slot: u32) -> Option<Arc<Item<T>>> {
        let place = self.items.get_mut(slot as usize)?;
        match std::mem::replace(place, Slot::Free(self.free)) {
            Slot::Item(item) => {
                self.free = slot;
                self.filled -= 1;
                Some(item)
            }
            free => {
                *place = free;
                None
            }
        }
    }

    fn items(&self) -> impl Iterator<Item = &Arc<Item<T>>> {
        self.items.iter().filter_map(|slot| match slot {
            Slot::Item(item) => Some(item),
            Slot::Free(_) => None,
        })
    }
}
