//! Who holds which item, in places that are used again.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tokio::time::Instant;

use super::Item;
use super::ending::Ending;
use crate::gate::InFlight;
use crate::latch::slab::Slab;

/// Who holds what. An item is in `items` from its admission until both its job is gone and it is settled.
pub(super) struct Book<T> {
    pub(super) items: Slab<Arc<Item<T>>>,
    /// Items that have not ended.
    pub(super) live: usize,
    /// Items that are neither finished nor handed back nor lost.
    pub(super) unsettled: usize,
    admitted: u64,
    pub(super) owed: Vec<Owed<T>>,
    pub(super) collecting: bool,
}

/// An item on its way back; the guard keeps the drain from ending before it got there.
pub(super) struct Owed<T> {
    pub(super) item: Arc<Item<T>>,
    pub(super) key: usize,
    pub(super) guard: InFlight,
}

// === impl Book ===

impl<T> Book<T> {
    pub(super) fn new() -> Self {
        Book { items: Slab::new(), live: 0, unsettled: 0, admitted: 0, owed: Vec::new(), collecting: false }
    }

    /// Takes an item in; the key leads to it until it is removed.
    pub(super) fn admit(&mut self, value: T, since: Option<Instant>) -> (usize, Arc<Item<T>>) {
        let item = Arc::new(Item {
            value: Some(value),
            number: self.admitted,
            since,
            ending: Ending::live(),
            rests: AtomicBool::new(false),
            done: AtomicBool::new(false),
        });
        self.admitted += 1;
        self.live += 1;
        self.unsettled += 1;
        (self.items.insert(Arc::clone(&item)), item)
    }
}
