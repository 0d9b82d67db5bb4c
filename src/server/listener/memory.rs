//! Accepts from inside the process: a test of a server on paused time, whose bytes take no time.

use std::io::{self, ErrorKind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use super::{Accepts, Address, Listener, Socket};
use crate::server::transport::{Io, Transport};

/// Connects to the listener that it was made with by [`in_memory`]; clones do, too.
#[derive(Debug, Clone)]
pub struct Connector {
    backlog: mpsc::UnboundedSender<DuplexStream>,
    buffer: usize,
}

#[derive(Debug)]
struct Memory(Mutex<mpsc::UnboundedReceiver<DuplexStream>>);

/// A listener without a network, and what connects to it. Each direction of a connection holds `buffer` bytes that nobody has
/// read, at least 1.
///
/// On paused time ([`tokio::time::pause`]) time stands still while bytes are on their way, which it does not for sockets.
///
/// ```
/// # use winddown::{Budget, ShutdownCoordinator, server, signal};
/// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// # #[cfg(feature = "axum")] #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (listener, connector) = server::in_memory(64 << 10);
/// let mut shutdown = ShutdownCoordinator::new(Budget::default(), signal::none())?;
/// let app = axum::Router::new().route("/", axum::routing::get(async || "hello"));
/// shutdown.add(server::axum::serve("http", listener, app));
///
/// let mut client = connector.connect()?;
/// client.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await?;
/// let (handle, running) = (shutdown.handle(), tokio::spawn(shutdown.run()));
/// let mut answer = Vec::new();
/// while !answer.ends_with(b"hello") {
///     assert!(client.read_buf(&mut answer).await? > 0);
/// }
/// // A stop before this would have found nothing started yet.
/// handle.trigger("test");
/// assert!(running.await?.is_clean());
/// # Ok(()) }
/// # #[cfg(not(feature = "axum"))] fn main() {}
/// ```
pub fn in_memory(buffer: usize) -> (Listener, Connector) {
    let (backlog, accepts) = mpsc::unbounded_channel();
    let connector = Connector { backlog, buffer: buffer.max(1) };
    (Listener::idle(Box::new(Memory(Mutex::new(accepts))), false), connector)
}

// === impl Connector ===

impl Connector {
    /// The client's end of a new connection.
    ///
    /// # Errors
    ///
    /// [`ConnectionRefused`](ErrorKind::ConnectionRefused) once the listener is closed.
    pub fn connect(&self) -> io::Result<DuplexStream> {
        let (ours, theirs) = tokio::io::duplex(self.buffer);
        self.backlog.send(theirs).map_err(|_| ErrorKind::ConnectionRefused)?;
        Ok(ours)
    }
}

// === impl Memory ===

impl Memory {
    fn lock(&self) -> MutexGuard<'_, mpsc::UnboundedReceiver<DuplexStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_socket() -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, "the listener is in memory, and no socket")
}

impl Socket for Memory {
    fn address(&self) -> io::Result<Address> {
        Err(no_socket())
    }

    fn open(self: Box<Self>) -> io::Result<Box<dyn Accepts>> {
        Ok(self)
    }

    fn accept_now(&self) -> io::Result<Transport> {
        let stream = self.lock().try_recv().map_err(|_| ErrorKind::WouldBlock)?;
        Ok(Transport::Other(Box::new(stream)))
    }

    fn into_tcp(self: Box<Self>) -> io::Result<std::net::TcpListener> {
        Err(no_socket())
    }

    #[cfg(unix)]
    fn into_fd(self: Box<Self>) -> io::Result<std::os::fd::OwnedFd> {
        Err(no_socket())
    }
}

impl Accepts for Memory {
    fn address(&self) -> io::Result<Address> {
        Err(no_socket())
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Transport>> {
        match self.lock().poll_recv(cx) {
            Poll::Ready(Some(stream)) => Poll::Ready(Ok(Transport::Other(Box::new(stream)))),
            // Without a connector nobody will ever come.
            Poll::Ready(None) | Poll::Pending => Poll::Pending,
        }
    }

    fn release(self: Box<Self>) -> io::Result<Box<dyn Socket>> {
        Ok(self)
    }
}

// === impl DuplexStream ===

impl Io for DuplexStream {}
