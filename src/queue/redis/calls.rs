//! Claims whose answers were lost.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, FromRedisValue, RedisError};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::Instant;

use super::link::Link;
use crate::queue::Owner;

/// For how long after the next answer a claim may still be done: a server that stood still reads old connections and new ones in any
/// order.
const UNSURE: Duration = Duration::from_secs(30);

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
    /// When the server was first heard again.
    heard: Option<Instant>,
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

    pub(super) async fn begin<'a>(&'a self, owner: &'a Owner) -> Call<'a> {
        let turn = self.under_way.read().await;
        if self.known().owners.get(owner).is_none_or(|known| known.unsure.is_none()) {
            return self.start(owner, Turn::Among { _turn: turn });
        }
        drop(turn);
        self.start(owner, Turn::Alone { _turn: self.under_way.write().await })
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
            if unsure.heard.get_or_insert_with(Instant::now).elapsed() > UNSURE {
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

#[cfg(test)]
mod tests {
    use super::*;

    const FLOOR: u64 = 100;

    fn calls() -> Calls {
        let known = Mutex::new(Table { floor: FLOOR, owners: HashMap::new() });
        Calls { known, under_way: RwLock::new(()) }
    }

    fn owner() -> Owner {
        "one".parse().unwrap()
    }

    /// What the next claim puts back: later than the first, and none of the others.
    async fn lost(calls: &Calls) -> Option<(u64, Vec<u64>)> {
        let owner = owner();
        let mut call = calls.begin(&owner).await;
        let lost = call.lost.as_ref().map(|lost| (lost.after, lost.known.clone()));
        // As if it had never begun.
        let kept =
            calls.known().owners.get_mut(&owner).map(|known| (known.unsure.take(), known.recent.clone()));
        call.answered = true;
        drop(call);
        if let Some(known) = calls.known().owners.get_mut(&owner) {
            (known.unsure, known.recent) = kept.unwrap();
        }
        lost
    }

    #[tokio::test]
    async fn what_an_owner_claimed_that_is_new_here_is_lost_from_the_beginning_on() {
        let calls = calls();
        drop(calls.begin(&owner()).await);
        assert_eq!(lost(&calls).await, Some((FLOOR, vec![])));
    }

    #[tokio::test]
    async fn nothing_is_kept_of_claims_that_were_answered() {
        let (calls, owner) = (calls(), owner());
        for epoch in 101..110 {
            calls.begin(&owner).await.answered(epoch, epoch);
        }
        calls.begin(&owner).await.answered(0, 110);
        let known = |calls: &Calls| {
            let all = calls.known();
            all.owners.get(&owner).map(|known| (known.last, known.under_way.len(), known.recent.len()))
        };
        assert_eq!(known(&calls), Some((109, 0, 0)));
        assert_eq!(lost(&calls).await, None);
        calls.forget(&owner);
        assert_eq!(known(&calls), None);
        // It may have kept what it holds.
        drop(calls.begin(&owner).await);
        assert_eq!(lost(&calls).await, Some((109, vec![])));
    }

    #[tokio::test]
    async fn what_was_answered_since_a_lost_claim_began_is_not_lost_with_it() {
        let (calls, owner) = (calls(), owner());
        calls.begin(&owner).await.answered(101, 101);
        let hangs = calls.begin(&owner).await;
        calls.begin(&owner).await.answered(102, 102);
        calls.begin(&owner).await.answered(103, 103);
        drop(hangs);
        assert_eq!(lost(&calls).await, Some((101, vec![102, 103])));
    }

    #[tokio::test]
    async fn of_several_lost_claims_the_earliest_counts() {
        for first_ends_first in [true, false] {
            let (calls, owner) = (calls(), owner());
            let first = calls.begin(&owner).await;
            calls.begin(&owner).await.answered(101, 101);
            let second = calls.begin(&owner).await;
            let (one, other) = if first_ends_first { (first, second) } else { (second, first) };
            drop(one);
            drop(other);
            assert_eq!(lost(&calls).await, Some((FLOOR, vec![101])));
        }
    }

    #[tokio::test]
    async fn what_is_lost_stays_so_until_a_claim_that_puts_it_back_is_answered() {
        let (calls, owner) = (calls(), owner());
        let (hangs, other) = (calls.begin(&owner).await, calls.begin(&owner).await);
        drop(hangs);
        // Begun before that, it has put nothing back.
        other.answered(101, 200);
        assert_eq!(lost(&calls).await, Some((FLOOR, vec![101])));
        calls.forget(&owner);
        assert_eq!(lost(&calls).await, Some((FLOOR, vec![101])), "its end is no answer");
        drop(calls.begin(&owner).await);
        assert_eq!(lost(&calls).await, Some((FLOOR, vec![101])));
        calls.begin(&owner).await.answered(102, 102);
        assert_eq!(lost(&calls).await.unwrap().0, 102);
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_claim_is_put_back_for_half_a_minute_after_the_server_was_heard_again() {
        let (calls, owner) = (calls(), owner());
        drop(calls.begin(&owner).await);
        for epoch in 101..104 {
            tokio::time::advance(UNSURE / 3).await;
            calls.begin(&owner).await.answered(epoch, epoch);
            // Those that were answered before it are older than what it has put back.
            assert_eq!(lost(&calls).await, Some((epoch, vec![])));
        }
        tokio::time::advance(UNSURE / 2).await;
        calls.begin(&owner).await.answered(104, 104);
        assert_eq!(lost(&calls).await, None);
        assert!(calls.known().owners[&owner].recent.is_empty());
    }

    #[tokio::test]
    async fn an_owner_with_a_claim_under_way_is_not_forgotten() {
        let (calls, owner) = (calls(), owner());
        let hangs = calls.begin(&owner).await;
        calls.forget(&owner);
        drop(hangs);
        assert_eq!(lost(&calls).await, Some((FLOOR, vec![])));
    }

    #[tokio::test]
    async fn of_claims_that_overlap_only_the_one_without_an_answer_is_lost() {
        let (calls, owner) = (calls(), owner());
        let (first, second) = (calls.begin(&owner).await, calls.begin(&owner).await);
        second.answered(102, 0);
        drop(first);
        assert_eq!(lost(&calls).await, Some((FLOOR, vec![102])));
    }

    #[tokio::test]
    async fn what_is_known_of_claims_does_not_grow_where_there_is_always_one_under_way() {
        let (calls, owner) = (calls(), owner());
        let mut under_way = calls.begin(&owner).await;
        for epoch in 101..1101 {
            let next = calls.begin(&owner).await;
            std::mem::replace(&mut under_way, next).answered(epoch, 0);
        }
        assert!(calls.known().owners[&owner].recent.len() <= 2);
        drop(under_way);
        assert_eq!(lost(&calls).await, Some((1099, vec![1100])));
    }
}
