//! A gate for items that must not be lost: each ends exactly once, finished or handed back.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::error::{BoxError, GateClosed, TooLate};
use crate::gate::{Gate, InFlight};
use crate::overrun::Overrun;

mod book;
mod collect;
mod cx;
mod ending;

use book::Owed;
use collect::Core;
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
    value: T,
    /// The order of admission.
    number: u64,
    ending: Ending,
}

// === impl Gate ===

impl Gate {
    /// Makes the gate an [`Intake`]: what is let in and not finished goes to `callback`, one item a call.
    ///
    /// `state` is cloned for each call, so that the callback need not capture anything. Calls run side by side (64 at
    /// most; see [`Intake::concurrent`]) and are started newest first, so that pushing to the front of a queue keeps
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
            collect::Width::Single(collect::CALLS_AT_ONCE),
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
    /// One call runs at a time. A call that fails is repeated with the same items.
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
            collect::Width::Batch,
            Box::new(move |items| {
                let call = callback(state.clone(), items);
                Box::pin(async move { call.await.map_err(Into::into) })
            }),
        )
    }
}

// === impl Intake ===

impl<T: Send + Sync + 'static> Intake<T> {
    fn new(gate: Gate, width: collect::Width, callback: collect::Callback<T>) -> Self {
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

    /// How an item is called in log and report; its number in order of admission when this is not given.
    pub fn named(self, name: impl Fn(&T) -> String + Send + Sync + 'static) -> Self {
        self.core.config().name = Some(Arc::new(name));
        self
    }

    /// Where an item goes that could not be handed back. It is called with the item and the reason, must not block for
    /// long, and is the last that is heard of the item outside the report.
    pub fn last_resort(self, sink: impl Fn(&T, &str) + Send + Sync + 'static) -> Self {
        self.core.config().last_resort = Some(Arc::new(sink));
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
        self.core.config().still_running = Some(Arc::new(move |item| {
            let call = callback(state.clone(), item);
            Box::pin(async move { call.await.map_err(Into::into) })
        }));
        self
    }

    /// How long one run may take. Beyond it the attempt is cut: [`Done::Overran`].
    pub fn task_limit(self, limit: Duration) -> Self {
        self.core.config().limit = Some(limit);
        self.core.tell_limit();
        self
    }

    /// What is to happen at a stop when a run is longer than the drain; [`Overrun::Requeue`] when not given.
    pub fn overrun(self, overrun: Overrun) -> Self {
        self.core.config().overrun = overrun;
        self.core.tell_limit();
        self
    }

    /// How many calls of a single callback run side by side; 64 when not given, at least 1.
    pub fn concurrent(self, calls: usize) -> Self {
        self.core.config().calls = Some(calls.max(1));
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

// === impl Job ===

impl<T: Send + Sync + 'static> Job<T> {
    fn held(&self) -> &Held<T> {
        // It is taken only by what consumes the job.
        self.held.as_ref().expect("a job is held until it ends")
    }

    /// Runs the handler on the item, in place, until it is done, or until the stop ends it.
    ///
    /// The handler's future is polled inside this one and is gone before the item is handed back: dropping or aborting
    /// this future, or a panic in it, hands the item back too. After the drain is over no handler is polled at all.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the handler is cut at its last `.await` and the item is handed back. It is never lost.
    pub async fn run<R, E>(self, handler: impl AsyncFnOnce(&T, &Cx) -> Result<R, E>) -> Done<T, R, E> {
        let held = self.held();
        if held.guard.is_cancelled() {
            return self.back(Why::Cancelled);
        }
        let cx = held.core.cx();
        let ended = {
            let work = pin!(handler(&held.item.value, &cx));
            until_cut(work, held, &cx).await
        };
        match ended {
            Ended::Done(Ok(value)) => match self.finish() {
                Ok(()) => Done::Finished(value),
                Err(TooLate) => Done::TooLate(Ok(value)),
            },
            Ended::Done(Err(error)) if !self.is_live() => Done::TooLate(Err(error)),
            Ended::Done(Err(_)) if cx.was_interrupted() => self.back(Why::Interrupted),
            Ended::Done(Err(error)) => Done::Failed(self, error),
            Ended::Overran => Done::Overran(self),
            Ended::Cut => self.back(Why::Cancelled),
        }
    }

    /// Says that the item is done.
    ///
    /// # Errors
    ///
    /// [`TooLate`] when the item was given up before: somebody else may have it by now.
    pub fn finish(mut self) -> Result<(), TooLate> {
        let Some(held) = self.held.take() else { return Err(TooLate) };
        if held.item.ending.finish() {
            held.core.finished(held.key, held.guard);
            return Ok(());
        }
        held.core.back_after_all(held.key, held.guard);
        Err(TooLate)
    }

    /// Hands the item back now, through the re-enqueue callback.
    pub fn hand_back(self) {
        let _ = self.back::<(), ()>(Why::Returned);
    }

    /// Whether the drain is over, so that the item should be handed back rather than begun.
    pub fn is_cancelled(&self) -> bool {
        self.held().guard.is_cancelled()
    }

    fn is_live(&self) -> bool {
        self.held().item.ending.is_live()
    }

    fn back<R, E>(mut self, why: Why) -> Done<T, R, E> {
        self.return_item(why);
        Done::HandedBack(why)
    }

    fn return_item(&mut self, why: Why) {
        let Some(held) = self.held.take() else { return };
        if held.item.ending.owe(why) {
            Core::owe(&held.core, Owed { item: held.item, key: held.key, guard: held.guard });
        } else {
            held.core.back_after_all(held.key, held.guard);
        }
    }
}

impl<T: Send + Sync + 'static> Deref for Job<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.held().item.value
    }
}

impl<T: Send + Sync + 'static> Drop for Job<T> {
    fn drop(&mut self) {
        let why = match &self.held {
            None => return,
            Some(_) if std::thread::panicking() => Why::Panicked,
            Some(held) if held.guard.is_cancelled() => Why::Cancelled,
            Some(_) => Why::Dropped,
        };
        self.return_item(why);
    }
}

impl<T: Send + Sync + 'static> fmt::Debug for Job<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.held.as_ref().map(|held| held.item.number);
        f.debug_struct("Job").field("number", &number).finish_non_exhaustive()
    }
}

enum Ended<O> {
    Done(O),
    Overran,
    Cut,
}

/// Polls the work until it is done, overran, or is to be cut. What is shielded is cut only by the gate's last signal.
async fn until_cut<T: Send + Sync + 'static, F: Future>(
    mut work: Pin<&mut F>,
    held: &Held<T>,
    cx: &Cx,
) -> Ended<F::Output> {
    let mut cancelled = pin!(held.guard.hard_signal());
    let mut cut = pin!(held.guard.cut_signal());
    let limit = held.core.config().limit;
    let mut overran = pin!(async move {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    });
    let mut hard = false;
    std::future::poll_fn(|context| {
        hard = hard || cancelled.as_mut().poll(context).is_ready();
        // After the hard signal only what is shielded is polled on.
        if hard && (!cx.is_shielded() || cut.as_mut().poll(context).is_ready()) {
            return Poll::Ready(Ended::Cut);
        }
        if let Poll::Ready(output) = work.as_mut().poll(context) {
            return Poll::Ready(Ended::Done(output));
        }
        if hard && !cx.is_shielded() {
            return Poll::Ready(Ended::Cut);
        }
        if limit.is_some() && !cx.is_shielded() && overran.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ended::Overran);
        }
        Poll::Pending
    })
    .await
}

// === impl Item ===

impl<T> Item<T> {
    /// Why it comes back; dropped, where it is owed no more.
    fn why(&self) -> Why {
        self.ending.why().unwrap_or(Why::Dropped)
    }

    fn unfinished(self: &Arc<Self>) -> Unfinished<T> {
        Unfinished { item: Arc::clone(self), why: self.why() }
    }
}

// === impl Unfinished ===

impl<T> Unfinished<T> {
    /// Why it comes back.
    pub fn why(&self) -> Why {
        self.why
    }

    /// Its place in the order of admission: smaller is older.
    pub fn number(&self) -> u64 {
        self.item.number
    }
}

impl<T> Deref for Unfinished<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Unfinished<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unfinished").field("item", &self.item.value).field("why", &self.why()).finish()
    }
}

// === impl Refused ===

impl<T> Refused<T> {
    /// The item, to be given back to where it came from.
    pub fn into_inner(self) -> T {
        self.item
    }

    /// Why it was not let in.
    pub fn why(&self) -> GateClosed {
        self.why
    }
}

impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("why", &self.why).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the item was not let in")
    }
}

impl<T> std::error::Error for Refused<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}

// === impl Why ===

impl Why {
    const ALL: [Why; 6] =
        [Why::Interrupted, Why::Cancelled, Why::StillRunning, Why::Returned, Why::Dropped, Why::Panicked];

    /// Whether it is the stop that handed it back, and not a fault.
    pub fn is_shutdown(self) -> bool {
        matches!(self, Why::Interrupted | Why::Cancelled | Why::StillRunning)
    }

    /// The word that log and report use.
    pub fn as_str(self) -> &'static str {
        match self {
            Why::Interrupted => "interrupted",
            Why::Cancelled => "cancelled",
            Why::StillRunning => "still running",
            Why::Returned => "returned",
            Why::Dropped => "dropped",
            Why::Panicked => "panicked",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
