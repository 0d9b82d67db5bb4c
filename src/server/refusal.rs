//! What is said to a client whose request is answered by us, since its handler is not asked, or does not answer.

use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header};

/// What of a request decides how it is answered.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    pub(super) h1: bool,
    pub(super) connect: bool,
    pub(super) grpc: bool,
    /// In seconds.
    retry_after: u32,
}

/// What a client is told whose request the end of the drain cut.
pub(super) const CUT: &str = "the server stopped before the answer was complete";

// === impl Kind ===

impl Kind {
    #[inline]
    pub(super) fn of<B>(request: &Request<B>, retry_after: u32) -> Self {
        let h1 = request.version() < Version::HTTP_2;
        let grpc = !h1 && request.method() == Method::POST && is_grpc(request.headers());
        Kind { h1, connect: request.method() == Method::CONNECT, grpc, retry_after }
    }
}

fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// What gRPC calls 503.
pub(super) fn unavailable(words: &'static str) -> HeaderMap {
    let status = (HeaderName::from_static("grpc-status"), HeaderValue::from_static("14"));
    let message = (HeaderName::from_static("grpc-message"), HeaderValue::from_static(words));
    HeaderMap::from_iter([status, message])
}

/// Complete but for its body, which is what `words` say, or nothing for gRPC.
///
/// In a box, so that it is not written to where the other answers lie.
#[cold]
pub(super) fn head(words: &'static str, kind: Kind) -> Box<Parts> {
    let (mut head, ()) = Response::new(()).into_parts();
    let headers = &mut head.headers;
    if kind.grpc {
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.extend(unavailable(words));
        return Box::new(head);
    }
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::RETRY_AFTER, kind.retry_after.into());
    if kind.h1 {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    head.status = StatusCode::SERVICE_UNAVAILABLE;
    Box::new(head)
}
