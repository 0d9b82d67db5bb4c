//! Probes, status and pause on a listener of their own, which outlives the rest.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::{Held, Limits, Listener, RequestBody, accept, plain, probe};
use crate::{Component, Gate, Phase, Rank, ShutdownCoordinator, ShutdownHandle};

/// A listener for operators and orchestrators, to be [added](ShutdownCoordinator::add); made by [`admin`].
#[must_use = "it answers once it is added to a coordinator"]
pub struct Admin {
    name: Cow<'static, str>,
    listener: Listener,
}

/// Answers from what the coordinator knows.
#[derive(Clone)]
struct Operator(ShutdownHandle);

/// Answers probes, says what is in flight, and pauses and resumes, until all else is closed.
///
/// For a program that has no other server, and for one whose probes are to be answered while it drains: it closes at the end of
/// `Close`, with the rank *telemetry*. Nothing waits for its clients, and there is nothing to keep them out; bind it where only
/// operators can reach it. It speaks HTTP without TLS, on at most 100 connections; what is beyond waits. All other
/// [limits](super#limits) are the defaults.
///
/// | request | answer |
/// | --- | --- |
/// | `GET /livez`, `GET /readyz` | as [`probe`] says |
/// | `GET /status` | whether it is ready and paused, and what is in flight, a line each |
/// | `POST /pause`, `POST /resume` | 200; as [`ShutdownHandle::pause`] and [`resume`](ShutdownHandle::resume) do, 409 once the stop has begun |
///
/// ```no_run
/// # async fn example(shutdown: &mut winddown::ShutdownCoordinator) -> std::io::Result<()> {
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:9090").await?;
/// shutdown.add(winddown::server::admin("admin", listener));
/// # Ok(()) }
/// ```
pub fn admin(name: impl Into<Cow<'static, str>>, listener: impl Into<Listener>) -> Admin {
    Admin { name: name.into(), listener: listener.into() }
}

// === impl Admin ===

impl Component for Admin {
    type Handle = ();

    fn register(self, shutdown: &mut ShutdownCoordinator) {
        // Not one of the coordinator's, which would close it with the others and wait for its clients.
        let gate = Gate::standalone(self.name.clone());
        let Ok(in_flight) = gate.enter() else { return };
        let held = Held { listeners: vec![self.listener], owner: None, keeper: in_flight.keep_open() };
        let closed = CancellationToken::new();
        let accepting = accept::Accepting {
            gate: gate.clone(),
            handle: shutdown.handle(),
            service: Operator(shutdown.handle()),
            handshake: None,
            limits: Arc::new(Limits { connections: 100, cancel_grace: Duration::ZERO, ..Limits::default() }),
            closed: closed.clone(),
        };
        let hook = shutdown.on(Phase::Close, format!("{} listener", self.name), async move |_| {
            gate.close();
            gate.cancel();
            closed.cancelled().await;
        });
        hook.rank(Rank::Telemetry);
        shutdown.spawn(self.name, accepting.run(held)).until(Phase::Close).cooperative().optional();
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").field("name", &self.name).field("listener", &self.listener).finish()
    }
}

// === impl Operator ===

impl Operator {
    fn answer(&self, method: &Method, path: &str) -> Response<String> {
        let reads = method == Method::GET || method == Method::HEAD;
        match path {
            "/livez" | "/readyz" | "/status" if !reads => not_allowed("GET, HEAD"),
            "/pause" | "/resume" if method != Method::POST => not_allowed("POST"),
            "/status" => plain(StatusCode::OK, self.status()),
            "/pause" | "/resume" if self.0.is_triggered() => plain(
                StatusCode::CONFLICT,
                "the stop has begun: there is nothing to pause or to resume\n".into(),
            ),
            "/pause" => {
                self.0.pause();
                plain(StatusCode::OK, "paused\n".into())
            }
            "/resume" => {
                self.0.resume();
                plain(StatusCode::OK, "resumed\n".into())
            }
            _ => probe(&self.0.readiness(), path)
                .unwrap_or_else(|| plain(StatusCode::NOT_FOUND, "there is nothing here\n".into())),
        }
    }

    fn status(&self) -> String {
        let mut lines = vec![self.0.readiness().to_string()];
        if self.0.is_paused() {
            lines.push("paused".to_owned());
        }
        lines.extend(self.0.in_flight());
        lines.join("\n") + "\n"
    }
}

impl Service<Request<RequestBody>> for Operator {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        ready(Ok(self.answer(request.method(), request.uri().path())))
    }
}

fn not_allowed(methods: &'static str) -> Response<String> {
    let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, format!("only {methods}\n"));
    answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    answer
}
