//! The signal below all others: it fires once and wakes all who wait, however many, however late.

use std::fmt;
use std::future::Future;
use std::num::NonZeroUsize;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

#[cfg(winddown_loom)]
use loom::sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool, atomic::Ordering};
#[cfg(not(winddown_loom))]
use std::sync::{Arc, Mutex, MutexGuard, atomic::AtomicBool, atomic::Ordering};

use slab::Slab;

pub(crate) mod slab;

/// How many lists the waiters are spread over, so that workers seldom meet when they register.
#[cfg(not(winddown_loom))]
const LISTS: usize = 4;
#[cfg(winddown_loom)]
const LISTS: usize = 1;

/// Fires once and wakes all who wait.
///
/// Clones are the same latch. It never goes back: who asks after it has fired hears at once.
#[derive(Clone)]
pub(crate) struct Latch(Arc<Shared>);

/// Waits for a latch that it borrows.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Fired<'a> {
    shared: &'a Shared,
    place: Option<Place>,
}

/// Waits for a latch that it keeps alive.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct FiredOwned {
    latch: Latch,
    place: Option<Place>,
}

struct Shared {
    fired: AtomicBool,
    lists: [List; LISTS],
}

/// Alone on its cache lines, so that one list's lock does not slow the next.
#[repr(align(128))]
struct List(Mutex<Slab<Waker>>);

/// Where a waiter's waker is kept, and which one it is.
#[derive(Clone, Copy)]
struct Place {
    list: u32,
    key: usize,
    waker: Identity,
}

/// What tells one waker from another, as addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Identity {
    data: usize,
    /// Never null, so that an absent `Place` needs no word of its own: every waiting task carries one.
    vtable: NonZeroUsize,
}

// === impl Latch ===

impl Latch {
    pub(crate) fn new() -> Self {
        let lists = std::array::from_fn(|_| List(Mutex::new(Slab::new())));
        Self(Arc::new(Shared { fired: AtomicBool::new(false), lists }))
    }

    /// Fires and wakes all who wait. Returns whether this call was the first.
    ///
    /// A waker that panics keeps none of the others from being woken: its panic ends here, after the panic hook has told of it.
    pub(crate) fn fire(&self) -> bool {
        // Pairs with the loads in `is_fired`: who hears of it sees what was done before.
        if self.0.fired.swap(true, Ordering::AcqRel) {
            return false;
        }
        for list in &self.0.lists {
            // A waiter that took this lock before us has left its waker here; one that takes it after us sees `fired`.
            let waiting = std::mem::replace(&mut *list.lock(), Slab::new());
            // Woken outside the lock, since a waker may drop other waiters or register again.
            for waker in waiting.into_values() {
                let _ = panic::catch_unwind(AssertUnwindSafe(|| waker.wake()));
            }
        }
        true
    }

    #[inline]
    pub(crate) fn is_fired(&self) -> bool {
        self.0.is_fired()
    }

    /// Waits until it has fired.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future frees its place in the list.
    #[inline]
    pub(crate) fn fired(&self) -> Fired<'_> {
        Fired { shared: &self.0, place: None }
    }

    /// Like [`fired`](Self::fired), for futures that outlive what they came from.
    pub(crate) fn fired_owned(&self) -> FiredOwned {
        FiredOwned { latch: self.clone(), place: None }
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").field("fired", &self.is_fired()).finish()
    }
}

// === impl Shared ===

impl Shared {
    #[inline]
    fn is_fired(&self) -> bool {
        self.fired.load(Ordering::Acquire)
    }

    #[inline]
    fn poll(&self, place: &mut Option<Place>, waker: &Waker) -> Poll<()> {
        if self.is_fired() {
            return Poll::Ready(());
        }
        match place {
            // The registered clone lies in the list and so keeps its address from being given to another waker.
            Some(place) if place.waker == Identity::of(waker) => Poll::Pending,
            Some(place) => self.change(place, waker),
            None => self.register(place, waker),
        }
    }

    #[cold]
    fn register(&self, place: &mut Option<Place>, waker: &Waker) -> Poll<()> {
        // Cloned and dropped outside the lock: both run code that is not ours.
        let waker = waker.clone();
        // That of the clone, since it is the clone that is kept alive.
        let identity = Identity::of(&waker);
        let list = identity.list();
        let mut waiting = self.lists[list as usize].lock();
        // Again, now that `fire` can no longer pass this list by.
        if self.is_fired() {
            return Poll::Ready(());
        }
        *place = Some(Place { list, key: waiting.insert(waker), waker: identity });
        Poll::Pending
    }

    #[cold]
    fn change(&self, place: &mut Place, waker: &Waker) -> Poll<()> {
        let waker = waker.clone();
        let identity = Identity::of(&waker);
        let mut waiting = self.lists[place.list as usize].lock();
        // As in `register`; the list may also be emptied already, and the key lead nowhere.
        if self.is_fired() {
            return Poll::Ready(());
        }
        let old = waiting.replace(place.key, waker);
        place.waker = identity;
        drop(waiting);
        drop(old);
        Poll::Pending
    }

    #[inline]
    fn forget(&self, place: &mut Option<Place>) {
        if let Some(place) = place.take() {
            self.free(place);
        }
    }

    fn free(&self, place: Place) {
        if self.is_fired() {
            return;
        }
        let mut waiting = self.lists[place.list as usize].lock();
        // Once it has fired the key may lead nowhere; the list is, or soon will be, emptied by `fire`.
        let waker = if self.is_fired() { None } else { waiting.remove(place.key) };
        drop(waiting);
        drop(waker);
    }
}

// === impl List ===

impl List {
    fn lock(&self) -> MutexGuard<'_, Slab<Waker>> {
        // No code but the slab's runs under the lock, so that a poisoned one is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Identity ===

impl Identity {
    #[inline]
    fn of(waker: &Waker) -> Self {
        Self { data: waker.data().addr(), vtable: NonNull::from(waker.vtable()).addr() }
    }

    /// Spreads by the region that the task lies in: neighbours stay together, in their order, so that waking them walks through memory.
    fn list(self) -> u32 {
        let mixed = (self.data as u64 >> 16).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 32) as u32 % LISTS as u32
    }
}

// === impl Fired ===

impl Fired<'_> {
    /// Whether it has been polled and waits in the list.
    #[inline]
    pub(crate) fn is_registered(&self) -> bool {
        self.place.is_some()
    }

    #[inline]
    pub(crate) fn is_fired(&self) -> bool {
        self.shared.is_fired()
    }
}

impl Future for Fired<'_> {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.shared.poll(&mut this.place, cx.waker())
    }
}

impl Drop for Fired<'_> {
    #[inline]
    fn drop(&mut self) {
        self.shared.forget(&mut self.place);
    }
}

// === impl FiredOwned ===

impl Future for FiredOwned {
    type Output = ();

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.latch.0.poll(&mut this.place, cx.waker())
    }
}

impl Drop for FiredOwned {
    fn drop(&mut self) {
        self.latch.0.forget(&mut self.place);
    }
}

#[cfg(all(test, not(winddown_loom)))]
mod tests;
#[cfg(all(test, winddown_loom))]
mod tests_loom;
