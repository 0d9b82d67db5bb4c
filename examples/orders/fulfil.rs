//! The work: three steps, each of them once, whatever happens in between.

use std::time::Duration;

use winddown::queue::{Handler, Leased};
use winddown::{BoxError, Cx};

use crate::order::{Order, STEPS};
use crate::store::Store;

pub struct Fulfil(pub Store);

impl Handler<Order> for Fulfil {
    type Error = BoxError;

    async fn handle(&self, claimed: &Leased<Order>, cx: &Cx) -> Result<(), BoxError> {
        let order = &claimed.item;
        self.0.changed();
        let done = self.0.begin(claimed).await?;
        if done >= STEPS.len() {
            cx.shield(self.0.finish(claimed)).await?;
            return Ok(());
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
            cx.shield(self.0.take_step(claimed, step)).await?;
        }
        Ok(())
    }
}
