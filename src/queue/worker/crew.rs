//! What the tasks that run handlers share, and how what they have done comes back to the loop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::desk::Desk;
use super::flight::Leased;
use crate::Job;
use crate::latch::slab::Slab;
use crate::queue::Queue;

pub(super) struct Crew<Q: Queue, H> {
    pub(super) desk: Arc<Desk<Q>>,
    pub(super) handler: H,
    left: Mutex<Left<Q::Item>>,
    /// A job is done.
    pub(super) done: Notify,
}

struct Left<T: Send + Sync + 'static> {
    /// Jobs that are done, and to be acked.
    done: Vec<Job<Leased<T>>>,
    /// The places of tasks that have ended.
    places: Vec<usize>,
    /// Nobody is there any more to ack what is done.
    closed: bool,
}

/// The tasks that run; they are aborted with the loop.
pub(super) struct Tasks<Q: Queue, H> {
    crew: Arc<Crew<Q, H>>,
    running: Slab<JoinHandle<()>>,
}

/// A task's place among those that run, and what is to be acked when it ends.
pub(super) struct Place<Q: Queue, H> {
    pub(super) crew: Arc<Crew<Q, H>>,
    key: usize,
    pub(super) done: Option<Job<Leased<Q::Item>>>,
}

// === impl Crew ===

impl<Q: Queue, H> Crew<Q, H> {
    pub(super) fn new(desk: Arc<Desk<Q>>, handler: H) -> Crew<Q, H> {
        let left = Mutex::new(Left { done: Vec::new(), places: Vec::new(), closed: false });
        Crew { desk, handler, left, done: Notify::new() }
    }

    fn left(&self) -> MutexGuard<'_, Left<Q::Item>> {
        // Nothing behind it is ever half-changed.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Tasks ===

impl<Q: Queue, H> Tasks<Q, H> {
    pub(super) fn new(crew: Arc<Crew<Q, H>>) -> Tasks<Q, H> {
        Tasks { crew, running: Slab::new() }
    }

    /// Spawns what `task` makes of its place.
    pub(super) fn spawn<Fut>(&mut self, task: impl FnOnce(Place<Q, H>) -> Fut)
    where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let crew = Arc::clone(&self.crew);
        self.running.insert_with(|key| tokio::spawn(task(Place { crew, key, done: None })));
    }

    /// Takes what is done, and forgets the tasks that have ended.
    pub(super) fn take(&mut self, done: &mut Vec<Job<Leased<Q::Item>>>) {
        let mut left = self.crew.left();
        done.append(&mut left.done);
        for key in left.places.drain(..) {
            self.running.remove(key);
        }
    }
}

impl<Q: Queue, H> Drop for Tasks<Q, H> {
    fn drop(&mut self) {
        let done = {
            let mut left = self.crew.left();
            left.closed = true;
            std::mem::take(&mut left.done)
        };
        // They go back as done; see `hand_back`.
        drop(done);
        self.running.iter().for_each(JoinHandle::abort);
    }
}

// === impl Place ===

impl<Q: Queue, H> Drop for Place<Q, H> {
    fn drop(&mut self) {
        let mut left = self.crew.left();
        left.places.push(self.key);
        if left.closed {
            // What is done is dropped with this, after the lock is free; it goes back as done.
            return;
        }
        let Some(job) = self.done.take() else { return };
        left.done.push(job);
        let first = left.done.len() == 1;
        drop(left);
        if first {
            self.crew.done.notify_one();
        }
    }
}
