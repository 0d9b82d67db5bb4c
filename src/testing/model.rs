//! Models: random choices against the real thing, checked at each step. Seeds in a test, or a fuzzer, make the choices.
//!
//! Each function panics when a promise is broken.

use std::time::Duration;

mod gate;
#[cfg(feature = "http")]
mod http;
mod intake;
mod rules;

pub use gate::gate;
#[cfg(feature = "http")]
pub use http::http;
pub use intake::intake;
pub use rules::{budget, duration, escalation};

/// Bytes, read as the choices of a model; zeros when there are no more.
struct Choices<'a>(&'a [u8]);

// === impl Choices ===

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Of every size: round seconds, odd milliseconds, and up to the longest there is.
    fn duration(&mut self) -> Duration {
        let shape = self.byte();
        let number = u64::from_le_bytes(std::array::from_fn(|_| self.byte()));
        match shape % 8 {
            0 => Duration::from_millis(number),
            1 => Duration::new(number, (number % 1_000_000_000) as u32),
            2 => Duration::from_nanos(number % 100_000_000_000),
            3 => Duration::from_nanos(number % 100),
            4 | 5 => Duration::from_millis(number % 60_000),
            6 => Duration::from_millis(number % 2_000),
            _ => Duration::from_secs(number % 60),
        }
    }

    fn maybe(&mut self) -> Option<Duration> {
        (self.byte() % 4 == 0).then(|| self.duration())
    }
}
