//! Takes in what was not finished and brings it back: in order, side by side, again and again until it worked.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Notify;

use super::book::{Book, Owed};
use super::{Cx, Held, Item, Job, Unfinished, Why};
use crate::backoff::Backoff;
use crate::catch::{caught, panic_message};
use crate::error::BoxError;
use crate::gate::{Gate, InFlight, Returns, Settled};
use crate::latch::Latch;
use crate::overrun::Overrun;

/// How many calls of a single callback run side by side when nothing is said.
pub(super) const CALLS_AT_ONCE: usize = 64;
/// How many items one batch holds at the most.
const BATCH: usize = 1000;
/// At a stop, how long to wait for more items so that they go back in their old order, and how often.
const STRAGGLERS: Duration = Duration::from_millis(10);
const STRAGGLER_WAITS: u32 = 5;
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

pub(super) type Call = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
pub(super) type Callback<T> = Box<dyn Fn(Vec<Unfinished<T>>) -> Call + Send + Sync>;
type Namer<T> = Arc<dyn Fn(&T) -> String + Send + Sync>;
type Sink<T> = Arc<dyn Fn(&T, &str) + Send + Sync>;
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
    pub(super) name: Option<Namer<T>>,
    pub(super) last_resort: Option<Sink<T>>,
    pub(super) still_running: Option<OneCallback<T>>,
    pub(super) limit: Option<Duration>,
    pub(super) overrun: Overrun,
    pub(super) calls: Option<usize>,
}

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
            book: Mutex::new(Book::new()),
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
        let (key, item) = self.book().admit(value);
        Job { held: Some(Held { core: Arc::clone(self), item, key, guard }) }
    }

    /// The job's item is finished.
    pub(super) fn finished(&self, key: usize, guard: InFlight) {
        let gone = {
            let mut book = self.book();
            book.live -= 1;
            book.unsettled -= 1;
            book.items.remove(key)
        };
        // The item's own drop may be anything: not under the lock.
        drop(gone);
        drop(guard);
        // Only a stop waits for this, and it has closed the gate before it looked into the book: our look is later.
        if self.gate.is_closed() {
            self.settled.notify_one();
        }
    }

    /// The job has ended whose item had been given up as still running.
    pub(super) fn back_after_all(&self, key: usize, guard: InFlight) {
        let gone = self.book().items.remove(key);
        drop(gone);
        self.gate.seat().back_after_all(guard);
    }

    /// Takes the item of a job that has ended; brings up a collector where none is at work.
    pub(super) fn owe(core: &Arc<Self>, owed: Owed<T>) {
        let start = {
            let mut book = core.book();
            book.live -= 1;
            book.owed.push(owed);
            !std::mem::replace(&mut book.collecting, true)
        };
        if start {
            core.collect_in_background();
        }
        core.arrived.notify_one();
    }

    fn collect_in_background(self: &Arc<Self>) {
        let collector = Collector { core: Arc::clone(self), waiting: BTreeMap::new(), ended: false };
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

    /// The item reached its queue; without a guard it may still be running.
    fn handed(&self, item: &Arc<Item<T>>, held: Option<(usize, InFlight)>) {
        let seat = self.gate.seat();
        let why = item.why();
        if item.ending.hand() {
            tracing::info!(target: "winddown", gate = self.gate.name(), item = self.name(item),
                why = why.as_str(), "item.requeued");
            match held {
                Some((key, guard)) => {
                    let gone = self.book().items.remove(key);
                    drop(gone);
                    seat.handed_back(guard);
                }
                None => seat.taken_over(),
            }
            self.settle_one();
        }
    }

    /// The item did not reach its queue: it goes to the last-resort sink and by name into the report.
    fn lose(&self, item: &Arc<Item<T>>, held: Option<(usize, InFlight)>, why: &str) {
        if item.ending.lose() {
            let name = self.name(item);
            tracing::error!(target: "winddown", gate = self.gate.name(), item = name, why, "item.lost");
            let sink = self.config().last_resort.clone();
            if let Some(sink) = sink {
                // A panicking sink must not take the other items with it.
                let _ = std::panic::catch_unwind(AssertUnwindSafe(|| sink(&item.value, why)));
            }
            self.gate.seat().lost(name, why);
            if let Some((key, _)) = held {
                let gone = self.book().items.remove(key);
                drop(gone);
            }
            self.settle_one();
        }
    }

    fn settle_one(&self) {
        self.book().unsettled -= 1;
        self.settled.notify_one();
    }

    /// At a stop: waits a little for items that come at the same time, so that they go back in their old order.
    async fn stragglers(&self) {
        for _ in 0..STRAGGLER_WAITS {
            if !self.gate.is_cancelled() || self.book().live == 0 {
                return;
            }
            if tokio::time::timeout(STRAGGLERS, self.arrived.notified()).await.is_err() {
                return;
            }
        }
    }

    /// Gives an item that may still be running to the callback for these.
    async fn take_over(self: Arc<Self>, item: Arc<Item<T>>, callback: Option<OneCallback<T>>) {
        let Some(callback) = callback else {
            return self.lose(&item, None, "its handler would not stop, and there is no callback for that");
        };
        let again = || callback(item.unfinished());
        match self.until_done(again).await {
            Ok(()) => self.handed(&item, None),
            Err(why) => self.lose(&item, None, &why),
        }
    }

    /// Calls until it worked; the last error once that is given up.
    async fn until_done(&self, mut call: impl FnMut() -> Call) -> Result<(), String> {
        let mut why = None;
        let mut failures = 0;
        loop {
            // The call itself may panic before there is a future.
            let called = std::panic::catch_unwind(AssertUnwindSafe(&mut call));
            let called: Call = called.unwrap_or_else(|panic| {
                let message = panic_message(&*panic);
                Box::pin(async move { Err(message.into()) })
            });
            tokio::select! {
                biased;
                (_, error) = caught(called) => match error {
                    None => return Ok(()),
                    Some(error) => why = Some(error),
                },
                () = self.give_up.fired() => {
                    return Err(why.unwrap_or_else(|| "the callback was not done in time".to_owned()));
                }
            }
            let error = why.as_deref().unwrap_or_default();
            tracing::warn!(target: "winddown", gate = self.gate.name(), error, "requeue.failed");
            tokio::select! {
                biased;
                () = self.give_up.fired() => return Err(why.unwrap_or_default()),
                () = tokio::time::sleep(RETRY.after(failures)) => failures += 1,
            }
        }
    }

    fn take_owed(&self) -> Vec<Owed<T>> {
        let mut owed = std::mem::take(&mut self.book().owed);
        owed.sort_unstable_by_key(|owed| owed.item.number);
        owed
    }

    /// Brings items back, or loses them by name.
    async fn bring_back(self: Arc<Self>, owed: Vec<Owed<T>>) {
        let mut load = Load { core: &self, owed, why: None };
        let items = |owed: &[Owed<T>]| owed.iter().map(|owed| owed.item.unfinished()).collect();
        let done = self.until_done(|| (self.callback)(items(&load.owed))).await;
        match done {
            Ok(()) => {
                for owed in std::mem::take(&mut load.owed) {
                    self.handed(&owed.item, Some((owed.key, owed.guard)));
                }
            }
            Err(why) => load.why = Some(why),
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
            self.core.lose(&owed.item, Some((owed.key, owed.guard)), why);
        }
    }
}

/// The one that brings items back; there is at most one for an intake, and none when nothing is owed.
struct Collector<T: Send + Sync + 'static> {
    core: Arc<Core<T>>,
    /// By number: what came later may have been let in earlier, and goes back before what waits already.
    waiting: BTreeMap<u64, Owed<T>>,
    /// It has come to its end: what is owed from here on is another one's.
    ended: bool,
}

impl<T: Send + Sync + 'static> Collector<T> {
    async fn run(mut self) {
        let core = &Arc::clone(&self.core);
        let at_once = match core.width {
            Width::Single(calls) => core.config().calls.unwrap_or(calls),
            Width::Batch => 1,
        };
        let mut calls = FuturesUnordered::new();
        loop {
            if calls.is_empty() && self.waiting.is_empty() {
                core.stragglers().await;
            }
            self.waiting.extend(core.take_owed().into_iter().map(|owed| (owed.item.number, owed)));
            if calls.is_empty() && self.waiting.is_empty() && self.is_done() {
                return;
            }
            while calls.len() < at_once && !self.waiting.is_empty() {
                let load = match core.width {
                    // The newest first: pushed to the front one by one, they stand in their old order.
                    Width::Single(_) => self.waiting.pop_last().into_iter().map(|(_, owed)| owed).collect(),
                    Width::Batch => std::iter::from_fn(|| self.waiting.pop_first())
                        .take(BATCH)
                        .map(|(_, owed)| owed)
                        .collect(),
                };
                calls.push(Arc::clone(core).bring_back(load));
            }
            tokio::select! {
                biased;
                Some(()) = calls.next() => {}
                () = core.arrived.notified() => {}
                () = core.give_up.fired() => {
                    for owed in std::mem::take(&mut self.waiting).into_values().chain(core.take_owed()) {
                        core.lose(&owed.item, Some((owed.key, owed.guard)), "its turn to be handed back did not come in time");
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
    fn is_done(&mut self) -> bool {
        let mut book = self.core.book();
        if book.owed.is_empty() {
            book.collecting = false;
            self.ended = true;
        }
        self.ended
    }
}

impl<T: Send + Sync + 'static> Drop for Collector<T> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let core = &self.core;
        let left = {
            let mut book = core.book();
            book.collecting = false;
            std::mem::take(&mut book.owed)
        };
        for owed in std::mem::take(&mut self.waiting).into_values().chain(left) {
            core.lose(
                &owed.item,
                Some((owed.key, owed.guard)),
                "the runtime ended before it was handed back",
            );
        }
    }
}

// === impl Returns ===

impl<T: Send + Sync + 'static> Returns for Core<T> {
    fn names(&self, most: usize) -> Vec<String> {
        // For a thread that must not be held up: nothing rather than a wait.
        let Ok(book) = self.book.try_lock() else { return Vec::new() };
        let items: Vec<Arc<Item<T>>> = book.items.iter().take(most).map(Arc::clone).collect();
        drop(book);
        items.iter().map(|item| self.name(item)).collect()
    }

    fn settled(&self) -> Settled<'_> {
        Box::pin(async move {
            loop {
                // Made before the look, so that what settles in between is not missed.
                let settled = self.settled.notified();
                if self.book().unsettled == 0 {
                    return;
                }
                settled.await;
            }
        })
    }

    fn still_running(self: Arc<Self>) -> Settled<'static> {
        let stuck: Vec<Arc<Item<T>>> = {
            let mut book = self.book();
            let stuck: Vec<Arc<Item<T>>> =
                book.items.iter().filter(|item| item.ending.owe(Why::StillRunning)).map(Arc::clone).collect();
            book.live -= stuck.len();
            stuck
        };
        stuck.iter().for_each(|_| self.gate.seat().account());
        let callback = self.config().still_running.clone();
        Box::pin(async move {
            let calls: FuturesUnordered<_> =
                stuck.into_iter().map(|item| Arc::clone(&self).take_over(item, callback.clone())).collect();
            calls.for_each(|()| std::future::ready(())).await;
        })
    }

    fn give_up(&self) {
        self.give_up.fire();
    }
}
