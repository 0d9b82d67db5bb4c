//! Brings back what was not finished: in order, side by side, again and again until it worked.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, timeout_at};

use super::super::book::Owed;
use super::{Core, GivenUp, Width};
use crate::catch::quietly;

/// How many items one batch holds at the most.
const BATCH: usize = 1000;
/// At a stop, how long to wait for the next item so that they go back in their old order, and for all of them.
const STRAGGLER: Duration = Duration::from_millis(10);
const STRAGGLERS: Duration = Duration::from_millis(50);

/// Why items are lost when this, or what calls back, is dropped.
const NO_TURN: &str = "its turn to be handed back did not come in time";
const NO_RUNTIME: &str = "there was no runtime left to hand it back on";

/// The one that brings items back; there is at most one for an intake, and none when nothing is owed.
pub(super) struct Collector<T: Send + Sync + 'static> {
    core: Arc<Core<T>>,
    /// By kind, and by number: what came later may have been let in earlier, and goes back before what waits already.
    waiting: BTreeMap<usize, BTreeMap<u64, Owed<T>>>,
    /// It has come to its end: what is owed from here on is another one's.
    ended: bool,
}

/// Items that are being handed back: dropped before that worked, they are lost by name.
struct Load<T: Send + Sync + 'static> {
    core: Arc<Core<T>>,
    owed: Vec<Owed<T>>,
    why: Option<GivenUp>,
}

// === impl Load ===

impl<T: Send + Sync + 'static> Load<T> {
    /// Brings the items back, or loses them by name.
    async fn bring_back(mut self) {
        let items = || self.owed.iter().map(|owed| owed.item.unfinished()).collect();
        let done = self.core.until_done(|| (self.core.callback)(items()), pending()).await;
        match done {
            Ok(()) => {
                for owed in std::mem::take(&mut self.owed) {
                    self.core.handed(&owed.item, Some((owed.key, owed.guard)));
                }
            }
            Err(why) => self.why = Some(why),
        }
    }
}

impl<T: Send + Sync + 'static> Drop for Load<T> {
    fn drop(&mut self) {
        let why = self.why.take().unwrap_or(GivenUp::Late(NO_RUNTIME));
        for owed in self.owed.drain(..) {
            self.core.lose(&owed.item, Some((owed.key, owed.guard)), &why);
        }
    }
}

// === impl Collector ===

impl<T: Send + Sync + 'static> Collector<T> {
    pub(super) fn new(core: Arc<Core<T>>) -> Self {
        Collector { core, waiting: BTreeMap::new(), ended: false }
    }

    pub(super) async fn run(mut self) {
        let core = &Arc::clone(&self.core);
        let at_once = match core.width {
            Width::Single(calls) => core.options().calls.unwrap_or(calls),
            // Of each kind.
            Width::Batch => 1,
        };
        // The kinds of what is under way.
        let mut busy: Vec<usize> = Vec::new();
        let mut calls = FuturesUnordered::new();
        loop {
            if calls.is_empty() && self.waiting.is_empty() {
                core.stragglers().await;
            }
            self.take_owed();
            if calls.is_empty() && self.waiting.is_empty() && self.is_done() {
                return;
            }
            while let Some((kind, owed)) = self.next_load(&busy, at_once) {
                busy.push(kind);
                // Made here, so that the items are somebody's also when this is dropped before its first poll.
                let load = Load { core: Arc::clone(core), owed, why: None };
                calls.push(load.bring_back().map(move |()| kind));
            }
            tokio::select! {
                biased;
                Some(kind) = calls.next() => {
                    if let Some(place) = busy.iter().position(|busy| *busy == kind) {
                        busy.swap_remove(place);
                    }
                }
                () = core.arrived.notified() => {}
                () = core.give_up.fired() => {
                    self.take_owed();
                    for owed in std::mem::take(&mut self.waiting).into_values().flat_map(BTreeMap::into_values) {
                        core.lose(&owed.item, Some((owed.key, owed.guard)), &GivenUp::Late(NO_TURN));
                    }
                    while calls.next().await.is_some() {}
                    if self.is_done() {
                        return;
                    }
                }
            }
        }
    }

    /// What is owed waits from here on, with what is of its kind.
    fn take_owed(&mut self) {
        let owed = std::mem::take(&mut self.core.book().owed);
        let kind = self.core.options().kind.clone();
        for owed in owed {
            let kind = kind.as_ref().and_then(|kind| quietly(|| kind(owed.item.value()))).unwrap_or_default();
            self.waiting.entry(kind).or_default().insert(owed.item.number, owed);
        }
    }

    /// What is to go back next, and of which kind that is.
    fn next_load(&mut self, busy: &[usize], at_once: usize) -> Option<(usize, Vec<Owed<T>>)> {
        let free = |kind: &&usize| busy.iter().filter(|busy| busy == kind).count() < at_once;
        let kind = *self.waiting.keys().find(free)?;
        let waiting = self.waiting.get_mut(&kind)?;
        let load = match self.core.width {
            // The newest first: pushed to the front one by one, they stand in their old order.
            Width::Single(_) => waiting.pop_last().into_iter().map(|(_, owed)| owed).collect(),
            Width::Batch => {
                std::iter::from_fn(|| waiting.pop_first()).take(BATCH).map(|(_, owed)| owed).collect()
            }
        };
        if waiting.is_empty() {
            self.waiting.remove(&kind);
        }
        Some((kind, load))
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
        for owed in
            std::mem::take(&mut self.waiting).into_values().flat_map(BTreeMap::into_values).chain(left)
        {
            core.lose(&owed.item, Some((owed.key, owed.guard)), &GivenUp::Late(NO_RUNTIME));
        }
    }
}

// === impl Core ===

impl<T: Send + Sync + 'static> Core<T> {
    /// At a stop: waits a little for items that come at the same time, so that they go back in their old order.
    async fn stragglers(&self) {
        let all = Instant::now() + STRAGGLERS;
        // Counted by time: where there are several threads each item may come by itself.
        while self.gate.is_cancelled() && self.book().live > 0 {
            let next = all.min(Instant::now() + STRAGGLER);
            if timeout_at(next, self.arrived.notified()).await.is_err() {
                return;
            }
        }
    }
}
