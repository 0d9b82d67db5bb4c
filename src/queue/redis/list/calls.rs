//! Claims whose answers were lost.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::queue::Owner;

/// For how long after the next answer a claim may still be done: a server that stood still reads old connections and new ones in any
/// order.
const UNSURE: Duration = Duration::from_secs(30);

/// How many are remembered; of more, the leases run out.
const MOST: usize = 64;

/// Gives every claim a mark, and remembers those of which nobody knows what they claimed. What they did claim is put back by the next claim of
/// that owner, untouched and before it runs out as a crash.
pub(super) struct Calls {
    base: u64,
    next: AtomicU64,
    unsure: Mutex<Vec<Unsure>>,
}

struct Unsure {
    owner: Owner,
    mark: String,
    /// When the server was first heard again.
    heard: Option<Instant>,
}

/// A claim under way; without an answer when it is dropped, unless said otherwise.
pub(super) struct Call<'a> {
    calls: &'a Calls,
    owner: &'a Owner,
    pub(super) mark: String,
    answered: bool,
}

// === impl Calls ===

impl Calls {
    pub(super) fn new() -> Calls {
        // The keys of a `RandomState` differ each time.
        let base = RandomState::new().hash_one(std::process::id());
        Calls { base, next: AtomicU64::new(0), unsure: Mutex::new(Vec::new()) }
    }

    pub(super) fn begin<'a>(&'a self, owner: &'a Owner) -> Call<'a> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Call { calls: self, owner, mark: format!("{:x}.{number:x}", self.base), answered: false }
    }

    /// The marks of an owner's claims that nobody knows the outcome of.
    pub(super) fn unsure(&self, owner: &Owner) -> Vec<String> {
        let mut unsure = self.lock();
        if unsure.is_empty() {
            return Vec::new();
        }
        unsure.retain(|call| call.heard.is_none_or(|heard| heard.elapsed() < UNSURE));
        unsure.iter().filter(|call| call.owner == *owner).map(|call| call.mark.clone()).collect()
    }

    /// The server has answered: what these calls had claimed is put back.
    pub(super) fn heard(&self, found: &[String]) {
        let mut unsure = self.lock();
        if unsure.is_empty() {
            return;
        }
        unsure.retain(|call| !found.contains(&call.mark));
        for call in unsure.iter_mut() {
            call.heard.get_or_insert_with(Instant::now);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Unsure>> {
        // Nothing behind this lock is ever half-changed.
        self.unsure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Call ===

impl Call<'_> {
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let mut unsure = self.calls.lock();
            if unsure.len() >= MOST {
                unsure.remove(0);
            }
            let mark = std::mem::take(&mut self.mark);
            unsure.push(Unsure { owner: self.owner.clone(), mark, heard: None });
        }
    }
}
