//! The book of lost claims by its rules, without a server.

use futures_util::FutureExt;

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
    let mut call = calls.begin_last(&owner).await;
    let lost = call.lost.as_ref().map(|lost| (lost.after, lost.known.clone()));
    // As if it had never begun.
    let kept = calls.known().owners.get_mut(&owner).map(|known| (known.unsure.take(), known.recent.clone()));
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

#[tokio::test(start_paused = true)]
async fn of_the_claims_after_a_lost_one_the_first_puts_back_and_then_one_in_a_second() {
    let (calls, owner) = (calls(), owner());
    drop(calls.begin(&owner).await);
    for at in 0..5_u64 {
        let first = calls.begin(&owner).await;
        assert!(first.is_after_lost());
        // Two that wait for it, and find that nothing is left to do.
        let mut waiting = [Box::pin(calls.begin(&owner)), Box::pin(calls.begin(&owner))];
        assert!(waiting.iter_mut().all(|begun| begun.as_mut().now_or_never().is_none()), "it is alone");
        let now = 1_000 * (at + 1);
        first.answered(now - 1, now);
        let [second, third] = waiting;
        let second = second.now_or_never().expect("the first is over");
        let third = third.now_or_never().expect("it goes on beside the second");
        assert!(!second.is_after_lost() && !third.is_after_lost());
        second.answered(now + 1, now + 1);
        third.answered(now + 2, now + 2);
        assert_eq!(lost(&calls).await, Some((now, vec![now + 1, now + 2])));
        tokio::time::advance(EVERY).await;
    }
    // Another loss is seen to at once.
    calls.begin(&owner).await.answered(6_000, 6_000);
    drop(calls.begin(&owner).await);
    assert!(calls.begin(&owner).await.is_after_lost());
}

#[tokio::test]
async fn of_many_claims_within_a_second_not_all_are_told_together() {
    let (calls, owner) = (calls(), owner());
    drop(calls.begin(&owner).await);
    for epoch in 1_001..11_001 {
        calls.begin(&owner).await.answered(epoch, epoch);
        assert!(calls.known().owners[&owner].recent.len() <= MANY);
    }
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
