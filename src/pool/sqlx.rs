//! Pools of sqlx, whatever the database.

use std::future::Future;

use sqlx::{Database, Pool};

impl<DB: Database> crate::pool::Pool for Pool<DB> {
    fn close(&self) -> impl Future<Output = ()> + Send {
        // Marks the pool as closed when it is called, then waits for all permits, idle connections' and lent ones' alike.
        Pool::close(self)
    }

    fn checked_out(&self) -> usize {
        // The two counts are not of one moment.
        usize::try_from(self.size()).unwrap_or(usize::MAX).saturating_sub(self.num_idle())
    }
}
