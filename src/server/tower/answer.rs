//! A request until the end of its answer, for the layer.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::CLOSED;
use crate::latch::FiredOwned;
use crate::server::refusal::{self, CUT, Kind, unavailable};
use crate::{BoxError, Cancelled, InFlight};

/// A request's place at the gate, with the state that it is in. Small: it moves with each answer.
struct Turn {
    /// None for what was refused, and after its end.
    in_flight: Option<InFlight>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Request,
    Body,
    /// The answer is complete.
    Ended,
}

pin_project! {
    /// A request with its handler; made by [`Counted`](super::Counted).
    #[must_use = "futures do nothing unless polled"]
    pub struct Answering<F> {
        // None where we answer. Before `turn`: what the handler holds is gone before its request is over.
        #[pin]
        answer: Option<F>,
        turn: Turn,
        // Made when there is something to wait for, as the body's.
        cancelled: Option<FiredOwned>,
        kind: Kind,
    }
}

pin_project! {
    /// An answer's body; the request is in flight until it is dropped.
    ///
    /// When the drain is over it ends with an error, [`Cancelled`], or for gRPC with the status *unavailable*.
    pub struct AnswerBody<B> {
        #[pin]
        words: Words<B>,
        turn: Turn,
        // In a box: a body seldom waits, and each is moved more than once.
        cancelled: Option<Box<FiredOwned>>,
        grpc: bool,
    }
}

pin_project! {
    #[project = Now]
    enum Words<B> {
        Theirs { #[pin] body: B },
        Ours { words: &'static str },
    }
}

// === impl Turn ===

impl Turn {
    const NONE: Turn = Turn { in_flight: None, state: State::Ended };

    /// From the trigger on, or for a gate of its own from the close.
    #[inline]
    fn is_stopping(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.is_triggered() || in_flight.is_stopping())
    }

    #[inline]
    fn is_cancelled(&self) -> bool {
        self.in_flight.as_ref().is_some_and(InFlight::is_cancelled)
    }

    /// Also what is taken away from outside once the drain is over, as by the end of a server's task, is cut.
    #[cold]
    fn end_early(&mut self) {
        if let Some(in_flight) = self.in_flight.take_if(|in_flight| in_flight.is_cancelled()) {
            in_flight.cut(if self.state == State::Request { "request" } else { "body" });
        }
    }

    /// Keeps what it waits with where it is told.
    fn poll_cancelled<C>(&self, cancelled: &mut Option<C>, cx: &mut Context<'_>) -> Poll<()>
    where
        C: From<FiredOwned> + Future<Output = ()> + Unpin,
    {
        let Some(in_flight) = &self.in_flight else { return Poll::Pending };
        Pin::new(cancelled.get_or_insert_with(|| in_flight.cancelled_owned().into())).poll(cx)
    }
}

impl Drop for Turn {
    #[inline]
    fn drop(&mut self) {
        if self.state != State::Ended {
            self.end_early();
        }
    }
}

// === impl Answering ===

impl<F> Answering<F> {
    #[inline]
    pub(super) fn new(answer: F, in_flight: InFlight, kind: Kind) -> Self {
        let turn = Turn { in_flight: Some(in_flight), state: State::Request };
        Answering { answer: Some(answer), turn, cancelled: None, kind }
    }

    #[cold]
    pub(super) fn refused(kind: Kind) -> Self {
        Answering { answer: None, turn: Turn::NONE, cancelled: None, kind }
    }
}

impl<F, B, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<B>, E>>,
    B: Body,
{
    type Output = Result<Response<AnswerBody<B>>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let kind = *this.kind;
        // Taken apart, and put together in one place at the end: an answer that is borrowed as a whole, or is written to its place
        // from two sides, is moved once more, which costs as much as an allocation.
        let (head, words, turn) = 'answer: {
            let words = match this.answer.as_mut().as_pin_mut().map(|answer| answer.poll(cx)) {
                None => CLOSED,
                Some(Poll::Ready(Ok(answer))) => {
                    let mut turn = mem::replace(this.turn, Turn::NONE);
                    let (mut head, body) = answer.into_parts();
                    if kind.h1 && turn.is_stopping() {
                        head.headers = say_close(head.headers, head.status, kind);
                    }
                    turn.state = if body.is_end_stream() { State::Ended } else { State::Body };
                    break 'answer (head, Words::Theirs { body }, turn);
                }
                Some(Poll::Ready(Err(error))) => {
                    this.turn.state = State::Ended;
                    return Poll::Ready(Err(error));
                }
                Some(Poll::Pending) => {
                    ready!(this.turn.poll_cancelled(this.cancelled, cx));
                    this.answer.set(None);
                    *this.turn = Turn::NONE;
                    CUT
                }
            };
            let head = refusal::head(words, kind);
            (*head, Words::Ours { words: if kind.grpc { "" } else { words } }, Turn::NONE)
        };
        let body = AnswerBody { words, turn, cancelled: None, grpc: kind.grpc };
        Poll::Ready(Ok(Response::from_parts(head, body)))
    }
}

impl<F> fmt::Debug for Answering<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("state", &self.turn.state).finish_non_exhaustive()
    }
}

/// The client's next request is to go elsewhere. An upgrade's `Connection` says something else.
#[cold]
fn say_close(mut headers: HeaderMap, status: StatusCode, kind: Kind) -> HeaderMap {
    let upgrade = status == StatusCode::SWITCHING_PROTOCOLS || kind.connect && status.is_success();
    if !upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    headers
}

// === impl AnswerBody ===

impl<B> Body for AnswerBody<B>
where
    B: Body,
    B::Data: From<&'static [u8]>,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        let mut this = self.project();
        let mut body = match this.words.as_mut().project() {
            Now::Theirs { body } => body,
            Now::Ours { words } => {
                let rest = mem::take(words).as_bytes();
                return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest.into()))));
            }
        };
        match body.as_mut().poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if frame.is_trailers() || body.is_end_stream() {
                    this.turn.state = State::Ended;
                }
                // An answer's end wins over that of the drain; a piece of it does not.
                if this.turn.state == State::Ended || !this.turn.is_cancelled() {
                    return Poll::Ready(Some(Ok(frame)));
                }
            }
            Poll::Ready(end) => {
                this.turn.state = State::Ended;
                return Poll::Ready(end.map(|frame| frame.map_err(Into::into)));
            }
            Poll::Pending if this.turn.poll_cancelled(this.cancelled, cx).is_pending() => {
                return Poll::Pending;
            }
            Poll::Pending => {}
        }
        this.words.set(Words::Ours { words: "" });
        *this.turn = Turn::NONE;
        let end = match *this.grpc {
            true => Ok(Frame::trailers(unavailable(CUT))),
            false => Err(Cancelled.into()),
        };
        Poll::Ready(Some(end))
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        match &self.words {
            Words::Theirs { body } => body.is_end_stream(),
            Words::Ours { words } => words.is_empty(),
        }
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        match &self.words {
            Words::Theirs { body } => body.size_hint(),
            Words::Ours { words } => SizeHint::with_exact(words.len() as u64),
        }
    }
}

impl<B> fmt::Debug for AnswerBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnswerBody").field("state", &self.turn.state).finish_non_exhaustive()
    }
}
