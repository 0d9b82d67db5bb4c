//! The port, on statements of SQLite.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};
use tokio::time::{sleep, timeout};

use super::statements::Statements;
use super::{Sqlite, row};
use crate::queue::millis::millis;
use crate::queue::{
    Claimed, Counts, DeadLetter, HandBack, Held, JobId, Lease, Owner, Queue, QueueError, Stepped,
};

/// How often a waiter looks for jobs that another process has enqueued.
const POLL: Duration = Duration::from_secs(1);

/// What a holder wants done with jobs.
#[derive(Clone, Copy)]
pub(super) enum Change<'a> {
    Check,
    Checkpoint(&'a str),
    Extend(Duration),
    Ack,
    Nack(Duration, &'a str),
    DeadLetter(&'a str),
}

/// Does what the holder of each lease asks for, in one statement, and tells of those that are held no more.
pub(super) async fn settle(
    say: &Statements,
    conn: &mut SqliteConnection,
    leases: &[Lease],
    change: Change<'_>,
) -> Result<Vec<Held>, sqlx::Error> {
    let keys: Vec<_> =
        leases.iter().map(|lease| (lease.id.as_str(), lease.owner.as_str(), lease.epoch)).collect();
    let keys = json(&keys)?;
    let query = match change {
        Change::Check => sqlx::query(say.check.sql()).bind(keys),
        Change::Checkpoint(checkpoint) => {
            sqlx::query(say.checkpoint.sql()).bind(keys).bind(checkpoint.to_owned())
        }
        Change::Extend(length) => sqlx::query(say.extend.sql()).bind(keys).bind(millis(length)),
        Change::Ack => sqlx::query(say.ack.sql()).bind(keys),
        Change::Nack(delay, reason) => {
            sqlx::query(say.nack.sql()).bind(keys).bind(millis(delay)).bind(reason.to_owned())
        }
        Change::DeadLetter(reason) => sqlx::query(say.dead_letter.sql()).bind(keys).bind(reason.to_owned()),
    };
    // All rows are fetched: the statement is only committed, and its failure only seen, at its end.
    let rows = query.fetch_all(&mut *conn).await?;
    judge(say, conn, leases.iter(), &rows, false).await
}

async fn requeue(
    say: &Statements,
    conn: &mut SqliteConnection,
    jobs: &[HandBack],
) -> Result<Vec<Held>, sqlx::Error> {
    let keys: Vec<_> = jobs
        .iter()
        .map(|HandBack { lease, begun, checkpoint }| {
            (lease.id.as_str(), lease.owner.as_str(), lease.epoch, u8::from(*begun), checkpoint)
        })
        .collect();
    let rows = sqlx::query(say.requeue.sql()).bind(json(&keys)?).fetch_all(&mut *conn).await?;
    judge(say, conn, jobs.iter().map(|job| &job.lease), &rows, true).await
}

/// What became of each lease, given the ids of the rows that were changed.
async fn judge(
    say: &Statements,
    conn: &mut SqliteConnection,
    leases: impl ExactSizeIterator<Item = &Lease>,
    changed: &[SqliteRow],
    handed_back: bool,
) -> Result<Vec<Held>, sqlx::Error> {
    if changed.len() == leases.len() {
        return Ok(vec![Held::Yours; changed.len()]);
    }
    let changed: HashSet<(&str, i64)> =
        changed.iter().filter_map(|row| Some((row.try_get(0).ok()?, row.try_get(1).ok()?))).collect();
    let mut verdicts = Vec::with_capacity(leases.len());
    for lease in leases {
        let (id, epoch) = (lease.id.as_str(), i64::try_from(lease.epoch).unwrap_or(i64::MAX));
        if changed.contains(&(id, epoch)) {
            verdicts.push(Held::Yours);
            continue;
        }
        let found = sqlx::query_scalar(say.verdict.sql())
            .bind(id.to_owned())
            .bind(lease.owner.as_str().to_owned())
            .bind(epoch)
            .fetch_all(&mut *conn)
            .await?;
        verdicts.push(match found.first() {
            None => Held::Gone,
            Some(true) if handed_back => Held::Already,
            Some(_) => Held::Lost,
        });
    }
    Ok(verdicts)
}

fn json(value: &impl Serialize) -> Result<String, sqlx::Error> {
    serde_json::to_string(value).map_err(|error| sqlx::Error::Encode(error.into()))
}

// === impl Sqlite ===

impl<T: DeserializeOwned> Sqlite<T> {
    async fn claim_on(
        &self,
        conn: &mut SqliteConnection,
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Claimed<T>>, sqlx::Error> {
        let rows = sqlx::query(self.say.claim.sql())
            .bind(owner.as_str().to_owned())
            .bind(i64::try_from(max).unwrap_or(i64::MAX))
            .bind(millis(lease))
            .bind(self.max_crashes)
            .fetch_all(&mut *conn)
            .await?;
        let mut claimed: Vec<Claimed<T>> = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.try_get("state").is_ok_and(|state: &str| state == "dead") {
                let (job, reason) =
                    (row.try_get::<&str, _>("id").ok(), row.try_get::<&str, _>("reason").ok());
                tracing::error!(target: "winddown", queue = self.say.table, job, reason, "job.dead");
                continue;
            }
            match row::claimed(row, owner) {
                Ok(job) => claimed.push(job),
                Err(reason) => self.bury(conn, row, owner, &reason).await,
            }
        }
        // Rows are returned in no order that is promised.
        claimed.sort_unstable_by_key(|job| (Reverse(job.priority), job.order));
        Ok(claimed)
    }

    /// Sets a row aside that cannot be read, and lets the others of its batch go on.
    async fn bury(&self, conn: &mut SqliteConnection, row: &SqliteRow, owner: &Owner, reason: &str) {
        let seq: i64 = row.try_get("seq").unwrap_or(0);
        let bury = sqlx::query(self.say.bury.sql())
            .bind(seq)
            .bind(reason.to_owned())
            .bind(owner.as_str().to_owned());
        match bury.execute(conn).await {
            Ok(_) => {
                tracing::error!(target: "winddown", queue = self.say.table, seq, reason, "job.dead")
            }
            // It is claimed and nobody renews it: the next to claim it after its lease tries again.
            Err(error) => {
                tracing::error!(target: "winddown", queue = self.say.table, seq, reason, %error, "job.unreadable")
            }
        }
    }

    /// How long until something can be claimed, if nothing changes.
    async fn next(&self) -> Result<Option<Duration>, sqlx::Error> {
        let wait: Option<i64> = sqlx::query_scalar(self.say.next.sql()).fetch_one(&self.pool).await?;
        Ok(wait.map(|wait| Duration::from_millis(wait.max(0).unsigned_abs())))
    }

    async fn settle(
        &self,
        doing: &'static str,
        leases: &[Lease],
        change: Change<'_>,
    ) -> Result<Vec<Held>, QueueError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let settled = async { settle(&self.say, &mut *self.pool.acquire().await?, leases, change).await };
        settled.await.map_err(|error: sqlx::Error| QueueError::new(doing, error))
    }
}

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Queue for Sqlite<T> {
    type Item = T;

    async fn claim(&self, owner: &Owner, max: usize, lease: Duration) -> Result<Vec<Claimed<T>>, QueueError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        let claimed = async { self.claim_on(&mut *self.pool.acquire().await?, owner, max, lease).await };
        claimed.await.map_err(|error| QueueError::new("claim jobs", error))
    }

    async fn ready(&self) {
        let mut changes = self.changes.subscribe();
        loop {
            // Subscribed before looking: what changes after the look wakes.
            changes.mark_unchanged();
            let wait = match self.next().await {
                Ok(Some(Duration::ZERO)) => return,
                Ok(wait) => wait.unwrap_or(POLL).min(POLL),
                Err(_) => {
                    // The claim that follows says what is wrong; the pause keeps it from being asked in a tight loop.
                    return sleep(POLL).await;
                }
            };
            // The sender is ours, so this ends with a change or with the time.
            drop(timeout(wait, changes.changed()).await);
        }
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Held>, QueueError> {
        let held = self.settle("extend leases", leases, Change::Extend(length)).await;
        // A lease may be made to end sooner than a waiter expects.
        self.wake();
        held
    }

    async fn ack(&self, leases: &[Lease]) -> Result<Vec<Held>, QueueError> {
        self.settle("ack jobs", leases, Change::Ack).await
    }

    async fn nack(&self, lease: &Lease, delay: Duration, reason: &str) -> Result<Held, QueueError> {
        let lease = std::slice::from_ref(lease);
        let held = self.settle("nack a job", lease, Change::Nack(delay, reason)).await?;
        self.wake();
        Ok(held.first().copied().unwrap_or(Held::Lost))
    }

    async fn dead_letter(&self, lease: &Lease, reason: &str) -> Result<Held, QueueError> {
        let lease = std::slice::from_ref(lease);
        let held = self.settle("make a job a dead letter", lease, Change::DeadLetter(reason)).await?;
        Ok(held.first().copied().unwrap_or(Held::Lost))
    }

    async fn requeue(&self, jobs: &[HandBack]) -> Result<Vec<Held>, QueueError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let held = async { requeue(&self.say, &mut *self.pool.acquire().await?, jobs).await };
        let held = held.await.map_err(|error: sqlx::Error| QueueError::new("hand back jobs", error))?;
        self.wake();
        Ok(held)
    }

    async fn begin_drain(&self, owner: &Owner, kill_in: Option<Duration>) -> Result<(), QueueError> {
        let kill_in = kill_in.map(millis);
        let marked = async {
            let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
            let owner = owner.as_str();
            sqlx::query(self.say.mark_ending.sql()).bind(owner.to_owned()).execute(&mut *tx).await?;
            sqlx::query(self.say.shorten.sql())
                .bind(owner.to_owned())
                .bind(kill_in)
                .execute(&mut *tx)
                .await?;
            sqlx::query(self.say.forget_marks.sql()).execute(&mut *tx).await?;
            tx.commit().await
        };
        marked.await.map_err(|error: sqlx::Error| QueueError::new("mark an owner as ending", error))?;
        self.wake();
        Ok(())
    }

    async fn end_drain(&self, owner: &Owner) -> Result<(), QueueError> {
        let cleared = async {
            let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
            for statement in [&self.say.clear_mark, &self.say.lengthen] {
                sqlx::query(statement.sql()).bind(owner.as_str().to_owned()).execute(&mut *tx).await?;
            }
            tx.commit().await
        };
        cleared.await.map_err(|error: sqlx::Error| QueueError::new("take the mark off an owner", error))
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        let rows = sqlx::query(self.say.counts.sql()).fetch_all(&self.pool).await;
        Ok(row::counts(&rows.map_err(|error| QueueError::new("count jobs", error))?))
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, QueueError> {
        let max = i64::try_from(max).unwrap_or(i64::MAX);
        let rows = sqlx::query(self.say.dead_letters.sql()).bind(max).fetch_all(&self.pool).await;
        Ok(rows
            .map_err(|error| QueueError::new("list dead letters", error))?
            .iter()
            .map(row::dead_letter)
            .collect())
    }

    async fn retry(&self, id: &JobId) -> Result<bool, QueueError> {
        let rows = sqlx::query(self.say.retry.sql()).bind(id.as_str().to_owned()).fetch_all(&self.pool).await;
        let retried = !rows.map_err(|error| QueueError::new("retry a dead letter", error))?.is_empty();
        self.wake();
        Ok(retried)
    }

    async fn step(
        &self,
        done: &[Lease],
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Stepped<T>, QueueError> {
        if done.is_empty() {
            return Ok(Stepped { held: Vec::new(), claimed: self.claim(owner, max, lease).await? });
        }
        if max == 0 {
            return Ok(Stepped { held: self.ack(done).await?, claimed: Vec::new() });
        }
        let stepped = async {
            let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
            let held = settle(&self.say, &mut tx, done, Change::Ack).await?;
            let claimed = self.claim_on(&mut tx, owner, max, lease).await?;
            tx.commit().await?;
            Ok(Stepped { held, claimed })
        };
        stepped.await.map_err(|error: sqlx::Error| QueueError::new("ack and claim jobs", error))
    }
}
