//! A coordinator as a part of another one: it may be stopped alone, and stops with the whole.

use std::sync::Arc;

use super::{Component, ShutdownCoordinator};
use crate::error::BoxError;
use crate::handle::ShutdownHandle;
use crate::trigger::Reason;

/// The part runs as a task of the whole. Stopped alone, it leaves its siblings and the whole running; when the whole
/// stops or is forced, so does the part, with that reason and within its own budget, but it does not drain for longer.
impl Component for ShutdownCoordinator {
    type Handle = ShutdownHandle;

    fn register(self, shutdown: &mut ShutdownCoordinator) -> ShutdownHandle {
        let handle = self.handle();
        let (part, whole) = (Arc::clone(&self.control), Arc::clone(&shutdown.control));
        // A stop that came during the set-up comes before the part's work: it then starts none, and closes what it has.
        let (late, late_part) = (Arc::clone(&whole), Arc::clone(&part));
        let relay = async move {
            whole.triggered.fired().await;
            part.begin(whole.reason().unwrap_or(Reason::Dropped), tokio::time::Instant::now());
            // Once the whole drains no more, a part whose own budget is longer gives up on waiting too: it still hands back
            // and closes, in the time in which the whole waits for what it has cancelled.
            tokio::select! {
                biased;
                () = whole.forced.fired() => {}
                () = whole.cancelled.fired() => {}
            }
            part.fit_into(&whole).await;
        };
        let name = self.name.clone();
        shutdown
            .spawn(name, async move {
                if late.triggered.is_fired() {
                    let reason = late.reason().unwrap_or(Reason::Dropped);
                    late_part.begin(reason, tokio::time::Instant::now());
                }
                let report = tokio::select! {
                    biased;
                    report = self.run() => report,
                    () = relay => return Ok(()),
                };
                match report.code() {
                    1 => Err(BoxError::from(report.to_string())),
                    _ => Ok(()),
                }
            })
            .optional()
            .part();
        handle
    }
}
