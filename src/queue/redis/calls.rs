//! Claims whose answers were lost.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, RedisError};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::Instant;

use super::link::Link;
use crate::queue::Owner;

#[cfg(test)]
mod tests;

/// For how long after the next answer a claim may still be done: a server that stood still reads old connections and new ones in any
/// order.
const UNSURE: Duration = Duration::from_secs(30);

/// While that is so, one claim in this time puts back what is lost, the first at once. Were it each of them, none would be under way beside
/// another, and a slow line would be as good as idle for half a minute after each answer that was lost.
const EVERY: Duration = Duration::from_secs(1);

/// So many claims that were answered are told to the server together, at most by and large.
const MANY: usize = 1000;

/// How many calls of a worker may be under way at once: as many as keep a slow line filled, while a fast one is not asked for ever less.
pub(super) const AT_ONCE: usize = 4;

/// Knows of which claims the answers have come. What an owner holds by any later claim was claimed by a call without an answer: the next
/// claim of that owner puts it back, untouched, before its lease would run out as a crash.
pub(super) struct Calls {
    known: Mutex<Table>,
    // A claim that puts back must be the only one under way: the answer of another one may be on its way, and not lost.
    under_way: RwLock<()>,
}

struct Table {
    /// Claims of owners that are not listed, and were not made yet, are later than this.
    floor: u64,
    owners: HashMap<Owner, Known>,
}

#[derive(Default)]
struct Known {
    /// The last claim that was answered.
    last: u64,
    /// For each claim under way, the last that had been answered when it began.
    under_way: Vec<u64>,
    /// Claims that were answered since the first of those began that are under way, or unsure.
    recent: Vec<u64>,
    unsure: Option<Unsure>,
}

struct Unsure {
    /// What is lost is later than this.
    after: u64,
    /// When the server was first heard again, and when it has last put something back.
    heard: Option<(Instant, Instant)>,
}

/// A claim under way; without an answer when it is dropped, unless said otherwise.
pub(super) struct Call<'a> {
    calls: &'a Calls,
    owner: &'a Owner,
    after: u64,
    answered: bool,
    lost: Option<Lost>,
    _turn: Turn<'a>,
}

/// Claims whose answers are lost: later than `after`, and none of those that are `known`.
struct Lost {
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
    /// Begins with what the server's clock says: epochs count microseconds of it, or more.
    pub(super) async fn open(link: &Link) -> Result<Calls, RedisError> {
        let time = link.query(Cmd::new().arg("TIME")).await?;
        let (seconds, micros) = <(u64, u64)>::from_redis_value(time)?;
        let floor = seconds.saturating_mul(1_000_000).saturating_add(micros);
        let known = Mutex::new(Table { floor, owners: HashMap::new() });
        Ok(Calls { known, under_way: RwLock::new(()) })
    }

    /// Of a claim.
    pub(super) async fn begin<'a>(&'a self, owner: &'a Owner) -> Call<'a> {
        self.begin_where(owner, Known::puts_back).await
    }

    /// Of a mark: no claim comes after it that would put back what is lost.
    pub(super) async fn begin_last<'a>(&'a self, owner: &'a Owner) -> Call<'a> {
        self.begin_where(owner, |known| known.unsure.is_some()).await
    }

    async fn begin_where<'a>(&'a self, owner: &'a Owner, puts_back: fn(&Known) -> bool) -> Call<'a> {
        let puts_back = || self.known().owners.get(owner).is_some_and(puts_back);
        let turn = self.under_way.read().await;
        if !puts_back() {
            return self.start(owner, Turn::Among { _turn: turn });
        }
        drop(turn);
        let turn = self.under_way.write().await;
        // Another one may have done it meanwhile.
        let turn = match puts_back() {
            true => Turn::Alone { _turn: turn },
            false => Turn::Among { _turn: turn.downgrade() },
        };
        self.start(owner, turn)
    }

    fn start<'a>(&'a self, owner: &'a Owner, turn: Turn<'a>) -> Call<'a> {
        let mut all = self.known();
        let Table { floor, owners } = &mut *all;
        let fresh = || Known { last: *floor, ..Known::default() };
        let known = owners.entry(owner.clone()).or_insert_with(fresh);
        known.under_way.push(known.last);
        let lost = match (&turn, &known.unsure) {
            (Turn::Alone { .. }, Some(unsure)) => {
                Some(Lost { after: unsure.after, known: known.recent.clone() })
            }
            // One that became unsure since the turn was taken is seen to by the next.
            _ => None,
        };
        Call { calls: self, owner, after: known.last, answered: false, lost, _turn: turn }
    }

    /// Keeps nothing of an owner that has ended, unless it may hold what it does not know of.
    pub(super) fn forget(&self, owner: &Owner) {
        let mut all = self.known();
        let Table { floor, owners } = &mut *all;
        if let Some(known) =
            owners.get(owner).filter(|known| known.unsure.is_none() && known.under_way.is_empty())
        {
            // It may still hold what it has claimed so far, and claim again.
            *floor = known.last.max(*floor);
            owners.remove(owner);
        }
    }

    fn known(&self) -> MutexGuard<'_, Table> {
        // Nothing behind this lock is ever half-changed.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Known ===

impl Known {
    /// Whether the next claim is to put back what is lost.
    fn puts_back(&self) -> bool {
        let Some(unsure) = &self.unsure else { return false };
        unsure.heard.is_none_or(|(_, last)| last.elapsed() >= EVERY) || self.recent.len() >= MANY
    }
}

// === impl Call ===

impl Call<'_> {
    /// Whether something is to be put back.
    pub(super) fn is_after_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// What is to be put back: an epoch (or nothing), how many epochs, and these. Nothing where nothing is claimed.
    pub(super) fn add_lost(under_way: Option<&Call<'_>>, call: &mut Cmd) {
        match under_way.and_then(|under_way| under_way.lost.as_ref()) {
            Some(lost) => call.arg(lost.after).arg(lost.known.len()).arg(&lost.known),
            None => call.arg("").arg(0),
        };
    }

    /// The answer came, with what was claimed, at about `now` (µs, by the server's clock). The epoch is 0 where nothing was: older than all
    /// that is kept.
    pub(super) fn answered(mut self, epoch: u64, now: u64) {
        let mut all = self.calls.known();
        let Some(known) = all.owners.get_mut(self.owner) else { return };
        known.last = known.last.max(epoch);
        known.recent.push(epoch);
        let put_back = self.lost.is_some();
        if let Some(unsure) = known.unsure.as_mut().filter(|_| put_back) {
            // All that is older is put back by now.
            unsure.after = unsure.after.max(now);
            let after = unsure.after;
            known.recent.retain(|epoch| *epoch > after);
            let now = Instant::now();
            let first = unsure.heard.map_or(now, |(first, _)| first);
            unsure.heard = Some((first, now));
            if now - first > UNSURE {
                known.unsure = None;
            }
        }
        drop(all);
        // What `drop` then makes of it is nothing.
        self.answered = true;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut all = self.calls.known();
        let Some(known) = all.owners.get_mut(self.owner) else { return };
        if let Some(place) = known.under_way.iter().position(|after| *after == self.after) {
            known.under_way.swap_remove(place);
        }
        if !self.answered {
            let after = known.unsure.as_ref().map_or(self.after, |unsure| unsure.after.min(self.after));
            known.unsure = Some(Unsure { after, heard: None });
        }
        // There may always be one under way: what is older than all of them is of no use any more.
        let unsure = known.unsure.as_ref().map(|unsure| unsure.after);
        match known.under_way.iter().copied().chain(unsure).min() {
            Some(oldest) => known.recent.retain(|epoch| *epoch > oldest),
            None => known.recent.clear(),
        }
    }
}
