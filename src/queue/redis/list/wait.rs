//! Waits for a token.
//!
//! A token in the list at `wake` says that there may be something to claim. Whoever pops it claims; whoever claims and leaves
//! something puts a token back. There is one token at the most, so nothing piles up where nobody waits.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::{Shared, reply, scripts};
use crate::BoxError;
use crate::queue::redis::link::Link;
use crate::queue::redis::wait::{Line, Source, Waiter, block_for};

impl Source for Arc<Shared> {
    fn waiter(&self) -> &Waiter {
        &self.waiter
    }

    fn link(&self) -> &Link {
        self.server.link()
    }

    async fn wait_once(&self, line: &mut Option<Line>) -> Result<bool, BoxError> {
        if !self.waiter.has_looked() {
            let wait = reply::wait(reply::number(&self.run(&scripts::LOOK, |call| call).await?)?);
            if wait == Some(Duration::ZERO) {
                return Ok(true);
            }
            self.waiter.looked(wait);
        }
        let mut pop = Cmd::new();
        pop.arg("BLPOP").arg(format!("{}wake", self.prefix)).arg(block_for().as_secs_f64());
        Ok(self.waiter.block(self.server.link(), line, &pop).await? != Value::Nil)
    }

    /// Puts the token back.
    async fn pass_on(&self) {
        // Where that fails, others look by themselves within 3 s.
        drop(self.run(&scripts::WAKE, |call| call).await);
    }
}
