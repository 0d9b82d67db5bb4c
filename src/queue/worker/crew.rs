//! What the tasks that run handlers share: jobs that wait for one of them, and those that are done.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

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
    line: Mutex<Line<Q::Item>>,
    /// So many jobs are done as was asked for.
    pub(super) done: Notify,
}

struct Line<T: Send + Sync + 'static> {
    /// Claimed ahead, for tasks that have done theirs.
    waiting: VecDeque<Job<Leased<T>>>,
    /// Jobs that are done, and to be acked.
    done: Vec<Job<Leased<T>>>,
    /// How many of those there must be for the loop to be told.
    enough: usize,
    running: usize,
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

/// A task's place among those that run.
pub(super) struct Place<Q: Queue, H> {
    pub(super) crew: Arc<Crew<Q, H>>,
    key: usize,
    left: bool,
}

/// Lets other tasks of the thread go first, once.
///
/// Not as tokio's `yield_now`, which keeps the task where no other thread finds it: a handler that blocks would block who yields.
pub(super) async fn behind_the_others() {
    let mut woken = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut woken, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

// === impl Crew ===

impl<Q: Queue, H> Crew<Q, H> {
    pub(super) fn new(desk: Arc<Desk<Q>>, handler: H) -> Crew<Q, H> {
        let line = Line {
            waiting: VecDeque::new(),
            done: Vec::new(),
            enough: usize::MAX,
            running: 0,
            places: Vec::new(),
            closed: false,
        };
        Crew { desk, handler, line: Mutex::new(line), done: Notify::new() }
    }

    fn line(&self) -> MutexGuard<'_, Line<Q::Item>> {
        // Nothing behind it is ever half-changed.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has [`done`](Self::done) tell as soon as so many jobs are done, beyond those that were taken; which may be so already.
    pub(super) fn tell_at(&self, enough: usize) {
        let mut line = self.line();
        line.enough = enough;
        let told = line.done.len() >= enough;
        drop(line);
        if told {
            self.done.notify_one();
        }
    }

    /// Hands back what waits: no handler has seen it.
    pub(super) fn give_back(&self) {
        let waiting = std::mem::take(&mut self.line().waiting);
        waiting.into_iter().for_each(Job::hand_back);
    }
}

// === impl Tasks ===

impl<Q: Queue, H> Tasks<Q, H> {
    pub(super) fn new(crew: Arc<Crew<Q, H>>) -> Tasks<Q, H> {
        Tasks { crew, running: Slab::new() }
    }

    /// Puts jobs at the end of the line, and starts tasks for as many as may run at once.
    pub(super) fn start<Fut>(
        &mut self,
        jobs: Vec<Job<Leased<Q::Item>>>,
        task: impl Fn(Place<Q, H>, Job<Leased<Q::Item>>) -> Fut,
    ) where
        Fut: Future<Output = ()> + Send + 'static,
    {
        let starting: Vec<_> = {
            let mut line = self.crew.line();
            line.waiting.extend(jobs);
            let free = self.crew.desk.options.concurrency.saturating_sub(line.running);
            let free = free.min(line.waiting.len());
            line.running += free;
            line.waiting.drain(..free).collect()
        };
        for job in starting {
            let crew = Arc::clone(&self.crew);
            self.running.insert_with(|key| tokio::spawn(task(Place { crew, key, left: false }, job)));
        }
    }

    /// Takes what is done, forgets the tasks that have ended, and says how many jobs wait.
    pub(super) fn take(&mut self, done: &mut Vec<Job<Leased<Q::Item>>>) -> usize {
        let mut line = self.crew.line();
        done.append(&mut line.done);
        for key in line.places.drain(..) {
            self.running.remove(key);
        }
        line.waiting.len()
    }
}

impl<Q: Queue, H> Drop for Tasks<Q, H> {
    fn drop(&mut self) {
        let (done, waiting) = {
            let mut line = self.crew.line();
            line.closed = true;
            (std::mem::take(&mut line.done), std::mem::take(&mut line.waiting))
        };
        // They go back, what is done as done; see `hand_back`.
        drop((done, waiting));
        self.running.iter().for_each(JoinHandle::abort);
    }
}

// === impl Place ===

impl<Q: Queue, H> Place<Q, H> {
    /// Brings what is done, and takes what waits; where nothing does, the place is free.
    pub(super) fn next(&mut self, done: Option<Job<Leased<Q::Item>>>) -> Option<Job<Leased<Q::Item>>> {
        let handle = &self.crew.desk.handle;
        let mut line = self.crew.line();
        let (mut too_late, mut enough) = (None, false);
        match done {
            // Dropped when the lock is free, it goes back as done.
            Some(job) if line.closed => too_late = Some(job),
            Some(job) => {
                line.done.push(job);
                enough = line.done.len() == line.enough;
            }
            None => {}
        }
        let begins = !line.waiting.is_empty() && !handle.is_triggered() && !handle.is_paused();
        let next = if begins { line.waiting.pop_front() } else { None };
        if next.is_none() {
            self.left = true;
            line.running -= 1;
            line.places.push(self.key);
        }
        drop(line);
        drop(too_late);
        if enough {
            self.crew.done.notify_one();
        }
        next
    }
}

impl<Q: Queue, H> Drop for Place<Q, H> {
    fn drop(&mut self) {
        if !self.left {
            let mut line = self.crew.line();
            line.running -= 1;
            line.places.push(self.key);
        }
    }
}
