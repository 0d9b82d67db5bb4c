//! Makes the table, or makes sure that it is one of ours.

use sqlx::{Connection, SqliteConnection, SqlitePool};

use super::OpenError;
use super::statements::{LAYOUT, Statements};

/// The columns of the layout, sorted.
const COLUMNS: [&str; 15] = [
    "attempts",
    "checkpoint",
    "crashes",
    "due",
    "enqueued_at",
    "epoch",
    "id",
    "interruptions",
    "kill_at",
    "owner",
    "payload",
    "priority",
    "reason",
    "seq",
    "state",
];

/// Makes the table, or makes sure that it is one of ours.
pub(super) async fn open(pool: &SqlitePool, table: &str) -> Result<Statements, OpenError> {
    if !is_plain(table) {
        return Err(OpenError::BadName(table.chars().take(64).collect()));
    }
    let say = Statements::new(table);
    let mut conn = pool.acquire().await.map_err(OpenError::Database)?;
    if !is_there(&say, &mut conn).await? {
        make(&say, &mut conn).await?;
    }
    if let Err(error) = bury_misfits(&say, &mut conn).await {
        // They are in nobody's way, only out of sight; a database that can only be read must still open.
        tracing::warn!(target: "winddown", table, %error, "jobs.unknown_state");
    }
    Ok(say)
}

fn is_plain(name: &str) -> bool {
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    starts && plain && name.len() <= 48 && !name.to_ascii_lowercase().starts_with("sqlite_")
}

async fn make(say: &Statements, conn: &mut SqliteConnection) -> Result<(), OpenError> {
    // Whoever opens it at the same time waits here, and then finds it made.
    let mut tx = conn.begin_with("BEGIN IMMEDIATE").await.map_err(OpenError::Database)?;
    if !is_there(say, &mut tx).await? {
        for statement in &say.create {
            sqlx::query(statement.sql()).execute(&mut *tx).await.map_err(OpenError::Database)?;
        }
    }
    tx.commit().await.map_err(OpenError::Database)
}

/// Whether there is such a table; an error where it is not one of ours.
async fn is_there(say: &Statements, conn: &mut SqliteConnection) -> Result<bool, OpenError> {
    let columns: Vec<String> = sqlx::query_scalar(say.columns.sql())
        .bind(&say.table)
        .fetch_all(&mut *conn)
        .await
        .map_err(OpenError::Database)?;
    if columns.is_empty() {
        return Ok(false);
    }
    let foreign = |found: String| OpenError::Foreign { table: say.table.clone(), found };
    // The layout's number first: a table of another version is called that, whatever its columns are.
    let has = |name| columns.iter().any(|column| column == name);
    if has("id") && has("state") && has("attempts") {
        let layout: Vec<i64> =
            sqlx::query_scalar(say.layout.sql()).fetch_all(&mut *conn).await.map_err(OpenError::Database)?;
        match layout.first() {
            Some(&LAYOUT) => {}
            Some(&found) => {
                return Err(OpenError::Layout { table: say.table.clone(), found, needed: LAYOUT });
            }
            None => {
                return Err(foreign("it has no row winddown:queue that says which layout it has".to_owned()));
            }
        }
    }
    if columns != COLUMNS {
        let missing = COLUMNS.iter().find(|name| !has(name)).map(|name| format!("it has no column {name}"));
        let extra = columns.iter().find(|name| !COLUMNS.contains(&name.as_str()));
        let extra = extra.map(|name| format!("it has a column {name}"));
        return Err(foreign(missing.or(extra).unwrap_or_else(|| "its columns differ".to_owned())));
    }
    Ok(true)
}

/// Rows whose state is none that we know would never be seen again.
async fn bury_misfits(say: &Statements, conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let any: Vec<bool> = sqlx::query_scalar(say.has_misfits.sql()).fetch_all(&mut *conn).await?;
    if any.first() == Some(&true) {
        let buried = sqlx::query(say.bury_misfits.sql()).execute(conn).await?.rows_affected();
        tracing::warn!(target: "winddown", table = say.table, dead = buried, "jobs.unknown_state");
    }
    Ok(())
}
