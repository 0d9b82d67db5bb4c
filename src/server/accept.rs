//! The accept loop: it owns the connections, and is done when the last of them is.

use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::body::RequestBody;
use super::listener::{Listener, Trouble, accept_now};
use super::peer::Peer;
use super::{Limits, connection};
use crate::backoff::Backoff;
use crate::budget::Human;
use crate::{BoxError, Gate, Keeper, ShutdownHandle};

const PAUSE: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));
/// How often the backlog is tried again when there is a shortage, with the first pause between.
const LAST_TRIES: u32 = 40;

pub(super) struct Accepting<S> {
    pub(super) gate: Gate,
    pub(super) handle: ShutdownHandle,
    pub(super) service: S,
    pub(super) limits: Arc<Limits>,
    /// Cancelled when the listener is closed, however that comes about.
    pub(super) closed: CancellationToken,
}

// === impl Accepting ===

impl<S, B> Accepting<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// Accepts until intake stops, takes what the kernel still has, closes the listener, and awaits the connections.
    pub(super) async fn run(mut self, listener: Listener, keeper: Keeper) -> io::Result<()> {
        let closed = self.closed.clone().drop_guard();
        let listener = listener.open()?;
        // Dropped on an abort, which aborts the connections.
        let mut connections = JoinSet::new();
        self.accept(&listener, &keeper, &mut connections).await;
        self.take_backlog(listener, &keeper, &mut connections).await;
        drop(closed);
        drop(keeper);
        while let Some(ended) = connections.join_next().await {
            tell_panic(ended);
        }
        Ok(())
    }

    async fn accept(&mut self, listener: &TcpListener, keeper: &Keeper, connections: &mut JoinSet<()>) {
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let mut stopping = pin!(self.gate.stopping());
        let mut failures = 0;
        loop {
            let next = async {
                // Never closed, so that there is always a place in the end.
                let place = Arc::clone(&places).acquire_owned().await.ok();
                listener.accept().await.map(|(stream, _)| (stream, place))
            };
            let error = tokio::select! {
                biased;
                () = &mut stopping => return,
                Some(ended) = connections.join_next() => {
                    tell_panic(ended);
                    continue;
                }
                accepted = next => match accepted {
                    Ok((stream, place)) => {
                        failures = 0;
                        self.start(stream, place, keeper, connections);
                        continue;
                    }
                    Err(error) => error,
                },
            };
            if Trouble::of(&error) == Trouble::Connection {
                continue;
            }
            let pause = PAUSE.after(failures);
            tracing::warn!(target: "winddown", gate = self.gate.name(), %error, pause = %Human(pause), "accept.failed");
            tokio::select! {
                biased;
                () = &mut stopping => return,
                () = tokio::time::sleep(pause) => {}
            }
            failures = failures.saturating_add(1);
        }
    }

    /// Clients in the backlog believe that they are connected: closed over their heads, they would see a reset.
    async fn take_backlog(&mut self, listener: TcpListener, keeper: &Keeper, connections: &mut JoinSet<()>) {
        let Ok(listener) = listener.into_std() else { return };
        let mut tries = 0;
        for _ in 0..self.limits.backlog {
            match accept_now(&listener) {
                Ok(stream) => self.start(stream, None, keeper, connections),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if Trouble::of(&error) == Trouble::Connection => {}
                Err(error) if tries == LAST_TRIES => {
                    tracing::warn!(target: "winddown", gate = self.gate.name(), %error, "backlog.lost");
                    return;
                }
                Err(_) => {
                    tries += 1;
                    tokio::time::sleep(PAUSE.after(0)).await;
                }
            }
        }
    }

    fn start(
        &self,
        stream: TcpStream,
        place: Option<OwnedSemaphorePermit>,
        keeper: &Keeper,
        connections: &mut JoinSet<()>,
    ) {
        // An answer's last piece is not held back until the one before is acknowledged; a socket that refuses is still one.
        let _ = stream.set_nodelay(true);
        let peer = Peer::new(keeper.child(), self.gate.clone(), self.handle.clone(), place);
        let limits = Arc::clone(&self.limits);
        connections.spawn(connection::drive(stream, self.service.clone(), peer, limits));
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
