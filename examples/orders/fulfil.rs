//! The work: three steps, each of them once, whatever happens in between.

use std::time::Duration;

use winddown::queue::{Handler, Leased};
use winddown::{BoxError, Cx};

use crate::order::{Order, STEPS};
use crate::store::{self, Store};

/// How long to leave a database alone that could not be asked.
const PAUSE: Duration = Duration::from_millis(500);

pub struct Fulfil(pub Store);

impl Handler<Order> for Fulfil {
    type Error = BoxError;

    async fn handle(&self, claimed: &Leased<Order>, cx: &Cx) -> Result<(), BoxError> {
        let order = &claimed.item;
        self.0.changed();
        let done = patiently(|| self.0.begin(claimed)).await?;
        if done >= STEPS.len() {
            return patiently(|| cx.shield(self.0.finish(claimed))).await;
        }
        if claimed.attempts < order.fail {
            return Err(format!("attempt {} of {} that fail", claimed.attempts + 1, order.fail).into());
        }
        if done == 0 && order.block_ms > 0 {
            // What a handler must not do: its thread is not to be had until this is over.
            std::thread::sleep(Duration::from_millis(order.block_ms));
        }
        for step in done..STEPS.len() {
            cx.checkpoint()?;
            // May be cut: nothing has happened yet.
            tokio::time::sleep(Duration::from_millis(order.work_ms) / 3).await;
            // May not: the effect and the note that it is done.
            patiently(|| cx.shield(self.0.take_step(claimed, step))).await?;
        }
        Ok(())
    }
}

/// Waits for the database, however long that takes: an attempt that it cuts short would be none of the order's, and after some of these
/// all that is queued would be dead. The stop may cut it between two tries.
async fn patiently<T, F>(mut ask: impl FnMut() -> F) -> Result<T, BoxError>
where
    F: Future<Output = Result<T, BoxError>>,
{
    loop {
        match ask().await {
            Err(error) if store::is_away(&error) => tracing::warn!(%error, "the database is waited for"),
            answer => return answer,
        }
        tokio::time::sleep(PAUSE).await;
    }
}
