//! Orders and their effects, in the database that also holds the queue.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sqlx::{Row, SqliteConnection, SqlitePool};
use tokio::sync::watch;
use winddown::BoxError;
use winddown::queue::sql::{self, Sqlite};
use winddown::queue::{Enqueued, JobId, JobState, Leased, NewJob, Queue};

/// The steps of an order, in their order.
pub const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

/// Each table, how it is made, and what has to be readable in it.
const TABLES: [(&str, &str, &str); 2] = [
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
];

const INDEXES: [&str; 2] = [
    "CREATE INDEX IF NOT EXISTS effects_of ON effects (order_id)",
    "CREATE INDEX IF NOT EXISTS orders_done ON orders (done)",
];

/// An order as it comes in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub id: String,
    pub items: Vec<String>,
    /// How long its work takes, in milliseconds.
    #[serde(default)]
    pub work_ms: u64,
    /// How many attempts fail.
    #[serde(default)]
    pub fail: u32,
    /// How long it blocks its thread before the first step, in milliseconds.
    #[serde(default)]
    pub block_ms: u64,
}

/// An order as `GET /orders/{id}` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    pub id: String,
    pub state: &'static str,
    pub steps: Vec<String>,
    pub attempts: u32,
    pub interruptions: u32,
    pub crashes: u32,
}

#[derive(Debug, Serialize)]
pub struct Stats {
    pub accepted: u64,
    pub working: u64,
    pub done: u64,
    pub dead: u64,
    pub interruptions: u64,
    pub crashes: u64,
}

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
    pub jobs: Sqlite<Order>,
    changes: Arc<watch::Sender<u64>>,
}

// === impl Store ===

impl Store {
    pub async fn open(pool: SqlitePool) -> Result<Self, BoxError> {
        let jobs = Sqlite::open(pool.clone(), sql::TABLE).await?;
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
        Ok(Store { pool, jobs, changes: Arc::new(watch::Sender::new(0)) })
    }

    /// Stores an order together with its job: both, or neither.
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
        let job = NewJob::new(order.id.parse()?, order.clone());
        if self.jobs.enqueue_in(&mut tx, &job).await? == Enqueued::Exists {
            return Ok(Placed::Taken);
        }
        tx.commit().await?;
        self.jobs.wake();
        self.changed();
        Ok(Placed::New)
    }

    /// Writes the effect of a step and that it is done, if the job is still held: both, or neither.
    pub async fn take_step(&self, claimed: &Leased<Order>, step: usize) -> Result<(), BoxError> {
        let name = STEPS[step];
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await?;
        self.jobs.checkpoint_in(&mut tx, &claimed.lease, &(step + 1).to_string()).await?;
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
        self.jobs.check_in(&mut tx, &claimed.lease).await?;
        finish(&mut tx, claimed).await?;
        tx.commit().await?;
        self.changed();
        Ok(())
    }

    pub async fn status(&self, id: &str) -> Result<Option<Status>, BoxError> {
        // One view of all: between two the order could be finished and its job gone.
        let mut tx = self.pool.begin().await?;
        let order = sqlx::query("SELECT done, attempts, interruptions, crashes FROM orders WHERE id = ?")
            .bind(id)
            .fetch_optional(&mut *tx)
            .await?;
        let Some(order) = order else { return Ok(None) };
        let steps = sqlx::query_scalar("SELECT step FROM effects WHERE order_id = ? ORDER BY rowid")
            .bind(id)
            .fetch_all(&mut *tx)
            .await?;
        let job = self.jobs.find_in(&mut tx, &id.parse::<JobId>()?).await?;
        let done = order.try_get::<i64, _>("done")? == 1;
        let mut status = Status {
            id: id.to_owned(),
            state: if done { "done" } else { "accepted" },
            steps,
            attempts: order.try_get("attempts")?,
            interruptions: order.try_get("interruptions")?,
            crashes: order.try_get("crashes")?,
        };
        if let (false, Some(job)) = (done, job) {
            status.state = match job.state {
                JobState::Pending | JobState::Scheduled => "accepted",
                JobState::Active => "working",
                JobState::Dead => "dead",
            };
            (status.attempts, status.interruptions, status.crashes) =
                (job.attempts, job.interruptions, job.crashes);
        }
        Ok(Some(status))
    }

    pub async fn stats(&self) -> Result<Stats, BoxError> {
        let counts = self.jobs.counts().await?;
        let done: i64 =
            sqlx::query_scalar("SELECT count(*) FROM orders WHERE done = 1").fetch_one(&self.pool).await?;
        Ok(Stats {
            accepted: counts.pending + counts.scheduled,
            working: counts.active,
            done: u64::try_from(done)?,
            dead: counts.dead,
            interruptions: counts.interruptions,
            crashes: counts.crashes,
        })
    }

    /// Hears of changes that this process made.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }
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
