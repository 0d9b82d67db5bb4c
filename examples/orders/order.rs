//! Orders: as they come in, and as they are told of.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use winddown::queue::{DeadLetter, JobState, Standing};

/// The steps of an order, in their order.
pub const STEPS: [&str; 3] = ["reserve", "charge", "ship"];

/// An order as it comes in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pub id: String,
    pub items: Vec<String>,
    /// How long its work takes, in milliseconds.
    #[serde(default)]
    pub work_ms: u64,
    /// How many attempts fail.
    #[serde(default)]
    pub fail: u32,
    /// How long it blocks its thread before the first step, in milliseconds.
    #[serde(default)]
    pub block_ms: u64,
}

/// An order as `GET /orders/{id}` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Status {
    pub id: String,
    pub state: &'static str,
    pub steps: Vec<String>,
    pub attempts: u32,
    pub interruptions: u32,
    pub crashes: u32,
}

#[derive(Debug, Serialize)]
pub struct Stats {
    pub accepted: u64,
    pub working: u64,
    pub done: u64,
    pub dead: u64,
    pub interruptions: u64,
    pub crashes: u64,
    /// Orders that are stored, and not known to be queued yet. They are among the accepted; one that has just been queued
    /// may for a moment be counted as working too.
    pub outbox: u64,
    /// How long ago the oldest order came in that is neither done nor dead.
    pub oldest_ms: Option<u64>,
    pub dead_letters: Vec<Dead>,
}

/// An order that was given up.
#[derive(Debug, Serialize)]
pub struct Dead {
    pub id: String,
    pub reason: String,
    pub attempts: u32,
    pub interruptions: u32,
    pub crashes: u32,
    pub age_ms: u64,
}

// === impl Status ===

impl Status {
    /// An order that nobody has begun.
    pub fn accepted(id: &str) -> Status {
        Status {
            id: id.to_owned(),
            state: "accepted",
            steps: Vec::new(),
            attempts: 0,
            interruptions: 0,
            crashes: 0,
        }
    }

    /// What the queue says of an order that is not done.
    pub fn standing(&mut self, job: Standing) {
        self.state = match job.state {
            JobState::Pending | JobState::Scheduled => "accepted",
            JobState::Active => "working",
            JobState::Dead => "dead",
        };
        (self.attempts, self.interruptions, self.crashes) = (job.attempts, job.interruptions, job.crashes);
    }
}

// === impl Dead ===

impl From<DeadLetter> for Dead {
    fn from(letter: DeadLetter) -> Dead {
        Dead {
            id: letter.id.to_string(),
            reason: letter.reason,
            attempts: letter.attempts,
            interruptions: letter.interruptions,
            crashes: letter.crashes,
            age_ms: millis(letter.age),
        }
    }
}

pub fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}
