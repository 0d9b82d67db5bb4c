//! Lengths of time as a server is told them.

use std::time::Duration;

/// The longest time that is written: a hundred years, so that no sum of times is out of bounds.
const LONGEST: i64 = 100 * 365 * 24 * 3600 * 1000;

/// Milliseconds, rounded up: what is due after a moment is never due before it.
pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(LONGEST).min(LONGEST)
}
