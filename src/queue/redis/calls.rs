//! Claims whose answers were lost.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::Cmd;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::Instant;

use crate::queue::Owner;

/// For how long after the next answer a claim may still be done: a server that stood still reads old connections and new ones in any
/// order.
const UNSURE: Duration = Duration::from_secs(30);

/// Knows of which claims the answers have come. What an owner holds by any later claim was claimed by a call without an answer: the next
/// claim of that owner puts it back, untouched, before its lease would run out as a crash.
pub(super) struct Calls {
    /// No claim is older than this, in an epoch's terms, that was not made by this process.
    opened: u64,
    known: Mutex<HashMap<Owner, Known>>,
    // A claim that puts back must be the only one under way: the answer of another one may be on its way, and not lost.
    under_way: RwLock<()>,
}

#[derive(Default)]
struct Known {
    last: u64,
    under_way: usize,
    /// Claims that were answered since the first of those began that are under way, or unsure.
    recent: Vec<u64>,
    unsure: Option<Unsure>,
}

struct Unsure {
    /// What is lost is later than this.
    after: u64,
    /// When the server was first heard again.
    heard: Option<Instant>,
}

/// A claim under way; without an answer when it is dropped, unless said otherwise.
pub(super) struct Call<'a> {
    calls: &'a Calls,
    owner: &'a Owner,
    after: u64,
    lost: Option<Lost>,
    _turn: Turn<'a>,
}

/// Claims whose answers are lost: later than `after`, and none of those that are `known`.
#[derive(Default)]
pub(super) struct Lost {
    after: u64,
    known: Vec<u64>,
}

/// Held for as long as a claim is under way.
enum Turn<'a> {
    Among { _turn: RwLockReadGuard<'a, ()> },
    Alone { _turn: RwLockWriteGuard<'a, ()> },
}

// === impl Calls ===

impl Calls {
    pub(super) fn new(opened: u64) -> Calls {
        Calls { opened, known: Mutex::new(HashMap::new()), under_way: RwLock::new(()) }
    }

    pub(super) async fn begin<'a>(&'a self, owner: &'a Owner) -> Call<'a> {
        let turn = self.under_way.read().await;
        if self.known().get(owner).is_none_or(|known| known.unsure.is_none()) {
            return self.start(owner, Turn::Among { _turn: turn });
        }
        drop(turn);
        self.start(owner, Turn::Alone { _turn: self.under_way.write().await })
    }

    fn start<'a>(&'a self, owner: &'a Owner, turn: Turn<'a>) -> Call<'a> {
        let mut all = self.known();
        if !all.contains_key(owner) {
            all.insert(owner.clone(), Known { last: self.opened, ..Known::default() });
        }
        let (mut after, mut lost) = (self.opened, None);
        if let Some(known) = all.get_mut(owner) {
            known.under_way += 1;
            after = known.last;
            // One that became unsure since the turn was taken is seen to by the next.
            if let (Turn::Alone { .. }, Some(unsure)) = (&turn, &known.unsure) {
                lost = Some(Lost { after: unsure.after, known: known.recent.clone() });
            }
        }
        Call { calls: self, owner, after, lost, _turn: turn }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Owner, Known>> {
        // Nothing behind this lock is ever half-changed.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Call ===

impl Call<'_> {
    /// What is to be put back: an epoch (or nothing), how many epochs, and these.
    pub(super) fn add_lost(&self, call: &mut Cmd) {
        match &self.lost {
            Some(lost) => call.arg(lost.after).arg(lost.known.len()).arg(&lost.known),
            None => call.arg("").arg(0),
        };
    }

    /// The answer came, with what was claimed, if anything, at about `now` (µs, by the server's clock).
    pub(super) fn answered(self, epoch: u64, now: u64) {
        let mut all = self.calls.known();
        let Some(known) = all.get_mut(self.owner) else { return };
        if epoch > 0 {
            known.last = known.last.max(epoch);
            known.recent.push(epoch);
        }
        let put_back = self.lost.is_some();
        if let Some(unsure) = known.unsure.as_mut().filter(|_| put_back) {
            // All that is older is put back by now.
            unsure.after = unsure.after.max(now);
            let after = unsure.after;
            known.recent.retain(|epoch| *epoch > after);
            if unsure.heard.get_or_insert_with(Instant::now).elapsed() > UNSURE {
                known.unsure = None;
            }
        }
        drop(all);
        self.end();
    }

    fn end(mut self) {
        // What `drop` then makes of it is nothing.
        self.after = u64::MAX;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut all = self.calls.known();
        let Some(known) = all.get_mut(self.owner) else { return };
        known.under_way -= 1;
        if self.after < u64::MAX {
            let after = known.unsure.as_ref().map_or(self.after, |unsure| unsure.after.min(self.after));
            known.unsure = Some(Unsure { after, heard: None });
        }
        if known.under_way == 0 && known.unsure.is_none() {
            known.recent.clear();
        }
    }
}
