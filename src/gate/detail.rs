//! What is known of a piece of work in flight, for gates that keep it.

use std::borrow::Cow;
use std::panic::Location;

use tokio::time::Instant;

use crate::latch::slab::Slab;

/// One piece of work in flight.
#[derive(Debug, Clone)]
pub(crate) struct UnitDetail {
    /// As given to `enter_named`; a child has its parent's.
    pub(crate) name: Option<Cow<'static, str>>,
    pub(crate) since: Instant,
    /// Where it was let in.
    pub(crate) place: &'static Location<'static>,
}

// === impl UnitDetail ===

impl UnitDetail {
    pub(super) fn new(name: Option<Cow<'static, str>>, place: &'static Location<'static>) -> Self {
        Self { name, since: Instant::now(), place }
    }
}

pub(super) fn oldest_first(units: &Slab<UnitDetail>) -> Vec<UnitDetail> {
    let mut units: Vec<_> = units.iter().cloned().collect();
    units.sort_by_key(|unit| unit.since);
    units
}
