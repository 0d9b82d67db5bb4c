//! Accepts from Unix sockets.

use std::io::{self, ErrorKind};
use std::task::{Context, Poll, ready};

use socket2::SockRef;
use tokio::net::{UnixListener, UnixStream};

use super::{Accepts, Address, Listener, Socket};
use crate::server::transport::{Io, Transport};

// === impl Listener ===

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Listener::opened(listener)
    }
}

impl From<std::os::unix::net::UnixListener> for Listener {
    fn from(listener: std::os::unix::net::UnixListener) -> Self {
        Listener::idle(Box::new(listener), false)
    }
}

// === impl Socket ===

impl Socket for std::os::unix::net::UnixListener {
    fn address(&self) -> io::Result<Address> {
        Ok(Address::Unix(self.local_addr()?.as_pathname().map(Into::into)))
    }

    fn open(self: Box<Self>) -> io::Result<Box<dyn Accepts>> {
        self.set_nonblocking(true)?;
        Ok(Box::new(UnixListener::from_std(*self)?))
    }

    fn accept_now(&self) -> io::Result<Transport> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok(Transport::Other(Box::new(UnixStream::from_std(stream)?)))
    }

    fn into_tcp(self: Box<Self>) -> io::Result<std::net::TcpListener> {
        Err(io::Error::new(ErrorKind::InvalidInput, "the listener is a Unix socket, not one of TCP"))
    }

    fn into_fd(self: Box<Self>) -> io::Result<std::os::fd::OwnedFd> {
        Ok((*self).into())
    }
}

// === impl Accepts ===

impl Accepts for UnixListener {
    fn address(&self) -> io::Result<Address> {
        Ok(Address::Unix(self.local_addr()?.as_pathname().map(Into::into)))
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Transport>> {
        let (stream, _) = ready!(self.poll_accept(cx))?;
        Poll::Ready(Ok(Transport::Other(Box::new(stream))))
    }

    fn release(self: Box<Self>) -> io::Result<Box<dyn Socket>> {
        Ok(Box::new(self.into_std()?))
    }
}

// === impl UnixStream ===

impl Io for UnixStream {
    fn socket(&self) -> Option<SockRef<'_>> {
        Some(self.into())
    }
}
