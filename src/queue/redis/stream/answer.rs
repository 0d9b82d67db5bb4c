//! What the scripts answer, in the words of the port.

use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::queue::{Claimed, Counts, DeadLetter, Held, JobId, JobState, Lease, Owner, QueueError, Standing};

/// Bits of a place that count the entries of one millisecond.
const SEQ_BITS: u32 = 20;

/// Entry, name, payload, past, checkpoint.
pub(super) type Entry = (String, String, Option<Vec<u8>>, Option<String>, Option<String>);

/// Verdicts on what is done, the epoch of the claim, the server's clock, what was claimed, and what was given up instead, with reasons.
pub(super) type Step = (String, u64, u64, Vec<Entry>, Vec<(String, String)>);

/// Name, payload, reason, past, age.
pub(super) type Letter = (String, Option<Vec<u8>>, String, Option<String>, u64);

/// Whether the server would take it for the ID of an entry.
pub(super) fn is_entry_id(name: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('-').is_some_and(|(millis, seq)| digits(millis) && digits(seq))
}

/// A letter for each claim that was asked about.
pub(super) fn verdicts(letters: &str, asked: usize, doing: &'static str) -> Result<Vec<Held>, QueueError> {
    let held: Option<Vec<Held>> = letters
        .chars()
        .map(|letter| match letter {
            'Y' => Some(Held::Yours),
            'A' => Some(Held::Already),
            'L' => Some(Held::Lost),
            'G' => Some(Held::Gone),
            _ => None,
        })
        .collect();
    held.filter(|held| held.len() == asked)
        .ok_or_else(|| QueueError::new(doing, format!("{letters:?} is no answer for {asked} claims")))
}

/// The claim of an entry, and the job, or why that cannot be read.
pub(super) fn claimed<T: DeserializeOwned>(
    entry: Entry,
    owner: &Owner,
    epoch: u64,
    now: u64,
) -> (Lease, Result<Claimed<T>, String>) {
    let (id, name, payload, past, checkpoint) = entry;
    let lease = Lease { id: JobId(name.into()), owner: owner.clone(), epoch };
    let item = match payload.as_deref().map(serde_json::from_slice) {
        None => return (lease, Err("corrupt job: it has no field \"payload\"".to_owned())),
        Some(Err(error)) => return (lease, Err(format!("corrupt job: payload: {error}"))),
        Some(Ok(item)) => item,
    };
    let (enqueued_at, seq) = parts(&id);
    let (attempts, interruptions, crashes) = counted(past.as_deref());
    let mut job = Claimed::new(item, lease.clone());
    (job.attempts, job.interruptions, job.crashes) = (attempts, interruptions, crashes);
    job.checkpoint = checkpoint;
    job.order = enqueued_at.min(u64::MAX >> SEQ_BITS) << SEQ_BITS | seq.min((1 << SEQ_BITS) - 1);
    job.age = Duration::from_millis(now.saturating_sub(enqueued_at));
    (lease, Ok(job))
}

pub(super) fn dead_letter(letter: Letter) -> DeadLetter {
    let (name, payload, reason, past, age) = letter;
    let (attempts, interruptions, crashes) = counted(past.as_deref());
    let payload = payload.and_then(|payload| String::from_utf8(payload).ok());
    let age = Duration::from_millis(age);
    DeadLetter { id: JobId(name.into()), reason, payload, attempts, interruptions, crashes, age }
}

pub(super) fn standing(kind: &str, past: Option<&str>) -> Option<Standing> {
    let state = match kind {
        "pending" => JobState::Pending,
        "scheduled" => JobState::Scheduled,
        "active" => JobState::Active,
        "dead" => JobState::Dead,
        _ => return None,
    };
    let (attempts, interruptions, crashes) = counted(past);
    Some(Standing { state, attempts, interruptions, crashes })
}

/// Pending, scheduled, active, dead, interruptions, crashes, age of the oldest.
pub(super) fn counts(
    (pending, scheduled, active, dead, interruptions, crashes, oldest): (u64, u64, u64, u64, u64, u64, i64),
) -> Counts {
    let oldest = u64::try_from(oldest).ok().map(Duration::from_millis);
    Counts { pending, scheduled, active, dead, interruptions, crashes, oldest }
}

/// When an entry was added, by the server's clock or its producer's, and its number within that millisecond.
fn parts(id: &str) -> (u64, u64) {
    let (millis, seq) = id.split_once('-').unwrap_or((id, "0"));
    (millis.parse().unwrap_or(0), seq.parse().unwrap_or(0))
}

/// Attempts, interruptions, crashes.
fn counted(past: Option<&str>) -> (u32, u32, u32) {
    let mut counts = past.unwrap_or_default().split(' ').map(|count| count.parse().unwrap_or(0));
    let mut next = || counts.next().unwrap_or(0);
    (next(), next(), next())
}
