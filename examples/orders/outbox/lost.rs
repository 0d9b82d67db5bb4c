//! Orders whose jobs Redis has lost: it keeps nothing on disk, has failed over to a replica that had not heard of them, was emptied.
//!
//! Such an order is stored, not done, in no row of the outbox, and the queue knows nothing of its name. Each process looks at a few
//! orders a second, from the first to the last and again, and puts such an order into the outbox once more, as a row that is nobody's.
//!
//! **It finds no order whose job is there**, since each is known in one place before it is gone from the one before: a row is
//! deleted when its job is queued, and a job is acked when its order is done. So it asks in the same order, and last whether the order
//! is still open. **To be wrong does no harm**, either: a job that was queued twice has its effects once, by the
//! [claims](crate::claims) and the steps that the database knows of. A letter that is dead stays so, unless Redis has lost it as well.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sqlx::Row;
use tokio::time::timeout;
use winddown::BoxError;
use winddown::background::More;
use winddown::queue::JobId;

use super::{Outbox, PATIENCE};

/// At how many orders one step looks.
const FEW: usize = 100;

// === impl Outbox ===

impl Outbox {
    /// One step of the search for jobs that are lost.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time, as its process may die.
    pub async fn search(self: Arc<Self>) -> Result<More, BoxError> {
        tokio::select! {
            biased;
            () = self.shutdown.triggered() => {}
            searched = self.search_some() => searched?,
        }
        Ok(More::No)
    }

    async fn search_some(&self) -> Result<(), BoxError> {
        let rows = sqlx::query(
            "SELECT rowid, id FROM orders WHERE done = 0 AND rowid > ?
             AND id NOT IN (SELECT order_id FROM outbox) AND id NOT IN (SELECT id FROM winddown_jobs)
             ORDER BY rowid LIMIT ?",
        )
        .bind(self.searched.load(Ordering::Relaxed))
        .bind(i64::try_from(FEW)?)
        .fetch_all(&self.pool)
        .await?;
        let mut lost = Vec::new();
        let mut last = 0;
        for row in &rows {
            last = row.try_get("rowid")?;
            let id: JobId = row.try_get::<String, _>("id")?.parse()?;
            if timeout(PATIENCE, self.jobs.find(&id)).await??.is_none() {
                lost.push(id);
            }
        }
        self.queue_again(&lost).await?;
        self.searched.store(if rows.len() < FEW { 0 } else { last }, Ordering::Relaxed);
        Ok(())
    }

    async fn queue_again(&self, lost: &[JobId]) -> Result<(), BoxError> {
        // Most of them have been done since: the mark that keeps a slow relay from queuing such a one is not to be touched.
        let lost = self.still_open(lost, "SELECT id FROM open").await?;
        if lost.is_empty() {
            return Ok(());
        }
        timeout(PATIENCE, self.jobs.forget_once(&lost)).await??;
        let again = "INSERT INTO outbox (order_id) SELECT id FROM open WHERE true
                     ON CONFLICT DO NOTHING RETURNING order_id";
        for id in self.still_open(&lost, again).await? {
            tracing::warn!(order = %id, "the queue has lost this order's job, and is given it again");
        }
        self.wake();
        Ok(())
    }

    /// What a statement says of those that are not done.
    async fn still_open(&self, ids: &[JobId], statement: &str) -> Result<Vec<JobId>, BoxError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<&str> = ids.iter().map(JobId::as_str).collect();
        let open =
            "WITH open AS (SELECT id FROM orders WHERE done = 0 AND id IN (SELECT value FROM json_each(?)))";
        let rows = sqlx::query_scalar::<_, String>(sqlx::AssertSqlSafe(format!("{open} {statement}")))
            .bind(serde_json::to_string(&ids)?)
            .fetch_all(&self.pool)
            .await?;
        rows.iter().map(|id| Ok(id.parse()?)).collect()
    }
}
