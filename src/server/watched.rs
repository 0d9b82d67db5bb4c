//! The socket of a peer: it sees what comes and goes, cuts a peer that stalls, and ends one that is told to go.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::Limits;
use super::linger::{Lingering, keep_unsent, reset_on_drop};
use super::peer::{Closing, Peer, State};
use super::transport::Transport;

/// hyper has no word for this: a request's head that never came to its end (RFC 9110, 15.5.9).
const REQUEST_TIMEOUT: &[u8] =
    b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// From here on it cannot be HTTP/1 any more, whose methods begin with no such letters.
const PREFACE_BEGUN: usize = 3;

pub(super) struct Watched {
    io: Transport,
    peer: Arc<Peer>,
    /// How much of [`PREFACE`] has come; `None` once it is known which HTTP this is.
    preface: Option<usize>,
    /// How much of [`REQUEST_TIMEOUT`] is written.
    refused: usize,
    write_stall: Duration,
    stalled: bool,
    stall: Option<Pin<Box<Sleep>>>,
    /// HTTP/2: when something came last, and after how long hyper gives up a peer that answers no PING.
    heard: Option<Instant>,
    silence: Duration,
    /// The peer has no more to send, or is gone.
    silent: bool,
    hang_up: Duration,
    hung_up: Option<Pin<Box<Sleep>>>,
    /// Something was written; and lately.
    wrote: bool,
    progress: bool,
    lingering: Option<Lingering>,
    /// For an upgraded connection: the end of the drain.
    cancelled: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// Whether the bytes do not end as a head does; empty lines between requests are none of any.
fn is_open(bytes: &[u8]) -> bool {
    let ended = bytes.ends_with(b"\n\r\n") || bytes.ends_with(b"\n\n");
    !ended && bytes.iter().any(|byte| !b"\r\n".contains(byte))
}

// === impl Watched ===

impl Watched {
    pub(super) fn new(io: Transport, peer: Arc<Peer>, limits: &Limits) -> Self {
        Watched {
            io,
            peer,
            preface: Some(0),
            refused: 0,
            write_stall: limits.write_stall,
            stalled: false,
            stall: None,
            heard: None,
            silence: limits.ping.saturating_mul(2),
            silent: false,
            hang_up: limits.hang_up,
            hung_up: None,
            wrote: false,
            progress: false,
            lingering: None,
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
                keep_unsent(&self.io);
                None
            }
            false => None,
        };
    }

    /// There is nothing to read: whether this is the end all the same.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.peer.closing() {
            // A request that has come is not left to a reset; the runtime is about to tell of it.
            Closing::Head | Closing::Idle if self.io.is_waiting() => Poll::Pending,
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
                self.wrote = true;
            }
            return self.poll_close(cx);
        }
        Poll::Ready(Ok(()))
    }

    /// The peer's side is closed: the end, unless it may be waiting for an answer.
    fn poll_hung_up(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while matches!(self.peer.state(), State::Request | State::Body) && !self.peer.is_h2() {
            let limit = self.hang_up;
            let hung_up = self.hung_up.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
            ready!(hung_up.as_mut().poll(cx));
            // As long as the peer reads, or may yet, it is the writes that show whether it is there.
            if !std::mem::take(&mut self.progress) && !self.stalled {
                break;
            }
            hung_up.as_mut().reset(Instant::now() + limit);
        }
        Poll::Ready(Ok(()))
    }

    /// Ends our side, and reads on where the peer may not have read all.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let ended = Pin::new(&mut self.io).poll_shutdown(cx);
            ready!(self.poll_stall(cx, ended))?;
            if !self.wrote || self.silent || self.peer.is_upgraded() {
                return Poll::Ready(Ok(()));
            }
            if self.peer.may_be_sending() {
                self.peer.linger();
            }
        }
        let lingering = self.lingering.get_or_insert_with(Lingering::new);
        let discarded = lingering.poll_discard(&mut self.io, self.peer.is_lingering(), cx);
        if discarded.is_pending() {
            self.peer.linger();
        }
        discarded.map(Ok)
    }

    fn note_written(&mut self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(1..))) {
            (self.wrote, self.progress) = (true, true);
            if self.peer.is_h2() {
                self.peer.note_moved();
            }
        }
    }

    /// A peer that reads nothing for too long is cut.
    fn poll_stall<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = false;
            if self.peer.is_h2() {
                self.peer.block(false);
            }
            return written;
        }
        if self.peer.is_h2() {
            self.peer.block(true);
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

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.refused > 0 {
            return self.poll_refuse(cx);
        }
        if self.silent {
            return self.poll_hung_up(cx);
        }
        let before = buf.filled().len();
        match Pin::new(&mut self.io).poll_read(cx, buf) {
            Poll::Pending => return self.poll_end(cx),
            Poll::Ready(Ok(())) => {}
            failed => {
                self.silent = true;
                return failed;
            }
        }
        let bytes = &buf.filled()[before..];
        if bytes.is_empty() && buf.remaining() > 0 {
            (self.silent, self.progress) = (true, false);
            return self.poll_hung_up(cx);
        }
        self.note_preface(bytes);
        self.peer.hear(is_open(bytes));
        if self.peer.is_h2() {
            self.heard = Some(Instant::now());
            self.peer.note_moved();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.note_written(&written);
        self.poll_stall(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.note_written(&written);
        self.poll_stall(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper asks for this when its own buffers are empty, so that no stall is forgotten; TLS may have something left.
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        ready!(self.poll_stall(cx, flushed))?;
        self.peer.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_close(cx)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.silent && self.heard.is_some_and(|heard| heard.elapsed() >= self.silence) {
            self.peer.answers_no_ping();
        }
        if self.peer.would_look_whole() {
            reset_on_drop(&self.io);
        }
    }
}
