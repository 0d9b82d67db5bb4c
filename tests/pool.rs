//! Pools close after everything that uses them, within a limit, and say what did not come back.
#![cfg(feature = "sqlx-sqlite")]

use std::time::Duration;

use sqlx::SqlitePool;
use sqlx::sqlite::SqlitePoolOptions;
use tokio::time::Instant;
use winddown::pool::{self, Pool};
use winddown::{Budget, Outcome, Phase, ShutdownCoordinator, signal};

const MS: Duration = Duration::from_millis(1);

// The clock is the real one here: SQLite works on threads of its own, which paused time would not wait for.
fn coordinator(grace: Duration) -> ShutdownCoordinator {
    ShutdownCoordinator::new(Budget::given(grace, "test"), signal::none()).unwrap()
}

async fn database() -> SqlitePool {
    SqlitePoolOptions::new().max_connections(3).connect("sqlite::memory:").await.unwrap()
}

async fn query(db: &SqlitePool) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("SELECT 40 + 2").fetch_one(db).await
}

/// I19
#[tokio::test]
async fn a_pool_closes_only_after_those_who_use_it_have_finished() {
    let mut shutdown = coordinator(Duration::from_secs(10));
    let db = database().await;
    // Registered first: its rank closes it after what is registered later, all the same.
    shutdown.add(pool::close("sqlite", db.clone()));
    let flushed = db.clone();
    shutdown.on(Phase::Close, "client", async move |_| query(&flushed).await);
    let in_flight = shutdown.gate("requests").enter().unwrap();
    let handler = tokio::spawn({
        let db = db.clone();
        async move {
            let _in_flight = in_flight;
            let first = query(&db).await;
            tokio::time::sleep(500 * MS).await;
            assert!(!db.is_closed());
            (first, query(&db).await)
        }
    });
    tokio::time::sleep(100 * MS).await;
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    let (first, second) = handler.await.unwrap();
    assert_eq!((first.unwrap(), second.unwrap()), (42, 42));
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.hooks().iter().map(|hook| &*hook.name).collect::<Vec<_>>(), ["client", "sqlite"]);
    assert!(db.is_closed());
    assert!(matches!(query(&db).await, Err(sqlx::Error::PoolClosed)));
}

/// I23
#[tokio::test]
async fn a_held_connection_does_not_keep_the_stop_and_is_counted() {
    for (limit, held) in [(500 * MS, 1), (300 * MS, 2)] {
        let mut shutdown = coordinator(Duration::from_secs(10));
        let db = database().await;
        shutdown.add(pool::close("sqlite", db.clone()).limit(limit));
        shutdown.on(Phase::Close, "logs", async |_| {}).rank(winddown::Rank::Telemetry);
        let mut lent = Vec::new();
        for _ in 0..held {
            lent.push(db.acquire().await.unwrap());
        }
        assert_eq!(Pool::checked_out(&db), held);
        let stopping = shutdown.handle().stopping();
        let holder = tokio::spawn(async move {
            stopping.await;
            let told = Instant::now();
            std::future::pending::<()>().await;
            drop(lent);
            told
        });
        let began = Instant::now();
        shutdown.handle().trigger("test");
        let report = shutdown.run().await;
        assert!(began.elapsed() < limit + 250 * MS, "{report}");
        let hook = report.hook("sqlite").unwrap();
        assert_eq!(hook.outcome, Outcome::Failed);
        let said = if held == 1 { "1 connection is still out" } else { "2 connections are still out" };
        assert_eq!(hook.error.as_deref(), Some(said));
        assert!(hook.took <= limit && hook.took > limit * 4 / 5, "{report}");
        assert_eq!(report.hook("logs").unwrap().outcome, Outcome::Finished, "the stop goes on");
        assert_eq!(report.code(), 1);
        holder.abort();
    }
}

/// I23: whoever holds a connection hears of the stop, and a pool whose connections come back is clean.
#[tokio::test]
async fn a_holder_that_listens_gives_its_connection_back_in_time() {
    let mut shutdown = coordinator(Duration::from_secs(10));
    let db = database().await;
    shutdown.add(pool::close("sqlite", db.clone()).limit(500 * MS));
    let lent = db.acquire().await.unwrap();
    let stopping = shutdown.handle().stopping();
    tokio::spawn(async move {
        stopping.await;
        tokio::time::sleep(50 * MS).await;
        drop(lent);
    });
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert!(report.is_clean(), "{report}");
    assert!(report.took() < 400 * MS, "{report}");
    assert_eq!(Pool::checked_out(&db), 0);
}

/// A pool that says that it is closed, and is not.
struct Liar(usize);

impl Pool for Liar {
    async fn close(&self) {}

    fn checked_out(&self) -> usize {
        self.0
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_pool_says_is_verified() {
    let mut shutdown = coordinator(Duration::from_secs(10));
    shutdown.add(pool::close("honest", Liar(0)));
    shutdown.add(pool::close("liar", Liar(3)));
    shutdown.handle().trigger("test");
    let report = shutdown.run().await;
    assert_eq!(report.hook("honest").unwrap().outcome, Outcome::Finished);
    assert_eq!(report.hook("liar").unwrap().error.as_deref(), Some("3 connections are still out"));
    assert_eq!(report.took(), Duration::ZERO, "nothing to wait for");
}
