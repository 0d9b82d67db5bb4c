//! Counts what is allocated, while it is asked to: each count is an atomic operation on words that all threads share, which would
//! be a third of what a request's allocations cost, and nearly all of it with two threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

pub struct Counting;

/// What has been allocated.
pub struct Counts {
    pub allocations: usize,
    /// Bytes that were allocated and not freed.
    pub kept: isize,
}

static ASKED: AtomicBool = AtomicBool::new(false);
static KEPT: AtomicIsize = AtomicIsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// Counts meanwhile, on all threads.
pub fn counted<T>(run: impl FnOnce() -> T) -> (T, Counts) {
    let (allocations, kept) = (ALLOCATIONS.load(Ordering::Relaxed), KEPT.load(Ordering::Relaxed));
    ASKED.store(true, Ordering::Relaxed);
    let done = run();
    ASKED.store(false, Ordering::Relaxed);
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - allocations;
    (done, Counts { allocations, kept: KEPT.load(Ordering::Relaxed) - kept })
}

#[inline]
fn count(allocations: usize, kept: isize) {
    if ASKED.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(allocations, Ordering::Relaxed);
        KEPT.fetch_add(kept, Ordering::Relaxed);
    }
}

// SAFETY: the system's allocator does the work, with what it was given; counting touches none of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, -(layout.size() as isize));
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as isize - layout.size() as isize);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }
}
