//! The way of orders into a queue that is not in their database.
//!
//! An order is stored together with a row of the outbox: both, or neither. The *relay* of some process then enqueues its job
//! under the order's name, deletes the row, and has the queue forget that it ever heard of the name. A process may die between
//! any two of these, so that any of them may be repeated, by any process, at any time:
//!
//! | dies after | what is there | the next relay |
//! | --- | --- | --- |
//! | storing | the row | enqueues |
//! | enqueuing | the row, the job (by now perhaps done), the queue's mark of its name | enqueues nothing, thanks to the mark, and deletes the row |
//! | deleting the row | the job, the mark | has nothing to do; the queue drops the mark after a week |
//! | forgetting | the job | |
//!
//! **Who may forget a mark.** It is what keeps a slow relay, or one that was frozen, from enqueuing a job that another
//! has moved and a worker has done. So it may go only when no relay can have the row in hand any more. Each row belongs to the
//! process that stored it: nobody else moves it, and that process has its marks forgotten. After a while others may take it
//! over, since its process may be gone; from then on the row is nobody's, and whoever deletes it leaves the mark. The same is done
//! with a process's own rows when a call of its failed, because that may still be under way.
//!
//! A job that Redis itself has lost is found by the [search](lost), and its order goes this way once more. What Redis has lost of an
//! end is made good, too: the job comes again, and its order is done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use sqlx::{Row, SqliteConnection, SqlitePool};
use tokio::sync::Notify;
use tokio::time::timeout;
use winddown::background::More;
use winddown::queue::redis::List;
use winddown::queue::{JobId, NewJob, Owner};
use winddown::{BoxError, ShutdownHandle};

use crate::order::Order;

mod lost;

/// How it is made, and what has to be readable in it. `relay` is whose the row is, or null for nobody's; `placed` in seconds.
pub const TABLE: (&str, &str, &str) = (
    "outbox",
    "CREATE TABLE IF NOT EXISTS outbox (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT NOT NULL UNIQUE, relay TEXT,
        placed REAL NOT NULL DEFAULT (unixepoch('subsec'))) STRICT",
    "SELECT seq, order_id, relay, placed FROM outbox LIMIT 0",
);

/// How many orders are moved at once.
const BATCH: usize = 256;

/// How often the rows of others are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// How long a row is its process's alone. To take it over too soon costs no more than a mark that stays for a week.
const TAKE_OVER: Duration = Duration::from_secs(2);

/// How long the queue may take to answer; a stop waits no longer than that.
const PATIENCE: Duration = Duration::from_secs(2);

/// The rows, and this process's relay.
pub struct Outbox {
    pool: SqlitePool,
    jobs: List<Order>,
    shutdown: ShutdownHandle,
    me: Owner,
    /// A call is under way, or has failed: what was asked for may still happen.
    in_doubt: AtomicBool,
    woken: Notify,
    /// How far the search for lost jobs has come.
    searched: AtomicI64,
}

// === impl Outbox ===

impl Outbox {
    pub fn new(pool: SqlitePool, jobs: List<Order>, shutdown: ShutdownHandle) -> Outbox {
        let woken = Notify::new();
        // What an earlier process has left is looked at first.
        woken.notify_one();
        let (me, in_doubt, searched) = (Owner::unique("relay"), AtomicBool::new(false), AtomicI64::new(0));
        Outbox { pool, jobs, shutdown, me, in_doubt, woken, searched }
    }

    /// Notes that an order is to be queued, in the transaction that stores it.
    pub async fn put_in(&self, conn: &mut SqliteConnection, id: &str) -> Result<(), sqlx::Error> {
        sqlx::query("INSERT INTO outbox (order_id, relay) VALUES (?, ?)")
            .bind(id)
            .bind(self.me.as_str())
            .execute(conn)
            .await?;
        Ok(())
    }

    /// That transaction is committed.
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    /// Whether an order is not known to be queued yet.
    pub async fn holds_in(&self, conn: &mut SqliteConnection, id: &str) -> Result<bool, sqlx::Error> {
        let held = sqlx::query("SELECT 1 FROM outbox WHERE order_id = ?").bind(id);
        Ok(held.fetch_optional(conn).await?.is_some())
    }

    /// How many orders wait in it, and how long ago the oldest was stored.
    pub async fn waiting(&self) -> Result<(u64, Option<Duration>), BoxError> {
        let row = sqlx::query("SELECT count(*), max(unixepoch('subsec') - min(placed), 0.0) FROM outbox")
            .fetch_one(&self.pool)
            .await?;
        let oldest: Option<f64> = row.try_get(1)?;
        Ok((row.try_get::<i64, _>(0)?.try_into()?, oldest.map(Duration::try_from_secs_f64).transpose()?))
    }

    /// One step of the relay: waits until an order may be there, and moves a batch. After the trigger
    /// it does neither.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time, as its process may die.
    pub async fn relay(self: Arc<Self>) -> Result<More, BoxError> {
        tokio::select! {
            biased;
            () = self.shutdown.triggered() => return Ok(More::No),
            () = self.woken.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
        // What is left, or has failed, is not to wait for the next order.
        let moved = self.move_batch().await.inspect_err(|_| self.wake())?;
        if moved == BATCH {
            self.wake();
        }
        Ok(More::Yes)
    }

    async fn move_batch(&self) -> Result<usize, BoxError> {
        self.disown().await?;
        // From here on nobody forgets the mark of a row that is nobody's, and none but this relay that of one of its own.
        let rows = sqlx::query(
            "SELECT seq, body FROM outbox JOIN orders ON id = order_id
             WHERE relay = ? OR relay IS NULL ORDER BY seq LIMIT ?",
        )
        .bind(self.me.as_str())
        .bind(i64::try_from(BATCH)?)
        .fetch_all(&self.pool)
        .await?;
        let mut seqs = Vec::new();
        let mut jobs = Vec::new();
        for row in rows {
            let seq: i64 = row.try_get("seq")?;
            match job(row.try_get("body")?) {
                Ok(job) => {
                    seqs.push(seq);
                    jobs.push(job);
                }
                // The others go on. It is said at each look, until somebody has mended it.
                Err(why) => tracing::error!(seq, error = %why, "outbox.unreadable"),
            }
        }
        if jobs.is_empty() {
            return Ok(0);
        }
        self.in_doubt.store(true, Ordering::Relaxed);
        timeout(PATIENCE, self.jobs.enqueue_once(&jobs)).await??;
        self.in_doubt.store(false, Ordering::Relaxed);
        let own = self.delete(&seqs).await?;
        // Whatever becomes of this, the order is queued; at worst its mark stays for a week.
        timeout(PATIENCE, self.jobs.forget_once(&own)).await??;
        Ok(seqs.len())
    }

    /// Makes nobody's what others may enqueue by now, or what a call of ours that failed may still enqueue.
    async fn disown(&self) -> Result<(), BoxError> {
        let in_doubt = self.in_doubt.load(Ordering::Relaxed);
        // Looked for first: a write waits for the only lock. A clock that was set back is to hold up nothing either.
        let ripe: Vec<i64> = sqlx::query_scalar(
            "SELECT seq FROM outbox
             WHERE relay = ?1 AND ?2 OR relay <> ?1 AND abs(unixepoch('subsec') - placed) > ?3",
        )
        .bind(self.me.as_str())
        .bind(in_doubt)
        .bind(TAKE_OVER.as_secs_f64())
        .fetch_all(&self.pool)
        .await?;
        if !ripe.is_empty() {
            sqlx::query("UPDATE outbox SET relay = NULL WHERE seq IN (SELECT value FROM json_each(?))")
                .bind(serde_json::to_string(&ripe)?)
                .execute(&self.pool)
                .await?;
        }
        self.in_doubt.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Deletes rows, and says which orders of them were this process's alone to the end.
    async fn delete(&self, seqs: &[i64]) -> Result<Vec<JobId>, BoxError> {
        let rows = sqlx::query(
            "DELETE FROM outbox WHERE seq IN (SELECT value FROM json_each(?)) RETURNING order_id, relay = ? AS own",
        )
        .bind(serde_json::to_string(seqs)?)
        .bind(self.me.as_str())
        .fetch_all(&self.pool)
        .await?;
        let mut own = Vec::new();
        for row in rows {
            if row.try_get::<Option<bool>, _>("own")? == Some(true) {
                own.push(row.try_get::<String, _>("order_id")?.parse()?);
            }
        }
        Ok(own)
    }
}

fn job(body: &str) -> Result<NewJob<Order>, BoxError> {
    let order: Order = serde_json::from_str(body)?;
    Ok(NewJob::new(order.id.parse()?, order))
}
