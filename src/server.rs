//! Serves HTTP so that no request that a client sent in good faith fails at a stop.
//!
//! Until intake stops all is served. From the trigger on [probes](probe) say *not ready*, and every HTTP/1 answer carries
//! `Connection: close`. Then the kernel's backlog is taken, the listener closes, and each connection ends where it hurts
//! nobody: an idle one after a short grace for a request that is on its way, a busy one after its last byte is flushed,
//! HTTP/2 with GOAWAY after its streams. What is left when the drain is over is cut and counted, by the state it was in.
//!
//! ```
//! # use winddown::{ShutdownCoordinator, server};
//! # fn example(shutdown: &mut ShutdownCoordinator, listener: tokio::net::TcpListener, service: tower_like::S) {
//! shutdown.add(server::serve("http", listener, service));
//! # }
//! # mod tower_like { use std::{convert::Infallible, future::{Ready, ready}, task::{Context, Poll}};
//! # #[derive(Clone)] pub struct S;
//! # impl tower_service::Service<http::Request<winddown::server::RequestBody>> for S {
//! #   type Response = http::Response<String>; type Error = Infallible; type Future = Ready<Result<Self::Response, Infallible>>;
//! #   fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> { Poll::Ready(Ok(())) }
//! #   fn call(&mut self, _: http::Request<winddown::server::RequestBody>) -> Self::Future { ready(Ok(http::Response::new(String::new()))) }
//! # } }
//! ```

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body::Body;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use self::handshake::Handshake;
use crate::budget::LONGEST;
use crate::{BoxError, Component, Gate, Keeper, Phase, Readiness, ShutdownCoordinator};

mod accept;
#[cfg(feature = "axum")]
pub mod axum;
mod body;
mod closing;
mod connection;
mod cx;
mod handshake;
mod listener;
mod listeners;
#[cfg(all(unix, feature = "listenfd"))]
mod listenfd;
#[cfg(feature = "test-util")]
mod memory;
mod peer;
mod pieces;
mod request;
mod reuse_port;
mod stopping;
mod stream;
mod streams;
mod tcp;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(unix)]
mod unix;
mod watched;
#[cfg(feature = "axum-ws")]
pub mod websocket;

pub use body::RequestBody;
pub use cx::RequestCx;
pub use listener::{Address, GivenBack, Listener};
#[cfg(all(unix, feature = "listenfd"))]
pub use listenfd::listeners_from_env;
#[cfg(feature = "test-util")]
pub use memory::{Connector, in_memory};
pub use stopping::{UntilStopping, until_stopping};
#[cfg(feature = "tls")]
pub use tokio_rustls::rustls;

/// A SYN that was dropped comes again after 1 s, when the socket has to be closed.
const LONGEST_HANDOVER: Duration = Duration::from_millis(900);

/// How long the accept loop may take to be polled for the first time before its listener is closed without it.
const START: Duration = Duration::from_millis(50);

/// A server to be [added](ShutdownCoordinator::add); made by [`serve`].
///
/// Its [`Gate`], which `add` returns, counts connections: one is in flight until its last byte is flushed and it is
/// closed, an upgraded one until its last owner drops it. The listener counts as one more until it is closed.
#[must_use = "a server serves once it is added to a coordinator"]
pub struct Server<S> {
    name: Cow<'static, str>,
    listeners: Vec<Listener>,
    /// For a program that wants them back.
    owner: Option<oneshot::Sender<Vec<Listener>>>,
    service: S,
    handshake: Option<Arc<dyn Handshake>>,
    limits: Limits,
}

/// What is there before anything runs. The keeper is the listeners' place in the gate: what is taken from backlogs after the
/// close follows from that one.
struct Held {
    listeners: Vec<Listener>,
    owner: Option<oneshot::Sender<Vec<Listener>>>,
    keeper: Keeper,
}

/// What is granted to peers. Durations are upper bounds; a peer that does what it should waits for none of them.
#[derive(Debug, Clone)]
struct Limits {
    connections: usize,
    backlog: usize,
    handover: Duration,
    handshake: Duration,
    head: Duration,
    head_size: usize,
    keep_alive: Duration,
    ping: Duration,
    write_stall: Duration,
    hang_up: Duration,
    idle_grace: Duration,
    head_grace: Duration,
    cancel_grace: Duration,
}

/// Serves a tower service on a listener: HTTP/1 and, where the client starts with it, HTTP/2.
///
/// The listener is given bound, so that a port in use is an error of the set-up; it is read from once the set-up has
/// returned. Until then the kernel keeps clients waiting.
pub fn serve<S, B>(name: impl Into<Cow<'static, str>>, listener: impl Into<Listener>, service: S) -> Server<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    Server {
        name: name.into(),
        listeners: vec![listener.into()],
        owner: None,
        service,
        handshake: None,
        limits: Limits::default(),
    }
}

/// Answers `/livez` and `/readyz`; nothing for any other path, which is the program's own.
///
/// Ready is 200, not ready 503; alive is always 200, also while draining: a process that stops well is not to be killed
/// for it. The words are those of [`Readiness`].
///
/// ```no_run
/// # let readiness = winddown::ShutdownCoordinator::new(Default::default(), winddown::signal::none()).unwrap().readiness();
/// assert_eq!(winddown::server::probe(&readiness, "/livez").unwrap().status(), 200);
/// assert!(winddown::server::probe(&readiness, "/orders").is_none());
/// ```
pub fn probe(readiness: &Readiness, path: &str) -> Option<Response<String>> {
    let (good, words) = match path {
        "/livez" => (readiness.is_live(), "live".to_owned()),
        "/readyz" => (readiness.is_ready(), readiness.to_string()),
        _ => return None,
    };
    let mut answer = Response::new(words + "\n");
    *answer.status_mut() = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = answer.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    Some(answer)
}

// === impl Server ===

impl<S> Server<S> {
    /// Accepts from one more listener. All are served side by side, and all limits are for all of them together.
    pub fn also(mut self, listener: impl Into<Listener>) -> Self {
        self.listeners.push(listener.into());
        self
    }

    /// At the stop the listeners are given back, open and with their backlogs, rather than drained and closed.
    ///
    /// So a part that is stopped alone can start again on the same sockets, or the program passes them on to a child. Who
    /// connects in between waits in the backlog for the next one that accepts.
    ///
    /// ```
    /// # async fn example(mut part: winddown::ShutdownCoordinator, listener: tokio::net::TcpListener, app: axum::Router) {
    /// use winddown::server;
    ///
    /// let (server, given_back) = server::axum::serve("http", listener, app.clone()).give_back();
    /// part.add(server);
    /// part.run().await;
    /// for listener in given_back.await {
    ///     let again = server::axum::serve("http", listener, app.clone());
    /// #   drop(again);
    /// }
    /// # }
    /// ```
    pub fn give_back(mut self) -> (Self, GivenBack) {
        let (owner, given_back) = oneshot::channel();
        self.owner = Some(owner);
        (self, GivenBack(given_back))
    }

    /// How many connections are open at most; 10 000 when not given, at least 1. Those beyond wait in the kernel's backlog.
    ///
    /// Each needs a file descriptor: `ulimit -n` is the other bound, at which the server backs off and goes on.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.limits.connections = connections.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
        self
    }

    /// How many connections are taken from the kernel's backlog at the stop, at most; 4096 when not given.
    ///
    /// It is a count, not a time: under load a backlog never runs empty.
    pub fn max_backlog(mut self, connections: usize) -> Self {
        self.limits.backlog = connections;
        self
    }

    /// At the stop, for listeners with `SO_REUSEPORT` on Linux: how long handshakes of TCP that are half done have to be
    /// completed; 10 ms when not given, at most 900 ms.
    ///
    /// It has to be longer than the way to the clients and back; a few milliseconds do where a balancer in the same
    /// network is the client. In this time new clients are left to the next process, which costs those that the kernel
    /// would have sent here one second each; so no longer than it has to be. See [`Listener::bind_reuse_port`].
    pub fn handover(mut self, limit: Duration) -> Self {
        self.limits.handover = limit.min(LONGEST_HANDOVER);
        self
    }

    /// How long an HTTP/1 request's head may take from its first byte, and a new connection until that byte; 30 s when not
    /// given. Then 408, or for a silent peer the end.
    pub fn head_limit(mut self, limit: Duration) -> Self {
        self.limits.head = limit.min(LONGEST);
        self
    }

    /// How large a request's head may be, in bytes; 64 KiB when not given, at least 8 KiB. Beyond: 431.
    pub fn max_head_size(mut self, bytes: usize) -> Self {
        self.limits.head_size = bytes.max(8 << 10);
        self
    }

    /// How long a connection is kept while its client asks for nothing; 620 s when not given, and up to twice that.
    ///
    /// It has to be longer than the idle limit of whatever balancer is in front, or that sends requests into a close; the
    /// longest that is common is 600 s.
    pub fn keep_alive(mut self, limit: Duration) -> Self {
        self.limits.keep_alive = limit.min(LONGEST);
        self
    }

    /// How long an HTTP/2 peer may be silent before it is sent a PING, and again until it has answered; 20 s when not given, at
    /// least 1 s.
    pub fn ping(mut self, interval: Duration) -> Self {
        self.limits.ping = interval.clamp(Duration::from_secs(1), LONGEST);
        self
    }

    /// How long a peer may read nothing of what is sent to it; 60 s when not given. Then it is cut.
    pub fn write_stall(mut self, limit: Duration) -> Self {
        self.limits.write_stall = limit.min(LONGEST);
        self
    }

    /// How long an HTTP/1 request goes on whose client has closed its side; 1 s when not given. Then its handler is dropped.
    ///
    /// A client that has hung up and one that has no more to send, and waits for its answer, look the same until something is
    /// written to them. An answer that is being written goes on for as long as the client reads it.
    pub fn hang_up(mut self, limit: Duration) -> Self {
        self.limits.hang_up = limit.min(LONGEST);
        self
    }

    /// At the stop: how long an idle connection is kept for a request that is on its way; 250 ms when not given.
    pub fn idle_grace(mut self, grace: Duration) -> Self {
        self.limits.idle_grace = grace.min(LONGEST);
        self
    }

    /// At the stop: how long the rest of a partial head may take; 1 s when not given. Then 408. HTTP/2 peers without a
    /// running stream get as long to answer the GOAWAY.
    pub fn head_grace(mut self, grace: Duration) -> Self {
        self.limits.head_grace = grace.min(LONGEST);
        self
    }

    /// When the drain is over: how long requests still have to come to an end before they are cut; 100 ms when not given.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.limits.cancel_grace = grace.min(LONGEST);
        self
    }
}

impl<S, B> Component for Server<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Handle = Gate;

    fn register(self, shutdown: &mut ShutdownCoordinator) -> Gate {
        let gate = shutdown.gate(self.name.clone());
        let held = gate.enter().ok().map(|in_flight| Held {
            listeners: self.listeners,
            owner: self.owner,
            keeper: in_flight.keep_open(),
        });
        let held = Arc::new(Mutex::new(held));
        let closed = CancellationToken::new();
        let accepting = accept::Accepting {
            gate: gate.clone(),
            handle: shutdown.handle(),
            service: self.service,
            handshake: self.handshake,
            limits: Arc::new(self.limits),
            closed: closed.clone(),
        };
        let ours = Arc::clone(&held);
        let take = |held: &Mutex<Option<_>>| held.lock().unwrap_or_else(PoisonError::into_inner).take();
        shutdown.on(Phase::StopIntake, format!("{} listener", self.name), async move |_| {
            if tokio::time::timeout(START, closed.cancelled()).await.is_err() {
                match take(&held) {
                    // A stop during the set-up: the loop was never started, so that the listeners are closed here.
                    Some(held) => held.close(),
                    None => closed.cancelled().await,
                }
            }
        });
        let accepting = async move {
            match take(&ours) {
                Some(held) => accepting.run(held).await,
                None => Ok(()),
            }
        };
        // Cooperative: its connections get their `cancel_grace`, and are counted by state.
        shutdown.spawn(self.name, accepting).cooperative();
        gate
    }
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("name", &self.name)
            .field("listeners", &self.listeners)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

// === impl Held ===

impl Held {
    fn close(self) {
        if let Some(owner) = self.owner {
            let _ = owner.send(self.listeners);
        }
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 10_000,
            backlog: 4096,
            handover: Duration::from_millis(10),
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            head_size: 64 << 10,
            keep_alive: Duration::from_secs(620),
            ping: Duration::from_secs(20),
            write_stall: Duration::from_secs(60),
            hang_up: Duration::from_secs(1),
            idle_grace: Duration::from_millis(250),
            head_grace: Duration::from_secs(1),
            cancel_grace: Duration::from_millis(100),
        }
    }
}
