//! Accepts from TCP.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use socket2::{Domain, Protocol, SockRef, Type};
use tokio::net::{TcpListener, TcpStream};

use super::reuse_port;
use super::{Accepts, Address, Listener, Socket};
use crate::server::transport::Transport;

/// How many clients the kernel keeps waiting; it takes the lesser of this and its own bound (`net.core.somaxconn`).
const BACKLOG: i32 = 4096;

// === impl Listener ===

impl Listener {
    /// Binds a TCP listener with `SO_REUSEPORT`: the next process of the program may bind the same address while this one
    /// still serves, for restarts in place.
    ///
    /// Start the next process with the same address, wait until it says that it is ready, then stop this one. Both are served
    /// in between; the kernel chooses. Two processes of one user can do so, nobody else's (`socket(7)`). Port 0 picks a port.
    ///
    /// From `StopIntake` on no new client is to get into this socket's backlog, and those within are served. On Linux that
    /// is so: a client that the kernel would have given to this socket in its last [moments](crate::server::Server::handover) is left to try again,
    /// which its own kernel does after a second, and then finds the next process. Nobody is refused, and nobody is reset.
    /// Handed-in listeners that have the option set are treated alike.
    ///
    /// ```no_run
    /// # fn example(shutdown: &mut winddown::ShutdownCoordinator, app: axum::Router) -> std::io::Result<()> {
    /// use winddown::server::{self, Listener};
    ///
    /// let listener = Listener::bind_reuse_port(([0, 0, 0, 0], 8080).into())?;
    /// shutdown.add(server::axum::serve("http", listener, app));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Unsupported`](io::ErrorKind::Unsupported) where there is no such option (Windows), and what the operating system
    /// says: another user's process has the address, or one without the option.
    pub fn bind_reuse_port(address: SocketAddr) -> io::Result<Self> {
        let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        reuse_port::set(&socket)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(std::net::TcpListener::from(socket).into())
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Listener::opened(listener)
    }
}

impl From<std::net::TcpListener> for Listener {
    fn from(listener: std::net::TcpListener) -> Self {
        Listener::idle(Box::new(listener), false)
    }
}

// === impl Socket ===

impl Socket for std::net::TcpListener {
    fn address(&self) -> io::Result<Address> {
        self.local_addr().map(Address::Tcp)
    }

    fn open(self: Box<Self>) -> io::Result<Box<dyn Accepts>> {
        self.set_nonblocking(true)?;
        Ok(Box::new(TcpListener::from_std(*self)?))
    }

    fn accept_now(&self) -> io::Result<Transport> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream).map(accepted)
    }

    fn into_tcp(self: Box<Self>) -> io::Result<std::net::TcpListener> {
        Ok(*self)
    }

    #[cfg(unix)]
    fn into_fd(self: Box<Self>) -> io::Result<std::os::fd::OwnedFd> {
        Ok((*self).into())
    }
}

// === impl Accepts ===

impl Accepts for TcpListener {
    fn address(&self) -> io::Result<Address> {
        self.local_addr().map(Address::Tcp)
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Transport>> {
        let (stream, _) = ready!(self.poll_accept(cx))?;
        Poll::Ready(Ok(accepted(stream)))
    }

    fn divert(&self) -> bool {
        reuse_port::divert(&SockRef::from(self))
    }

    fn release(self: Box<Self>) -> io::Result<Box<dyn Socket>> {
        Ok(Box::new(self.into_std()?))
    }
}

fn accepted(stream: TcpStream) -> Transport {
    // An answer's last piece is not held back until the one before is acknowledged; a socket that refuses is still one.
    let _ = stream.set_nodelay(true);
    Transport::Tcp(stream)
}
