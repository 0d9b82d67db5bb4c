//! The socket of a peer: it sees what comes and goes, cuts a peer that stalls, and ends one that is told to go.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::peer::{Closing, Peer, State};

/// hyper has no word for this: a request's head that never came to its end.
const REQUEST_TIMEOUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// From here on it cannot be HTTP/1 any more, whose methods begin with no such letters.
const PREFACE_BEGUN: usize = 3;

pub(super) struct Watched<I> {
    io: I,
    peer: Arc<Peer>,
    /// How much of [`PREFACE`] has come; `None` once it is known which HTTP this is.
    preface: Option<usize>,
    /// How much of [`REQUEST_TIMEOUT`] is written.
    refused: usize,
    write_stall: Duration,
    stalled: bool,
    stall: Option<Pin<Box<Sleep>>>,
    /// For an upgraded connection: the end of the drain.
    cancelled: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

// === impl Watched ===

impl<I: AsyncRead + AsyncWrite + Unpin> Watched<I> {
    pub(super) fn new(io: I, peer: Arc<Peer>, write_stall: Duration) -> Self {
        Watched {
            io,
            peer,
            preface: Some(0),
            refused: 0,
            write_stall,
            stalled: false,
            stall: None,
            cancelled: None,
        }
    }

    fn note_preface(&mut self, bytes: &[u8]) {
        let Some(seen) = self.preface else { return };
        let expected = &PREFACE[seen..];
        let common = expected.len().min(bytes.len());
        self.preface = match bytes[..common] == expected[..common] {
            true if seen + common < PREFACE.len() => Some(seen + common),
            true => {
                self.peer.set_h2();
                None
            }
            false => None,
        };
    }

    /// There is nothing to read: whether this is the end all the same.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.peer.closing() {
            Closing::Head if self.peer.state() == State::Head => {
                self.peer.cut();
                self.poll_refuse(cx)
            }
            Closing::Head | Closing::Idle => {
                if self.peer.gate.is_cancelled() {
                    self.peer.cut();
                }
                Poll::Ready(Ok(()))
            }
            Closing::No if self.peer.is_upgraded() => {
                let cancelled = self.cancelled.get_or_insert_with(|| Box::pin(self.peer.gate.cancelled()));
                cancelled.as_mut().poll(cx).map(Ok)
            }
            Closing::No => Poll::Pending,
        }
    }

    fn poll_refuse(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.preface.is_none_or(|seen| seen < PREFACE_BEGUN) {
            while self.refused < REQUEST_TIMEOUT.len() {
                let left = &REQUEST_TIMEOUT[self.refused..];
                self.refused += ready!(Pin::new(&mut self.io).poll_write(cx, left))?;
            }
            // hyper takes this for an error of the peer's and closes nothing; over TLS that would not be the end.
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// A peer that reads nothing for too long is cut.
    fn poll_stall<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = false;
            return written;
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(tokio::time::sleep(self.write_stall)));
        if !self.stalled {
            self.stalled = true;
            stall.as_mut().reset(Instant::now() + self.write_stall);
        }
        ready!(stall.as_mut().poll(cx));
        self.peer.cut();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer has stopped reading")))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for Watched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if Pin::new(&mut self.io).poll_read(cx, buf)?.is_pending() {
            return self.poll_end(cx);
        }
        let bytes = &buf.filled()[before..];
        if !bytes.is_empty() {
            self.note_preface(bytes);
            self.peer.hear();
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.poll_stall(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.poll_stall(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Only TLS has something left to write here; hyper asks when all of its own writes are done, so that no stall is forgotten.
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        ready!(self.poll_stall(cx, flushed))?;
        // hyper asks for this when its own buffers are empty.
        self.peer.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.poll_stall(cx, shut)
    }
}
