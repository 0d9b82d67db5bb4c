//! The port, on the scripts.

use std::time::Duration;

use futures_util::future::join_all;
use redis::Cmd;
use serde::{Serialize, de::DeserializeOwned};

use super::Stream;
use super::answer::{self, Letter, Step, verdicts};
use super::scripts::{COUNTS, DEAD, DRAIN, EXTEND, FAIL, REQUEUE, RETRY, STEP};
use crate::catch::with_sources;
use crate::queue::millis::millis;
use crate::queue::redis::calls::{AT_ONCE, Call};
use crate::queue::redis::wait;
use crate::queue::{
    Claimed, Counts, DeadLetter, HandBack, Held, JobId, Lease, Owner, Queue, QueueError, Stepped,
};

/// How many jobs one call claims at most.
const BATCH: usize = 1000;

/// How often a claim is repeated that brought nothing but what cannot be read.
const UNREADABLE_ROUNDS: usize = 16;

// === impl Stream ===

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Stream<T> {
    async fn step_once(
        &self,
        doing: &'static str,
        done: &[Lease],
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<(Stepped<T>, Vec<(Lease, String)>), QueueError> {
        let under_way = match max {
            0 => None,
            _ => Some(self.place.calls.begin(owner).await),
        };
        let mut call = self.place.call(&STEP);
        call.arg(owner.as_str()).arg(max.min(BATCH)).arg(millis(lease)).arg(self.max_crashes);
        call.arg(millis(self.gone_after));
        Call::add_lost(under_way.as_ref(), &mut call);
        show(&mut call, done);
        let step: Step = self.place.ask(doing, &STEP, &call).await?;
        let (held, epoch, now, entries, given_up) = step;
        // Nothing is awaited between the answer and the jobs that it brought, so that none of them is forgotten.
        if let Some(under_way) = under_way {
            under_way.answered(epoch, now.saturating_mul(1000));
            self.place.waiter.stepped(None);
        }
        for (job, reason) in given_up {
            tracing::error!(target: "winddown", queue = self.place.stream, job, reason, "job.dead");
        }
        let held = verdicts(&held, done.len(), doing)?;
        let mut claimed = Vec::with_capacity(entries.len());
        let mut unreadable = Vec::new();
        for entry in entries {
            match answer::claimed(entry, owner, epoch, now) {
                (_, Ok(job)) => claimed.push(job),
                (lease, Err(reason)) => unreadable.push((lease, reason)),
            }
        }
        Ok((Stepped { held, claimed }, unreadable))
    }

    /// All at once: what was claimed beside them waits for this, under a lease that nobody renews yet.
    async fn bury_all(&self, unreadable: &[(Lease, String)]) {
        join_all(unreadable.iter().map(|(lease, reason)| self.bury(lease, reason))).await;
    }

    /// Sets aside what cannot be read.
    async fn bury(&self, lease: &Lease, reason: &str) {
        let (queue, job) = (&self.place.stream, &lease.id);
        match self.fail("make a job a dead letter", "unreadable", lease, Duration::ZERO, reason).await {
            Ok(_) => tracing::error!(target: "winddown", queue, %job, reason, "job.dead"),
            // It is claimed and nobody renews it: the next to claim it after its lease tries again.
            Err(error) => {
                let error = with_sources(&error);
                tracing::error!(target: "winddown", queue, %job, reason, error, "job.unreadable");
            }
        }
    }

    async fn fail(
        &self,
        doing: &'static str,
        then: &str,
        lease: &Lease,
        delay: Duration,
        reason: &str,
    ) -> Result<Held, QueueError> {
        let mut call = self.place.call(&FAIL);
        call.arg(then).arg(millis(delay)).arg(reason);
        show(&mut call, std::slice::from_ref(lease));
        let letters: String = self.place.ask(doing, &FAIL, &call).await?;
        Ok(verdicts(&letters, 1, doing)?.pop().unwrap_or(Held::Lost))
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Queue for Stream<T> {
    type Item = T;

    fn calls_at_once(&self) -> usize {
        AT_ONCE
    }

    async fn claim(&self, owner: &Owner, max: usize, lease: Duration) -> Result<Vec<Claimed<T>>, QueueError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        for _ in 0..UNREADABLE_ROUNDS {
            let (stepped, unreadable) = self.step_once("claim jobs", &[], owner, max, lease).await?;
            self.bury_all(&unreadable).await;
            if !stepped.claimed.is_empty() || unreadable.is_empty() {
                return Ok(stepped.claimed);
            }
        }
        Ok(Vec::new())
    }

    async fn ready(&self) {
        wait::ready(self).await;
    }

    async fn stop_waiting(&self) {
        wait::stop(self).await;
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Held>, QueueError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = self.place.call(&EXTEND);
        call.arg(millis(length));
        show(&mut call, leases);
        let letters: String = self.place.ask("extend leases", &EXTEND, &call).await?;
        verdicts(&letters, leases.len(), "extend leases")
    }

    async fn ack(&self, leases: &[Lease]) -> Result<Vec<Held>, QueueError> {
        match leases.first() {
            // Who it is does not matter where nothing is claimed.
            Some(Lease { owner, .. }) => {
                let (stepped, _) = self.step_once("ack jobs", leases, owner, 0, Duration::ZERO).await?;
                Ok(stepped.held)
            }
            None => Ok(Vec::new()),
        }
    }

    async fn nack(&self, lease: &Lease, delay: Duration, reason: &str) -> Result<Held, QueueError> {
        self.fail("nack a job", "later", lease, delay, reason).await
    }

    async fn dead_letter(&self, lease: &Lease, reason: &str) -> Result<Held, QueueError> {
        self.fail("make a job a dead letter", "dead", lease, Duration::ZERO, reason).await
    }

    async fn requeue(&self, jobs: &[HandBack]) -> Result<Vec<Held>, QueueError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = self.place.call(&REQUEUE);
        for HandBack { lease, begun, checkpoint } in jobs {
            show(&mut call, std::slice::from_ref(lease));
            call.arg(u8::from(*begun)).arg(u8::from(checkpoint.is_some()));
            call.arg(checkpoint.as_deref().unwrap_or_default());
        }
        let letters: String = self.place.ask("hand back jobs", &REQUEUE, &call).await?;
        verdicts(&letters, jobs.len(), "hand back jobs")
    }

    async fn begin_drain(&self, owner: &Owner, kill_in: Option<Duration>) -> Result<(), QueueError> {
        let under_way = self.place.calls.begin_last(owner).await;
        let mut call = self.place.call(&DRAIN);
        call.arg(owner.as_str()).arg("begin");
        match kill_in {
            Some(kill_in) => call.arg(millis(kill_in)),
            None => call.arg(""),
        };
        Call::add_lost(Some(&under_way), &mut call);
        let now: u64 = self.place.ask("mark an owner as ending", &DRAIN, &call).await?;
        under_way.answered(0, now.saturating_mul(1000));
        Ok(())
    }

    async fn end_drain(&self, owner: &Owner) -> Result<(), QueueError> {
        let mut call = self.place.call(&DRAIN);
        call.arg(owner.as_str()).arg("end");
        let () = self.place.ask("take the mark off an owner", &DRAIN, &call).await?;
        self.place.calls.forget(owner);
        Ok(())
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        let call = self.place.call(&COUNTS);
        self.place.ask("count jobs", &COUNTS, &call).await.map(answer::counts)
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, QueueError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let mut call = self.place.call(&DEAD);
        call.arg(i32::try_from(max).unwrap_or(i32::MAX));
        let letters: Vec<Letter> = self.place.ask("list dead letters", &DEAD, &call).await?;
        Ok(letters.into_iter().map(answer::dead_letter).collect())
    }

    async fn retry(&self, id: &JobId) -> Result<bool, QueueError> {
        let mut call = self.place.call(&RETRY);
        call.arg(id.as_str());
        self.place.ask("retry a dead letter", &RETRY, &call).await
    }

    async fn step(
        &self,
        done: &[Lease],
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Stepped<T>, QueueError> {
        let (mut stepped, unreadable) = self.step_once("ack and claim jobs", done, owner, max, lease).await?;
        self.bury_all(&unreadable).await;
        if stepped.claimed.is_empty() && !unreadable.is_empty() {
            // What was acked is acked: an error now would hide that, and the next claim meets it again.
            stepped.claimed = self.claim(owner, max, lease).await.unwrap_or_default();
        }
        Ok(stepped)
    }
}

/// Claims as the scripts read them.
fn show(call: &mut Cmd, leases: &[Lease]) {
    for Lease { id, owner, epoch } in leases {
        call.arg(id.as_str()).arg(epoch).arg(owner.as_str());
    }
}
