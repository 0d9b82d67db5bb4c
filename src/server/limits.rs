//! What is granted to peers.

use std::time::Duration;

use super::Server;
use crate::budget::LONGEST;

/// A SYN that was dropped comes again after 1 s, when the socket has to be closed.
const LONGEST_HANDOVER: Duration = Duration::from_millis(900);

/// What is granted to peers. Durations are upper bounds; a peer that does what it should waits for none of them.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    pub(super) connections: usize,
    pub(super) backlog: usize,
    pub(super) handover: Duration,
    pub(super) handshake: Duration,
    pub(super) head: Duration,
    pub(super) head_size: usize,
    pub(super) keep_alive: Duration,
    pub(super) ping: Duration,
    pub(super) write_stall: Duration,
    pub(super) hang_up: Duration,
    pub(super) idle_grace: Duration,
    pub(super) head_grace: Duration,
    pub(super) cancel_grace: Duration,
}

// === impl Server ===

impl<S> Server<S> {
    /// How many connections are open at most; 10 000 when not given, at least 1. Those beyond wait in the kernel's backlog.
    ///
    /// Each needs a file descriptor: `ulimit -n` is the other bound, at which the server backs off and goes on. What is taken
    /// from backlogs at the stop comes on top, up to [`max_backlog`](Self::max_backlog).
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.limits.connections = connections.clamp(1, tokio::sync::Semaphore::MAX_PERMITS);
        self
    }

    /// How many connections are taken from the kernel's backlog at the stop, at most; 4096 when not given.
    ///
    /// It is a count, not a time: under load a backlog never runs empty. Those beyond are reset when the listener closes.
    pub fn max_backlog(mut self, connections: usize) -> Self {
        self.limits.backlog = connections;
        self
    }

    /// At the stop, for listeners with `SO_REUSEPORT` on Linux: how long handshakes of TCP that are half done have to be
    /// completed; 10 ms when not given, at most 900 ms.
    ///
    /// It has to be longer than the way to the clients and back; a few milliseconds do where a balancer in the same
    /// network is the client. In this time new clients are left to the next process, which costs those that the kernel
    /// would have sent here one second each (RFC 6298, 2); so no longer than it has to be, and less than
    /// `StopIntake` has (1 s, or a quarter of the drain where that is less). See
    /// [`Listener::bind_reuse_port`](super::Listener::bind_reuse_port).
    pub fn handover(mut self, limit: Duration) -> Self {
        self.limits.handover = limit.min(LONGEST_HANDOVER);
        self
    }

    /// How long an HTTP/1 request's head may take from its first byte, and a new connection until that byte; 30 s when not
    /// given. Then 408 (RFC 9110, 15.5.9), or for a silent peer the end.
    pub fn head_limit(mut self, limit: Duration) -> Self {
        self.limits.head = limit.min(LONGEST);
        self
    }

    /// How large a request's head may be, in bytes; 64 KiB when not given, at least 8 KiB. Beyond: 431 (RFC 6585, 5).
    pub fn max_head_size(mut self, bytes: usize) -> Self {
        self.limits.head_size = bytes.max(8 << 10);
        self
    }

    /// How long a connection is kept while its client asks for nothing; 620 s when not given, and up to twice that.
    ///
    /// It has to be longer than the idle limit of whatever balancer is in front, or that sends requests into a close; the
    /// longest that is common is 600 s.
    pub fn keep_alive(mut self, limit: Duration) -> Self {
        self.limits.keep_alive = limit.min(LONGEST);
        self
    }

    /// How long an HTTP/2 peer may be silent before it is sent a PING (RFC 9113, 6.7), and again until it has answered; 20 s
    /// when not given, at least 1 s. Then it is cut. Idle ones are asked, too.
    pub fn ping(mut self, interval: Duration) -> Self {
        self.limits.ping = interval.clamp(Duration::from_secs(1), LONGEST);
        self
    }

    /// How long a peer may read nothing of what is sent to it; 60 s when not given. Then it is cut.
    ///
    /// What counts is that the system takes more of it: a peer that reads slowly is none that stalls. An HTTP/2 peer that reads
    /// and grants no more of one stream is not seen by this, and is cut when the drain is over.
    pub fn write_stall(mut self, limit: Duration) -> Self {
        self.limits.write_stall = limit.min(LONGEST);
        self
    }

    /// How long an HTTP/1 request goes on whose client has closed its side; 1 s when not given. Then its handler is dropped.
    ///
    /// A client that has hung up and one that has no more to send, and waits for its answer, look the same until something is
    /// written to them (a FIN closes one direction only; RFC 9293, 3.6). An answer that is being written goes on for as long as
    /// the client reads it.
    pub fn hang_up(mut self, limit: Duration) -> Self {
        self.limits.hang_up = limit.min(LONGEST);
        self
    }

    /// At the stop: how long an idle HTTP/1 connection is kept for a request that is on its way; 250 ms when not given.
    ///
    /// From `StopIntake` on. It has to be longer than the way from the clients, since one that sees the close after it has sent
    /// a request cannot know whether that was read (RFC 9112, 9.3.1); the drain of a server with idle connections is no shorter.
    pub fn idle_grace(mut self, grace: Duration) -> Self {
        self.limits.idle_grace = grace.min(LONGEST);
        self
    }

    /// At the stop: how long the rest of a partial head may take, or of a TLS handshake; 1 s when not given. Then 408, or the
    /// end. HTTP/2 peers without a running stream get as long to answer the GOAWAY (RFC 9113, 6.8).
    pub fn head_grace(mut self, grace: Duration) -> Self {
        self.limits.head_grace = grace.min(LONGEST);
        self
    }

    /// When the drain is over: how long requests still have to come to an end before they are cut; 100 ms when not given.
    ///
    /// What they still read of a request [ends](super::RequestBody) at its beginning. Then clients whose handlers have not answered
    /// are told so with 503, and HTTP/2 peers which streams were cut; each takes 100 ms more at most.
    pub fn cancel_grace(mut self, grace: Duration) -> Self {
        self.limits.cancel_grace = grace.min(LONGEST);
        self
    }
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 10_000,
            backlog: 4096,
            handover: Duration::from_millis(10),
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            head_size: 64 << 10,
            keep_alive: Duration::from_secs(620),
            ping: Duration::from_secs(20),
            write_stall: Duration::from_secs(60),
            hang_up: Duration::from_secs(1),
            idle_grace: Duration::from_millis(250),
            head_grace: Duration::from_secs(1),
            cancel_grace: Duration::from_millis(100),
        }
    }
}
