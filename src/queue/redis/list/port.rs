//! The port, on scripts.

use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, RedisError};
use serde::{Serialize, de::DeserializeOwned};

use super::groups::{add_groups, by_claim, in_order};
use super::reply::{self, Misfit, Parts, Step};
use super::{BATCH, List, scripts};
use crate::catch::with_sources;
use crate::queue::millis::millis;
use crate::queue::redis::calls::{AT_ONCE, Call};
use crate::queue::redis::wait;
use crate::queue::{
    Claimed, Counts, DeadLetter, HandBack, Held, JobId, Lease, Owner, Queue, QueueError, Stepped,
};

// === impl List ===

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> List<T> {
    /// Acks up to [`BATCH`] jobs, and claims where `max` is not 0.
    async fn step_once(
        &self,
        done: &[Lease],
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Stepped<T>, RedisError> {
        let leases: Vec<&Lease> = done.iter().collect();
        let mut order = Vec::with_capacity(leases.len());
        let groups = by_claim(&mut order, &leases);
        let under_way = match max {
            0 => None,
            _ => Some(self.shared.calls.begin(owner).await),
        };
        let answer = self.shared.run(&scripts::STEP, |call| {
            call.arg(owner.as_str()).arg(max).arg(millis(lease)).arg(self.max_crashes);
            match &under_way {
                Some(under_way) if under_way.is_after_lost() => Call::add_lost(Some(under_way), call),
                _ => drop(call.arg("")),
            }
            add_groups(call, &groups, &leases)
        });
        let answer = answer.await?;
        let in_order = |held: Option<Vec<Held>>| match held {
            None => vec![Held::Yours; done.len()],
            Some(held) => in_order(&order, &held),
        };
        if max == 0 {
            return Ok(Stepped { held: in_order(reply::verdicts(answer)?), claimed: Vec::new() });
        }
        let Step { held, epoch, now, wait, jobs, dead } = Step::read(answer)?;
        let held = in_order(held);
        // Nothing is awaited between the answer and the jobs that it brought, so that none of them is forgotten.
        if let Some(under_way) = under_way {
            under_way.answered(epoch, now.saturating_mul(1000));
        }
        // Where all that was asked for was there, the script has not looked any further.
        let enough = jobs.len() == max && wait < 0;
        self.shared.waiter.stepped((!enough).then(|| reply::wait(wait)));
        for given_up in dead.chunks_exact(2) {
            tracing::error!(target: "winddown", queue = self.shared.name, job = given_up[0], reason = given_up[1], "job.dead");
        }
        let mut claimed = Vec::with_capacity(max);
        let mut misfits = Vec::new();
        jobs.read(owner, epoch, now, |job| match job {
            Ok(job) => claimed.push(job),
            Err(misfit) => misfits.push(misfit),
        });
        // All at once: what was claimed beside them waits for this, under a lease that nobody renews yet.
        join_all(misfits.iter().map(|misfit| self.bury(misfit, owner, epoch))).await;
        Ok(Stepped { held, claimed })
    }

    /// Sets a job aside that cannot be read, and lets the others of its batch go on.
    async fn bury(&self, misfit: &Misfit, owner: &Owner, epoch: u64) {
        let token = format!("{epoch}:{owner}");
        let (id, reason) = (String::from_utf8_lossy(&misfit.id), &misfit.reason);
        let buried = self
            .shared
            .run(&scripts::FAIL, |call| call.arg(token).arg(&misfit.id).arg(0).arg("-").arg(reason));
        match buried.await {
            Ok(_) => {
                tracing::error!(target: "winddown", queue = self.shared.name, job = %id, reason, "job.dead");
            }
            // It is claimed and nobody renews it: whoever reclaims it after its lease tries again.
            Err(error) => {
                let error = with_sources(&error);
                tracing::error!(target: "winddown", queue = self.shared.name, job = %id, reason, error, "job.unreadable");
            }
        }
    }

    async fn fail(&self, lease: &Lease, delay: Option<Duration>, reason: &str) -> Result<Held, RedisError> {
        let failed = self.shared.run(&scripts::FAIL, |call| {
            call.arg(format!("{}:{}", lease.epoch, lease.owner)).arg(lease.id.as_str()).arg(1);
            match delay {
                Some(delay) => call.arg(millis(delay)),
                None => call.arg("-"),
            };
            call.arg(reason)
        });
        reply::held_one(&failed.await?)
    }

    async fn requeue_some(&self, jobs: &[HandBack]) -> Result<Vec<Held>, RedisError> {
        let leases: Vec<&Lease> = jobs.iter().map(|job| &job.lease).collect();
        let mut order = Vec::with_capacity(leases.len());
        let groups = by_claim(&mut order, &leases);
        let answer = self.shared.run(&scripts::REQUEUE, |call| {
            for group in &groups {
                add_groups(call, std::slice::from_ref(group), &leases);
                for place in group.places {
                    call.arg(u8::from(jobs[*place].begun));
                }
                for place in group.places {
                    let checkpoint = jobs[*place].checkpoint.as_deref();
                    call.arg(checkpoint.map_or_else(String::new, |checkpoint| format!("+{checkpoint}")));
                }
            }
            call
        });
        let held = reply::held(answer.await?)?;
        Ok(in_order(&order, &held))
    }

    async fn extend_some(&self, leases: &[Lease], length: Duration) -> Result<Vec<Held>, RedisError> {
        let leases: Vec<&Lease> = leases.iter().collect();
        let mut order = Vec::with_capacity(leases.len());
        let groups = by_claim(&mut order, &leases);
        let answer = self.shared.run(&scripts::EXTEND, |call| {
            call.arg(millis(length));
            add_groups(call, &groups, &leases)
        });
        let held = reply::held(answer.await?)?;
        Ok(in_order(&order, &held))
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Queue for List<T> {
    type Item = T;

    fn calls_at_once(&self) -> usize {
        AT_ONCE
    }

    async fn claim(&self, owner: &Owner, max: usize, lease: Duration) -> Result<Vec<Claimed<T>>, QueueError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let stepped = self.step_once(&[], owner, max.min(BATCH), lease).await;
        stepped.map(|stepped| stepped.claimed).map_err(|error| QueueError::new("claim jobs", error))
    }

    async fn ready(&self) {
        wait::ready(&self.shared).await;
    }

    async fn stop_waiting(&self) {
        wait::stop(&self.shared).await;
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Held>, QueueError> {
        let mut held = Vec::with_capacity(leases.len());
        for leases in leases.chunks(BATCH) {
            let some = self.extend_some(leases, length).await;
            held.extend(some.map_err(|error| QueueError::new("extend leases", error))?);
        }
        Ok(held)
    }

    async fn ack(&self, leases: &[Lease]) -> Result<Vec<Held>, QueueError> {
        let mut held = Vec::with_capacity(leases.len());
        for leases in leases.chunks(BATCH) {
            let some = self.step_once(leases, &leases[0].owner, 0, Duration::ZERO).await;
            held.extend(some.map_err(|error| QueueError::new("ack jobs", error))?.held);
        }
        Ok(held)
    }

    async fn nack(&self, lease: &Lease, delay: Duration, reason: &str) -> Result<Held, QueueError> {
        let held = self.fail(lease, Some(delay), reason).await;
        held.map_err(|error| QueueError::new("nack a job", error))
    }

    async fn dead_letter(&self, lease: &Lease, reason: &str) -> Result<Held, QueueError> {
        let held = self.fail(lease, None, reason).await;
        held.map_err(|error| QueueError::new("make a job a dead letter", error))
    }

    async fn requeue(&self, jobs: &[HandBack]) -> Result<Vec<Held>, QueueError> {
        let mut held = Vec::with_capacity(jobs.len());
        for jobs in jobs.chunks(BATCH) {
            let some = self.requeue_some(jobs).await;
            held.extend(some.map_err(|error| QueueError::new("hand back jobs", error))?);
        }
        Ok(held)
    }

    async fn begin_drain(&self, owner: &Owner, kill_in: Option<Duration>) -> Result<(), QueueError> {
        let under_way = self.shared.calls.begin_last(owner).await;
        let marked = self.shared.run(&scripts::BEGIN_DRAIN, |call| {
            call.arg(owner.as_str());
            match kill_in {
                Some(kill_in) => call.arg(millis(kill_in)),
                None => call.arg("-"),
            };
            Call::add_lost(Some(&under_way), call);
            call
        });
        let now = marked.await.and_then(|now| reply::number(&now));
        let now = now.map_err(|error| QueueError::new("mark an owner as ending", error))?;
        under_way.answered(0, now.unsigned_abs().saturating_mul(1000));
        Ok(())
    }

    async fn end_drain(&self, owner: &Owner) -> Result<(), QueueError> {
        let mut command = Cmd::new();
        command.arg("HDEL").arg(format!("{}ending", self.shared.prefix)).arg(owner.as_str());
        let cleared = self.shared.link().query(&command).await;
        cleared.map_err(|error| QueueError::new("take the mark off an owner", error))?;
        self.shared.calls.forget(owner);
        Ok(())
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        let counts = async {
            let mut parts = Parts::of(self.shared.run(&scripts::COUNTS, |call| call).await?)?;
            let mut count = || parts.number().map(i64::unsigned_abs);
            Ok(Counts {
                pending: count()?,
                scheduled: count()?,
                active: count()?,
                dead: count()?,
                interruptions: count()?,
                crashes: count()?,
                oldest: reply::wait(parts.number()?),
            })
        };
        counts.await.map_err(|error: RedisError| QueueError::new("count jobs", error))
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, QueueError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let letters = async {
            let max = u32::try_from(max).unwrap_or(u32::MAX);
            let letters = self.shared.run(&scripts::DEAD_LETTERS, |call| call.arg(max)).await?;
            Parts::of(letters)?.map(reply::dead_letter).collect::<Result<Vec<_>, _>>()
        };
        letters.await.map_err(|error| QueueError::new("list dead letters", error))
    }

    async fn retry(&self, id: &JobId) -> Result<bool, QueueError> {
        let retried = self.shared.run(&scripts::RETRY, |call| call.arg(id.as_str())).await;
        retried
            .and_then(|retried| reply::number(&retried))
            .map(|retried| retried == 1)
            .map_err(|error| QueueError::new("retry a dead letter", error))
    }

    async fn step(
        &self,
        done: &[Lease],
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Stepped<T>, QueueError> {
        let (before, last) = done.split_at(done.len().saturating_sub(BATCH));
        let mut held = self.ack(before).await?;
        let stepped = self.step_once(last, owner, max.min(BATCH), lease).await;
        let stepped = stepped.map_err(|error| QueueError::new("ack and claim jobs", error))?;
        held.extend(stepped.held);
        Ok(Stepped { held, claimed: stepped.claimed })
    }
}
