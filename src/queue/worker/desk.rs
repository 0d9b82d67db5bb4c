//! What the parts of a worker share.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Options;
use super::flight::Flights;
use crate::ShutdownHandle;
use crate::backoff::Backoff;
use crate::catch::with_sources;
use crate::queue::{Lease, Owner, QueueError};

pub(super) struct Desk<Q> {
    pub(super) name: String,
    pub(super) queue: Q,
    pub(super) owner: Owner,
    pub(super) options: Options,
    pub(super) handle: ShutdownHandle,
    pub(super) flights: Flights,
    /// A claim is under way.
    pub(super) claiming: AtomicBool,
    /// The last claim had no answer, and may have been done all the same.
    pub(super) unanswered: AtomicBool,
    /// The queue is ending what `ready` left waiting: until that is over `ready` is not asked.
    pub(super) ending_waits: AtomicBool,
    unreachable: AtomicBool,
}

const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
/// Once the program stops there is no time to wait for long.
const RETRY_STOPPING: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(200));

// === impl Desk ===

impl<Q> Desk<Q> {
    pub(super) fn new(
        name: String,
        queue: Q,
        owner: Owner,
        options: Options,
        handle: ShutdownHandle,
    ) -> Desk<Q> {
        Desk {
            name,
            queue,
            owner,
            options,
            handle,
            flights: Flights::new(),
            claiming: AtomicBool::new(false),
            unanswered: AtomicBool::new(false),
            ending_waits: AtomicBool::new(false),
            unreachable: AtomicBool::new(false),
        }
    }

    /// Whether nothing is held. A claim that begins at this very moment is not seen; what it brings goes back untouched.
    pub(super) fn is_idle(&self) -> bool {
        let claims = self.claiming.load(Ordering::SeqCst) || self.unanswered.load(Ordering::SeqCst);
        !claims && self.flights.len() == 0
    }

    /// Keeps whether the queue answers, and tells of each change once.
    pub(super) fn heard<T>(&self, answer: Result<T, QueueError>) -> Option<T> {
        match answer {
            Ok(value) => {
                if self.unreachable.swap(false, Ordering::Relaxed) {
                    tracing::info!(target: "winddown", queue = self.name, "queue.reachable");
                }
                Some(value)
            }
            Err(error) => {
                if !self.unreachable.swap(true, Ordering::Relaxed) {
                    let error = with_sources(&error);
                    tracing::warn!(target: "winddown", queue = self.name, error, "queue.unreachable");
                }
                None
            }
        }
    }

    /// Waits before the next try; the beginning of a stop ends that at once.
    pub(super) async fn wait(&self, failures: u32) {
        if self.handle.is_triggered() {
            tokio::time::sleep(RETRY_STOPPING.scattered(failures)).await;
        } else {
            // Sooner or not, what follows is the next try.
            let _ = self.handle.sleep(RETRY.scattered(failures)).await;
        }
    }

    /// Calls until the queue answers; `true` when it was asked more than once, so that an answer may be about an earlier call.
    pub(super) async fn until_heard<T, Fut>(&self, mut call: impl FnMut() -> Fut) -> (T, bool)
    where
        Fut: Future<Output = Result<T, QueueError>>,
    {
        let mut failures = 0;
        loop {
            if let Some(answer) = self.heard(call().await) {
                return (answer, failures > 0);
            }
            self.wait(failures).await;
            failures += 1;
        }
    }

    pub(super) fn tell_lost(&self, lease: &Lease, when: &str) {
        tracing::warn!(target: "winddown", queue = self.name, job = %lease.id, epoch = lease.epoch, when, "lease.lost");
    }
}
