//! How an item ends: exactly once, whoever comes first.

#[cfg(winddown_loom)]
use loom::sync::atomic::{AtomicU8, Ordering};
#[cfg(not(winddown_loom))]
use std::sync::atomic::{AtomicU8, Ordering};

use super::Why;

/// The state of an item, and why it is owed where it is.
///
/// ```text
/// live ──finish──▶ finished
///   └────owe────▶ owed ──hand──▶ handed
///                   ├───lose──▶ lost
///                   └──finish_after_all──▶ finished
/// ```
///
/// Each arrow is one compare-and-swap: whoever makes it settles the item, and whoever comes second learns that.
#[derive(Debug)]
pub(super) struct Ending(AtomicU8);

const LIVE: u8 = 0;
const FINISHED: u8 = 1;
const HANDED: u8 = 2;
const LOST: u8 = 3;
/// Owed, for the reason with this number above it.
const OWED: u8 = 16;

// === impl Ending ===

impl Ending {
    pub(super) fn live() -> Self {
        Ending(AtomicU8::new(LIVE))
    }

    pub(super) fn is_live(&self) -> bool {
        self.0.load(Ordering::Acquire) == LIVE
    }

    pub(super) fn finish(&self) -> bool {
        self.change(LIVE, FINISHED)
    }

    pub(super) fn owe(&self, why: Why) -> bool {
        self.change(LIVE, OWED + why as u8)
    }

    pub(super) fn hand(&self) -> bool {
        self.settle(HANDED)
    }

    pub(super) fn lose(&self) -> bool {
        self.settle(LOST)
    }

    /// It was given up as still running, has finished since, and nobody has taken it over.
    pub(super) fn finish_after_all(&self) -> bool {
        self.settle(FINISHED)
    }

    /// Why it is owed; `None` where it is not.
    pub(super) fn why(&self) -> Option<Why> {
        let state = self.0.load(Ordering::Acquire);
        Why::ALL.into_iter().find(|why| OWED + *why as u8 == state)
    }

    fn settle(&self, to: u8) -> bool {
        let state = self.0.load(Ordering::Acquire);
        state >= OWED && self.change(state, to)
    }

    fn change(&self, from: u8, to: u8) -> bool {
        // Acquire pairs with the release of whoever made the change before: what it did with the item is seen.
        self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

#[cfg(all(test, winddown_loom))]
mod tests_loom {
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};

    use super::{Ending, Why};

    /// The handler finishes, its task is aborted, and the coordinator gives it up, all at once: one of them ends it, and
    /// only what is owed is settled, once.
    #[test]
    fn loom_a_job_ends_exactly_once() {
        loom::model(|| {
            let ending = Arc::new(Ending::live());
            let (ends, settled) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let finisher = {
                let (ending, ends) = (Arc::clone(&ending), Arc::clone(&ends));
                loom::thread::spawn(move || {
                    if ending.finish() {
                        ends.fetch_add(1, Ordering::SeqCst);
                        assert!(!ending.hand() && !ending.lose(), "what is finished is not handed back");
                    }
                })
            };
            let giver_up = {
                let (ending, ends, settled) = (Arc::clone(&ending), Arc::clone(&ends), Arc::clone(&settled));
                loom::thread::spawn(move || {
                    if ending.owe(Why::StillRunning) {
                        ends.fetch_add(1, Ordering::SeqCst);
                    }
                    if ending.lose() {
                        settled.fetch_add(1, Ordering::SeqCst);
                    }
                })
            };
            if ending.owe(Why::Dropped) {
                ends.fetch_add(1, Ordering::SeqCst);
            }
            if ending.hand() {
                settled.fetch_add(1, Ordering::SeqCst);
            }
            finisher.join().unwrap();
            giver_up.join().unwrap();
            let finished = !ending.is_live() && settled.load(Ordering::SeqCst) == 0;
            assert_eq!(ends.load(Ordering::SeqCst), 1);
            assert!(finished || settled.load(Ordering::SeqCst) == 1);
            assert!(ending.why().is_none(), "what is owed is settled");
        });
    }
}
