//! What the parts of a worker share.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Options;
use super::claims::Claims;
use super::flight::Flights;
use crate::ShutdownHandle;
use crate::backoff::Backoff;
use crate::budget::Human;
use crate::queue::outage::Outages;
use crate::queue::{Lease, Owner, Queue, QueueError};

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
    /// The queue was told when this process will be killed: by then all leases end.
    pub(super) told_kill: AtomicBool,
    outages: Outages,
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
            claims: Claims::default(),
            ending_waits: AtomicBool::new(false),
            told_kill: AtomicBool::new(false),
            outages: Outages::new(),
        }
    }

    /// Whether nothing is held. A claim that begins at this very moment is not seen; what it brings goes back untouched.
    pub(super) fn is_idle(&self) -> bool {
        !self.claims.are_open() && self.flights.len() == 0
    }

    /// Keeps whether the queue answers, and tells of each change, and now and then of what goes on.
    pub(super) fn heard<T>(&self, answer: Result<T, QueueError>) -> Option<T> {
        self.heard_as(None, answer)
    }

    /// Each queue of several is told of by its number.
    fn heard_as<T>(&self, of: Option<usize>, answer: Result<T, QueueError>) -> Option<T> {
        match of {
            Some(member) => self.outages.heard(&format_args!("{}/{member}", self.name), of, answer),
            None => self.outages.heard(&self.name, of, answer),
        }
    }

    /// Why what the queue has not heard of is not lost for good.
    pub(super) fn when_free(&self) -> String {
        if self.told_kill.load(Ordering::Relaxed) {
            return "it is free again when its lease ends, at the kill at the latest".to_owned();
        }
        format!("it is free again when its lease ends, in {} at the latest", Human(self.options.lease))
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
    pub(super) async fn until_heard<T, Fut>(&self, call: impl FnMut() -> Fut) -> (T, bool)
    where
        Fut: Future<Output = Result<T, QueueError>>,
    {
        self.until_heard_as(None, call).await
    }

    async fn until_heard_as<T, Fut>(&self, of: Option<usize>, mut call: impl FnMut() -> Fut) -> (T, bool)
    where
        Fut: Future<Output = Result<T, QueueError>>,
    {
        let mut failures = 0;
        loop {
            if let Some(answer) = self.heard_as(of, call().await) {
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

impl<Q: Queue> Desk<Q> {
    /// As [`heard`](Desk::heard), of one queue of several.
    pub(super) fn heard_of<T>(&self, member: usize, answer: Result<T, QueueError>) -> Option<T> {
        self.heard_as(self.one_of_several(member), answer)
    }

    /// As [`until_heard`](Desk::until_heard), where the call is about one job.
    pub(super) async fn until_heard_of<T, Fut>(&self, lease: &Lease, call: impl FnMut() -> Fut) -> (T, bool)
    where
        Fut: Future<Output = Result<T, QueueError>>,
    {
        self.until_heard_as(self.one_of_several(self.queue.member(lease)), call).await
    }

    /// Where there is one, all calls are that one's.
    fn one_of_several(&self, member: usize) -> Option<usize> {
        (self.queue.members() > 1).then_some(member)
    }

    /// Of a job whose handler has come to its end.
    pub(super) fn unconfirmed(&self, lease: &Lease, end: &str) -> String {
        let error = self.outages.error(Some(self.queue.member(lease))).or_else(|| self.outages.error(None));
        let error = error.unwrap_or_else(|| "it has not answered yet".to_owned());
        let free = self.when_free();
        format!(
            "its handler {end}, and the queue has not confirmed that: {error}; if it has not heard of it, {free}"
        )
    }
}
