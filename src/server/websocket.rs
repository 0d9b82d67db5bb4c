//! Websockets of axum that say why they close, and that are gone when the stop is.
//!
//! ```no_run
//! # fn example() -> axum::Router {
//! use axum::extract::ws::WebSocketUpgrade;
//! use axum::{Router, response::Response, routing::any};
//! use winddown::server::{RequestCx, websocket};
//!
//! async fn echo(upgrade: WebSocketUpgrade, cx: RequestCx) -> Response {
//!     websocket::upgrade(upgrade, cx, |mut socket| async move {
//!         while let Some(Ok(message)) = socket.recv().await {     // `None` when the peer has gone, or the program stops
//!             if socket.send(message).await.is_err() {
//!                 break;
//!             }
//!         }
//!     })
//! }
//! # Router::new().route("/echo", any(echo)) }
//! ```

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use ::axum::Error;
use ::axum::extract::ws::{CloseFrame, Message, OnFailedUpgrade, WebSocket, WebSocketUpgrade, close_code};
use ::axum::response::Response;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::time::Sleep;

use super::RequestCx;

/// How long a peer may take to answer the close; then the socket is closed without it.
const CLOSE_GRACE: Duration = Duration::from_secs(1);
/// RFC 6455, 7.4.1: an endpoint is "going away", such as a server that goes down.
const GOING_AWAY: CloseFrame = CloseFrame {
    code: close_code::AWAY,
    reason: ::axum::extract::ws::Utf8Bytes::from_static("the server is stopping"),
};

/// A websocket that is closed with code 1001 when intake stops; given to the handler of [`upgrade`].
///
/// It is a stream of messages and a sink for them, as axum's own is.
pub struct Socket(Arc<Mutex<Line>>);

/// The socket, used by the handler, and by its driver for the closing.
struct Line {
    socket: WebSocket,
    stage: Stage,
    /// The close is with the socket, but may not be sent yet.
    asked: bool,
    /// Whoever waits for a message, or to send one.
    reads: Option<Waker>,
    writes: Option<Waker>,
}

/// The driver's hold of the line.
struct Driven(Arc<Mutex<Line>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Open,
    /// The close has to be sent; messages are still received.
    Closing,
    /// It is sent.
    Closed,
    /// The peer had its time to answer.
    Over,
}

/// Upgrades the request and runs the handler until it has ended, or the drain is over.
///
/// When intake stops the peer is sent a close with code 1001 (RFC 6455, 7.4.1), whatever the handler is doing;
/// [`recv`](Socket::recv) then hands on what the peer had still sent and ends with its answer, or after 1 s without one, and
/// [`send`](Socket::send) fails. A handler that waits for something else hears it by [`RequestCx::stopping`]. When the
/// drain is over the handler is dropped and its connection cut, and counted as *upgraded*: nothing of it lives when `run` has
/// returned.
pub fn upgrade<C, F, H>(upgrade: WebSocketUpgrade<C>, cx: RequestCx, handler: F) -> Response
where
    C: OnFailedUpgrade,
    F: FnOnce(Socket) -> H + Send + 'static,
    H: Future<Output = ()> + Send + 'static,
{
    // Taken before the answer, after which a layer counts the request no more.
    let counted = cx.upgraded();
    upgrade.on_upgrade(move |socket| async move {
        let line = Arc::new(Mutex::new(Line::new(socket)));
        let ended = cx.run(drive(handler(Socket(Arc::clone(&line))), line, &cx)).await;
        match (ended, counted) {
            (Err(_), Some(in_flight)) => in_flight.cut("upgraded"),
            (_, counted) => drop(counted),
        }
    })
}

/// Polls the handler, and closes the socket beside it when intake stops.
async fn drive(handler: impl Future<Output = ()>, line: Arc<Mutex<Line>>, cx: &RequestCx) {
    // Tells a socket that the handler gave to a task of its own that nobody drives it any more.
    let driven = Driven(line);
    let line = &driven.0;
    let mut handler = pin!(handler);
    let mut stopping = pin!(cx.stopping());
    let mut grace = pin!(None::<Sleep>);
    let mut handling = true;
    poll_fn(|cx| {
        loop {
            // First, and with the line unlocked: it gets what it waits for before the closing is looked at.
            handling = handling && handler.as_mut().poll(cx).is_pending();
            if grace.is_none() {
                if stopping.as_mut().poll(cx).is_pending() {
                    // The answer to a close of the peer's may not be sent yet.
                    return if handling {
                        Poll::Pending
                    } else {
                        lock(line).socket.poll_flush_unpin(cx).map(drop)
                    };
                }
                grace.set(Some(tokio::time::sleep(CLOSE_GRACE)));
                lock(line).reach(Stage::Closing);
            }
            let mut line = lock(line);
            if line.stage == Stage::Closing && line.poll_send_close(cx).is_ready() {
                line.reach(Stage::Closed);
                continue;
            }
            let over = line.stage == Stage::Over
                || grace.as_mut().as_pin_mut().is_some_and(|grace| grace.poll(cx).is_ready());
            if over && line.stage != Stage::Over {
                line.reach(Stage::Over);
                continue;
            }
            // The handler has gone: what the peer still says is read for its answer to the close.
            let answered = !handling && line.stage == Stage::Closed && line.poll_answer(cx).is_ready();
            return if !handling && (over || answered) { Poll::Ready(()) } else { Poll::Pending };
        }
    })
    .await;
}

fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

fn closed() -> Error {
    Error::new("the websocket is closed, since the server is stopping")
}

// === impl Socket ===

impl Socket {
    /// The next message; `None` at the end: the peer's, or ours when the server stops.
    ///
    /// # Errors
    ///
    /// What axum's own socket says: the connection is broken, or the peer does not keep to the protocol.
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is ready, no message is lost.
    pub async fn recv(&mut self) -> Option<Result<Message, Error>> {
        self.next().await
    }

    /// Sends a message, and waits until the system has it.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), and once the server is stopping: the close is sent, after which there is nothing (RFC 6455,
    /// 5.5.1).
    ///
    /// # Cancel safety
    ///
    /// Dropped before it is ready, the message may be sent or not, but never in part.
    pub async fn send(&mut self, message: Message) -> Result<(), Error> {
        SinkExt::send(self, message).await
    }

    /// The subprotocol that was chosen.
    pub fn protocol(&self) -> Option<http::HeaderValue> {
        lock(&self.0).socket.protocol().cloned()
    }
}

impl Stream for Socket {
    type Item = Result<Message, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut line = lock(&self.0);
        if line.stage == Stage::Over {
            return Poll::Ready(None);
        }
        let next = line.socket.poll_next_unpin(cx);
        line.reads = next.is_pending().then(|| cx.waker().clone());
        next
    }
}

impl Sink<Message> for Socket {
    type Error = Error;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        lock(&self.0).poll_write(cx, |socket, cx| socket.poll_ready_unpin(cx))
    }

    fn start_send(self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        let mut line = lock(&self.0);
        if line.stage == Stage::Open { line.socket.start_send_unpin(message) } else { Err(closed()) }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        lock(&self.0).poll_write(cx, |socket, cx| socket.poll_flush_unpin(cx))
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        lock(&self.0).poll_write(cx, |socket, cx| socket.poll_close_unpin(cx))
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Socket").field("stage", &lock(&self.0).stage).finish_non_exhaustive()
    }
}

// === impl Line ===

impl Line {
    fn new(socket: WebSocket) -> Self {
        Line { socket, stage: Stage::Open, asked: false, reads: None, writes: None }
    }

    /// Goes on, and wakes the handler, wherever it is: it may wait in another task than the driver's.
    fn reach(&mut self, stage: Stage) {
        self.stage = stage;
        self.reads.take().into_iter().chain(self.writes.take()).for_each(Waker::wake);
    }

    /// Writes for the handler, until the close is sent.
    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(&mut WebSocket, &mut Context<'_>) -> Poll<Result<(), Error>>,
    ) -> Poll<Result<(), Error>> {
        if matches!(self.stage, Stage::Closed | Stage::Over) {
            return Poll::Ready(Err(closed()));
        }
        let written = write(&mut self.socket, cx);
        self.writes = written.is_pending().then(|| cx.waker().clone());
        written
    }

    /// Ready when the close is with the system, or can never be: the peer may have closed before.
    fn poll_send_close(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.asked {
            match ready!(self.socket.poll_ready_unpin(cx)) {
                Ok(()) if self.socket.start_send_unpin(Message::Close(Some(GOING_AWAY))).is_ok() => {
                    self.asked = true
                }
                _ => return Poll::Ready(()),
            }
        }
        self.socket.poll_flush_unpin(cx).map(|_| ())
    }

    /// Ready when the peer has closed its side, too.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(Ok(_)) = ready!(self.socket.poll_next_unpin(cx)) {}
        Poll::Ready(())
    }
}

// === impl Driven ===

impl Drop for Driven {
    fn drop(&mut self) {
        lock(&self.0).reach(Stage::Over);
    }
}
