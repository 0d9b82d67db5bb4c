//! Closes pools of connections after everything that uses them, within a limit, and says what did not come back.
//!
//! The port is the trait [`Pool`] and the function [`close`]; pools of sqlx have it with the feature `sqlx`.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::coordinator::{Component, ShutdownCoordinator};
use crate::error::BoxError;
use crate::hook::{Deadline, Rank};
use crate::phase::Phase;

#[cfg(feature = "sqlx")]
mod sqlx;

/// A pool that lends connections.
///
/// ```
/// # struct Mine;
/// impl winddown::pool::Pool for Mine {
///     async fn close(&self) { /* lend no more, and wait for what is lent */ }
///     fn checked_out(&self) -> usize { 0 }
/// }
/// # fn example(shutdown: &mut winddown::ShutdownCoordinator) {
/// shutdown.add(winddown::pool::close("mine", Mine));
/// # }
/// ```
pub trait Pool: Send + Sync + 'static {
    /// Lends no more from the first poll on, waits for all that is lent to come back, and closes it.
    ///
    /// Dropped half-way, the pool must still lend nothing.
    fn close(&self) -> impl Future<Output = ()> + Send;

    /// How many connections are lent now.
    fn checked_out(&self) -> usize;
}

/// Closes a pool as a part of the stop; made by [`close`].
#[must_use = "it is closed once this is added to a coordinator"]
pub struct Close<P> {
    name: Cow<'static, str>,
    pool: P,
    limit: Option<Duration>,
}

/// What had to be given up.
#[derive(Debug)]
struct StillOut(usize);

/// How much of its time the hook keeps to say what is still out, before it is given up itself: a tenth, and at most this.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Closes `pool` in [`Phase::Close`], with [`Rank::Pools`]: after all work has ended and what it uses is closed, wherever it
/// was registered.
///
/// A connection that does not come back cannot hold up the stop: shortly before the time is over the hook fails, the report
/// says how many are still out, and the stop goes on. Whoever holds one was told long before, by
/// [`ShutdownHandle::stopping`](crate::ShutdownHandle::stopping) and when the drain was over.
///
/// ```
/// # use std::time::Duration;
/// # use winddown::{ShutdownCoordinator, pool};
/// # fn example(shutdown: &mut ShutdownCoordinator, db: impl pool::Pool) {
/// shutdown.add(pool::close("postgres", db).limit(Duration::from_millis(500)));
/// # }
/// ```
pub fn close<P: Pool>(name: impl Into<Cow<'static, str>>, pool: P) -> Close<P> {
    Close { name: name.into(), pool, limit: None }
}

// === impl Close ===

impl<P> Close<P> {
    /// The most that closing may take; in any case it gets no more than its share of [`Phase::Close`].
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }
}

impl<P: Pool> Component for Close<P> {
    type Handle = ();

    fn register(self, shutdown: &mut ShutdownCoordinator) {
        let Close { name, pool, limit } = self;
        let hook = shutdown
            .on(Phase::Close, name, async move |cx| closed_by(&pool, cx.deadline()).await)
            .rank(Rank::Pools);
        if let Some(limit) = limit {
            hook.limit(limit);
        }
    }
}

impl<P> fmt::Debug for Close<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Close").field("name", &self.name).field("limit", &self.limit).finish_non_exhaustive()
    }
}

async fn closed_by<P: Pool>(pool: &P, deadline: Deadline) -> Result<(), BoxError> {
    let time = deadline.remaining();
    let _ = tokio::time::timeout(time - LAST_WORDS.min(time / 10), pool.close()).await;
    // Counted in either case: a pool that says it is closed may have lent more than it waited for.
    match pool.checked_out() {
        0 => Ok(()),
        out => Err(StillOut(out).into()),
    }
}

// === impl StillOut ===

impl fmt::Display for StillOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("1 connection is still out"),
            out => write!(f, "{out} connections are still out"),
        }
    }
}

impl std::error::Error for StillOut {}
