//! The tasks of one connection's HTTP/2 streams: none outlives it unseen.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::{Id, JoinError, JoinSet, try_id};

use super::peer::Peer;

/// Where hyper starts the tasks of one connection.
#[derive(Clone)]
pub(super) struct Streams {
    tasks: Arc<Mutex<JoinSet<()>>>,
    peer: Arc<Peer>,
    driver: Option<Id>,
}

/// Aborts what is left when the connection's driver goes.
pub(super) struct Owned(Streams);

/// A stream that is no request any more, but what its client and its handler have made of it.
struct Tunnel(Arc<Peer>);

// === impl Streams ===

impl Streams {
    /// For the connection that the current task drives.
    pub(super) fn new(peer: &Arc<Peer>) -> Self {
        Streams { tasks: Arc::default(), peer: Arc::clone(peer), driver: try_id() }
    }

    pub(super) fn owned(&self) -> Owned {
        Owned(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
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
        // The driver starts streams; a stream starts a task only where it has become a tunnel.
        let tunnel = (try_id() != self.driver).then(|| Tunnel::open(&self.peer));
        streams.spawn(async move {
            stream.await;
            drop(tunnel);
        });
    }
}

// === impl Owned ===

impl Owned {
    /// Aborts what is left: each stream is reset, and the connection goes on.
    pub(super) fn abort(&self) {
        self.0.lock().abort_all();
    }

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
        self.abort();
    }
}

// === impl Tunnel ===

impl Tunnel {
    fn open(peer: &Arc<Peer>) -> Self {
        peer.open_tunnel();
        Tunnel(Arc::clone(peer))
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.0.close_tunnel();
    }
}

/// A handler's panic ends its own connection and nothing else.
pub(super) fn tell_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        if error.is_panic() {
            tracing::error!(target: "winddown", %error, "handler.panicked");
        }
    }
}
