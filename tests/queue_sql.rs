//! What a queue in SQLite promises beyond the port: its file, its transactions, its layout, its bad rows.
#![cfg(feature = "sqlx-sqlite")]

use std::error::Error;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Row, SqlitePool};
use tempfile::TempDir;
use winddown::queue::sql::{self, FenceError, OpenError, Sqlite};
use winddown::queue::{Enqueued, HandBack, Held, JobId, NewJob, Owner, Queue, Stepped};

const LEASE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    items: Vec<String>,
}

struct File {
    dir: TempDir,
}

impl File {
    fn new() -> File {
        File { dir: tempfile::tempdir().unwrap() }
    }

    /// A pool of its own, as another process would have.
    async fn pool(&self) -> SqlitePool {
        let url = format!("sqlite:{}", self.dir.path().join("queue.db").display());
        SqlitePool::connect_with(sql::options(&url).unwrap()).await.unwrap()
    }

    async fn open(&self) -> (SqlitePool, Sqlite<Order>) {
        let pool = self.pool().await;
        (pool.clone(), Sqlite::open(pool, sql::TABLE).await.unwrap())
    }
}

fn id(name: &str) -> JobId {
    name.parse().unwrap()
}

fn order(name: &str) -> NewJob<Order> {
    NewJob::new(id(name), Order { items: vec![name.to_owned()] })
}

fn me() -> Owner {
    "me".parse().unwrap()
}

async fn run(pool: &SqlitePool, statement: &'static str) {
    sqlx::query(statement).execute(pool).await.unwrap();
}

async fn number(pool: &SqlitePool, statement: &'static str) -> i64 {
    sqlx::query(statement).fetch_one(pool).await.unwrap().get(0)
}

/// An error with its causes, as an operator reads it.
fn told(error: &dyn Error) -> String {
    let mut told = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        told = format!("{told}: {cause}");
        source = cause.source();
    }
    told
}

#[tokio::test]
async fn a_transaction_that_the_database_has_ended_by_itself_leaves_no_connection_behind_that_cannot_begin() {
    for (dropped, connections) in [(true, 1), (false, 2)] {
        let file = File::new();
        let url = format!("sqlite:{}", file.dir.path().join("queue.db").display());
        // Full after so many pages, as a disk is.
        let small = sql::options(&url).unwrap().pragma("max_page_count", "40");
        let pool = sql::pool().max_connections(connections).connect_with(small).await.unwrap();
        let jobs: Sqlite<Order> = Sqlite::open(pool.clone(), sql::TABLE).await.unwrap();
        let large = NewJob::new(id("large"), Order { items: vec!["x".repeat(1_000_000)] });
        for _ in 0..3 {
            let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
            let full = jobs.enqueue_in(&mut tx, &large).await.unwrap_err();
            assert!(full.source().unwrap().to_string().contains("full"), "{full:?}");
            if dropped {
                drop(tx);
            } else {
                tx.rollback().await.unwrap_err();
            }
        }
        assert_eq!(jobs.enqueue(&order("small")).await.unwrap(), Enqueued::Added);
        let claimed = jobs.claim(&me(), 1, LEASE).await.unwrap();
        jobs.begin_drain(&me(), None).await.unwrap();
        let stepped = jobs.step(&[claimed[0].lease.clone()], &me(), 1, LEASE).await.unwrap();
        assert_eq!(stepped.held, [Held::Yours]);
        assert_eq!(
            number(&file.pool().await, "SELECT count(*) FROM winddown_jobs WHERE id = 'small'").await,
            0
        );
    }
}

#[tokio::test]
async fn an_order_and_its_job_are_stored_both_or_neither() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    run(&pool, "CREATE TABLE orders (id TEXT)").await;
    for commit in [false, true] {
        let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::query("INSERT INTO orders VALUES ('a')").execute(&mut *tx).await.unwrap();
        assert_eq!(jobs.enqueue_in(&mut tx, &order("a")).await.unwrap(), Enqueued::Added);
        assert_eq!(jobs.enqueue_in(&mut tx, &order("a")).await.unwrap(), Enqueued::Exists);
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let stored =
            (number(&pool, "SELECT count(*) FROM orders").await, jobs.counts().await.unwrap().pending);
        assert_eq!(stored, (i64::from(commit), u64::from(commit)));
    }
}

#[tokio::test]
async fn an_effect_is_written_only_by_who_holds_the_job() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    run(&pool, "CREATE TABLE effects (step TEXT)").await;
    jobs.enqueue(&order("a")).await.unwrap();
    let old = jobs.claim(&me(), 1, Duration::ZERO).await.unwrap().remove(0);

    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    jobs.checkpoint_in(&mut tx, &old.lease, "reserved").await.unwrap();
    sqlx::query("INSERT INTO effects VALUES ('reserve')").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();

    let new = jobs.claim(&me(), 1, LEASE).await.unwrap().remove(0);
    assert_eq!((new.checkpoint.as_deref(), new.crashes), (Some("reserved"), 1));
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    sqlx::query("INSERT INTO effects VALUES ('charge')").execute(&mut *tx).await.unwrap();
    for refused in [
        jobs.check_in(&mut tx, &old.lease).await,
        jobs.checkpoint_in(&mut tx, &old.lease, "charged").await,
        jobs.ack_in(&mut tx, &old.lease).await,
    ] {
        assert!(
            matches!(refused, Err(FenceError::Lost(lost)) if lost.id() == &old.lease.id && !lost.is_gone())
        );
    }
    tx.rollback().await.unwrap();

    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    jobs.check_in(&mut tx, &new.lease).await.unwrap();
    jobs.ack_in(&mut tx, &new.lease).await.unwrap();
    sqlx::query("INSERT INTO effects VALUES ('ship')").execute(&mut *tx).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(number(&pool, "SELECT count(*) FROM effects").await, 2);
    assert_eq!(jobs.ack(&[new.lease]).await.unwrap(), [Held::Gone]);
}

#[tokio::test]
async fn while_an_effect_is_written_nobody_can_claim_its_job() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    jobs.enqueue(&order("a")).await.unwrap();
    let job = jobs.claim(&me(), 1, Duration::ZERO).await.unwrap().remove(0);
    // Not an immediate transaction: the check itself has to take the lock.
    let mut tx = pool.begin().await.unwrap();
    jobs.check_in(&mut tx, &job.lease).await.unwrap();
    let other = tokio::spawn({
        let (jobs, owner) = (jobs.clone(), "other".parse().unwrap());
        async move { jobs.claim(&owner, 1, LEASE).await.unwrap().len() }
    });
    assert!(
        tokio::time::timeout(Duration::from_millis(200), async {
            while !other.is_finished() {
                tokio::task::yield_now().await
            }
        })
        .await
        .is_err()
    );
    jobs.ack_in(&mut tx, &job.lease).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(other.await.unwrap(), 0);
}

#[tokio::test]
async fn jobs_and_totals_outlive_the_process() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    jobs.enqueue(&order("a")).await.unwrap();
    let job = jobs.claim(&me(), 1, LEASE).await.unwrap().remove(0);
    assert_eq!(jobs.requeue(&[HandBack::interrupted(job.lease)]).await.unwrap(), [Held::Yours]);
    pool.close().await;

    let (_pool, jobs) = file.open().await;
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.pending, counts.interruptions, counts.crashes), (1, 1, 0));
    assert_eq!(jobs.claim(&me(), 1, LEASE).await.unwrap()[0].item, order("a").item);
}

#[tokio::test]
async fn two_processes_claim_every_job_once() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    for n in 0..400 {
        jobs.enqueue_in(&mut tx, &order(&format!("{n:03}"))).await.unwrap();
    }
    tx.commit().await.unwrap();
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..4 {
        let (_, jobs) = file.open().await;
        workers.spawn(async move {
            let owner = format!("worker {worker}").parse().unwrap();
            let (mut seen, mut done) = (Vec::new(), Vec::new());
            loop {
                let Stepped { held, claimed } = jobs.step(&done, &owner, 7, LEASE).await.unwrap();
                assert!(held.iter().all(|held| *held == Held::Yours));
                if claimed.is_empty() {
                    return seen;
                }
                done = claimed.iter().map(|job| job.lease.clone()).collect();
                seen.extend(claimed.into_iter().map(|job| job.lease.id));
            }
        });
    }
    let mut seen = workers.join_all().await.concat();
    seen.sort_unstable();
    let expected: Vec<JobId> = (0..400).map(|n| id(&format!("{n:03}"))).collect();
    assert_eq!(seen, expected);
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.pending, counts.active, counts.oldest), (0, 0, None));
}

#[tokio::test]
async fn a_lease_or_a_delay_wakes_at_the_moment_it_ends_and_not_at_the_next_poll() {
    let file = File::new();
    let (_pool, jobs) = file.open().await;
    for millis in [150, 350] {
        let wait = Duration::from_millis(millis);
        let start = Instant::now();
        jobs.enqueue(&order("a").delay(wait)).await.unwrap();
        jobs.ready().await;
        let job = jobs.claim(&me(), 1, wait).await.unwrap().remove(0);
        let delayed = start.elapsed();
        assert!(delayed >= wait && delayed < wait + Duration::from_millis(140), "{delayed:?} for {wait:?}");

        let start = Instant::now();
        jobs.ready().await;
        let again = jobs.claim(&me(), 1, LEASE).await.unwrap().remove(0);
        let leased = start.elapsed();
        assert!(leased < wait + Duration::from_millis(140), "{leased:?} for {wait:?}");
        assert_eq!((again.crashes, again.lease.epoch), (1, job.lease.epoch + 1));

        let owner = &me();
        let start = Instant::now();
        jobs.begin_drain(owner, Some(wait)).await.unwrap();
        jobs.ready().await;
        let last = jobs.claim(&"next".parse().unwrap(), 1, LEASE).await.unwrap().remove(0);
        let drained = start.elapsed();
        assert!(drained >= wait && drained < wait + Duration::from_millis(140), "{drained:?} for {wait:?}");
        assert_eq!(last.interruptions, 1);
        assert_eq!(jobs.ack(&[last.lease]).await.unwrap(), [Held::Yours]);
        jobs.end_drain(owner).await.unwrap();
    }
}

#[tokio::test]
async fn a_job_of_another_process_is_seen_within_about_a_second() {
    let file = File::new();
    let (_pool, here) = file.open().await;
    let (_pool, there) = file.open().await;
    let start = Instant::now();
    let (_, enqueued) = tokio::join!(here.ready(), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        there.enqueue(&order("a")).await.unwrap()
    });
    assert_eq!(enqueued, Enqueued::Added);
    assert!(start.elapsed() < Duration::from_millis(1300), "{:?}", start.elapsed());
    assert_eq!(here.claim(&me(), 1, LEASE).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_row_that_cannot_be_read_becomes_a_dead_letter_and_stops_no_other() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    let spoil = [
        ("text", "payload = 'not json'", "corrupt row: payload: expected ident"),
        ("shape", "payload = '{\"items\": 3}'", "corrupt row: payload: invalid type: integer `3`"),
        ("utf8", "payload = CAST(x'ff' AS TEXT)", "corrupt row: payload: invalid utf-8"),
        ("negative", "attempts = -1", "corrupt row: attempts: -1 is out of bounds"),
        ("huge", "crashes = 9223372036854775807", "corrupt row: crashes: 9007199254740991 is out of bounds"),
        (
            "least",
            "interruptions = -9223372036854775808",
            "corrupt row: interruptions: -9223372036854775808 is out of",
        ),
        ("epoch", "epoch = 9223372036854775807", "corrupt row: epoch: 9007199254740992 is out of bounds"),
        ("priority", "priority = 9223372036854775807", "corrupt row: priority: "),
        ("checkpoint", "checkpoint = CAST(x'fe' AS TEXT)", "corrupt row: checkpoint: invalid utf-8"),
        ("name", "id = char(7)", "corrupt row: id: the name \"\\u{7}\" must not hold control characters"),
    ];
    for (name, set, _) in spoil {
        jobs.enqueue(&order(name)).await.unwrap();
        let update = format!("UPDATE winddown_jobs SET {set} WHERE id = '{name}'");
        sqlx::query(sqlx::AssertSqlSafe(update)).execute(&pool).await.unwrap();
    }
    for name in ["past", "future"] {
        jobs.enqueue(&order(name)).await.unwrap();
    }
    run(&pool, "UPDATE winddown_jobs SET enqueued_at = -9223372036854775808 WHERE id = 'past'").await;
    run(&pool, "UPDATE winddown_jobs SET enqueued_at = 9223372036854775807, due = -5 WHERE id = 'future'")
        .await;
    jobs.enqueue(&order("good")).await.unwrap();

    let claimed = jobs.claim(&me(), 99, LEASE).await.unwrap();
    let names: Vec<_> = claimed.iter().map(|job| job.lease.id.as_str()).collect();
    assert_eq!(names, ["past", "future", "good"]);
    let dead = jobs.dead_letters(99).await.unwrap();
    assert_eq!(dead.len(), spoil.len());
    for (name, _, reason) in spoil {
        assert!(dead.iter().any(|dead| dead.reason.starts_with(reason)), "{name}: {reason}: {dead:#?}");
    }
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.active, counts.dead, counts.crashes), (3, 10, 0));
    let leases: Vec<_> = claimed.into_iter().map(|job| job.lease).collect();
    assert_eq!(jobs.ack(&leases).await.unwrap(), [Held::Yours; 3]);
}

#[tokio::test]
async fn a_spoiled_job_that_had_been_claimed_stops_no_other() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    for name in ["a", "b", "c"] {
        jobs.enqueue(&order(name)).await.unwrap();
    }
    jobs.claim(&me(), 2, Duration::ZERO).await.unwrap();
    run(
        &pool,
        "UPDATE winddown_jobs SET crashes = 9223372036854775807, epoch = 9223372036854775807 WHERE id = 'a'",
    )
    .await;
    run(&pool, "UPDATE winddown_jobs SET interruptions = -9223372036854775808, kill_at = 7 WHERE id = 'b'")
        .await;
    let claimed = jobs.claim(&me(), 9, LEASE).await.unwrap();
    assert_eq!(claimed.len(), 1);
    assert_eq!(claimed[0].lease.id.as_str(), "c");
    assert_eq!(jobs.counts().await.unwrap().dead, 2);
}

#[tokio::test]
async fn the_database_refuses_rows_of_wrong_types() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    jobs.enqueue(&order("a")).await.unwrap();
    for set in [
        "payload = NULL",
        "due = 'soon'",
        "attempts = 'many'",
        "epoch = 1.5",
        "due = 9e999 - 9e999",
        "state = NULL",
    ] {
        let update = format!("UPDATE winddown_jobs SET {set}");
        let refused = sqlx::query(sqlx::AssertSqlSafe(update)).execute(&pool).await;
        let refused = refused.unwrap_err().to_string();
        assert!(
            refused.contains("NOT NULL constraint failed") || refused.contains("cannot store"),
            "{set}: {refused}"
        );
    }
    assert_eq!(jobs.claim(&me(), 1, LEASE).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_row_of_an_unknown_state_is_a_dead_letter_after_opening() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    jobs.enqueue(&order("a")).await.unwrap();
    jobs.enqueue(&order("b")).await.unwrap();
    run(&pool, "UPDATE winddown_jobs SET state = 'paused' WHERE id = 'a'").await;
    let (_pool, jobs) = file.open().await;
    let dead = jobs.dead_letters(9).await.unwrap();
    assert_eq!((dead.len(), dead[0].reason.as_str()), (1, "corrupt row: its state is paused"));
    assert!(jobs.retry(&id("a")).await.unwrap());
    assert_eq!(jobs.claim(&me(), 9, LEASE).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_table_of_another_layout_or_of_somebody_else_is_refused() {
    let file = File::new();
    let (pool, _jobs) = file.open().await;
    let refused = |table: &'static str| {
        let pool = pool.clone();
        async move { Sqlite::<Order>::open(pool, table).await.unwrap_err() }
    };
    run(&pool, "UPDATE winddown_jobs SET attempts = 0 WHERE id = 'winddown:queue'").await;
    let error = refused(sql::TABLE).await;
    assert!(matches!(error, OpenError::Layout { found: 0, needed: 1, .. }));
    assert_eq!(error.to_string(), "table winddown_jobs has layout 0, and this version needs layout 1");
    run(&pool, "ALTER TABLE winddown_jobs DROP COLUMN checkpoint").await;
    assert!(matches!(refused(sql::TABLE).await, OpenError::Layout { found: 0, .. }));

    run(&pool, "CREATE TABLE users (id TEXT, name TEXT)").await;
    assert_eq!(refused("users").await.to_string(), "table users is not a queue's: it has no column attempts");
    run(&pool, "CREATE TABLE jobs (id TEXT, state TEXT, attempts INTEGER)").await;
    let error = refused("jobs").await.to_string();
    assert_eq!(
        error,
        "table jobs is not a queue's: it has no row winddown:queue that says which layout it has"
    );
    for name in ["", "1st", "a b", "a\"b", "sqlite_jobs", "a;drop table users", &"x".repeat(49)] {
        let error = Sqlite::<Order>::open(pool.clone(), name).await.unwrap_err();
        assert!(matches!(error, OpenError::BadName(_)), "{name}: {error}");
    }
    assert_eq!(number(&pool, "SELECT count(*) FROM users").await, 0);
    Sqlite::<Order>::open(pool.clone(), "Other_2").await.unwrap().enqueue(&order("a")).await.unwrap();
    assert_eq!(Sqlite::<Order>::open(pool, "Other_2").await.unwrap().counts().await.unwrap().pending, 1);
}

#[tokio::test]
async fn many_may_open_a_new_file_at_once() {
    let file = File::new();
    file.pool().await.close().await;
    let mut opening = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let pool = file.pool().await;
        opening.spawn(async move {
            Sqlite::<Order>::open(pool, sql::TABLE).await.map(drop).map_err(|error| told(&error))
        });
    }
    assert_eq!(opening.join_all().await, vec![Ok(()); 8]);
}

#[tokio::test]
async fn a_pool_of_one_connection_is_enough() {
    let options = sql::options("sqlite::memory:").unwrap();
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let jobs: Sqlite<Order> = Sqlite::open(pool, sql::TABLE).await.unwrap();
    jobs.enqueue(&order("a")).await.unwrap();
    jobs.ready().await;
    let job = jobs.claim(&me(), 1, LEASE).await.unwrap().remove(0);
    assert_eq!(jobs.step(&[job.lease], &me(), 1, LEASE).await.unwrap().held, [Held::Yours]);
}

#[tokio::test]
async fn a_database_that_can_only_be_read_says_so_and_may_be_looked_at() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    jobs.enqueue(&order("a")).await.unwrap();
    pool.close().await;
    let url = format!("sqlite:{}", file.dir.path().join("queue.db").display());
    let options = sql::options(&url).unwrap().read_only(true).create_if_missing(false);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    let jobs: Sqlite<Order> = Sqlite::open(pool, sql::TABLE).await.unwrap();
    assert_eq!(jobs.counts().await.unwrap().pending, 1);
    let error = told(&jobs.enqueue(&order("b")).await.unwrap_err());
    assert!(error.starts_with("could not enqueue a job: ") && error.contains("readonly database"), "{error}");
    let error = told(&jobs.claim(&me(), 1, LEASE).await.unwrap_err());
    assert!(error.starts_with("could not claim jobs: ") && error.contains("readonly database"), "{error}");
}

#[tokio::test]
async fn a_full_disk_says_so_and_loses_nothing() {
    let file = File::new();
    let url = format!("sqlite:{}", file.dir.path().join("queue.db").display());
    // One connection, since the limit is each connection's own.
    let options = sql::options(&url).unwrap();
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await.unwrap();
    let jobs: Sqlite<Order> = Sqlite::open(pool.clone(), sql::TABLE).await.unwrap();
    run(&pool, "PRAGMA max_page_count = 60").await;
    let (mut stored, mut refused) = (Vec::new(), 0);
    for n in 0..200 {
        let job = NewJob::new(id(&format!("{n:03}")), Order { items: vec!["x".repeat(2000)] });
        match jobs.enqueue(&job).await {
            Ok(_) => stored.push(job.id),
            Err(error) => {
                assert!(told(&error).contains("database or disk is full"), "{}", told(&error));
                refused += 1;
            }
        }
    }
    assert!(refused > 0 && stored.len() > 10, "{} stored, {refused} refused", stored.len());
    run(&pool, "PRAGMA max_page_count = 6000").await;
    let claimed = jobs.claim(&me(), 999, LEASE).await.unwrap();
    assert_eq!(claimed.into_iter().map(|job| job.lease.id).collect::<Vec<_>>(), stored);
}

#[tokio::test]
async fn what_a_claim_costs_does_not_grow_with_the_backlog() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    let fill = "INSERT INTO winddown_jobs (id, state, due, payload, enqueued_at)
        WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)
        SELECT 'job ' || i, iif(i % 2, 'pending', 'scheduled'), iif(i % 2, 0, 1 + i % 3 * 9e12), '{\"items\":[]}', i FROM n";
    let mut cost = Vec::new();
    for (from, to) in [(1, 2_000), (2_001, 200_000)] {
        sqlx::query(fill).bind(from).bind(to).execute(&pool).await.unwrap();
        let mut best = Duration::MAX;
        for _ in 0..20 {
            let start = Instant::now();
            let claimed = jobs.claim(&me(), 8, LEASE).await.unwrap();
            let back: Vec<_> = claimed.into_iter().map(|job| HandBack::untouched(job.lease)).collect();
            assert_eq!(jobs.requeue(&back).await.unwrap(), [Held::Yours; 8]);
            let leases: Vec<_> =
                jobs.claim(&me(), 8, LEASE).await.unwrap().into_iter().map(|job| job.lease).collect();
            assert_eq!(jobs.ack(&leases).await.unwrap(), [Held::Yours; 8]);
            jobs.ready().await;
            best = best.min(start.elapsed());
        }
        cost.push(best);
    }
    assert!(cost[1] < cost[0] * 4, "{cost:?} with 2 000 and 200 000 jobs");
}

#[tokio::test]
async fn marks_of_owners_long_gone_are_cleared_away() {
    let file = File::new();
    let (pool, jobs) = file.open().await;
    for owner in ["old", "holding", "new"] {
        jobs.enqueue(&order(owner)).await.unwrap();
        jobs.claim(&owner.parse().unwrap(), 1, LEASE).await.unwrap();
        jobs.begin_drain(&owner.parse().unwrap(), Some(LEASE)).await.unwrap();
    }
    run(&pool, "UPDATE winddown_jobs SET due = due - 8 * 86400000 WHERE state = 'ending' AND owner <> 'new'")
        .await;
    run(&pool, "DELETE FROM winddown_jobs WHERE id = 'old'").await;
    jobs.begin_drain(&"another".parse().unwrap(), Some(LEASE)).await.unwrap();
    let rows = sqlx::query("SELECT owner FROM winddown_jobs WHERE state = 'ending' ORDER BY owner")
        .fetch_all(&pool)
        .await;
    let owners: Vec<String> = rows.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(owners, ["another", "holding", "new"]);
    jobs.end_drain(&"new".parse().unwrap()).await.unwrap();
    assert_eq!(number(&pool, "SELECT count(*) FROM winddown_jobs WHERE state = 'ending'").await, 2);
}
