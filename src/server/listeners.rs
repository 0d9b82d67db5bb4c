//! All that one server accepts from, side by side.

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::listener::{Accepts, Listener, Socket};
use super::transport::Transport;
use crate::backoff::Backoff;
use crate::budget::Human;

const PAUSE: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_secs(1));
/// How often backlogs are tried again when there is a shortage, with the first pause between.
const LAST_TRIES: u32 = 40;

pub(super) struct Listeners {
    open: Vec<Open>,
    /// Which is asked first, so that a busy one does not starve the rest.
    first: usize,
    /// For a program that wants them back.
    owner: Option<oneshot::Sender<Vec<Listener>>>,
}

/// What kernels still hold of clients, when nothing waits for them any more.
pub(super) struct Backlogs {
    sockets: Vec<Box<dyn Socket>>,
    next: usize,
    tries: u32,
}

/// A listener, and what its errors have come to.
struct Open {
    socket: Box<dyn Accepts>,
    shared: bool,
    failures: u32,
    pause: Option<Pin<Box<Sleep>>>,
}

/// What to do about an error of `accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// The one connection is gone; the next may be fine.
    Connection,
    /// The process or the machine has no more of something: try again later.
    Shortage,
}

// === impl Listeners ===

impl Listeners {
    /// Registers them with the runtime.
    pub(super) fn open(
        all: Vec<Listener>,
        owner: Option<oneshot::Sender<Vec<Listener>>>,
    ) -> io::Result<Self> {
        let open = |listener: Listener| {
            let shared = listener.shared;
            Ok(Open { socket: listener.open()?, shared, failures: 0, pause: None })
        };
        let open = all.into_iter().map(open).collect::<io::Result<_>>()?;
        Ok(Listeners { open, first: 0, owner })
    }

    /// The next connection of any of them. One that is in trouble is tried again later, and keeps none of the others.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken before this is ready.
    pub(super) async fn accept(&mut self, gate: &str) -> Transport {
        poll_fn(|cx| self.poll_accept(cx, gate)).await
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>, gate: &str) -> Poll<Transport> {
        let count = self.open.len();
        for at in (self.first..self.first + count).map(|at| at % count) {
            if let Poll::Ready(stream) = self.open[at].poll_accept(cx, gate) {
                self.first = (at + 1) % count;
                return Poll::Ready(stream);
            }
        }
        Poll::Pending
    }

    /// Lets go of those that live on elsewhere, with their backlogs: who waits there is served from the same queue.
    pub(super) fn hand_on(&mut self) {
        let Some(owner) = self.owner.take().filter(|owner| !owner.is_closed()) else {
            self.open.retain(|open| !open.shared);
            return;
        };
        // One that the runtime does not let go of cannot be had back.
        let idle = |open: Open| Some(Listener::idle(open.socket.release().ok()?, open.shared));
        let _ = owner.send(self.open.drain(..).filter_map(idle).collect());
    }

    /// Leaves new clients to whoever listens at the same address; whether there is any listener that can.
    pub(super) fn divert(&self) -> bool {
        self.open.iter().filter(|open| open.socket.divert()).count() > 0
    }

    pub(super) fn into_backlogs(self) -> Backlogs {
        let sockets = self.open.into_iter().filter_map(|open| open.socket.release().ok()).collect();
        Backlogs { sockets, next: 0, tries: 0 }
    }
}

// === impl Backlogs ===

impl Backlogs {
    /// The next client of any of them; each is closed when it has none. `None` when all are.
    pub(super) async fn next(&mut self, gate: &str) -> Option<Transport> {
        loop {
            self.next = if self.next < self.sockets.len() { self.next } else { 0 };
            match self.sockets.get(self.next)?.accept_now() {
                Ok(stream) => {
                    self.next += 1;
                    return Some(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => drop(self.sockets.remove(self.next)),
                Err(error) if Trouble::of(&error) == Trouble::Connection => {}
                Err(error) if self.tries == LAST_TRIES => {
                    tracing::warn!(target: "winddown", gate, %error, "backlog.lost");
                    return None;
                }
                Err(_) => {
                    self.tries += 1;
                    tokio::time::sleep(PAUSE.after(0)).await;
                }
            }
        }
    }
}

// === impl Open ===

impl Open {
    fn poll_accept(&mut self, cx: &mut Context<'_>, gate: &str) -> Poll<Transport> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            let error = match ready!(self.socket.poll_accept(cx)) {
                Ok(stream) => {
                    self.failures = 0;
                    return Poll::Ready(stream);
                }
                Err(error) => error,
            };
            if Trouble::of(&error) == Trouble::Shortage {
                let pause = PAUSE.after(self.failures);
                tracing::warn!(target: "winddown", gate, %error, pause = %Human(pause), "accept.failed");
                self.failures = self.failures.saturating_add(1);
                self.pause = Some(Box::pin(tokio::time::sleep(pause)));
            }
        }
    }
}

// === impl Trouble ===

impl Trouble {
    fn of(error: &io::Error) -> Trouble {
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
