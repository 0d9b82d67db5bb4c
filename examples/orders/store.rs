//! Orders and their effects, in the database, which may also hold the queue.
//!
//! Effects are written in a transaction that also checks that the job is still held, so that each is there once, whatever
//! happens to those who work on it. Where the queue is in the database, the queue checks that. Where it is not, the database
//! keeps the largest epoch of each job that it has heard of: who comes with a smaller one has lost the job, and writes nothing.

use std::sync::Arc;

use sqlx::{Row, SqliteConnection, SqlitePool};
use tokio::sync::watch;
use winddown::BoxError;
use winddown::queue::{Enqueued, JobId, Leased, NewJob, QueueError};

use crate::jobs::Jobs;
use crate::order::{Dead, Order, STEPS, Stats, Status, millis};
use crate::{claims, outbox};

/// Each table, how it is made, and what has to be readable in it.
const TABLES: [(&str, &str, &str); 4] = [
    (
        "orders",
        "CREATE TABLE IF NOT EXISTS orders (
            id TEXT PRIMARY KEY, body TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0,
            attempts INTEGER NOT NULL DEFAULT 0, interruptions INTEGER NOT NULL DEFAULT 0,
            crashes INTEGER NOT NULL DEFAULT 0) STRICT",
        "SELECT id, body, done, attempts, interruptions, crashes FROM orders LIMIT 0",
    ),
    (
        "effects",
        // No unique key: a step that ran twice shows.
        "CREATE TABLE IF NOT EXISTS effects (order_id TEXT NOT NULL, step TEXT NOT NULL) STRICT",
        "SELECT order_id, step FROM effects LIMIT 0",
    ),
    claims::TABLE,
    outbox::TABLE,
];

const INDEXES: [&str; 2] = [
    "CREATE INDEX IF NOT EXISTS effects_of ON effects (order_id)",
    "CREATE INDEX IF NOT EXISTS orders_done ON orders (done)",
];

/// What became of an order that came in.
pub enum Placed {
    New,
    /// The same order is there already.
    Known,
    /// Another order has this id.
    Taken,
}

#[derive(Clone)]
pub struct Store {
    pool: SqlitePool,
    pub jobs: Jobs,
    changes: Arc<watch::Sender<u64>>,
}

// === impl Store ===

impl Store {
    /// Makes the tables that are missing; they are needed before the queue can be opened.
    pub async fn prepare(pool: &SqlitePool) -> Result<(), BoxError> {
        let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
        for (table, create, read) in TABLES {
            sqlx::query(create).execute(&mut *tx).await?;
            let foreign = |error| format!("table {table} is not one of this program's: {error}");
            sqlx::query(read).execute(&mut *tx).await.map_err(foreign)?;
        }
        for create in INDEXES {
            sqlx::query(create).execute(&mut *tx).await?;
        }
        // Asks to write, and writes nothing: a database that can only be read is refused here, not at the first order.
        sqlx::query("DELETE FROM effects WHERE 0").execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(())
    }

    pub fn new(pool: SqlitePool, jobs: Jobs) -> Store {
        Store { pool, jobs, changes: Arc::new(watch::Sender::new(0)) }
    }

    /// Stores an order together with its job, or with the word that it is to be queued: both, or neither.
    pub async fn place(&self, order: &Order) -> Result<Placed, BoxError> {
        let body = serde_json::to_string(order)?;
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        let known: Option<String> = sqlx::query_scalar("SELECT body FROM orders WHERE id = ?")
            .bind(&order.id)
            .fetch_optional(&mut *tx)
            .await?;
        if let Some(known) = known {
            return Ok(if known == body { Placed::Known } else { Placed::Taken });
        }
        sqlx::query("INSERT INTO orders (id, body) VALUES (?, ?)")
            .bind(&order.id)
            .bind(&body)
            .execute(&mut *tx)
            .await?;
        match &self.jobs {
            Jobs::Table(jobs) => {
                let job = NewJob::new(order.id.parse()?, order.clone());
                if jobs.enqueue_in(&mut tx, &job).await? == Enqueued::Exists {
                    return Ok(Placed::Taken);
                }
            }
            Jobs::Redis(_, outbox) => outbox.put_in(&mut tx, &order.id).await?,
        }
        tx.commit().await?;
        self.jobs.wake();
        self.changed();
        Ok(Placed::New)
    }

    /// How many steps of an order are done. From here on nothing is written for an earlier claim of its job.
    pub async fn begin(&self, claimed: &Leased<Order>) -> Result<usize, BoxError> {
        if let Jobs::Table(_) = self.jobs {
            // The queue has done the rest when the job was claimed.
            return Ok(claimed.checkpoint.as_deref().map_or(Ok(0), str::parse)?);
        }
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        claims::fence(&mut tx, &claimed.lease).await?;
        let done = steps_done(&mut tx, &claimed.item.id).await?;
        tx.commit().await?;
        Ok(done)
    }

    /// Writes the effect of a step and that it is done, if the job is still held: both, or neither.
    pub async fn take_step(&self, claimed: &Leased<Order>, step: usize) -> Result<(), BoxError> {
        let name = STEPS[step];
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        match &self.jobs {
            Jobs::Table(jobs) => {
                jobs.checkpoint_in(&mut tx, &claimed.lease, &(step + 1).to_string()).await?;
            }
            Jobs::Redis(..) => {
                claims::fence(&mut tx, &claimed.lease).await?;
                if steps_done(&mut tx, &claimed.item.id).await? != step {
                    return Err(format!("{name} is not what comes next").into());
                }
            }
        }
        sqlx::query("INSERT INTO effects (order_id, step) VALUES (?, ?)")
            .bind(&claimed.item.id)
            .bind(name)
            .execute(&mut *tx)
            .await?;
        if step + 1 == STEPS.len() {
            finish(&mut tx, claimed).await?;
        }
        tx.commit().await?;
        self.changed();
        Ok(())
    }

    /// All steps were done by a process that ended before it could say so.
    pub async fn finish(&self, claimed: &Leased<Order>) -> Result<(), BoxError> {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        match &self.jobs {
            Jobs::Table(jobs) => jobs.check_in(&mut tx, &claimed.lease).await?,
            Jobs::Redis(..) => claims::fence(&mut tx, &claimed.lease).await?,
        }
        finish(&mut tx, claimed).await?;
        tx.commit().await?;
        self.changed();
        Ok(())
    }

    pub async fn status(&self, id: &str) -> Result<Option<Status>, BoxError> {
        let jobs = match &self.jobs {
            Jobs::Table(_) => return Ok(self.look(id).await?.map(|(status, _)| status)),
            Jobs::Redis(jobs, _) => jobs,
        };
        let Some((mut status, in_queue)) = self.look(id).await? else { return Ok(None) };
        if !in_queue {
            return Ok(Some(status));
        }
        match jobs.find(&id.parse()?).await? {
            Some(job) => status.standing(job),
            // It was done in between: the database hears of that before the queue does.
            None => return Ok(self.look(id).await?.map(|(status, _)| status)),
        }
        Ok(Some(status))
    }

    /// What the database says of an order, and whether another queue knows more.
    async fn look(&self, id: &str) -> Result<Option<(Status, bool)>, BoxError> {
        // One view of all: between two the order could be finished and its job gone.
        let mut tx = self.pool.begin().await?;
        let order = sqlx::query("SELECT done, attempts, interruptions, crashes FROM orders WHERE id = ?")
            .bind(id)
            .fetch_optional(&mut *tx)
            .await?;
        let Some(order) = order else { return Ok(None) };
        let done = order.try_get::<i64, _>("done")? == 1;
        let mut status = Status {
            state: if done { "done" } else { "accepted" },
            steps: sqlx::query_scalar("SELECT step FROM effects WHERE order_id = ? ORDER BY rowid")
                .bind(id)
                .fetch_all(&mut *tx)
                .await?,
            attempts: order.try_get("attempts")?,
            interruptions: order.try_get("interruptions")?,
            crashes: order.try_get("crashes")?,
            ..Status::accepted(id)
        };
        let mut in_queue = false;
        match &self.jobs {
            _ if done => {}
            Jobs::Table(jobs) => {
                if let Some(job) = jobs.find_in(&mut tx, &id.parse::<JobId>()?).await? {
                    status.standing(job);
                }
            }
            Jobs::Redis(_, outbox) => in_queue = !outbox.holds_in(&mut tx, id).await?,
        }
        Ok(Some((status, in_queue)))
    }

    pub async fn stats(&self) -> Result<Stats, BoxError> {
        let (outbox, oldest_there) = match &self.jobs {
            Jobs::Table(_) => (0, None),
            Jobs::Redis(_, outbox) => outbox.waiting().await?,
        };
        let counts = self.jobs.counts().await?;
        let done: i64 =
            sqlx::query_scalar("SELECT count(*) FROM orders WHERE done = 1").fetch_one(&self.pool).await?;
        Ok(Stats {
            accepted: counts.pending + counts.scheduled + outbox,
            working: counts.active,
            done: u64::try_from(done)?,
            dead: counts.dead,
            interruptions: counts.interruptions,
            crashes: counts.crashes,
            outbox,
            oldest_ms: counts.oldest.max(oldest_there).map(millis),
            dead_letters: self.jobs.dead_letters().await?.into_iter().map(Dead::from).collect(),
        })
    }

    /// Gives an order that is dead its attempts back; `false` where there is none.
    pub async fn retry(&self, id: &str) -> Result<bool, BoxError> {
        let Ok(id) = id.parse::<JobId>() else { return Ok(false) };
        let retried = self.jobs.retry(&id).await?;
        self.changed();
        Ok(retried)
    }

    /// Whether it was a queue elsewhere that failed, and not the database.
    pub fn is_elsewhere(&self, why: &BoxError) -> bool {
        matches!(self.jobs, Jobs::Redis(..)) && why.is::<QueueError>()
    }

    /// Hears of changes that this process made.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }
}

/// Whether the database could not be asked, as while another program holds its lock; it has done nothing then.
pub fn is_away(why: &BoxError) -> bool {
    match why.downcast_ref::<sqlx::Error>() {
        // The lower byte of a code is its kind: busy, locked.
        Some(sqlx::Error::Database(error)) => {
            let code = error.code().and_then(|code| code.parse::<u32>().ok());
            code.is_some_and(|code| matches!(code & 0xff, 5 | 6))
        }
        Some(error) => matches!(error, sqlx::Error::PoolTimedOut),
        None => false,
    }
}

async fn steps_done(conn: &mut SqliteConnection, id: &str) -> Result<usize, BoxError> {
    let done: i64 = sqlx::query_scalar("SELECT count(*) FROM effects WHERE order_id = ?")
        .bind(id)
        .fetch_one(conn)
        .await?;
    Ok(usize::try_from(done)?)
}

async fn finish(conn: &mut SqliteConnection, claimed: &Leased<Order>) -> Result<(), sqlx::Error> {
    sqlx::query("UPDATE orders SET done = 1, attempts = ?, interruptions = ?, crashes = ? WHERE id = ?")
        .bind(claimed.attempts)
        .bind(claimed.interruptions)
        .bind(claimed.crashes)
        .bind(&claimed.item.id)
        .execute(conn)
        .await?;
    Ok(())
}
