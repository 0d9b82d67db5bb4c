//! Waits for entries.
//!
//! A blocking `XREAD` behind the last entry that was delivered: it ends when an entry comes, whoever added it, and takes nothing,
//! so that nothing can be lost with it. It also reads the queue's own `wake`, for what becomes free in other ways.

use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};

use super::Stream;
use super::scripts::LOOK;
use crate::BoxError;
use crate::queue::millis::millis;
use crate::queue::redis::link::Link;
use crate::queue::redis::wait::{Line, Source, Waiter, block_for};

/// Whether there is something, else how long until there is (below 0: not known), and behind which entries of the stream and of
/// `wake` there would be something new.
type Look = (bool, i64, String, String);

impl<T: 'static> Source for Stream<T> {
    fn waiter(&self) -> &Waiter {
        &self.place.waiter
    }

    fn link(&self) -> &Link {
        &self.place.link
    }

    async fn wait_once(&self, line: &mut Option<Line>) -> Result<bool, BoxError> {
        let place = &self.place;
        let mut look = place.call(&LOOK);
        look.arg(millis(self.gone_after));
        let (ready, due, delivered, woken): Look = place.ask("look for jobs", &LOOK, &look).await?;
        if ready || due == 0 {
            return Ok(true);
        }
        let block = block_for();
        let wait = u64::try_from(due).map_or(block, |due| block.min(Duration::from_millis(due)));
        let mut read = Cmd::new();
        read.arg("XREAD").arg("BLOCK").arg(millis(wait)).arg("COUNT").arg(1).arg("STREAMS");
        read.arg(&place.stream).arg(format!("{}wake", place.own)).arg(delivered).arg(woken);
        let news = place.waiter.block(&place.link, line, &read).await?;
        let news = Option::<Vec<(String, Value)>>::from_redis_value(news)?.unwrap_or_default();
        // What `wake` brings is only a reason to look again.
        Ok(news.iter().any(|(stream, _)| *stream == place.stream))
    }

    /// Nothing was taken that another would miss.
    async fn pass_on(&self) {}
}
