//! Looks again and again, and how often a long form does what the short one does.

use std::time::{Duration, Instant};

/// The short count, or the one of `--full`.
pub fn times<T>(short: T, full: T) -> T {
    if std::env::var_os("WINDDOWN_FULL").is_some() { full } else { short }
}

/// Looks until it is so, which must be before the limit.
pub async fn eventually_within(limit: Duration, what: &str, mut look: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !look().await {
        assert!(began.elapsed() < limit, "{what}: not in {limit:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
