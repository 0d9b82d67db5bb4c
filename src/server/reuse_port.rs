//! `SO_REUSEPORT`: several sockets listen at one address, and the kernel gives each new client to one of them for good.

use std::io;

use socket2::SockRef;

/// Allows others of the same user to bind the same address.
#[cfg(all(unix, not(any(target_os = "solaris", target_os = "illumos", target_os = "cygwin"))))]
pub(super) fn set(socket: &socket2::Socket) -> io::Result<()> {
    // As the standard library does: connections of an earlier process that linger are no obstacle.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)
}

#[cfg(not(all(unix, not(any(target_os = "solaris", target_os = "illumos", target_os = "cygwin")))))]
pub(super) fn set(_: &socket2::Socket) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "there is no SO_REUSEPORT on this system"))
}

/// From here on the kernel drops what asks this socket for a new connection, if others may listen at its address; whether it does.
///
/// Until the socket is closed the kernel goes on choosing it for its share of new clients. Those that come between the last
/// `accept` and the close, and those whose handshake is half done then, would be reset, although the next process listens. A
/// SYN that is dropped is sent again after a second, and by then goes to the other socket. A lone listener is left as it is:
/// there, being refused at once is right.
///
/// Not instead of it: `net.ipv4.tcp_migrate_req` moves such clients over and costs nobody a second, but is the machine's setting and
/// off; a program for the choice (`SO_ATTACH_REUSEPORT_CBPF`) belongs to all sockets of the address and names them by an
/// index that none of them can know of itself.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn divert(listener: &SockRef<'_>) -> bool {
    matches!(listener.reuse_port(), Ok(true)) && listener.attach_filter(&SYN_DROPPED).is_ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn divert(_: &SockRef<'_>) -> bool {
    false
}

/// Classic BPF; what it sees begins with the TCP header, over IPv4 and IPv6 alike. The last ACK of a handshake has to pass, or
/// it would never be complete. Connections inherit the filter, and are sent no such SYN.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SYN_DROPPED: [socket2::SockFilter; 5] = {
    use socket2::SockFilter;
    const LOAD_BYTE: u16 = 0x30;
    const AND: u16 = 0x54;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    const FLAGS: u32 = 13;
    const SYN: u32 = 0x02;
    const ACK: u32 = 0x10;
    [
        SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
        SockFilter::new(AND, 0, 0, SYN | ACK),
        SockFilter::new(JUMP_IF_EQUAL, 0, 1, SYN),
        SockFilter::new(RETURN, 0, 0, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
    ]
};

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::server::Listener;

    const CLIENTS: usize = 32;

    fn pair(address: &str) -> (TcpListener, TcpListener) {
        let bind = |address| Listener::bind_reuse_port(address).unwrap().into_tcp().unwrap();
        let first = bind(address.parse::<SocketAddr>().unwrap());
        let second = bind(first.local_addr().unwrap());
        for listener in [&first, &second] {
            listener.set_nonblocking(true).unwrap();
        }
        (first, second)
    }

    fn backlog(listener: &TcpListener) -> usize {
        std::iter::from_fn(|| listener.accept().ok()).count()
    }

    #[test]
    fn a_client_that_comes_late_waits_for_the_next_process_and_is_not_reset() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (leaves, stays) = pair(address);
            let at = stays.local_addr().unwrap();
            assert!(divert(&SockRef::from(&leaves)));
            let began = Instant::now();
            let clients: Vec<_> =
                (0..CLIENTS).map(|_| thread::spawn(move || TcpStream::connect(at).map(drop))).collect();
            while backlog_so_far(&clients) == 0 && began.elapsed() < Duration::from_secs(5) {
                thread::sleep(Duration::from_millis(10));
            }
            thread::sleep(Duration::from_millis(200));
            assert_eq!(backlog(&leaves), 0, "nobody gets in here any more");
            let at_once = backlog(&stays);
            // One in two, by the kernel's choice; that all choose alike is less likely than one in a thousand million.
            assert!((1..CLIENTS).contains(&at_once), "{at_once}");
            drop(leaves);
            for client in clients {
                client.join().unwrap().expect("connected in the end");
            }
            assert!(began.elapsed() > Duration::from_millis(900), "by a SYN that was sent again");
            assert_eq!(at_once + backlog(&stays), CLIENTS);
        }
    }

    #[test]
    fn a_lone_listener_goes_on_as_it_was() {
        let lone = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(!divert(&SockRef::from(&lone)));
        TcpStream::connect(lone.local_addr().unwrap()).unwrap();
    }

    fn backlog_so_far<T>(clients: &[thread::JoinHandle<T>]) -> usize {
        clients.iter().filter(|client| client.is_finished()).count()
    }
}
