//! What the parts of a worker share.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Options;
use super::claims::Claims;
use super::flight::Flights;
use crate::ShutdownHandle;
use crate::backoff::Backoff;
use crate::budget::Human;
use crate::catch::with_sources;
use crate::queue::{Lease, Owner, QueueError};

pub(super) struct Desk<Q> {
    pub(super) name: String,
    pub(super) queue: Q,
    pub(super) owner: Owner,
    pub(super) options: Options,
    pub(super) handle: ShutdownHandle,
    pub(super) flights: Flights,
    pub(super) claims: Claims,
    /// The queue is ending what `ready` left waiting: until that is over `ready` is not asked.
    pub(super) ending_waits: AtomicBool,
    unreachable: AtomicBool,
    outage: Mutex<Option<Outage>>,
}

/// Since when the queue does not answer, and what was last said of it.
struct Outage {
    since: Instant,
    said: Instant,
    error: String,
}

/// How often an outage is told of that goes on, and how often when it goes on in another way.
const SAY_AGAIN: Duration = Duration::from_secs(10);
const SAY_ANEW: Duration = Duration::from_secs(1);

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
            claims: Claims::default(),
            ending_waits: AtomicBool::new(false),
            unreachable: AtomicBool::new(false),
            outage: Mutex::new(None),
        }
    }

    /// Whether nothing is held. A claim that begins at this very moment is not seen; what it brings goes back untouched.
    pub(super) fn is_idle(&self) -> bool {
        !self.claims.are_open() && self.flights.len() == 0
    }

    /// Keeps whether the queue answers, and tells of each change, and now and then of what goes on.
    pub(super) fn heard<T>(&self, answer: Result<T, QueueError>) -> Option<T> {
        match answer {
            Ok(value) => {
                if self.unreachable.swap(false, Ordering::Relaxed) {
                    let outage = self.outage().take();
                    let after = Human(outage.map_or(Duration::ZERO, |outage| outage.since.elapsed()));
                    tracing::info!(target: "winddown", queue = self.name, %after, "queue.reachable");
                }
                Some(value)
            }
            Err(error) => {
                self.tell_of_outage(with_sources(&error));
                None
            }
        }
    }

    fn tell_of_outage(&self, error: String) {
        let now = Instant::now();
        let since = {
            let mut outage = self.outage();
            let since = match &*outage {
                Some(outage) => {
                    let pause = if outage.error == error { SAY_AGAIN } else { SAY_ANEW };
                    if now < outage.said + pause {
                        return;
                    }
                    outage.since
                }
                None => now,
            };
            *outage = Some(Outage { since, said: now, error: error.clone() });
            self.unreachable.store(true, Ordering::Relaxed);
            since
        };
        // Not under the lock: a log subscriber may block.
        let since = Human(now - since);
        tracing::warn!(target: "winddown", queue = self.name, error, %since, "queue.unreachable");
    }

    fn outage(&self) -> MutexGuard<'_, Option<Outage>> {
        // Nothing behind it is ever half-changed.
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits before the next try; the beginning of a stop ends that at once.
    pub(super) async fn wait(&self, failures: u32) {
        let pause = self.pause(failures);
        if self.handle.is_triggered() {
            tokio::time::sleep(pause).await;
        } else {
            // Sooner or not, what follows is the next try.
            let _ = self.handle.sleep(pause).await;
        }
    }

    /// How long to wait before the next try, as things are now.
    pub(super) fn pause(&self, failures: u32) -> Duration {
        let retry = if self.handle.is_triggered() { RETRY_STOPPING } else { RETRY };
        retry.scattered(failures)
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
