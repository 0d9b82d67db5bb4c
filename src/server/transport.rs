//! What a connection's bytes come and go by.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes both ways, whatever they run over.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send {
    /// What the kernel knows it by, if it knows it.
    fn socket(&self) -> Option<SockRef<'_>> {
        None
    }
}

/// One type for all, so that the rest of a connection is compiled once; TCP, which is what most have, without a detour.
pub(super) enum Transport {
    Tcp(TcpStream),
    Other(Box<dyn Io>),
}

// === impl Transport ===

impl Transport {
    /// Whether the kernel holds something to read, of which the runtime may hear only later.
    pub(super) fn is_waiting(&self) -> bool {
        self.socket().is_some_and(|socket| matches!(socket.peek(&mut [MaybeUninit::uninit()]), Ok(1..)))
    }
}

impl Io for Transport {
    fn socket(&self) -> Option<SockRef<'_>> {
        match self {
            Transport::Tcp(stream) => Some(stream.into()),
            Transport::Other(stream) => stream.socket(),
        }
    }
}

impl AsyncRead for Transport {
    #[inline]
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Other(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Transport {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Transport::Other(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    #[inline]
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Transport::Other(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    #[inline]
    fn is_write_vectored(&self) -> bool {
        match self {
            Transport::Tcp(stream) => stream.is_write_vectored(),
            Transport::Other(stream) => stream.is_write_vectored(),
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Other(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Transport::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Other(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
