//! Around each request: it is counted until the end of its answer, which says when the connection closes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{HeaderValue, Request, Response, StatusCode, Version, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper_util::service::{TowerToHyperService, TowerToHyperServiceFuture};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::RequestBody;
use super::peer::{Peer, Turn};
use super::pieces::{Piece, Pieces};
use super::refusal::{self, CUT, Kind};
use crate::latch::FiredOwned;

/// In seconds: by then the next process is asked.
const RETRY_AFTER: u32 = 1;

/// The program's service, as one connection sees it.
pub(super) struct Served<S> {
    service: TowerToHyperService<S>,
    peer: Arc<Peer>,
}

pin_project! {
    /// A request with its handler.
    pub(super) struct Answering<S>
    where
        S: Service<Request<RequestBody>>,
    {
        #[pin]
        answer: TowerToHyperServiceFuture<S, Request<RequestBody>>,
        turn: Option<Turn>,
        // HTTP/2, whose requests have tasks of their own: made when there is something to wait for.
        cancelled: Option<FiredOwned>,
        h10: bool,
        kind: Kind,
    }
}

pin_project! {
    /// An answer's body: the request is in flight until it is dropped.
    pub(super) struct AnswerBody<B> {
        #[pin]
        body: Pieces<B>,
        turn: Turn,
    }
}

// === impl Served ===

impl<S> Served<S> {
    pub(super) fn new(service: S, peer: Arc<Peer>) -> Self {
        Served { service: TowerToHyperService::new(service), peer }
    }
}

impl<S, B> hyper::service::Service<Request<Incoming>> for Served<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone,
    B: Body,
{
    type Response = Response<AnswerBody<B>>;
    type Error = S::Error;
    type Future = Answering<S>;

    fn call(&self, mut request: Request<Incoming>) -> Answering<S> {
        if let Some(cx) = self.peer.cx() {
            request.extensions_mut().insert(cx);
        }
        Answering {
            kind: Kind::of(&request, RETRY_AFTER),
            h10: request.version() <= Version::HTTP_10,
            cancelled: None,
            turn: Some(self.peer.begin()),
            answer: self.service.call(request.map(|body| RequestBody::new(body, &self.peer))),
        }
    }
}

// === impl Answering ===

impl<S, B> Future for Answering<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    B: Body,
{
    type Output = Result<Response<AnswerBody<B>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let kind = *this.kind;
        let polled = this.answer.poll(cx);
        if polled.is_pending() {
            if let Some(turn) = &*this.turn {
                // The handler lives until this is dropped, which comes next.
                ready!(turn.peer().poll_given_up(this.cancelled, cx));
            }
        }
        let mut turn = this.turn.take().expect("not polled again after it was ready");
        let Poll::Ready(answer) = polled else {
            turn.answer(false);
            let body = AnswerBody { body: Pieces::ours(if kind.grpc { "" } else { CUT }), turn };
            return Poll::Ready(Ok(Response::from_parts(*refusal::head(CUT, kind), body)));
        };
        let (mut head, body) = answer?.into_parts();
        let upgrade =
            head.status == StatusCode::SWITCHING_PROTOCOLS || kind.connect && head.status.is_success();
        // The client's next request is to go elsewhere, from the trigger on.
        if kind.h1 && !upgrade && turn.peer().handle.is_triggered() {
            head.headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        // Some of the request was kept from its handler: what it says of that is not the client's fault.
        if turn.peer().has_withheld() && head.status == StatusCode::BAD_REQUEST {
            head.status = StatusCode::SERVICE_UNAVAILABLE;
        }
        if *this.h10 && body.size_hint().exact().is_none() {
            turn.peer().delimit_by_close();
        }
        turn.answer(kind.h1 && upgrade);
        Poll::Ready(Ok(Response::from_parts(head, AnswerBody { body: Pieces::new(body, !kind.h1), turn })))
    }
}

// === impl AnswerBody ===

impl<B: Body> Body for AnswerBody<B> {
    type Data = Piece<B::Data>;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
