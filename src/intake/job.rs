//! A job while it is held: how it is run, and how it ends.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::time::Instant;

use super::book::Owed;
use super::core::Core;
use super::{Cx, Done, Held, Job, Why};
use crate::error::TooLate;

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
        if held.item.rests() {
            held.item.rest(false);
        }
        let cx = held.core.cx();
        let ended = {
            let work = pin!(handler(held.item.value(), &cx));
            until_cut(work, held, &cx).await
        };
        match ended {
            Ended::Done(Ok(value)) => match self.finish() {
                Ok(()) => Done::Finished(value),
                Err(TooLate) => Done::TooLate(Ok(value)),
            },
            Ended::Done(Err(error)) if !self.is_live() => Done::TooLate(Err(error)),
            Ended::Done(Err(_)) if cx.was_interrupted() => self.back(Why::Interrupted),
            Ended::Done(Err(error)) => {
                held.item.rest(true);
                Done::Failed(self, error)
            }
            Ended::Overran => {
                held.item.rest(true);
                Done::Overran(self)
            }
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
        held.core.done_after_all(&held.item);
        held.core.back_after_all(held.key, held.guard);
        Err(TooLate)
    }

    /// Hands the item back now, through the re-enqueue callback.
    pub fn hand_back(mut self) {
        self.return_item(Why::Returned);
    }

    /// Whether the drain is over, so that the item should be handed back rather than begun.
    pub fn is_cancelled(&self) -> bool {
        self.held().guard.is_cancelled()
    }

    pub(crate) fn is_live(&self) -> bool {
        self.held().item.ending.is_live()
    }

    fn back<R, E>(mut self, why: Why) -> Done<T, R, E> {
        self.return_item(why);
        Done::HandedBack(why)
    }

    fn return_item(&mut self, why: Why) {
        let Some(held) = self.held.take() else { return };
        if held.item.ending.owe(why) {
            if (why == Why::Interrupted || held.guard.is_cancelled()) && !held.item.rests() {
                held.core.gate.seat().item_overdue();
            }
            Core::owe(&held.core, Owed { item: held.item, key: held.key, guard: held.guard });
        } else {
            held.core.back_after_all(held.key, held.guard);
        }
    }
}

impl<T: Send + Sync + 'static> Deref for Job<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.held().item.value()
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
    let limit = held.core.options().limit;
    // Counted from here, and not from the first time that it is asked for: the work may begin with a shield.
    let counted = limit.map(|limit| (limit, Instant::now()));
    let mut overran = pin!(async move {
        match counted {
            Some((limit, began)) => tokio::time::sleep(limit.saturating_sub(began.elapsed())).await,
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
