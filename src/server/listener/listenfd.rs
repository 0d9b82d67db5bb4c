//! Listeners that systemd, or whoever keeps to its protocol, hands over.

use std::io::{self, ErrorKind};

use listenfd::ListenFd;
use socket2::SockRef;

use super::Listener;

/// More than anybody has; beyond it the number is no number of listeners.
const MOST: usize = 1024;

/// The listeners that were handed to this process by `LISTEN_FDS` and `LISTEN_PID` (`sd_listen_fds(3)`), TCP and Unix
/// sockets, in their order; none if there are none.
///
/// Each is [`shared`](Listener::shared), since systemd keeps its sockets: at the stop they are let go at once, and who waits
/// in their backlogs is answered by the next process. A unit needs `Accept=no`, which is the default.
///
/// Can be asked once: the variables are taken out of the environment, so that no child takes the descriptors for its own, and
/// the descriptors are closed on `exec`. As this changes the environment, ask early, before threads that read it
/// by other means than Rust's.
///
/// ```no_run
/// # fn example(shutdown: &mut winddown::ShutdownCoordinator, app: axum::Router) -> std::io::Result<()> {
/// use winddown::server;
///
/// let mut listeners = server::listeners_from_env()?.into_iter();
/// let first = match listeners.next() {
///     Some(first) => first,
///     None => std::net::TcpListener::bind("127.0.0.1:8080")?.into(),
/// };
/// shutdown.add(listeners.fold(server::axum::serve("http", first, app), server::Server::also));
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// [`InvalidInput`](ErrorKind::InvalidInput) if `LISTEN_FDS` is no number, or a descriptor is not open, or is no listening
/// stream socket; all of them are then lost to this process.
pub fn listeners_from_env() -> io::Result<Vec<Listener>> {
    let count = std::env::var_os("LISTEN_FDS").unwrap_or_default();
    let readable = count.is_empty()
        || count.to_str().and_then(|count| count.parse().ok()).is_some_and(|count: usize| count <= MOST);
    if !readable {
        return Err(refused(format!("LISTEN_FDS is {count:?}: it must be a number of at most {MOST}")));
    }
    let mut handed = ListenFd::from_env();
    (0..handed.len()).map(|at| take(&mut handed, at)).collect()
}

fn take(handed: &mut ListenFd, at: usize) -> io::Result<Listener> {
    let number = at + 1;
    // Each looks before it takes, so that the second has its try.
    let taken = match handed.take_tcp_listener(at) {
        Ok(tcp) => tcp.map(|tcp| (is_listening(&SockRef::from(&tcp)), Listener::from(tcp))),
        Err(_) => handed
            .take_unix_listener(at)
            .map_err(|_| {
                refused(format!("listener {number} of LISTEN_FDS is no stream socket that is open"))
            })?
            .map(|unix| (is_listening(&SockRef::from(&unix)), Listener::from(unix))),
    };
    match taken {
        Some((true, listener)) => Ok(listener.shared()),
        _ => {
            Err(refused(format!("listener {number} of LISTEN_FDS does not listen: the unit needs Accept=no")))
        }
    }
}

fn refused(why: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, why)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_listening(socket: &SockRef<'_>) -> bool {
    socket.is_listener().unwrap_or(true)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn is_listening(_: &SockRef<'_>) -> bool {
    true
}
