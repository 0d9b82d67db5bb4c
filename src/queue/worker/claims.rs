//! Claims that are under way, and those that had no answer.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// What the parts of a worker know of its claims.
#[derive(Default)]
pub(super) struct Claims {
    under_way: AtomicUsize,
    /// Claims without an answer so far, in all.
    failed: AtomicU64,
    /// The number of the last of them, for as long as it may have been done all the same; 0 where there is none.
    unanswered: AtomicU64,
}

/// A claim that is under way until this is dropped; without an answer, unless said otherwise.
pub(super) struct Claim<'a> {
    claims: &'a Claims,
    before: Unanswered,
    answered: bool,
}

/// The last claim that had no answer, at some moment.
#[derive(Clone, Copy)]
pub(super) struct Unanswered(u64);

// === impl Claims ===

impl Claims {
    pub(super) fn begin(&self) -> Claim<'_> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        Claim { claims: self, before: self.unanswered(), answered: false }
    }

    /// Whether a claim may bring something, or may have brought it without our hearing of it.
    pub(super) fn are_open(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0 || self.unanswered().is_some()
    }

    pub(super) fn unanswered(&self) -> Unanswered {
        Unanswered(self.unanswered.load(Ordering::SeqCst))
    }

    /// A call was answered that puts back what was lost before it began. What was lost since then is not put back by it.
    pub(super) fn put_back(&self, before: Unanswered) {
        let _ = self.unanswered.compare_exchange(before.0, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

// === impl Claim ===

impl Claim<'_> {
    /// The answer came; what it brought is seen to before this is dropped.
    pub(super) fn answered(&mut self) {
        self.answered = true;
        // Of a queue that puts back what such a claim has brought, the next one does, or the mark at the stop.
        self.claims.put_back(self.before);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let number = self.claims.failed.fetch_add(1, Ordering::SeqCst) + 1;
            self.claims.unanswered.store(number, Ordering::SeqCst);
        }
        // Last, so that there is no moment at which it is neither.
        self.claims.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

// === impl Unanswered ===

impl Unanswered {
    pub(super) fn is_some(self) -> bool {
        self.0 > 0
    }
}
