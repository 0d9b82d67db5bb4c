//! The default division of a grace period.

use std::time::Duration;

/// Reserves by grace, in milliseconds; `unready` is for programs behind a balancer only. Between the rows reserves are
/// interpolated, below the first they shrink alike, beyond the last they stay. No reserve grows faster than the grace,
/// nor do all of them together, so more grace never drains less.
const TABLE: [Row; 5] = [
    Row { grace: 0, unready: 0, requeue: 0, close: 0, margin: 0 },
    Row { grace: 5_000, unready: 0, requeue: 700, close: 500, margin: 300 },
    Row { grace: 10_000, unready: 0, requeue: 1_000, close: 500, margin: 500 },
    Row { grace: 30_000, unready: 5_000, requeue: 3_000, close: 2_000, margin: 1_000 },
    Row { grace: 45_000, unready: 5_000, requeue: 4_000, close: 3_000, margin: 1_000 },
];

/// A grace period divided, each part as long as asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rungs {
    pub(super) unready: Duration,
    pub(super) drain: Duration,
    pub(super) requeue: Duration,
    pub(super) close: Duration,
    pub(super) margin: Duration,
}

/// One row of the table, in milliseconds.
pub(super) struct Row {
    grace: u64,
    pub(super) unready: u64,
    pub(super) requeue: u64,
    pub(super) close: u64,
    pub(super) margin: u64,
}

/// One of a row's reserves.
pub(super) type Column = fn(&Row) -> u64;

// === impl Rungs ===

impl Rungs {
    pub(super) fn named(self) -> [(&'static str, Duration); 5] {
        [
            ("unready", self.unready),
            ("drain", self.drain),
            ("requeue", self.requeue),
            ("close", self.close),
            ("margin", self.margin),
        ]
    }

    pub(super) fn sum(self) -> Duration {
        self.named().into_iter().fold(Duration::ZERO, |sum, (_, limit)| sum.saturating_add(limit))
    }
}

/// What is set stays; the rest is read off the table.
///
/// Rounding is done on running sums and not on each reserve: all together then never grow by more than the grace does,
/// to the nanosecond, which is what keeps the drain monotone.
pub(super) fn divide<const N: usize>(
    grace: Duration,
    columns: [(Option<Duration>, Column); N],
) -> [Duration; N] {
    let grace = grace.as_nanos();
    let above = TABLE.iter().position(|row| grace < u128::from(row.grace) * 1_000_000);
    let (below, above) = match above {
        Some(at) => (&TABLE[at - 1], &TABLE[at]),
        None => (&TABLE[TABLE.len() - 2], &TABLE[TABLE.len() - 1]),
    };
    let from = u128::from(below.grace) * 1_000_000;
    let span = u128::from(above.grace) * 1_000_000 - from;
    let way = (grace - from).min(span);
    let (mut low, mut high, mut before) = (0, 0, 0);
    columns.map(|(set, column)| {
        set.unwrap_or_else(|| {
            low += u128::from(column(below)) * 1_000_000;
            high += u128::from(column(above)) * 1_000_000;
            let sum = low + (high - low) * way / span;
            let share = sum - before;
            before = sum;
            Duration::from_nanos(share as u64)
        })
    })
}
