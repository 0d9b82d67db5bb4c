//! Reads what the scripts answer, and says what of a job cannot be read.

use std::ops::Range;
use std::time::Duration;

use redis::{ErrorKind, RedisError, Value};
use serde::de::DeserializeOwned;

use crate::queue::{Claimed, DeadLetter, Held, JobId, JobState, Lease, Owner, Standing};

/// What stands for the name of a job that has none that can be read.
const UNREADABLE: &str = "(unreadable)";

/// The parts of an answer, one after the other.
pub(super) struct Parts(std::vec::IntoIter<Value>);

/// What a step has brought.
pub(super) struct Step {
    /// Of what was to be acked; nothing where all of it was held.
    pub(super) held: Option<Vec<Held>>,
    /// The claim, where there is one.
    pub(super) epoch: u64,
    /// By the server's clock, in milliseconds.
    pub(super) now: u64,
    /// Until something is due, in milliseconds; below zero where that is never, or was not looked for.
    pub(super) wait: i64,
    pub(super) jobs: Brought,
    /// Names and reasons in turn.
    pub(super) dead: Vec<String>,
}

/// Jobs as they were claimed.
pub(super) enum Brought {
    /// A text, and where in it the id is; the value is behind it.
    One(Vec<u8>, Range<usize>),
    Many {
        ids: Parts,
        values: Parts,
        pasts: Parts,
    },
}

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

    /// The parts of the next one; none where it is no list.
    pub(super) fn list(&mut self) -> Parts {
        match self.0.next() {
            Some(Value::Array(parts)) => Parts(parts.into_iter()),
            _ => Parts(Vec::new().into_iter()),
        }
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

// === impl Step ===

impl Step {
    /// A number or a list of verdicts, where nothing was to be claimed; otherwise a list of all, or one text for a job of which nothing
    /// else is to be said.
    pub(super) fn read(answer: Value) -> Result<Step, RedisError> {
        let mut parts = match answer {
            Value::BulkString(text) => {
                return Step::one(text).ok_or_else(|| foreign(&Value::BulkString(Vec::new())));
            }
            other => Parts::of(other)?,
        };
        let held = verdicts(parts.part())?;
        let (epoch, now, wait) = (parts.number()?, parts.number()?, parts.number()?);
        let (ids, values, pasts) = (parts.list(), parts.list(), parts.list());
        let dead = parts.list().0.map(text).collect();
        let jobs = Brought::Many { ids, values, pasts };
        Ok(Step { held, epoch: epoch.unsigned_abs(), now: now.unsigned_abs(), wait, jobs, dead })
    }

    /// `NOW WAIT EPOCH ID`, and in the next line the value.
    fn one(text: Vec<u8>) -> Option<Step> {
        let (now, rest) = word(&text)?;
        let (wait, rest) = word(rest)?;
        let (epoch, rest) = word(rest)?;
        let from = text.len() - rest.len();
        let id = from..from + rest.iter().position(|byte| *byte == b'\n')?;
        let (epoch, now) = (epoch.unsigned_abs(), now.unsigned_abs());
        Some(Step { held: None, epoch, now, wait, jobs: Brought::One(text, id), dead: Vec::new() })
    }
}

// === impl Brought ===

impl Brought {
    pub(super) fn len(&self) -> usize {
        match self {
            Brought::One(..) => 1,
            Brought::Many { ids, .. } => ids.len(),
        }
    }

    /// Reads them all, each on its own.
    pub(super) fn read<T: DeserializeOwned>(
        self,
        owner: &Owner,
        epoch: u64,
        now: u64,
        mut each: impl FnMut(Result<Claimed<T>, Misfit>),
    ) {
        match self {
            Brought::One(text, id) => {
                let value = text.get(id.end + 1..);
                each(claimed(&text[id], value, None, owner, epoch, now));
            }
            Brought::Many { ids, mut values, mut pasts } => {
                for id in ids {
                    let (id, value) = (bytes(id).unwrap_or_default(), bytes(values.part()));
                    let past = bytes(pasts.part());
                    each(claimed(&id, value.as_deref(), past.as_deref(), owner, epoch, now));
                }
            }
        }
    }
}

/// Nothing where all were held; or one for each job.
pub(super) fn verdicts(value: Value) -> Result<Option<Vec<Held>>, RedisError> {
    match value {
        Value::Int(_) => Ok(None),
        some => held(some).map(Some),
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
fn claimed<T: DeserializeOwned>(
    id: &[u8],
    value: Option<&[u8]>,
    past: Option<&[u8]>,
    owner: &Owner,
    epoch: u64,
    now: u64,
) -> Result<Claimed<T>, Misfit> {
    read(id, value, past, owner, epoch, now).map_err(|reason| Misfit { id: id.to_owned(), reason })
}

fn read<T: DeserializeOwned>(
    id: &[u8],
    value: Option<&[u8]>,
    past: Option<&[u8]>,
    owner: &Owner,
    epoch: u64,
    now: u64,
) -> Result<Claimed<T>, String> {
    let id = job_id(id).ok_or("corrupt job: its name is none")?;
    let value = value.ok_or("corrupt job: it is listed, and has no payload")?;
    let (order, enqueued, priority, payload) =
        header(value).ok_or("corrupt job: its payload does not begin with order, time and priority")?;
    let item = serde_json::from_slice(payload).map_err(|error| format!("corrupt job: payload: {error}"))?;
    let past = match past {
        None => Past::default(),
        Some(past) => Past::read(past).ok_or("corrupt job: what it went through cannot be read")?,
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
    let (order, rest) = word(value)?;
    let (time, rest) = word(rest)?;
    let (priority, payload) = word(rest)?;
    let (order, time) = (u64::try_from(order).ok()?, u64::try_from(time).ok()?);
    Some((order, time, i32::try_from(priority).ok()?, payload))
}

/// A number and a space; and the rest. By hand, since it is done some times for each job.
fn word(text: &[u8]) -> Option<(i64, &[u8])> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let (mut number, mut rest) = (0_i64, digits);
    while let Some((digit @ b'0'..=b'9', behind)) = rest.split_first() {
        number = number.checked_mul(10)?.checked_add(i64::from(digit - b'0'))?;
        rest = behind;
    }
    let some = rest.len() < digits.len();
    let number = if digits.len() < text.len() { -number } else { number };
    rest.strip_prefix(b" ").filter(|_| some).map(|rest| (number, rest))
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
