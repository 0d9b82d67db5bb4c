//! The tasks of one connection's HTTP/2 streams: none outlives it unseen.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;

use super::accept::tell_panic;

/// Where hyper starts the tasks of one connection.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<JoinSet<()>>>);

/// Aborts what is left when the connection's driver goes.
pub(super) struct Owned(Streams);

// === impl Streams ===

impl Streams {
    pub(super) fn owned(&self) -> Owned {
        Owned(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future + Send + 'static,
{
    fn execute(&self, stream: F) {
        let mut streams = self.lock();
        while let Some(ended) = streams.try_join_next() {
            tell_panic(ended);
        }
        streams.spawn(async move {
            stream.await;
        });
    }
}

// === impl Owned ===

impl Owned {
    /// Aborts what is left and waits until it is gone.
    pub(super) async fn join(self) {
        let mut streams = std::mem::take(&mut *self.0.lock());
        streams.abort_all();
        while let Some(ended) = streams.join_next().await {
            tell_panic(ended);
        }
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Each task holds its executor: the set is not dropped with the driver, so its tasks are told here.
        self.0.lock().abort_all();
    }
}
