//! Serves HTTP so that no request that a client sent in good faith fails at a stop.
//!
//! Until intake stops all is served. From the trigger on [probes](probe) say *not ready*, and every HTTP/1 answer carries
//! `Connection: close`. Then the kernel's backlog is taken, the listener closes, and each connection ends where it hurts
//! nobody: an idle one after a short grace for a request that is on its way, a busy one after its last byte is flushed,
//! HTTP/2 with GOAWAY after its streams. What is left when the drain is over is [cut and counted](#what-is-cut).
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
//!
//! # Limits
//!
//! What a server that anybody can reach needs, each with its default. Durations are upper bounds for a peer that does not do
//! its part; one that does waits for none of them.
//!
//! ```
//! # use std::time::Duration;
//! # fn example<S>(server: winddown::server::Server<S>) -> winddown::server::Server<S> {
//! server.max_connections(2000).head_limit(Duration::from_secs(10)).idle_grace(Duration::from_millis(500))
//! # }
//! ```
//!
//! | limit | default | of what | beyond it |
//! | --- | --- | --- | --- |
//! | [`max_connections`](Server::max_connections) | 10 000 | open at once, over all listeners | wait in the backlog |
//! | [`max_backlog`](Server::max_backlog) | 4096 | taken from backlogs at the stop | reset by the kernel |
//! | [`handover`](Server::handover) | 10 ms | half-open TCP handshakes at the stop, with `SO_REUSEPORT` | reset by the kernel |
//! | `handshake_limit` | 10 s | a TLS handshake | cut, *handshaking* |
//! | [`head_limit`](Server::head_limit) | 30 s | a request's head; a new connection's first byte | 408; the end |
//! | [`max_head_size`](Server::max_head_size) | 64 KiB | a request's head | 431 |
//! | [`keep_alive`](Server::keep_alive) | 620 s | an idle connection | closed |
//! | [`ping`](Server::ping) | 20 s | a silent HTTP/2 peer, and its answer to a PING | cut |
//! | [`write_stall`](Server::write_stall) | 60 s | a peer that reads nothing | cut |
//! | [`hang_up`](Server::hang_up) | 1 s | a request whose client has closed its side | dropped |
//! | [`idle_grace`](Server::idle_grace) | 250 ms | at the stop: an idle connection | closed |
//! | [`head_grace`](Server::head_grace) | 1 s | at the stop: a partial head, a TLS handshake, the answer to a GOAWAY | 408, cut |
//! | [`cancel_grace`](Server::cancel_grace) | 100 ms | when the drain is over: a request | 503, or where an answer has begun the end; cut, *request* or *body* |
//!
//! The size of a request's body has no limit here, as that is the program's to say (`axum::extract::DefaultBodyLimit`), and neither has
//! the time of a handler; both end with the drain.
//!
//! # What is cut
//!
//! A connection that is made to end counts in the report as cut ([`GateReport::cut`](crate::GateReport)), by what it was doing,
//! and is no reason for another exit code:
//!
//! | state | what it was doing |
//! | --- | --- |
//! | `handshaking` | its TLS handshake was not complete |
//! | `idle` | it asked for nothing: kept longer than the drain, or an HTTP/2 peer that did not answer the GOAWAY |
//! | `head` | a request's head had begun and not ended |
//! | `request` | its handler had not answered, and its client was told 503; or somebody still read the request's body |
//! | `body` | an answer had begun, and its last byte was not flushed |
//! | `upgraded` | it had become something else: a websocket, a tunnel |
//! | `panicked` | its handler panicked, which ended the connection, or over HTTP/2 the stream |

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
use self::limits::Limits;
use crate::{BoxError, Component, Gate, Keeper, Phase, Readiness, ShutdownCoordinator};

mod limits;
mod transport;

mod listener;
mod listeners;

mod cx;
mod peer;

mod body;
mod pieces;
mod refusal;
mod request;

mod linger;
mod streams;
mod watched;

mod handshake;
#[cfg(feature = "tls")]
mod tls;

mod connection;

mod accept;

mod admin;
#[cfg(feature = "axum")]
pub mod axum;
mod stopping;
#[cfg(feature = "tower")]
pub mod tower;
#[cfg(feature = "axum-ws")]
pub mod websocket;

pub use admin::{Admin, admin};
pub use body::RequestBody;
pub use cx::RequestCx;
#[cfg(all(unix, feature = "listenfd"))]
pub use listener::listeners_from_env;
pub use listener::{Address, GivenBack, Listener};
#[cfg(feature = "test-util")]
pub use listener::{Connector, in_memory};
pub use stopping::{UntilStopping, until_stopping};
#[cfg(feature = "tls")]
pub use tokio_rustls::rustls;

/// How long the accept loop may take to be polled for the first time before its listener is closed without it.
const START: Duration = Duration::from_millis(50);

/// A server to be [added](ShutdownCoordinator::add); made by [`serve`].
///
/// Its [`Gate`], which `add` returns, counts connections: one is in flight until its last byte is flushed and it is
/// closed, an upgraded one until its last owner drops it. In [`Gate::in_flight`], though not in the report, the listener is
/// one more until it is closed, and so is each [`RequestCx`] until it is dropped.
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

/// Serves a tower service on a listener: HTTP/1 and, where the client starts with it, HTTP/2.
///
/// The listener is given bound, so that a port in use is an error of the set-up; it is read from once the set-up has
/// returned. Until then the kernel keeps clients waiting. One that the runtime cannot register ends the server's task with
/// that error, which stops the program.
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
/// Ready is 200, not ready 503; alive is 200, also while draining: a process that stops well is not to be killed
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
    let status = if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    Some(plain(status, words + "\n"))
}

/// Text that holds for this moment only.
fn plain(status: StatusCode, text: String) -> Response<String> {
    let mut answer = Response::new(text);
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    answer
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
