//! Where the jobs of orders are: in a table of the database, or in Redis.

use std::sync::Arc;
use std::time::Duration;

use sqlx::SqlitePool;
use winddown::queue::redis::List;
use winddown::queue::sql::{self, Sqlite};
use winddown::queue::{self, Counts, DeadLetter, JobId, Queue, QueueError};
use winddown::{BoxError, Phase, Rank, ShutdownCoordinator, background};

use crate::fulfil::Fulfil;
use crate::options::{Elsewhere, Options};
use crate::order::Order;
use crate::outbox::Outbox;
use crate::store::Store;

/// The name of the queue in Redis, and of the worker.
const NAME: &str = "orders";

/// How many dead letters are shown.
const SHOWN: usize = 20;

#[derive(Clone)]
pub enum Jobs {
    /// Beside the orders: an order and its job are stored in one transaction.
    Table(Sqlite<Order>),
    /// Elsewhere: an order is stored with a row of the outbox, and its job follows.
    Redis(List<Order>, Arc<Outbox>),
}

/// Opens the queue that the options name, and says what an operator should know before it is relied upon.
pub async fn open(
    shutdown: &mut ShutdownCoordinator,
    db: &SqlitePool,
    options: &Options,
) -> Result<Jobs, BoxError> {
    let table = shutdown.start("store", Sqlite::open(db.clone(), sql::TABLE)).await?;
    let Some(Elsewhere { server, shown }) = &options.queue else {
        warn_of(left_in_redis(db).await?, "orders wait in a queue elsewhere, for a process with its --queue");
        return Ok(Jobs::Table(table));
    };
    let counts = table.counts().await?;
    let left = counts.pending + counts.scheduled + counts.active + counts.dead;
    warn_of(left, "orders wait in the database's own queue, for a process without --queue");
    let open = List::open(server.clone(), NAME);
    let jobs: List<Order> = shutdown.start(format!("queue {shown}"), open).await?;
    for warning in jobs.warnings().await? {
        tracing::warn!(queue = shown, warning, "queue.warning");
    }
    let outbox = Arc::new(Outbox::new(db.clone(), jobs.clone(), shutdown.handle()));
    // Whoever else held it is gone by then, unless it will not stop: with the last of it its connections end.
    let last = jobs.clone();
    shutdown.on(Phase::Close, "queue", async move |_| drop(last)).rank(Rank::Clients);
    Ok(Jobs::Redis(jobs, outbox))
}

/// Orders that are in no queue of this database, nor done.
async fn left_in_redis(db: &SqlitePool) -> Result<u64, BoxError> {
    let left = "SELECT count(*) FROM orders WHERE done = 0 AND id NOT IN (SELECT id FROM winddown_jobs)";
    let left: i64 = sqlx::query_scalar(left).fetch_one(db).await?;
    Ok(u64::try_from(left)?)
}

fn warn_of(orders: u64, wait: &str) {
    if orders > 0 {
        tracing::warn!(queue = NAME, warning = format!("{orders} {wait}"), "queue.warning");
    }
}

/// Adds what works on the orders.
pub fn work(shutdown: &mut ShutdownCoordinator, store: Store, options: &Options) {
    match store.jobs.clone() {
        Jobs::Table(jobs) => worker(shutdown, jobs, store, options),
        Jobs::Redis(jobs, outbox) => {
            let searched = Arc::clone(&outbox);
            shutdown.add(background::repeat("search", move || Arc::clone(&searched).search()));
            let relay = background::repeat("outbox", move || Arc::clone(&outbox).relay());
            // A step waits by itself until there is something to do.
            let relay =
                relay.idle(Duration::ZERO).backoff(Duration::from_millis(100), Duration::from_secs(1));
            shutdown.add(relay);
            worker(shutdown, jobs, store, options);
        }
    }
}

fn worker<Q>(shutdown: &mut ShutdownCoordinator, jobs: Q, store: Store, options: &Options)
where
    Q: Queue<Item = Order>,
{
    let work = queue::work(NAME, jobs, Fulfil(store));
    shutdown.add(work.concurrency(options.workers).lease(options.lease).attempts(3));
}

// === impl Jobs ===

impl Jobs {
    /// An order was stored, and its transaction is committed.
    pub fn wake(&self) {
        match self {
            Jobs::Table(jobs) => jobs.wake(),
            Jobs::Redis(_, outbox) => outbox.wake(),
        }
    }

    pub async fn counts(&self) -> Result<Counts, QueueError> {
        match self {
            Jobs::Table(jobs) => jobs.counts().await,
            Jobs::Redis(jobs, _) => jobs.counts().await,
        }
    }

    /// The oldest of those that were given up.
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetter>, QueueError> {
        match self {
            Jobs::Table(jobs) => jobs.dead_letters(SHOWN).await,
            Jobs::Redis(jobs, _) => jobs.dead_letters(SHOWN).await,
        }
    }

    pub async fn retry(&self, id: &JobId) -> Result<bool, QueueError> {
        match self {
            Jobs::Table(jobs) => jobs.retry(id).await,
            Jobs::Redis(jobs, _) => jobs.retry(id).await,
        }
    }
}
