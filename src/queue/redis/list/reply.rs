//! Reads what the scripts answer, and says what of a job cannot be read.

use std::time::Duration;

use redis::{ErrorKind, RedisError, Value};
use serde::de::DeserializeOwned;

use crate::queue::{Claimed, DeadLetter, Held, JobId, JobState, Lease, Owner, Standing};

/// What stands for the name of a job that has none that can be read.
const UNREADABLE: &str = "(unreadable)";

/// The parts of an answer, one after the other.
pub(super) struct Parts(std::vec::IntoIter<Value>);

/// A job that was claimed and cannot be read.
pub(super) struct Misfit {
    pub(super) id: Vec<u8>,
    pub(super) reason: String,
}

/// What a job went through.
#[derive(Default)]
struct Past {
    attempts: u32,
    interruptions: u32,
    crashes: u32,
    checkpoint: Option<String>,
}

// === impl Parts ===

impl Parts {
    pub(super) fn of(value: Value) -> Result<Parts, RedisError> {
        match value {
            Value::Array(parts) => Ok(Parts(parts.into_iter())),
            other => Err(foreign(&other)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn part(&mut self) -> Value {
        self.0.next().unwrap_or(Value::Nil)
    }

    pub(super) fn number(&mut self) -> Result<i64, RedisError> {
        number(&self.part())
    }

    pub(super) fn texts(&mut self) -> Result<Vec<String>, RedisError> {
        Ok(Parts::of(self.part())?.0.map(text).collect())
    }
}

impl Iterator for Parts {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0.next()
    }
}

pub(super) fn number(value: &Value) -> Result<i64, RedisError> {
    match value {
        Value::Int(number) => Ok(*number),
        other => Err(foreign(other)),
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

fn text(value: Value) -> String {
    String::from_utf8_lossy(&bytes(value).unwrap_or_default()).into_owned()
}

fn foreign(found: &Value) -> RedisError {
    let kind = match found {
        Value::Nil => "nothing",
        Value::Int(_) => "a number",
        Value::Array(_) => "a list",
        _ => "a text",
    };
    (ErrorKind::UnexpectedReturnType, "the script did not answer as it should", kind.to_owned()).into()
}

/// A number, or a list of them, one for each job.
pub(super) fn held(value: Value) -> Result<Vec<Held>, RedisError> {
    Parts::of(value)?.map(|value| held_one(&value)).collect()
}

pub(super) fn held_one(value: &Value) -> Result<Held, RedisError> {
    Ok(match number(value)? {
        1 => Held::Yours,
        2 => Held::Already,
        4 => Held::Gone,
        _ => Held::Lost,
    })
}

/// Milliseconds; below zero stands for never.
pub(super) fn wait(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

/// Reads a job that has just been claimed.
pub(super) fn claimed<T: DeserializeOwned>(
    id: Value,
    value: Value,
    past: Value,
    owner: &Owner,
    epoch: u64,
    now: u64,
) -> Result<Claimed<T>, Misfit> {
    let id = bytes(id).unwrap_or_default();
    match read(&id, value, past, owner, epoch, now) {
        Ok(claimed) => Ok(claimed),
        Err(reason) => Err(Misfit { id, reason }),
    }
}

fn read<T: DeserializeOwned>(
    id: &[u8],
    value: Value,
    past: Value,
    owner: &Owner,
    epoch: u64,
    now: u64,
) -> Result<Claimed<T>, String> {
    let id = job_id(id).ok_or("corrupt job: its name is none")?;
    let value = bytes(value).ok_or("corrupt job: it is listed, and has no payload")?;
    let (order, enqueued, priority, payload) =
        header(&value).ok_or("corrupt job: its payload does not begin with order, time and priority")?;
    let item = serde_json::from_slice(payload).map_err(|error| format!("corrupt job: payload: {error}"))?;
    let past = match bytes(past) {
        None => Past::default(),
        Some(past) => Past::read(&past).ok_or("corrupt job: what it went through cannot be read")?,
    };
    let mut claimed = Claimed::new(item, Lease { id, owner: owner.clone(), epoch });
    (claimed.attempts, claimed.interruptions, claimed.crashes) =
        (past.attempts, past.interruptions, past.crashes);
    claimed.checkpoint = past.checkpoint;
    (claimed.order, claimed.priority) = (order, priority);
    claimed.age = Duration::from_millis(now.saturating_sub(enqueued));
    Ok(claimed)
}

/// What a payload begins with: sequence number, time in milliseconds, priority; and the rest.
fn header(value: &[u8]) -> Option<(u64, u64, i32, &[u8])> {
    let mut parts = value.splitn(4, |byte| *byte == b' ');
    let mut next = || parts.next().and_then(|part| std::str::from_utf8(part).ok());
    let (order, time, priority) = (next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?);
    Some((order, time, priority, parts.next()?))
}

fn job_id(bytes: &[u8]) -> Option<JobId> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// Reads a dead letter, whatever state its parts are in.
pub(super) fn dead_letter(value: Value) -> Result<DeadLetter, RedisError> {
    let mut parts = Parts::of(value)?;
    let id = bytes(parts.part()).unwrap_or_default();
    let reason = bytes(parts.part()).map_or_else(|| "unknown".to_owned(), |reason| lossy(&reason));
    let payload = bytes(parts.part()).and_then(|value| String::from_utf8(header(&value)?.3.to_owned()).ok());
    let past = bytes(parts.part()).and_then(|past| Past::read(&past)).unwrap_or_default();
    let mut letter = DeadLetter::new(job_id(&id).unwrap_or_else(|| JobId(UNREADABLE.into())), reason);
    letter.payload = payload;
    (letter.attempts, letter.interruptions, letter.crashes) =
        (past.attempts, past.interruptions, past.crashes);
    letter.age = wait(parts.number()?).unwrap_or_default();
    Ok(letter)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn standing(value: Value) -> Result<Option<Standing>, RedisError> {
    let mut parts = Parts::of(value)?;
    let Some(state) = parts.next() else { return Ok(None) };
    let state = match text(state).as_str() {
        "dead" => JobState::Dead,
        "scheduled" => JobState::Scheduled,
        "active" => JobState::Active,
        _ => JobState::Pending,
    };
    let past = bytes(parts.part()).and_then(|past| Past::read(&past)).unwrap_or_default();
    let Past { attempts, interruptions, crashes, .. } = past;
    Ok(Some(Standing { state, attempts, interruptions, crashes }))
}

// === impl Past ===

impl Past {
    /// Three numbers, the token of the last hand-back, and the checkpoint behind a `+`, in lines; the checkpoint may have more.
    fn read(text: &[u8]) -> Option<Past> {
        let mut lines = std::str::from_utf8(text).ok()?.splitn(5, '\n');
        let mut count = || lines.next()?.parse().ok();
        let (attempts, interruptions, crashes) = (count()?, count()?, count()?);
        let checkpoint = lines.nth(1)?.strip_prefix('+').map(str::to_owned);
        Some(Past { attempts, interruptions, crashes, checkpoint })
    }
}
