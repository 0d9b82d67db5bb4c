//! A gate for items that must not be lost: each ends exactly once, finished or handed back.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::catch::quietly;
use crate::error::{BoxError, GateClosed};
use crate::gate::{Gate, InFlight};
use crate::overrun::Overrun;

mod book;
mod core;
mod cx;
mod ending;
mod job;
mod unfinished;

use self::core::Core;
pub use cx::Cx;
use ending::Ending;

/// Lets items in until intake stops, and hands back those that are not finished.
///
/// It is a [`Gate`] with a re-enqueue callback, made by [`Gate::requeue_with`] or [`Gate::requeue_batch_with`]. Whatever
/// [`Intake::admit`] let in is finished, or goes through the callback, or, where that fails until the time is over, to
/// the last-resort sink and by name into the report. There is no fourth outcome.
pub struct Intake<T: Send + Sync + 'static> {
    core: Arc<Core<T>>,
}

/// An item that an [`Intake`] let in; handed back when dropped before it is finished.
#[must_use = "dropping a job hands its item back"]
pub struct Job<T: Send + Sync + 'static> {
    // Taken by whichever ending comes first.
    held: Option<Held<T>>,
}

/// An item that was not finished, as the re-enqueue callback gets it. Reads as the item itself.
///
/// A callback that fails is called again with the same item, so what it does must bear repetition.
pub struct Unfinished<T> {
    item: Arc<Item<T>>,
    why: Why,
}

/// An item that was not let in; it comes back inside.
pub struct Refused<T> {
    item: T,
    why: GateClosed,
}

/// What became of a [`Job`] that was run.
#[derive(Debug)]
#[must_use = "a failed job is handed back when it is dropped"]
#[non_exhaustive]
pub enum Done<T: Send + Sync + 'static, R, E> {
    /// The handler finished it, and nobody else will have it.
    Finished(R),
    /// The handler tried and failed; the job is still held: finish it, run it again, or drop it to hand it back.
    Failed(Job<T>, E),
    /// It took longer than its `task_limit` and was cut; this attempt counts as failed. The job is still held.
    Overran(Job<T>),
    /// It goes back through the re-enqueue callback; no attempt was used.
    HandedBack(Why),
    /// The handler came to its end after the item had been given up as *still running*.
    TooLate(Result<R, E>),
}

/// Why an item is handed back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// Its handler was told so at a checkpoint, and stopped between two steps.
    Interrupted,
    /// The drain was over: its handler was cut.
    Cancelled,
    /// Its handler's thread did not come back in time; it may still be running.
    StillRunning,
    /// The program handed it back.
    Returned,
    /// The job was dropped, as when its task is aborted.
    Dropped,
    /// Its handler panicked.
    Panicked,
}

struct Held<T: Send + Sync + 'static> {
    core: Arc<Core<T>>,
    item: Arc<Item<T>>,
    key: usize,
    guard: InFlight,
}

struct Item<T> {
    /// Taken by the drop alone.
    value: Option<T>,
    /// The order of admission.
    number: u64,
    /// When it was let in, for items that have names.
    since: Option<Instant>,
    ending: Ending,
    /// Its handler has come to an end by itself, and what becomes of it is for the program to say.
    rests: AtomicBool,
    /// The program says that it is finished, and had not been quick enough to be believed.
    done: AtomicBool,
}

// === impl Gate ===

impl Gate {
    /// Makes the gate an [`Intake`]: what is let in and not finished goes to `callback`, one item a call.
    ///
    /// `state` is cloned for each call, so that the callback need not capture anything. Calls run side by side (64 at
    /// most; see [`Intake::concurrency`]) and are started newest first, so that pushing to the front of a queue keeps
    /// the old order. A call that fails, or panics, is repeated until the time for handing back is over.
    ///
    /// ```
    /// # use winddown::{Gate, Unfinished};
    /// # use std::{collections::VecDeque, sync::{Arc, Mutex}};
    /// # fn example(gate: Gate) {
    /// let queue = Arc::new(Mutex::new(VecDeque::<u32>::new()));
    /// let jobs = gate.requeue_with(queue, async |queue: Arc<Mutex<VecDeque<u32>>>, order: Unfinished<u32>| {
    ///     queue.lock().unwrap().push_front(*order);
    ///     Ok::<(), std::io::Error>(())
    /// });
    /// # }
    /// ```
    pub fn requeue_with<S, T, F, Fut, E>(self, state: S, callback: F) -> Intake<T>
    where
        S: Clone + Send + Sync + 'static,
        T: Send + Sync + 'static,
        F: Fn(S, Unfinished<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Intake::new(
            self,
            core::Width::Single(core::CALLS_AT_ONCE),
            Box::new(move |mut items| {
                let one = items.pop().map(|item| callback(state.clone(), item));
                Box::pin(async move {
                    match one {
                        Some(call) => call.await.map_err(Into::into),
                        None => Ok(()),
                    }
                })
            }),
        )
    }

    /// As [`Gate::requeue_with`], with many items a call, oldest first.
    ///
    /// One call runs at a time, unless [`Intake::apart`] says otherwise. A call that fails is repeated with the same items.
    pub fn requeue_batch_with<S, T, F, Fut, E>(self, state: S, callback: F) -> Intake<T>
    where
        S: Clone + Send + Sync + 'static,
        T: Send + Sync + 'static,
        F: Fn(S, Vec<Unfinished<T>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Intake::new(
            self,
            core::Width::Batch,
            Box::new(move |items| {
                let call = callback(state.clone(), items);
                Box::pin(async move { call.await.map_err(Into::into) })
            }),
        )
    }
}

// === impl Intake ===

impl<T: Send + Sync + 'static> Intake<T> {
    fn new(gate: Gate, width: core::Width, callback: core::Callback<T>) -> Self {
        Intake { core: Core::new(gate, width, callback) }
    }

    /// Lets an item in.
    ///
    /// # Errors
    ///
    /// [`Refused`], with the item inside, once intake has stopped or while it is paused.
    #[track_caller]
    pub fn admit(&self, item: T) -> Result<Job<T>, Refused<T>> {
        match self.core.gate.enter() {
            Ok(guard) => Ok(self.core.register(item, guard)),
            Err(why) => Err(Refused { item, why }),
        }
    }

    /// The gate itself.
    pub fn gate(&self) -> &Gate {
        &self.core.gate
    }

    /// How an item is called in log and report, where it then also has an age; its number in order of admission when this is
    /// not given.
    pub fn named(self, name: impl Fn(&T) -> String + Send + Sync + 'static) -> Self {
        self.core.ages.store(true, Ordering::Relaxed);
        self.core.options().name = Some(Arc::new(name));
        self
    }

    /// Where an item goes that could not be handed back. It is called with the item and the reason, must not block for
    /// long, and is the last that is heard of the item outside the report.
    pub fn last_resort(self, sink: impl Fn(&T, &str) + Send + Sync + 'static) -> Self {
        self.core.options().last_resort = Some(Arc::new(sink));
        self
    }

    /// What to do with items whose handler will not stop, and may still be running while this is called.
    ///
    /// Without it they go to the last-resort sink and count as lost: handing them back as the others could run them
    /// twice at once.
    pub fn still_running<S, F, Fut, E>(self, state: S, callback: F) -> Self
    where
        S: Clone + Send + Sync + 'static,
        F: Fn(S, Unfinished<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.core.options().still_running = Some(Arc::new(move |item| {
            let call = callback(state.clone(), item);
            Box::pin(async move { call.await.map_err(Into::into) })
        }));
        self
    }

    /// How long one run may take. Beyond it the attempt is cut: [`Done::Overran`].
    pub fn task_limit(self, limit: Duration) -> Self {
        self.core.options().limit = Some(limit);
        self.core.tell_limit();
        self
    }

    /// What is to happen at a stop when a run is longer than the drain; [`Overrun::Requeue`] when not given.
    pub fn overrun(self, overrun: Overrun) -> Self {
        self.core.options().overrun = overrun;
        self.core.tell_limit();
        self
    }

    /// Sorts items by a number into batches of their own, each with its calls: what fails for one of them holds up no other.
    ///
    /// For [`Gate::requeue_batch_with`], where items go back to more than one place: of each number one call runs at a time, or with a callback
    /// for one item as many as [`Intake::concurrency`] says. Without it all are of one kind. An item over which `kind` panics is of kind 0.
    ///
    /// ```
    /// # use winddown::{Gate, Unfinished};
    /// # fn example(gate: Gate) {
    /// struct Order {
    ///     server: usize,
    /// }
    ///
    /// let orders = gate
    ///     .requeue_batch_with((), async |(), orders: Vec<Unfinished<Order>>| {
    ///         let all_of = orders.first().map(|order| order.server);
    ///         println!("{} go back to {all_of:?}", orders.len());
    ///         Ok::<(), std::io::Error>(())
    ///     })
    ///     .apart(|order| order.server);
    /// # }
    /// ```
    pub fn apart(self, kind: impl Fn(&T) -> usize + Send + Sync + 'static) -> Self {
        self.core.options().kind = Some(Arc::new(kind));
        self
    }

    /// How many calls of a single callback run side by side; 64 when not given, at least 1.
    pub fn concurrency(self, calls: usize) -> Self {
        self.core.options().calls = Some(calls.max(1));
        self
    }
}

impl<T: Send + Sync + 'static> Clone for Intake<T> {
    fn clone(&self) -> Self {
        Intake { core: Arc::clone(&self.core) }
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Intake<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Intake").field("gate", &self.core.gate.name()).finish()
    }
}

// === impl Item ===

impl<T> Item<T> {
    fn value(&self) -> &T {
        self.value.as_ref().expect("an item is there until it is dropped")
    }

    /// Why it comes back; dropped, where it is owed no more.
    fn why(&self) -> Why {
        self.ending.why().unwrap_or(Why::Dropped)
    }

    fn rest(&self, rests: bool) {
        // Only ever read to say afterwards what was under way.
        self.rests.store(rests, Ordering::Relaxed);
    }

    fn rests(&self) -> bool {
        self.rests.load(Ordering::Relaxed)
    }

    fn unfinished(self: &Arc<Self>) -> Unfinished<T> {
        Unfinished { item: Arc::clone(self), why: self.why() }
    }
}

impl<T> Drop for Item<T> {
    fn drop(&mut self) {
        // Wherever the last holder happens to be: one item that panics here must not take others with it.
        let value = self.value.take();
        quietly(|| drop(value));
    }
}
