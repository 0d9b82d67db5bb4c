//! The waits between tries, and their scatter.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;

/// How long to wait before the next try: twice as long each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
}

/// The `whole` with up to `most` left out at random.
pub(crate) fn scattered(whole: Duration, most: Duration) -> Duration {
    // The keys of a `RandomState` differ each time.
    let random = RandomState::new().hash_one(whole) >> 32;
    whole.saturating_sub(most.mul_f64(random as f64 / f64::from(u32::MAX)))
}

// === impl Backoff ===

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest }
    }

    /// With up to half left out at random, so that what failed together does not come again together.
    pub(crate) fn scattered(self, failures: u32) -> Duration {
        let whole = self.after(failures);
        scattered(whole, whole / 2)
    }

    /// The wait after a failure, with that many failures right before it.
    pub(crate) fn after(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_up_to_the_longest_and_leaves_out_at_most_half() {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(10));
        for (failures, whole) in [(0, 1), (1, 2), (3, 8), (4, 10), (31, 10), (u32::MAX, 10)] {
            let whole = Duration::from_secs(whole);
            assert_eq!(backoff.after(failures), whole);
            for _ in 0..100 {
                let after = backoff.scattered(failures);
                assert!(after <= whole && after * 2 >= whole, "{after:?} of {whole:?}");
            }
        }
        let all: std::collections::BTreeSet<Duration> = (0..100).map(|_| backoff.scattered(0)).collect();
        assert!(all.len() > 50, "they differ");
        assert_eq!(Backoff::new(Duration::MAX, Duration::MAX).after(7), Duration::MAX);
    }
}
