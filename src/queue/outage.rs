//! What is told of a queue that does not answer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::QueueError;
use crate::budget::Human;
use crate::catch::with_sources;

/// How often an outage is told of that goes on, and how often when it goes on in another way.
const SAY_AGAIN: Duration = Duration::from_secs(10);
const SAY_ANEW: Duration = Duration::from_secs(1);

/// Which queues do not answer now: by number where there are several, of each for itself.
pub(super) struct Outages {
    /// So that nothing is locked while all is well.
    any: AtomicBool,
    by: Mutex<BTreeMap<Option<usize>, Outage>>,
}

/// Since when a queue does not answer, and what was last said of it.
struct Outage {
    since: Instant,
    said: Instant,
    error: String,
}

// === impl Outages ===

impl Outages {
    pub(super) fn new() -> Outages {
        Outages { any: AtomicBool::new(false), by: Mutex::default() }
    }

    /// Keeps whether a queue answers, and tells of each change, and now and then of what goes on.
    pub(super) fn heard<T>(
        &self,
        name: &dyn fmt::Display,
        of: Option<usize>,
        answer: Result<T, QueueError>,
    ) -> Option<T> {
        match answer {
            Ok(value) => {
                if self.any.load(Ordering::Relaxed) {
                    self.over(name, of);
                }
                Some(value)
            }
            Err(error) => {
                self.goes_on(name, of, with_sources(&error));
                None
            }
        }
    }

    /// What the queue said last, while it does not answer.
    pub(super) fn error(&self, of: Option<usize>) -> Option<String> {
        self.by().get(&of).map(|outage| outage.error.clone())
    }

    fn over(&self, name: &dyn fmt::Display, of: Option<usize>) {
        let over = {
            let mut by = self.by();
            let over = by.remove(&of);
            self.any.store(!by.is_empty(), Ordering::Relaxed);
            over
        };
        if let Some(outage) = over {
            let after = Human(outage.since.elapsed());
            tracing::info!(target: "winddown", queue = %name, %after, "queue.reachable");
        }
    }

    fn goes_on(&self, name: &dyn fmt::Display, of: Option<usize>, error: String) {
        let now = Instant::now();
        let since = {
            let mut by = self.by();
            let since = match by.get(&of) {
                Some(outage) => {
                    let pause = if outage.error == error { SAY_AGAIN } else { SAY_ANEW };
                    if now < outage.said + pause {
                        return;
                    }
                    outage.since
                }
                None => now,
            };
            by.insert(of, Outage { since, said: now, error: error.clone() });
            self.any.store(true, Ordering::Relaxed);
            since
        };
        // Not under the lock: a log subscriber may block.
        let since = Human(now - since);
        tracing::warn!(target: "winddown", queue = %name, error, %since, "queue.unreachable");
    }

    fn by(&self) -> MutexGuard<'_, BTreeMap<Option<usize>, Outage>> {
        // Nothing behind it is ever half-changed.
        self.by.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
