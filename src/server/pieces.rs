//! An answer's body in pieces, of which HTTP/2 takes no more than its client lets come.

use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

/// As large as the frames that they become.
const PIECE: usize = 16 << 10;

pin_project! {
    /// hyper asks an HTTP/2 answer for more as soon as its client grants a single byte, and takes what it gets whole: given in
    /// one piece, it would seem to be out long before it is.
    pub(super) struct Pieces<B> {
        // None where the words are ours.
        #[pin]
        body: Option<B>,
        split: bool,
        rest: Bytes,
    }
}

/// What the body gave, or a part of it.
pub(super) enum Piece<D> {
    Whole(D),
    Part(Bytes),
}

// === impl Pieces ===

impl<B> Pieces<B> {
    pub(super) fn new(body: B, split: bool) -> Self {
        Pieces { body: Some(body), split, rest: Bytes::new() }
    }

    pub(super) fn ours(words: &'static str) -> Self {
        Pieces { body: None, split: false, rest: Bytes::from_static(words.as_bytes()) }
    }
}

impl<B: Body> Body for Pieces<B> {
    type Data = Piece<B::Data>;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, B::Error>>> {
        let this = self.project();
        if this.rest.is_empty() {
            let Some(body) = this.body.as_pin_mut() else { return Poll::Ready(None) };
            let frame = match ready!(body.poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                ended => {
                    return Poll::Ready(ended.map(|failed| failed.map(|frame| frame.map_data(Piece::Whole))));
                }
            };
            match frame.into_data() {
                Ok(mut data) if *this.split && data.remaining() > PIECE => {
                    // For `Bytes`, as nearly all bodies have it, no copy.
                    *this.rest = data.copy_to_bytes(data.remaining());
                }
                Ok(data) => return Poll::Ready(Some(Ok(Frame::data(Piece::Whole(data))))),
                Err(frame) => return Poll::Ready(Some(Ok(frame.map_data(Piece::Whole)))),
            }
        }
        let part = this.rest.split_to(PIECE.min(this.rest.len()));
        Poll::Ready(Some(Ok(Frame::data(Piece::Part(part)))))
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(hint.lower() + rest);
        hint
    }
}

// === impl Piece ===

impl<D: Buf> Buf for Piece<D> {
    #[inline]
    fn remaining(&self) -> usize {
        match self {
            Piece::Whole(data) => data.remaining(),
            Piece::Part(part) => part.remaining(),
        }
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        match self {
            Piece::Whole(data) => data.chunk(),
            Piece::Part(part) => part.chunk(),
        }
    }

    #[inline]
    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        match self {
            Piece::Whole(data) => data.chunks_vectored(slices),
            Piece::Part(part) => part.chunks_vectored(slices),
        }
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        match self {
            Piece::Whole(data) => data.advance(count),
            Piece::Part(part) => part.advance(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[tokio::test]
    async fn a_body_is_the_same_in_pieces() {
        for length in [0, 1, PIECE, PIECE + 1, 5 * PIECE + 7] {
            let whole: Bytes = (0..length).map(|at| (at % 251) as u8).collect();
            for split in [false, true] {
                let mut pieces = Pieces::new(Full::new(whole.clone()), split);
                let (mut got, mut largest) = (Vec::new(), 0);
                while !pieces.is_end_stream() {
                    assert_eq!(pieces.size_hint().exact(), Some((length - got.len()) as u64));
                    let mut piece = pieces.frame().await.unwrap().unwrap().into_data().ok().unwrap();
                    largest = largest.max(piece.remaining());
                    got.extend_from_slice(&piece.copy_to_bytes(piece.remaining()));
                }
                assert_eq!(got, whole);
                assert!(pieces.frame().await.is_none());
                assert_eq!(largest, if split { length.min(PIECE) } else { length });
            }
        }
    }
}
