//! A hook or a task while it runs: when it began, how it ended, and who waits for that.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::catch::{Ended, Work, caught};
use crate::latch::Latch;

tokio::task_local! {
    static UNIT: Arc<Unit>;
}

pub(crate) struct Unit {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    began: OnceLock<Instant>,
    ended: OnceLock<(Ended, Instant)>,
    abort: OnceLock<AbortHandle>,
    /// Polled for the first time.
    pub(crate) begun: Latch,
    /// Its first poll is over, and what it came to is noted.
    pub(crate) polled: Latch,
    /// Its future is gone.
    pub(crate) gone: Latch,
    /// How often it waits for the end of the stop itself, at this moment.
    waits: watch::Sender<usize>,
}

/// Tells that the future is gone, however that came.
struct Gone(Arc<Unit>);

/// Nobody waits for the unit while this is held.
pub(crate) struct LeftOut(Arc<Unit>);

// === impl Unit ===

impl Unit {
    pub(crate) fn new(kind: &'static str, name: impl Into<String>) -> Arc<Self> {
        Arc::new(Unit {
            name: name.into(),
            kind,
            began: OnceLock::new(),
            ended: OnceLock::new(),
            abort: OnceLock::new(),
            begun: Latch::new(),
            polled: Latch::new(),
            gone: Latch::new(),
            waits: watch::Sender::new(0),
        })
    }

    /// Starts the work on the runtime. `after` hears how it ended, unless it was aborted.
    pub(crate) fn start(
        self: &Arc<Self>,
        runtime: &tokio::runtime::Handle,
        work: Work,
        after: impl FnOnce(&Ended) + Send + 'static,
    ) {
        let gone = Gone(Arc::clone(self));
        let unit = Arc::clone(self);
        let _ = self.began.set(Instant::now());
        let task = runtime.spawn(UNIT.scope(Arc::clone(self), async move {
            let gone = gone;
            unit.begun.fire();
            let mut work = std::pin::pin!(caught(work));
            let ended = std::future::poll_fn(|cx| {
                let polled = work.as_mut().poll(cx);
                if polled.is_pending() && !unit.polled.is_fired() {
                    unit.polled.fire();
                }
                polled
            })
            .await;
            let _ = unit.ended.set((ended.clone(), Instant::now()));
            unit.polled.fire();
            after(&ended);
            drop(gone);
        }));
        let _ = self.abort.set(task.abort_handle());
    }

    /// Drops the future at its next `.await`.
    pub(crate) fn abort(&self) {
        if let Some(abort) = self.abort.get() {
            abort.abort();
        }
    }

    /// Aborts it, unless nobody waits for it: what waits for the end of the stop gets to hear of it.
    pub(crate) fn give_up(&self) {
        if !self.is_done() {
            self.abort();
        }
    }

    /// Whether nobody has to wait for it: it is gone, or waits for the end of the stop itself.
    pub(crate) fn is_done(&self) -> bool {
        self.gone.is_fired() || *self.waits.borrow() > 0
    }

    /// Waits until it [is done](Self::is_done); what then goes on with its work all the same is not done any more.
    pub(crate) async fn done(&self) {
        let mut waits = self.waits.subscribe();
        tokio::select! {
            biased;
            () = self.gone.fired() => {}
            // The sender is ours, so that there is always an answer.
            _ = waits.wait_for(|waits| *waits > 0) => {}
        }
    }

    pub(crate) fn began(&self) -> Option<Instant> {
        self.began.get().copied()
    }

    pub(crate) fn ended(&self) -> Option<&(Ended, Instant)> {
        self.ended.get()
    }

    /// How long it ran, or has been running.
    pub(crate) fn ran(&self) -> Duration {
        let end = self.ended.get().map_or_else(Instant::now, |(_, at)| *at);
        self.began().map_or(Duration::ZERO, |began| end.saturating_duration_since(began))
    }

    pub(crate) fn is_running(&self) -> bool {
        self.began.get().is_some() && !self.gone.is_fired()
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.gone.fire();
    }
}

impl Drop for LeftOut {
    fn drop(&mut self) {
        self.0.waits.send_modify(|waits| *waits -= 1);
    }
}

/// The unit that runs here waits for the end of the stop, and must not be waited for as long as this is held.
pub(crate) fn leave_out() -> Option<LeftOut> {
    let unit = UNIT.try_with(Arc::clone).ok()?;
    unit.waits.send_modify(|waits| *waits += 1);
    Some(LeftOut(unit))
}
