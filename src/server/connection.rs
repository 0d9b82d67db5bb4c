//! One connection, from its first byte to its last, with the limits that hold for each of its states.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::time::{Instant, Sleep};
use tower_service::Service;

use super::Limits;
use super::body::RequestBody;
use super::peer::{Closing, Peer, State};
use super::request::Served;
use super::streams::Streams;
use super::transport::Transport;
use super::watched::Watched;
use crate::BoxError;

/// How far the stop has come for this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Serving,
    /// Intake has stopped.
    Stopping,
    /// The drain is over.
    Cancelled,
    /// The peer is told that its requests will not be answered.
    GivingUp,
    /// An HTTP/2 peer is told which streams were cut.
    Resetting,
}

/// How long it may take to tell a peer, each time.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// What a time limit is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The first byte of a connection, or the last of a head.
    Head,
    /// The next request.
    Idle,
    /// An HTTP/2 peer's answer to the GOAWAY.
    Silent,
    /// All of it.
    Cancelled,
}

/// The one timer of a connection. It is set again only where the state asks for another limit, so that a request that
/// comes and goes costs nothing.
struct Clock<'a> {
    sleep: Pin<&'a mut Sleep>,
    due: Option<Due>,
}

/// Serves the peer until it goes, or is told to.
pub(super) async fn drive<S, B>(io: Transport, service: S, peer: Arc<Peer>, limits: Arc<Limits>)
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let streams = Streams::new(&peer);
    // Before the connection: dropped after it, when its streams know that they have no peer.
    let owned = streams.owned();
    let builder = builder(streams, &limits);
    let mut last = State::Idle;
    {
        let io = TokioIo::new(Watched::new(io, Arc::clone(&peer), &limits));
        let service = Served::new(service, Arc::clone(&peer));
        let mut connection = pin!(builder.serve_connection_with_upgrades(io, service));
        let mut stopping = pin!(peer.gate.stopping());
        let mut cancelled = pin!(peer.gate.cancelled());
        let mut clock = Clock { sleep: pin!(tokio::time::sleep(Duration::ZERO)), due: None };
        let mut stage = Stage::Serving;
        let mut goaway = false;
        let ended = poll_fn(|cx| {
            loop {
                if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                    return Poll::Ready(Some(ended));
                }
                if stage == Stage::Serving && stopping.as_mut().poll(cx).is_ready() {
                    stage = Stage::Stopping;
                    clock.due = None;
                }
                if stage == Stage::Stopping && cancelled.as_mut().poll(cx).is_ready() {
                    stage = Stage::Cancelled;
                    if peer.close_now() {
                        continue;
                    }
                }
                if stage != Stage::Serving && peer.is_h2() && !goaway {
                    goaway = true;
                    peer.forget_asked();
                    connection.as_mut().graceful_shutdown();
                    continue;
                }
                if stage != Stage::Serving || peer.is_read_elsewhere() {
                    peer.watch(cx);
                }
                if let Some((due, limit)) = limits.due(stage, &peer) {
                    if clock.set(due, limit) {
                        peer.take_moved();
                    }
                } else if clock.due != Some(Due::Idle) || stage != Stage::Serving {
                    clock.due = None;
                }
                let state = peer.state();
                // Not when it ends, which takes its streams away first.
                if !peer.is_lingering() {
                    last = state;
                }
                match (clock.poll(cx), state) {
                    (None, _) => return Poll::Pending,
                    (Some(Due::Head | Due::Idle), State::Head) => {
                        peer.close(Closing::Head);
                    }
                    (Some(Due::Idle), _) if stage == Stage::Serving && peer.take_asked() => {}
                    // It is not silent, but has not read all that was sent before the GOAWAY.
                    (Some(Due::Silent), _) if peer.take_moved() => {}
                    (Some(Due::Head | Due::Idle), State::Idle) if peer.is_h2() => {
                        goaway = true;
                        connection.as_mut().graceful_shutdown();
                    }
                    (Some(Due::Head | Due::Idle), State::Idle) => peer.close(Closing::Idle),
                    (Some(Due::Head | Due::Idle), _) => {}
                    (Some(Due::Cancelled), State::Request) if stage == Stage::Cancelled => {
                        stage = Stage::GivingUp;
                        peer.cut();
                        peer.give_up();
                    }
                    (Some(Due::Cancelled), State::Request | State::Body | State::Upgraded)
                        if peer.is_h2() && stage != Stage::Resetting =>
                    {
                        stage = Stage::Resetting;
                        peer.cut();
                        owned.abort();
                    }
                    (Some(Due::Silent | Due::Cancelled), _) => {
                        if !peer.is_lingering() {
                            peer.cut();
                        }
                        return Poll::Ready(None);
                    }
                }
            }
        })
        .await;
        if let Some(Err(error)) = ended {
            tracing::debug!(target: "winddown", gate = peer.gate.name(), error, "connection.failed");
        }
    }
    owned.join().await;
    // hyper ends such a connection without a word.
    if !peer.has_answered_pings() {
        peer.cut_in(last);
    }
    peer.ended();
}

fn builder(streams: Streams, limits: &Limits) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(streams);
    // The limit of a head is ours: hyper's also runs while a connection is idle, and ends without an answer.
    builder.http1().max_buf_size(limits.head_size).header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(limits.ping)
        .keep_alive_timeout(limits.ping)
        .max_header_list_size(u32::try_from(limits.head_size).unwrap_or(u32::MAX));
    builder
}

// === impl Peer ===

impl Peer {
    /// The drain is over: a peer that no request is in progress for goes at once. Whether this is one.
    fn close_now(&self) -> bool {
        let how = match self.state() {
            State::Idle => Closing::Idle,
            State::Head => Closing::Head,
            State::Request | State::Body | State::Upgraded | State::Handshaking => return false,
        };
        self.close(how);
        true
    }
}

// === impl Limits ===

impl Limits {
    /// What the state of the peer is limited by; nothing while a request is in progress, until the drain is over.
    fn due(&self, stage: Stage, peer: &Peer) -> Option<(Due, Duration)> {
        match (stage, peer.state()) {
            (Stage::Serving | Stage::Stopping, _) if peer.is_lingering() => None,
            (Stage::Cancelled, _) => Some((Due::Cancelled, self.cancel_grace)),
            (Stage::GivingUp | Stage::Resetting, _) => Some((Due::Cancelled, LAST_WORDS)),
            (Stage::Stopping, State::Idle) if peer.is_h2() => Some((Due::Silent, self.head_grace)),
            (Stage::Stopping, State::Idle) => Some((Due::Idle, self.idle_grace)),
            (Stage::Stopping, State::Head) => Some((Due::Head, self.head_grace)),
            (Stage::Serving, State::Head) => Some((Due::Head, self.head)),
            (Stage::Serving, State::Idle) if peer.has_heard() => Some((Due::Idle, self.keep_alive)),
            (Stage::Serving, State::Idle) => Some((Due::Head, self.head)),
            (_, State::Request | State::Body | State::Upgraded | State::Handshaking) => None,
        }
    }
}

// === impl Clock ===

impl Clock<'_> {
    /// Whether it was set anew.
    fn set(&mut self, due: Due, limit: Duration) -> bool {
        let anew = self.due != Some(due);
        if anew {
            self.due = Some(due);
            self.sleep.as_mut().reset(Instant::now() + limit);
        }
        anew
    }

    /// What has become due, if anything has.
    fn poll(&mut self, cx: &mut std::task::Context<'_>) -> Option<Due> {
        let due = self.due?;
        self.sleep.as_mut().poll(cx).is_ready().then(|| {
            self.due = None;
            due
        })
    }
}
