//! The accept loop: it owns the connections, and is done when the last of them is.

use std::io;
use std::pin::pin;
use std::sync::Arc;

use http::{Request, Response};
use http_body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::body::RequestBody;
use super::handshake::{self, Handshake};
use super::listeners::Listeners;
use super::peer::Peer;
use super::streams::tell_panic;
use super::transport::Transport;
use super::{Held, Limits, connection};
use crate::{BoxError, Gate, Keeper, ShutdownHandle};

pub(super) struct Accepting<S> {
    pub(super) gate: Gate,
    pub(super) handle: ShutdownHandle,
    pub(super) service: S,
    pub(super) handshake: Option<Arc<dyn Handshake>>,
    pub(super) limits: Arc<Limits>,
    /// Cancelled when the listeners are closed, however that comes about.
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
    /// Accepts until intake stops, takes what kernels still have, closes the listeners, and awaits the connections.
    pub(super) async fn run(mut self, held: Held) -> io::Result<()> {
        let closed = self.closed.clone().drop_guard();
        let Held { listeners, owner, keeper } = held;
        let mut listeners = Listeners::open(listeners, owner)?;
        // Dropped on an abort, which aborts the connections.
        let mut connections = JoinSet::new();
        self.accept(&mut listeners, &keeper, &mut connections).await;
        listeners.hand_on();
        self.take_backlogs(listeners, &keeper, &mut connections).await;
        drop(closed);
        drop(keeper);
        while let Some(ended) = connections.join_next().await {
            tell_panic(ended);
        }
        Ok(())
    }

    async fn accept(&mut self, listeners: &mut Listeners, keeper: &Keeper, connections: &mut JoinSet<()>) {
        let places = Arc::new(Semaphore::new(self.limits.connections));
        let mut stopping = pin!(self.gate.stopping());
        loop {
            let next = async {
                // Never closed, so that there is always a place in the end.
                let place = Arc::clone(&places).acquire_owned().await.ok();
                (listeners.accept(self.gate.name()).await, place)
            };
            tokio::select! {
                biased;
                () = &mut stopping => return,
                Some(ended) = connections.join_next() => tell_panic(ended),
                (stream, place) = next => self.start(stream, place, keeper, connections),
            }
        }
    }

    /// Clients in a backlog believe that they are connected: closed over their heads, they would see a reset.
    async fn take_backlogs(
        &mut self,
        mut listeners: Listeners,
        keeper: &Keeper,
        connections: &mut JoinSet<()>,
    ) {
        let mut left = self.limits.backlog;
        if listeners.divert() {
            let mut over = pin!(tokio::time::sleep(self.limits.handover));
            while left > 0 {
                tokio::select! {
                    biased;
                    () = &mut over => break,
                    stream = listeners.accept(self.gate.name()) => self.start(stream, None, keeper, connections),
                }
                left -= 1;
            }
        }
        let mut backlogs = listeners.into_backlogs();
        while left > 0 {
            let Some(stream) = backlogs.next(self.gate.name()).await else { return };
            self.start(stream, None, keeper, connections);
            left -= 1;
        }
    }

    fn start(
        &self,
        stream: Transport,
        place: Option<OwnedSemaphorePermit>,
        keeper: &Keeper,
        connections: &mut JoinSet<()>,
    ) {
        let remote_addr = match &stream {
            Transport::Tcp(stream) => stream.peer_addr().ok(),
            Transport::Other(_) => None,
        };
        let peer = Peer::new(keeper.child(), self.gate.clone(), self.handle.clone(), place, remote_addr);
        let limits = Arc::clone(&self.limits);
        let service = self.service.clone();
        match &self.handshake {
            None => connections.spawn(connection::drive(stream, service, peer, limits)),
            Some(handshake) => {
                let secured = handshake.begin(stream);
                connections.spawn(async move {
                    if let Some(stream) = handshake::completed(secured, &peer, &limits).await {
                        connection::drive(stream, service, peer, limits).await;
                    }
                })
            }
        };
    }
}
