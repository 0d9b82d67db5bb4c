//! What a server accepts from; a technology for it is a short file in the folder beside this.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use super::transport::Transport;

#[cfg(all(unix, feature = "listenfd"))]
mod listenfd;
#[cfg(feature = "test-util")]
mod memory;
mod reuse_port;
mod tcp;
#[cfg(unix)]
mod unix;

#[cfg(all(unix, feature = "listenfd"))]
pub use listenfd::listeners_from_env;
#[cfg(feature = "test-util")]
pub use memory::{Connector, in_memory};

/// A bound listener: TCP or, on Unix, a Unix socket; of tokio or of the standard library, blocking or not.
///
/// At the stop its backlog is served and it is closed, unless it lives on: with another process ([`shared`]) or with the
/// program itself ([`Server::give_back`]).
///
/// [`shared`]: Listener::shared
/// [`Server::give_back`]: super::Server::give_back
#[derive(Debug)]
pub struct Listener {
    bound: Bound,
    pub(super) shared: bool,
}

/// What a [`Listener`] is bound to; as text `127.0.0.1:8080`, `unix:/run/orders.sock`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// A path; `None` for a socket that has no name in the file system.
    Unix(Option<PathBuf>),
}

/// The listeners that a server has given back, once it accepts no more; made by
/// [`Server::give_back`](super::Server::give_back).
///
/// # Cancel safety
///
/// May be polled again after it was left. Dropped before the stop it asks for nothing: the listeners are closed then.
#[must_use = "dropped, the listeners are closed at the stop"]
pub struct GivenBack(pub(super) oneshot::Receiver<Vec<Listener>>);

/// A socket is registered with a runtime, or is not.
#[derive(Debug)]
enum Bound {
    Idle(Box<dyn Socket>),
    Open(Box<dyn Accepts>),
}

/// A listening socket that no runtime knows of.
pub(super) trait Socket: fmt::Debug + Send + Sync {
    fn address(&self) -> io::Result<Address>;

    /// Registers it with the runtime that runs here.
    fn open(self: Box<Self>) -> io::Result<Box<dyn Accepts>>;

    /// Asks the kernel itself, not the runtime, which hears of a new connection only later.
    fn accept_now(&self) -> io::Result<Transport>;

    fn into_tcp(self: Box<Self>) -> io::Result<std::net::TcpListener>;

    #[cfg(unix)]
    fn into_fd(self: Box<Self>) -> io::Result<std::os::fd::OwnedFd>;
}

/// A listening socket that a runtime waits for.
pub(super) trait Accepts: fmt::Debug + Send + Sync {
    fn address(&self) -> io::Result<Address>;

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Transport>>;

    /// Leaves new clients to another process that listens here as well, where that can be done; whether it was.
    fn divert(&self) -> bool {
        false
    }

    /// Takes it away from its runtime.
    fn release(self: Box<Self>) -> io::Result<Box<dyn Socket>>;
}

// === impl Listener ===

impl Listener {
    /// What it is bound to: the port that clients connect to where port 0 was asked for.
    ///
    /// # Errors
    ///
    /// What the operating system says; [`InvalidInput`](io::ErrorKind::InvalidInput) if it is in memory.
    pub fn local_addr(&self) -> io::Result<Address> {
        match &self.bound {
            Bound::Idle(socket) => socket.address(),
            Bound::Open(socket) => socket.address(),
        }
    }

    /// Somebody else keeps this socket open as well and accepts from it next: systemd, or the parent that handed it down.
    ///
    /// At the stop it is let go at once, with its backlog: who waits there is answered by the next process. Without that
    /// next process nobody answers, so this is not for a socket that is ours alone.
    ///
    /// Non-blocking is a property of the socket, not of the process: a server that serves it sets it for all who share it.
    pub fn shared(mut self) -> Self {
        self.shared = true;
        self
    }

    /// The listener as one of the standard library, non-blocking if it was served; for TCP.
    ///
    /// # Errors
    ///
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) if it is none of TCP, and what the operating system says.
    pub fn into_tcp(self) -> io::Result<std::net::TcpListener> {
        self.release()?.into_tcp()
    }

    /// The listener as a descriptor, to be passed on to a child process (as a `Stdio`), or to be made a `UnixListener`.
    ///
    /// # Errors
    ///
    /// What the operating system says; [`InvalidInput`](io::ErrorKind::InvalidInput) if it is in memory.
    #[cfg(unix)]
    pub fn into_fd(self) -> io::Result<std::os::fd::OwnedFd> {
        self.release()?.into_fd()
    }

    /// Registers it with the runtime that serves it, unless it is with one.
    pub(super) fn open(self) -> io::Result<Box<dyn Accepts>> {
        match self.bound {
            Bound::Idle(socket) => socket.open(),
            Bound::Open(socket) => Ok(socket),
        }
    }

    fn release(self) -> io::Result<Box<dyn Socket>> {
        match self.bound {
            Bound::Idle(socket) => Ok(socket),
            Bound::Open(socket) => socket.release(),
        }
    }

    pub(super) fn idle(socket: Box<dyn Socket>, shared: bool) -> Self {
        Listener { bound: Bound::Idle(socket), shared }
    }

    pub(super) fn opened(socket: impl Accepts + 'static) -> Self {
        Listener { bound: Bound::Open(Box::new(socket)), shared: false }
    }
}

// === impl Address ===

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(Some(path)) => write!(f, "unix:{}", path.display()),
            Address::Unix(None) => f.write_str("unix:"),
        }
    }
}

// === impl GivenBack ===

impl Future for GivenBack {
    /// Empty if the server was dropped before it came to its stop.
    type Output = Vec<Listener>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Vec<Listener>> {
        Pin::new(&mut self.0).poll(cx).map(Result::unwrap_or_default)
    }
}

impl fmt::Debug for GivenBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GivenBack").finish_non_exhaustive()
    }
}
