//! Fences what is written for a job whose queue is elsewhere: the database keeps the largest epoch of it that it has heard of.

use sqlx::SqliteConnection;
use winddown::BoxError;
use winddown::queue::Lease;

/// How it is made, and what has to be readable in it.
pub const TABLE: (&str, &str, &str) = (
    "claims",
    "CREATE TABLE IF NOT EXISTS claims (order_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL) STRICT",
    "SELECT order_id, epoch FROM claims LIMIT 0",
);

/// Lets a transaction go on only for the latest claim of an order; whoever held it before writes nothing from here on.
pub async fn fence(conn: &mut SqliteConnection, lease: &Lease) -> Result<(), BoxError> {
    let (id, epoch) = (lease.id.as_str(), i64::try_from(lease.epoch)?);
    let written = sqlx::query(
        "INSERT INTO claims (order_id, epoch) SELECT id, ?2 FROM orders WHERE id = ?1
         ON CONFLICT (order_id) DO UPDATE SET epoch = excluded.epoch WHERE epoch <= excluded.epoch",
    );
    if written.bind(id).bind(epoch).execute(&mut *conn).await?.rows_affected() == 1 {
        return Ok(());
    }
    let latest: Option<i64> = sqlx::query_scalar("SELECT epoch FROM claims WHERE order_id = ?")
        .bind(id)
        .fetch_optional(conn)
        .await?;
    Err(match latest {
        Some(latest) => format!("the job was claimed again since: epoch {latest}, and this is {epoch}"),
        None => format!("the database has no order {id:?}"),
    }
    .into())
}
