//! Keeps what is logged on this thread, a line for each event: its message and its fields.

use std::fmt::{Debug, Write as _};
use std::sync::{Arc, Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Metadata, Subscriber};

pub type Lines = Arc<Mutex<Vec<String>>>;

struct Keep(Lines);
struct Line(String);

/// Beside a subscriber that is the only one, an event that another thread without any logs first is never heard of again, by anybody.
static ANOTHER: OnceLock<Dispatch> = OnceLock::new();

/// Keeps events until the guard is dropped.
pub fn keep() -> (Lines, DefaultGuard) {
    ANOTHER.get_or_init(|| Dispatch::new(Keep(Lines::default())));
    let lines = Lines::default();
    let guard = tracing::subscriber::set_default(Keep(Arc::clone(&lines)));
    (lines, guard)
}

impl Subscriber for Keep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "winddown"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}
