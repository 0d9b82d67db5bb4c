//! Brings back what was not finished: in order, side by side, again and again until it worked.

use std::collections::{BTreeMap, BTreeSet};
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
    /// How many calls may be under way, of each kind.
    at_once: usize,
    /// Those of which something waits or is under way.
    kinds: BTreeMap<usize, Kind<T>>,
    /// Those of which a call may begin: there may be many that may not, and none of these is looked at.
    open: BTreeSet<usize>,
    /// It has come to its end: what is owed from here on is another one's.
    ended: bool,
}

/// What is owed of one kind.
struct Kind<T: Send + Sync + 'static> {
    /// By number: what came later may have been let in earlier, and goes back before what waits already.
    waiting: BTreeMap<u64, Owed<T>>,
    /// How many calls are.
    under_way: usize,
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
        let at_once = match core.width {
            Width::Single(calls) => core.options().calls.unwrap_or(calls),
            Width::Batch => 1,
        };
        Collector { core, at_once, kinds: BTreeMap::new(), open: BTreeSet::new(), ended: false }
    }

    pub(super) async fn run(mut self) {
        let core = &Arc::clone(&self.core);
        let mut calls = FuturesUnordered::new();
        loop {
            if self.kinds.is_empty() {
                core.stragglers().await;
            }
            self.take_owed();
            if self.kinds.is_empty() && self.is_done() {
                return;
            }
            while let Some((kind, owed)) = self.next_load() {
                // Made here, so that the items are somebody's also when this is dropped before its first poll.
                let load = Load { core: Arc::clone(core), owed, why: None };
                calls.push(load.bring_back().map(move |()| kind));
            }
            tokio::select! {
                biased;
                Some(kind) = calls.next() => self.has_ended(kind),
                () = core.arrived.notified() => {}
                () = core.give_up.fired() => {
                    self.take_owed();
                    for owed in self.take_waiting() {
                        core.lose(&owed.item, Some((owed.key, owed.guard)), &GivenUp::Late(NO_TURN));
                    }
                    while let Some(kind) = calls.next().await {
                        self.has_ended(kind);
                    }
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
        let kind_of = self.core.options().kind.clone();
        for owed in owed {
            let number =
                kind_of.as_ref().and_then(|kind| quietly(|| kind(owed.item.value()))).unwrap_or_default();
            let fresh = || Kind { waiting: BTreeMap::new(), under_way: 0 };
            let kind = self.kinds.entry(number).or_insert_with(fresh);
            kind.waiting.insert(owed.item.number, owed);
            if kind.under_way < self.at_once {
                self.open.insert(number);
            }
        }
    }

    /// What is to go back next, and of which kind that is.
    fn next_load(&mut self) -> Option<(usize, Vec<Owed<T>>)> {
        let number = *self.open.first()?;
        let kind = self.kinds.get_mut(&number)?;
        let waiting = &mut kind.waiting;
        let load = match self.core.width {
            // The newest first: pushed to the front one by one, they stand in their old order.
            Width::Single(_) => waiting.pop_last().into_iter().map(|(_, owed)| owed).collect(),
            Width::Batch => {
                std::iter::from_fn(|| waiting.pop_first()).take(BATCH).map(|(_, owed)| owed).collect()
            }
        };
        kind.under_way += 1;
        if kind.waiting.is_empty() || kind.under_way == self.at_once {
            self.open.remove(&number);
        }
        Some((number, load))
    }

    /// A call of that kind is over.
    fn has_ended(&mut self, number: usize) {
        let Some(kind) = self.kinds.get_mut(&number) else { return };
        kind.under_way -= 1;
        if !kind.waiting.is_empty() {
            self.open.insert(number);
        } else if kind.under_way == 0 {
            self.kinds.remove(&number);
        }
    }

    /// All that waits, of any kind.
    fn take_waiting(&mut self) -> Vec<Owed<T>> {
        self.open.clear();
        let taken = self.kinds.values_mut().flat_map(|kind| std::mem::take(&mut kind.waiting).into_values());
        let taken = taken.collect();
        self.kinds.retain(|_, kind| kind.under_way > 0);
        taken
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
        let waiting = self.take_waiting();
        let core = &self.core;
        let left = {
            let mut book = core.book();
            book.collecting = false;
            std::mem::take(&mut book.owed)
        };
        for owed in waiting.into_iter().chain(left) {
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
