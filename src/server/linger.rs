//! How a socket goes: what was answered can be read, and what was cut does not look whole.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Sleep;

use super::transport::{Io, Transport};

/// How long a peer may take to read its answer while it still sends what nobody reads.
const LINGER: Duration = Duration::from_secs(1);
/// How much of that is taken.
const LINGER_BYTES: usize = 64 << 20;
const PIECE: usize = 8 << 10;
/// What the kernel may hold of an HTTP/2 peer's answers without sending it: enough that it never waits for us.
#[cfg(any(target_os = "linux", target_os = "android"))]
const UNSENT: u32 = 128 << 10;

/// Reads on after the last byte was written: the kernel answers what comes for a closed socket, or was left in it, with a
/// reset (RFC 1122, 4.2.2.13), and that may destroy an answer on its way (RFC 9112, 9.6).
pub(super) struct Lingering {
    left: usize,
    /// Something has come.
    discarded: bool,
    until: Option<Pin<Box<Sleep>>>,
}

/// When it is dropped, the peer sees a reset and no end. Over TLS that is so without one: an end has to be said.
pub(super) fn reset_on_drop(stream: &Transport) {
    if let Transport::Tcp(stream) = stream {
        // A socket that refuses is gone already.
        let _ = stream.set_zero_linger();
    }
}

/// HTTP/2: from here on the kernel takes little more than it can send. What it holds seems to be out, and is destroyed when a
/// frame about its beginning comes to a socket that is closed by then.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn keep_unsent(stream: &Transport) {
    if let Some(socket) = stream.socket() {
        // Without it such a peer has only the grace to read what the kernel holds.
        let _ = socket.set_tcp_notsent_lowat(UNSENT);
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn keep_unsent(_: &Transport) {}

// === impl Lingering ===

impl Lingering {
    pub(super) fn new() -> Self {
        Lingering { left: LINGER_BYTES, discarded: false, until: None }
    }

    /// Discards what comes until the peer closes, for a while at most; at once ready if nothing is there and nothing is
    /// `expected`.
    pub(super) fn poll_discard(
        &mut self,
        io: &mut Transport,
        expected: bool,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let mut piece = [0; PIECE];
        loop {
            let mut buf = ReadBuf::new(&mut piece);
            match Pin::new(&mut *io).poll_read(cx, &mut buf) {
                Poll::Pending => break,
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Ready(Ok(())) if buf.filled().is_empty() => return Poll::Ready(()),
                Poll::Ready(Ok(())) => {
                    self.discarded = true;
                    self.left = self.left.saturating_sub(buf.filled().len());
                }
            }
            if self.left == 0 {
                return Poll::Ready(());
            }
        }
        if !expected && !self.discarded {
            return Poll::Ready(());
        }
        self.until.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER))).as_mut().poll(cx)
    }
}
