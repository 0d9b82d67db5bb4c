//! A queue in one table of a SQLite database, which several processes may share.
//!
//! The pool is the program's own, so that a job can be enqueued in the transaction that stores what it is about, and so that an
//! effect of a job can be written in a transaction that also checks that the job is still held:
//!
//! ```
//! use std::time::Duration;
//! use winddown::queue::{sql::{self, Sqlite}, NewJob, Owner, Queue};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("sqlite:{}", dir.path().join("orders.db").display());
//! let pool = sql::pool().connect_with(sql::options(&url)?).await?;
//! let jobs: Sqlite<String> = Sqlite::open(pool.clone(), sql::TABLE).await?;
//! # sqlx::query("CREATE TABLE orders (id TEXT)").execute(&pool).await?;
//! # sqlx::query("CREATE TABLE effects (id TEXT)").execute(&pool).await?;
//!
//! // The order and its job: both, or neither.
//! let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
//! sqlx::query("INSERT INTO orders VALUES ('a1')").execute(&mut *tx).await?;
//! jobs.enqueue_in(&mut tx, &NewJob::new("a1".parse()?, "tea".to_owned())).await?;
//! tx.commit().await?;
//! jobs.wake();
//!
//! let claimed = jobs.claim(&Owner::unique("worker"), 1, Duration::from_secs(30)).await?.remove(0);
//!
//! // The effect and the step that it was: both, and only while the job is held.
//! let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
//! jobs.checkpoint_in(&mut tx, &claimed.lease, "charged").await?;
//! sqlx::query("INSERT INTO effects VALUES ('a1')").execute(&mut *tx).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! # The file
//!
//! [`options`] are the ones to start from: a write-ahead log, so that readers never wait; `synchronous = FULL`, so that what was
//! answered survives a loss of power (`NORMAL` survives the death of the process, and is faster where disks are slow); a busy
//! timeout, since one writer at a time is let in. [`pool`] is the pool to start from: it lends no connection whose transaction the
//! database has ended by itself, as it does when the disk is full. A database in memory is another one for each connection: give its pool one.
//!
//! # The table
//!
//! One, named as you like, with one index and one trigger. `state` is `pending`, `scheduled`, `active` or `dead`; two kinds of
//! rows whose `id` begins with `winddown:` are the queue's own: the layout's version with the totals, and marks of owners that are
//! ending. Columns are typed strictly, so that the database refuses most of what could make a row unreadable; what cannot be read
//! all the same becomes a dead letter with the reason. A job that was acked leaves nothing behind but its part in the totals.

use std::error::Error;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Serialize, de::DeserializeOwned};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection, SqlitePool};
use tokio::sync::watch;

use self::statements::Statements;
use super::millis::millis;
use super::{Enqueued, Held, JobId, Lease, LeaseLost, MAX_CRASHES, NewJob, QueueError, Standing};

mod open;
mod port;
mod row;
mod statements;

/// The name of the table, unless you choose another.
pub const TABLE: &str = "winddown_jobs";

/// A queue of `T`, stored as JSON, in a table of SQLite; a clone is the same queue.
pub struct Sqlite<T> {
    pool: SqlitePool,
    say: Arc<Statements>,
    max_crashes: u32,
    // Counts the changes by this process that may have made something claimable.
    changes: Arc<watch::Sender<u64>>,
    item: PhantomData<fn() -> T>,
}

/// The table cannot be used as a queue.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is not one of letters, digits and underscores, at most 48, beginning with no digit, nor with `sqlite_`.
    BadName(String),
    /// A table of that name is there, and is not a queue's.
    Foreign {
        /// The table.
        table: String,
        /// What it lacks, or has that it should not.
        found: String,
    },
    /// The table was made by another version, whose layout this one does not read.
    Layout {
        /// The table.
        table: String,
        /// The layout it has.
        found: i64,
        /// The layout it would need.
        needed: i64,
    },
    /// The database could not be asked.
    Database(sqlx::Error),
}

/// An effect was not let through.
#[derive(Debug)]
#[non_exhaustive]
pub enum FenceError {
    /// The job is no longer held by who wants the effect: roll back.
    Lost(LeaseLost),
    /// The database could not be asked: roll back.
    Queue(QueueError),
}

/// How to open the file of a queue: created when missing, write-ahead log, `synchronous = FULL`, 5 s of patience with other writers.
///
/// # Errors
///
/// The URL is not one of SQLite's.
pub fn options(url: &str) -> Result<SqliteConnectOptions, sqlx::Error> {
    Ok(SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(5)))
}

/// The pool for a queue: sqlx's own, and it closes a connection that comes back with a transaction that cannot be ended.
///
/// SQLite rolls back by itself when the disk is full or cannot be read. sqlx then still counts a transaction, and a pool
/// without this lends that connection again: `BEGIN IMMEDIATE` fails on it for ever, and what is written on it after a plain
/// `begin` may never be committed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use winddown::queue::sql;
///
/// let pool = sql::pool().max_connections(4).connect_with(sql::options("sqlite::memory:")?).await?;
/// # Ok(()) }
/// ```
pub fn pool() -> SqlitePoolOptions {
    SqlitePoolOptions::new().after_release(|conn, _| {
        Box::pin(async move {
            // Behind the rollback of a transaction that was dropped: only then is the count what it stays.
            conn.ping().await?;
            Ok(!conn.is_in_transaction())
        })
    })
}

// === impl Sqlite ===

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Sqlite<T> {
    /// Opens the queue in `table`, and makes the table where there is none.
    ///
    /// A table that is there and in order is only read, so a database that is read-only may be looked at.
    ///
    /// # Errors
    ///
    /// The name is no plain name; the table is somebody else's, or of another layout; the database could not be asked.
    ///
    /// # Cancel safety
    ///
    /// May be dropped: the table is made as a whole or not at all.
    pub async fn open(pool: SqlitePool, table: &str) -> Result<Sqlite<T>, OpenError> {
        let say = open::open(&pool, table).await?;
        Ok(Sqlite {
            pool,
            say: Arc::new(say),
            max_crashes: MAX_CRASHES,
            changes: Arc::new(watch::Sender::new(0)),
            item: PhantomData,
        })
    }

    /// Crashes a job may cause before it becomes a dead letter; [`MAX_CRASHES`] unless said otherwise.
    pub fn max_crashes(mut self, max: u32) -> Sqlite<T> {
        self.max_crashes = max;
        self
    }

    /// Adds a job, unless the queue holds one of that name, dead letters included.
    ///
    /// # Errors
    ///
    /// The item cannot be written as JSON, or the database could not be asked.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the job may have been added or not; to repeat the call is safe while the job is not done.
    pub async fn enqueue(&self, job: &NewJob<T>) -> Result<Enqueued, QueueError> {
        let mut conn = self.pool.acquire().await.map_err(|error| QueueError::new("enqueue a job", error))?;
        let enqueued = self.enqueue_in(&mut conn, job).await?;
        self.wake();
        Ok(enqueued)
    }

    /// Adds a job within a transaction of yours; call [`wake`](Self::wake) when it is committed.
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Self::enqueue).
    pub async fn enqueue_in(
        &self,
        conn: &mut SqliteConnection,
        job: &NewJob<T>,
    ) -> Result<Enqueued, QueueError> {
        let failed = |error| QueueError::new("enqueue a job", error);
        let payload = serde_json::to_string(&job.item)
            .map_err(|error| QueueError::new("write an item as JSON", error))?;
        let done = sqlx::query(self.say.enqueue.sql())
            .bind(job.id.as_str())
            .bind(job.priority)
            .bind(payload)
            .bind(millis(job.delay))
            .execute(conn)
            .await
            .map_err(failed)?;
        Ok(if done.rows_affected() == 0 { Enqueued::Exists } else { Enqueued::Added })
    }

    /// Tells the workers of this process at once that a transaction with new jobs was committed.
    ///
    /// Those of other processes, and all where this is not called, see the jobs within a second.
    pub fn wake(&self) {
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Lets a transaction go on only while the job is held: what it writes is then the holder's, or nothing is written.
    ///
    /// Takes the database's write lock, so that nobody can claim the job before the transaction ends. Make it the first statement,
    /// or begin with `BEGIN IMMEDIATE`.
    ///
    /// # Errors
    ///
    /// The lease was lost, or the database could not be asked: roll back.
    pub async fn check_in(&self, conn: &mut SqliteConnection, lease: &Lease) -> Result<(), FenceError> {
        self.fence(conn, lease, port::Change::Check).await
    }

    /// As [`check_in`](Self::check_in), and notes how far the job has come; who claims it next is told, also after a crash.
    ///
    /// # Errors
    ///
    /// As [`check_in`](Self::check_in).
    pub async fn checkpoint_in(
        &self,
        conn: &mut SqliteConnection,
        lease: &Lease,
        checkpoint: &str,
    ) -> Result<(), FenceError> {
        self.fence(conn, lease, port::Change::Checkpoint(checkpoint)).await
    }

    /// As [`check_in`](Self::check_in), and says that the job is done: it is acked if the transaction is committed.
    ///
    /// # Errors
    ///
    /// As [`check_in`](Self::check_in).
    pub async fn ack_in(&self, conn: &mut SqliteConnection, lease: &Lease) -> Result<(), FenceError> {
        self.fence(conn, lease, port::Change::Ack).await
    }

    /// How a job stands; `None` where there is no such job, or it is done. In a transaction of yours, as all else that you read there.
    ///
    /// # Errors
    ///
    /// The database could not be asked, or the row cannot be read.
    pub async fn find_in(
        &self,
        conn: &mut SqliteConnection,
        id: &JobId,
    ) -> Result<Option<Standing>, QueueError> {
        let found = sqlx::query(self.say.find.sql()).bind(id.as_str()).fetch_optional(conn).await;
        let found = found.map_err(|error| QueueError::new("look for a job", error))?;
        found.map(|row| row::standing(&row).map_err(|why| QueueError::new("read a job", why))).transpose()
    }

    async fn fence(
        &self,
        conn: &mut SqliteConnection,
        lease: &Lease,
        change: port::Change<'_>,
    ) -> Result<(), FenceError> {
        let held = port::settle(&self.say, conn, std::slice::from_ref(lease), change).await;
        let held =
            held.map_err(|error| FenceError::Queue(QueueError::new("check the lease of a job", error)))?;
        held.first().copied().unwrap_or(Held::Lost).or_lost(lease).map_err(FenceError::Lost)
    }
}

impl<T> Clone for Sqlite<T> {
    fn clone(&self) -> Sqlite<T> {
        Sqlite {
            pool: self.pool.clone(),
            say: self.say.clone(),
            max_crashes: self.max_crashes,
            changes: self.changes.clone(),
            item: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Sqlite<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").field("table", &self.say.table).finish_non_exhaustive()
    }
}

// === impl OpenError ===

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::BadName(name) => {
                write!(
                    f,
                    "{name:?} cannot name a table: letters, digits and underscores, at most 48, no digit first"
                )
            }
            OpenError::Foreign { table, found } => write!(f, "table {table} is not a queue's: {found}"),
            OpenError::Layout { table, found, needed } => {
                write!(f, "table {table} has layout {found}, and this version needs layout {needed}")
            }
            OpenError::Database(_) => f.write_str("could not open the queue"),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            OpenError::Database(error) => Some(error),
            _ => None,
        }
    }
}

// === impl FenceError ===

impl fmt::Display for FenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FenceError::Lost(lost) => lost.fmt(f),
            FenceError::Queue(error) => error.fmt(f),
        }
    }
}

impl Error for FenceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            FenceError::Lost(_) => None,
            FenceError::Queue(error) => error.source(),
        }
    }
}
