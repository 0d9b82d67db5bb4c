//! What a server accepts from.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};

/// A bound listener, of tokio or of the standard library, blocking or not.
#[derive(Debug)]
pub struct Listener(Bound);

#[derive(Debug)]
enum Bound {
    Tokio(TcpListener),
    Std(std::net::TcpListener),
}

/// What to do about an error of `accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The one connection is gone; the next may be fine.
    Connection,
    /// The process or the machine has no more of something: try again later.
    Shortage,
}

// === impl Listener ===

impl Listener {
    /// The address that it is bound to: what clients connect to where port 0 was asked for.
    ///
    /// # Errors
    ///
    /// What the operating system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            Bound::Tokio(listener) => listener.local_addr(),
            Bound::Std(listener) => listener.local_addr(),
        }
    }

    /// Registers it with the runtime that serves it.
    pub(super) fn open(self) -> io::Result<TcpListener> {
        match self.0 {
            Bound::Tokio(listener) => Ok(listener),
            Bound::Std(listener) => {
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener)
            }
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Listener(Bound::Tokio(listener))
    }
}

impl From<std::net::TcpListener> for Listener {
    fn from(listener: std::net::TcpListener) -> Self {
        Listener(Bound::Std(listener))
    }
}

/// Asks the kernel itself, not the runtime, which hears of a new connection only later.
pub(super) fn accept_now(listener: &std::net::TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept()?;
    stream.set_nonblocking(true)?;
    TcpStream::from_std(stream)
}

// === impl Trouble ===

impl Trouble {
    pub(super) fn of(error: &io::Error) -> Trouble {
        match error.kind() {
            ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::Interrupted => Trouble::Connection,
            // Also for what nobody has heard of yet: a loop that backs off does no harm.
            _ => Trouble::Shortage,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_of_descriptors_is_waited_out_and_a_lost_connection_is_not() {
        const EMFILE: i32 = 24;
        assert_eq!(Trouble::of(&io::Error::from_raw_os_error(EMFILE)), Trouble::Shortage);
        assert_eq!(Trouble::of(&ErrorKind::OutOfMemory.into()), Trouble::Shortage);
        assert_eq!(Trouble::of(&ErrorKind::ConnectionAborted.into()), Trouble::Connection);
    }
}
