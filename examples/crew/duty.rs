//! What the crew is given to do.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use winddown::queue::{Handler, Leased};
use winddown::{BoxError, Cx};

use crate::points::Points;
use crate::stamps::{Note, Stamps};

/// How long a handler sleeps without a word.
const BEAT: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Duty {
    kind: Kind,
    /// How long the first run takes, the second, ..; the last counts for all that follow.
    #[serde(default)]
    ms: Vec<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    /// Over at once, with no effect.
    Nothing,
    /// Sleeps; its effect may be cut like the rest.
    Sleep,
    /// Sleeps; its effect is shielded.
    Shield,
    /// Blocks its thread in the first run.
    Block,
    /// Fails in the first run.
    Fail,
}

pub struct Crew {
    pub stamps: Option<Stamps>,
    pub points: Points,
}

// === impl Crew ===

impl Crew {
    async fn note(&self, note: Note, job: &Leased<Duty>) -> Result<(), BoxError> {
        match &self.stamps {
            Some(stamps) => stamps.put(note, job).await,
            None => Ok(()),
        }
    }
}

impl Handler<Duty> for Crew {
    type Error = BoxError;

    async fn handle(&self, job: &Leased<Duty>, cx: &Cx) -> Result<(), BoxError> {
        if job.item.kind == Kind::Nothing {
            return Ok(());
        }
        self.points.pass("run.start");
        // Shielded, as are the beats: a stamp that is cut on its way may arrive after those of the next run.
        cx.shield(self.note(Note::Start, job)).await?;
        let before = (job.attempts + job.interruptions + job.crashes) as usize;
        let length = job.item.ms.get(before).or(job.item.ms.last()).copied().unwrap_or(0);
        match job.item.kind {
            Kind::Block if before == 0 => std::thread::sleep(Duration::from_millis(length)),
            Kind::Fail if before == 0 => return Err("it fails the first time".into()),
            _ => self.sleep(Duration::from_millis(length), job, cx).await?,
        }
        self.points.pass("run.middle");
        match job.item.kind {
            Kind::Sleep => self.note(Note::Effect, job).await?,
            _ => cx.shield(self.note(Note::Effect, job)).await?,
        }
        self.points.pass("run.end");
        Ok(())
    }
}

impl Crew {
    async fn sleep(&self, length: Duration, job: &Leased<Duty>, cx: &Cx) -> Result<(), BoxError> {
        let end = tokio::time::Instant::now() + length;
        let mut beat = BEAT;
        while tokio::time::Instant::now() < end {
            tokio::time::sleep(beat.min(end.saturating_duration_since(tokio::time::Instant::now()))).await;
            cx.shield(self.note(Note::Beat, job)).await?;
            // Those that take long need not say so as often.
            beat = (beat * 2).min(25 * BEAT);
        }
        Ok(())
    }
}
