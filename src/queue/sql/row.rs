//! Reads rows, and says what of one cannot be read.

use std::time::Duration;

use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row, Sqlite, Type};

use crate::error::BoxError;
use crate::queue::{Claimed, Counts, DeadLetter, JobId, JobState, Lease, Owner, Standing};

/// An epoch beyond this cannot have come from counting.
const EPOCH_MAX: i64 = 1 << 53;

/// What stands for the name of a row that has none that can be read.
const UNREADABLE: &str = "(unreadable)";

/// Reads a row that has just been claimed; `Err` says why it cannot be read.
pub(super) fn claimed<T: DeserializeOwned>(row: &SqliteRow, owner: &Owner) -> Result<Claimed<T>, String> {
    let payload: &str = column(row, "payload")?;
    let item = serde_json::from_str(payload).map_err(|error| format!("corrupt row: payload: {error}"))?;
    let epoch: i64 = column(row, "epoch")?;
    if !(1..EPOCH_MAX).contains(&epoch) {
        return Err(format!("corrupt row: epoch: {epoch} is out of bounds"));
    }
    let lease = Lease { id: id(row)?, owner: owner.clone(), epoch: epoch.unsigned_abs() };
    let mut claimed = Claimed::new(item, lease);
    claimed.attempts = count(row, "attempts")?;
    claimed.interruptions = count(row, "interruptions")?;
    claimed.crashes = count(row, "crashes")?;
    claimed.checkpoint = column(row, "checkpoint")?;
    claimed.priority = column(row, "priority")?;
    claimed.order = column::<i64>(row, "seq")?.unsigned_abs();
    claimed.age = Duration::from_millis(column::<i64>(row, "age")?.unsigned_abs());
    Ok(claimed)
}

/// Reads a dead letter, whatever state its row is in.
pub(super) fn dead_letter(row: &SqliteRow) -> DeadLetter {
    DeadLetter {
        id: id(row).unwrap_or_else(|_| JobId(UNREADABLE.into())),
        reason: column(row, "reason").unwrap_or_else(|_| "unknown".to_owned()),
        payload: column(row, "payload").ok(),
        attempts: count(row, "attempts").unwrap_or(0),
        interruptions: count(row, "interruptions").unwrap_or(0),
        crashes: count(row, "crashes").unwrap_or(0),
        age: Duration::from_millis(column::<i64>(row, "age").unwrap_or(0).unsigned_abs()),
    }
}

/// Reads how a job stands; `Err` says why it cannot be read.
pub(super) fn standing(row: &SqliteRow) -> Result<Standing, String> {
    let state = match column(row, "state")? {
        "pending" => JobState::Pending,
        "scheduled" => JobState::Scheduled,
        "active" => JobState::Active,
        // What is in no state is buried when the queue is opened.
        _ => JobState::Dead,
    };
    Ok(Standing {
        state,
        attempts: count(row, "attempts")?,
        interruptions: count(row, "interruptions")?,
        crashes: count(row, "crashes")?,
    })
}

/// Adds up the rows of `counts`, one for each state.
pub(super) fn counts(rows: &[SqliteRow]) -> Counts {
    let mut counts = Counts::default();
    for row in rows {
        let number = |index: usize| row.try_get::<i64, _>(index).unwrap_or(0).unsigned_abs();
        let state = row.try_get(0).unwrap_or_default();
        match state {
            "pending" => counts.pending = number(1),
            "scheduled" => counts.scheduled = number(1),
            "active" => counts.active = number(1),
            "dead" => counts.dead = number(1),
            "queue" => (counts.interruptions, counts.crashes) = (number(3), number(4)),
            _ => {}
        }
        if matches!(state, "pending" | "scheduled" | "active") {
            counts.oldest = counts.oldest.max(Some(Duration::from_millis(number(2))));
        }
    }
    counts
}

fn id(row: &SqliteRow) -> Result<JobId, String> {
    column::<&str>(row, "id")?.parse().map_err(|error| format!("corrupt row: id: {error}"))
}

fn count(row: &SqliteRow, name: &str) -> Result<u32, String> {
    let count: i64 = column(row, name)?;
    u32::try_from(count).map_err(|_| format!("corrupt row: {name}: {count} is out of bounds"))
}

fn column<'r, T: Decode<'r, Sqlite> + Type<Sqlite>>(row: &'r SqliteRow, name: &str) -> Result<T, String> {
    row.try_get(name).map_err(|error| {
        // The innermost says it in the fewest words: what was found, and not which column, which is said here.
        let why: BoxError = match error {
            sqlx::Error::ColumnDecode { source, .. } => source,
            other => other.into(),
        };
        format!("corrupt row: {name}: {why}")
    })
}
