//! What a connection's bytes come and go by.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes both ways, whatever they run over.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// When it is dropped, the peer sees a reset and no end.
    fn reset_on_close(&self);
}

/// One type for all, so that the rest of a connection is compiled once; TCP, which is what most have, without a detour.
pub(super) enum Stream {
    Tcp(TcpStream),
    Other(Box<dyn Io>),
}

// === impl Io ===

impl Io for TcpStream {
    fn reset_on_close(&self) {
        // A socket that refuses is gone already.
        let _ = self.set_zero_linger();
    }
}

#[cfg(unix)]
impl Io for tokio::net::UnixStream {
    /// It knows no reset.
    fn reset_on_close(&self) {}
}

#[cfg(feature = "tls")]
impl<I: Io> Io for tokio_rustls::server::TlsStream<I> {
    fn reset_on_close(&self) {
        self.get_ref().0.reset_on_close();
    }
}

impl Io for Stream {
    fn reset_on_close(&self) {
        match self {
            Stream::Tcp(stream) => stream.reset_on_close(),
            Stream::Other(stream) => stream.reset_on_close(),
        }
    }
}

// === impl Stream ===

impl Stream {
    /// Whose it is; `None` where that has no address, and for a peer that has gone.
    pub(super) fn peer_addr(&self) -> Option<SocketAddr> {
        match self {
            Stream::Tcp(stream) => stream.peer_addr().ok(),
            Stream::Other(_) => None,
        }
    }
}

impl AsyncRead for Stream {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Other(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Other(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Other(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Other(stream) => stream.is_write_vectored(),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Other(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Other(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
