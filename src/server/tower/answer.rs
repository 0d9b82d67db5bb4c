//! A request until the end of its answer, for the layer.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{Kind, Refusal, unavailable};
use crate::latch::FiredOwned;
use crate::{BoxError, Cancelled, InFlight};

/// A request's place at the gate, with the state that it is in.
struct Turn {
    /// None for what was refused; else taken by the drop alone.
    in_flight: Option<InFlight>,
    state: State,
    /// Made when there is something to wait for.
    cancelled: Option<FiredOwned>,
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
    const NONE: Turn = Turn { in_flight: None, state: State::Ended, cancelled: None };

    /// From the trigger on, or for a gate of its own from the close.
    #[inline]
    fn is_stopping(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|in_flight| in_flight.is_triggered() || in_flight.is_stopping())
    }

    #[inline]
    fn is_cancelled(&self) -> bool {
        self.in_flight.as_ref().is_some_and(InFlight::is_cancelled)
    }

    #[inline]
    fn poll_cancelled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(in_flight) = &self.in_flight else { return Poll::Pending };
        let cancelled = self.cancelled.get_or_insert_with(|| in_flight.cancelled_owned());
        Pin::new(cancelled).poll(cx)
    }
}

impl Drop for Turn {
    #[inline]
    fn drop(&mut self) {
        let Some(in_flight) = self.in_flight.take() else { return };
        // Also what is taken away from outside once the drain is over, as by the end of a server's task, is cut.
        if self.state != State::Ended && in_flight.is_cancelled() {
            in_flight.cut(if self.state == State::Request { "request" } else { "body" });
        }
    }
}

// === impl Answering ===

impl<F> Answering<F> {
    #[inline]
    pub(super) fn new(call: impl FnOnce() -> F, in_flight: InFlight, kind: Kind) -> Self {
        let turn = Turn { in_flight: Some(in_flight), state: State::Request, cancelled: None };
        // Called here: what it makes lies in its place at once, and is not moved there.
        Answering { answer: Some(call()), turn, kind }
    }

    #[cold]
    pub(super) fn refused(kind: Kind) -> Self {
        Answering { answer: None, turn: Turn::NONE, kind }
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
        let Some(answer) = this.answer.as_mut().as_pin_mut() else {
            return Poll::Ready(Ok(refuse(Refusal::Closed, kind)));
        };
        match answer.poll(cx) {
            Poll::Ready(Ok(answer)) => {
                let close = kind.h1 && this.turn.is_stopping();
                let state = if answer.body().is_end_stream() { State::Ended } else { State::Body };
                // What the handler waited with is not kept: the body seldom waits.
                let turn = Turn { in_flight: this.turn.in_flight.take(), state, cancelled: None };
                let body = |body| AnswerBody { words: Words::Theirs { body }, turn, grpc: kind.grpc };
                if close {
                    return Poll::Ready(Ok(say_close(answer, kind).map(body)));
                }
                Poll::Ready(Ok(answer.map(body)))
            }
            Poll::Ready(Err(error)) => {
                this.turn.state = State::Ended;
                Poll::Ready(Err(error))
            }
            Poll::Pending if this.turn.poll_cancelled(cx).is_pending() => Poll::Pending,
            Poll::Pending => {
                this.answer.set(None);
                *this.turn = Turn::NONE;
                Poll::Ready(Ok(refuse(Refusal::Cut, kind)))
            }
        }
    }
}

impl<F> fmt::Debug for Answering<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("state", &self.turn.state).finish_non_exhaustive()
    }
}

/// The client's next request is to go elsewhere. An upgrade's `Connection` says something else.
#[cold]
fn say_close<B>(mut answer: Response<B>, kind: Kind) -> Response<B> {
    let upgrade =
        answer.status() == StatusCode::SWITCHING_PROTOCOLS || kind.connect && answer.status().is_success();
    if !upgrade {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

#[cold]
fn refuse<B>(refusal: Refusal, kind: Kind) -> Response<AnswerBody<B>> {
    let words = if kind.grpc { "" } else { refusal.words() };
    let body = |()| AnswerBody { words: Words::Ours { words }, turn: Turn::NONE, grpc: kind.grpc };
    refusal.head(kind).map(body)
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
            Poll::Pending if this.turn.poll_cancelled(cx).is_pending() => return Poll::Pending,
            Poll::Pending => {}
        }
        this.words.set(Words::Ours { words: "" });
        *this.turn = Turn::NONE;
        let end = match *this.grpc {
            true => Ok(Frame::trailers(unavailable(Refusal::Cut.words()))),
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
