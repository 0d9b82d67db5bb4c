//! The state of an intake: who holds what, and how each item is settled.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::book::{Book, Owed};
use super::{Cx, Held, Item, Job, Unfinished, Why};
use crate::backoff::Backoff;
use crate::budget::Human;
use crate::catch::{caught, panic_message, quietly};
use crate::error::BoxError;
use crate::gate::{Gate, InFlight, Lost, Returns, Settled};
use crate::latch::Latch;
use crate::overrun::Overrun;

mod collect;

use collect::Collector;

/// How many calls of a single callback run side by side when nothing is said.
pub(super) const CALLS_AT_ONCE: usize = 64;
/// Between the calls of a callback that fails, while nothing hurries; and once there is an end to it.
const RETRY: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(5));
const RETRY_STOPPING: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
/// How often a callback that goes on failing is told of.
const SAY_AGAIN: Duration = Duration::from_secs(1);

const NOT_DONE: &str = "the callback was not done in time";
const NO_CALLBACK: &str = "its handler would not stop, and there is no callback for that";

pub(super) type Call = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
pub(super) type Callback<T> = Box<dyn Fn(Vec<Unfinished<T>>) -> Call + Send + Sync>;
type Namer<T> = Arc<dyn Fn(&T) -> String + Send + Sync>;
type Sink<T> = Arc<dyn Fn(&T, &str) + Send + Sync>;
type Kind<T> = Arc<dyn Fn(&T) -> usize + Send + Sync>;
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
    options: Mutex<Options<T>>,
    book: Mutex<Book<T>>,
    /// Something was pushed to `owed`.
    arrived: Notify,
    /// A job was ended or an item settled.
    settled: Notify,
    /// An item is done that had been given up as still running.
    late: Notify,
    give_up: Latch,
    /// Whether items have names, and so ages: their clock is read only then.
    pub(super) ages: AtomicBool,
}

pub(super) struct Options<T> {
    pub(super) name: Option<Namer<T>>,
    pub(super) last_resort: Option<Sink<T>>,
    pub(super) still_running: Option<OneCallback<T>>,
    pub(super) limit: Option<Duration>,
    pub(super) overrun: Overrun,
    pub(super) calls: Option<usize>,
    /// Which items go back together.
    pub(super) kind: Option<Kind<T>>,
}

/// Why an item did not get back.
pub(super) enum GivenUp {
    /// The callback said so, the last time that it was called.
    Refused(String),
    /// There was no time for it, or nobody to do it.
    Late(&'static str),
}

// === impl Core ===

impl<T: Send + Sync + 'static> Core<T> {
    pub(super) fn new(gate: Gate, width: Width, callback: Callback<T>) -> Arc<Self> {
        let core = Arc::new(Core {
            gate,
            width,
            callback,
            options: Mutex::new(Options {
                name: None,
                last_resort: None,
                still_running: None,
                limit: None,
                overrun: Overrun::Requeue,
                calls: None,
                kind: None,
            }),
            book: Mutex::new(Book::new()),
            arrived: Notify::new(),
            settled: Notify::new(),
            late: Notify::new(),
            give_up: Latch::new(),
            ages: AtomicBool::new(false),
        });
        // Weak: the gate must not keep alive what keeps the gate alive.
        let weak = Arc::downgrade(&core);
        core.gate.seat().attach(weak);
        core
    }

    pub(super) fn options(&self) -> MutexGuard<'_, Options<T>> {
        self.options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn book(&self) -> MutexGuard<'_, Book<T>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell_limit(&self) {
        let (limit, overrun) = {
            let options = self.options();
            (options.limit, options.overrun)
        };
        self.gate.seat().set_task_limit(limit, overrun);
    }

    pub(super) fn cx(&self) -> Cx {
        Cx::new(self.gate.clone(), self.options().overrun)
    }

    pub(super) fn register(self: &Arc<Self>, value: T, guard: InFlight) -> Job<T> {
        let since = self.ages.load(Ordering::Relaxed).then(Instant::now);
        let (key, item) = self.book().admit(value, since);
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
        // The item's own drop may take its time: not under the lock.
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

    /// The item is finished, which had been given up as still running: where nobody has taken it over, it is that.
    pub(super) fn done_after_all(&self, item: &Item<T>) {
        item.done.store(true, Ordering::Release);
        self.late.notify_waiters();
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
        let collector = Collector::new(Arc::clone(self));
        // A gate of its own has no runtime but the one that it is used on.
        let runtime = self.gate.seat().runtime.clone().or_else(|| Handle::try_current().ok());
        match runtime {
            // On a runtime that is shutting down the collector is dropped, and its drop loses nothing unnamed.
            Some(runtime) => drop(runtime.spawn(collector.run())),
            None => drop(collector),
        }
    }

    fn name(&self, item: &Item<T>) -> String {
        let name = self.options().name.clone();
        name.and_then(|name| quietly(|| name(item.value()))).unwrap_or_else(|| format!("#{}", item.number))
    }

    /// The item reached its queue; without a guard it may still be running.
    fn handed(&self, item: &Arc<Item<T>>, held: Option<(usize, InFlight)>) {
        let seat = self.gate.seat();
        let why = item.why();
        if item.ending.hand() {
            match held {
                Some((key, guard)) => {
                    tracing::info!(target: "winddown", gate = self.gate.name(), item = self.name(item),
                        why = why.as_str(), "item.requeued");
                    let gone = self.book().items.remove(key);
                    drop(gone);
                    seat.handed_back(guard);
                }
                None => {
                    let name = self.name(item);
                    tracing::warn!(target: "winddown", gate = self.gate.name(), item = name, "item.still_running");
                    seat.taken_over(name);
                }
            }
            self.settle_one();
        }
    }

    /// The item did not reach its queue: it goes to the last-resort sink and by name into the report.
    fn lose(&self, item: &Arc<Item<T>>, held: Option<(usize, InFlight)>, why: &GivenUp) {
        let refused = matches!(why, GivenUp::Refused(_));
        let why = why.as_str();
        if item.ending.lose() {
            let name = self.name(item);
            tracing::error!(target: "winddown", gate = self.gate.name(), item = name, why, "item.lost");
            let sink = self.options().last_resort.clone();
            if let Some(sink) = sink {
                // A panicking sink must not take the other items with it.
                quietly(|| sink(item.value(), why));
            }
            self.gate.seat().lost(Lost { item: name, why: why.to_owned(), refused });
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

    /// Gives an item that may still be running to the callback for these.
    async fn take_over(self: Arc<Self>, item: Arc<Item<T>>, callback: Option<OneCallback<T>>) {
        let Some(callback) = callback else {
            return self.lose(&item, None, &GivenUp::Late(NO_CALLBACK));
        };
        let again = || callback(item.unfinished());
        let done = async {
            loop {
                // Made before the look, so that what is said in between is not missed.
                let late = self.late.notified();
                if item.done.load(Ordering::Acquire) {
                    return;
                }
                late.await;
            }
        };
        match self.until_done(again, done).await {
            Ok(()) => self.handed(&item, None),
            Err(_) if item.done.load(Ordering::Acquire) => {
                if item.ending.finish_after_all() {
                    self.settle_one();
                }
            }
            Err(why) => self.lose(&item, None, &why),
        }
    }

    /// Calls until it worked; the last error once that is given up, or once it is `needless`.
    async fn until_done(
        &self,
        mut call: impl FnMut() -> Call,
        needless: impl Future<Output = ()>,
    ) -> Result<(), GivenUp> {
        let mut needless = std::pin::pin!(needless);
        let mut why: Option<String> = None;
        let mut failures = 0;
        let mut said: Option<(Instant, String)> = None;
        loop {
            // The call itself may panic before there is a future.
            let called = std::panic::catch_unwind(AssertUnwindSafe(&mut call));
            let called: Call = called.unwrap_or_else(|panic| {
                let message = panic_message(panic);
                Box::pin(async move { Err(message.into()) })
            });
            tokio::select! {
                biased;
                (_, error) = caught(called) => match error {
                    None => return Ok(()),
                    Some(error) => why = Some(error),
                },
                () = self.give_up.fired() => {
                    return Err(why.map_or(GivenUp::Late(NOT_DONE), GivenUp::Refused));
                }
            }
            let error = why.as_deref().unwrap_or_default();
            // Each failure is much like the last one: told of once a second, and when it is another.
            if said.as_ref().is_none_or(|(at, last)| last != error || at.elapsed() >= SAY_AGAIN) {
                said = Some((Instant::now(), error.to_owned()));
                tracing::warn!(target: "winddown", gate = self.gate.name(), error, "requeue.failed");
            }
            let stopping = self.gate.is_stopping();
            let pause = if stopping { RETRY_STOPPING } else { RETRY }.after(failures);
            tokio::select! {
                biased;
                () = self.give_up.fired() => return Err(GivenUp::Refused(why.unwrap_or_default())),
                // Not while it is called: what comes of that goes before.
                () = &mut needless => return Err(GivenUp::Refused(why.unwrap_or_default())),
                // Now it hurries: the rest of a long pause could be longer than the time that is left.
                () = self.gate.stopping(), if !stopping => failures = 0,
                () = tokio::time::sleep(pause) => failures += 1,
            }
        }
    }
}

// === impl GivenUp ===

impl GivenUp {
    fn as_str(&self) -> &str {
        match self {
            GivenUp::Refused(why) => why,
            GivenUp::Late(why) => why,
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
        let age = |item: &Item<T>| item.since.map(|since| format!(", for {:.3}", Human(since.elapsed())));
        let line = |item: &Arc<Item<T>>| {
            format!("{} of gate {}{}", self.name(item), self.gate.name(), age(item).unwrap_or_default())
        };
        items.iter().map(line).collect()
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
        for item in &stuck {
            self.gate.seat().account();
            if !item.rests() {
                self.gate.seat().item_overdue();
            }
        }
        let callback = self.options().still_running.clone();
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
