//! What is known of a peer: which state its connection is in, and how it ended.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::task::Context;

use futures_util::task::AtomicWaker;
use tokio::sync::OwnedSemaphorePermit;

use super::cx::RequestCx;
use crate::{Gate, InFlight, ShutdownHandle};

mod given_up;
mod state;
#[cfg(test)]
mod tests;
mod turn;

use given_up::GivenUp;
pub(super) use state::{Closing, State};
pub(super) use turn::Turn;
use turn::{ANSWERING, BEGUN};

/// One connection, shared by its socket, its requests and its driver; in flight until the last of them is gone.
///
/// Over HTTP/1 all of them live in the driver's task, over HTTP/2 requests have tasks of their own. The marks are read to
/// choose a time limit or a word for the report, and nothing is ordered by them: all relaxed.
pub(super) struct Peer {
    /// Taken by the drop alone.
    in_flight: Option<InFlight>,
    pub(super) gate: Gate,
    pub(super) handle: ShutdownHandle,
    _place: Option<OwnedSemaphorePermit>,
    remote_addr: Option<SocketAddr>,
    /// Requests begun and not ended, in the lower half; of these, those with an answer under way, in the upper.
    turns: AtomicU64,
    /// Request bodies that somebody may still read.
    bodies: AtomicU32,
    /// HTTP/1: whether the end of the last request's body has been seen.
    unread: AtomicU8,
    /// A request body was ended before its end.
    withheld: AtomicBool,
    /// HTTP/1: the answer is complete, and its last bytes are still in our buffers.
    unflushed: AtomicBool,
    /// Bytes have come that do not make a request yet.
    head: AtomicBool,
    /// The bytes that came last begin something that does not end with them.
    open: AtomicBool,
    /// Bytes have come at all.
    heard: AtomicBool,
    /// A request has come since somebody last looked.
    asked: AtomicBool,
    h2: AtomicBool,
    upgraded: AtomicBool,
    /// HTTP/2: bytes of ours wait until the peer reads.
    blocked: AtomicBool,
    /// HTTP/2: bytes have come or gone since somebody last looked.
    moved: AtomicBool,
    /// HTTP/2: streams that have become something else.
    tunnels: AtomicU32,
    handshaking: AtomicBool,
    closing: AtomicU8,
    /// HTTP/2: it has answered no PING.
    unanswered: AtomicBool,
    given_up: GivenUp,
    /// The connection came to its end by itself.
    ended: AtomicBool,
    cut: AtomicU8,
    /// Who has to look again when something ends in another task.
    driver: AtomicWaker,
    /// All is written, and what still comes is discarded.
    lingering: AtomicBool,
    /// The end of the answer is the end of the connection, so that a cut would look like it.
    close_delimited: AtomicBool,
}

/// All of the last request's body has been read.
const READ: u8 = 0;
/// It was not, so that the next bytes may be its rest: hyper takes a piece that is small, and closes otherwise.
const UNREAD: u8 = 1;
/// It was not, and these bytes have come.
const SKIPPED: u8 = 2;

/// Beside the state in which a connection was cut: it was the end of the drain that cut it, and no limit of its own.
const OVERDUE: u8 = 0x80;
/// Where the state stands in which a connection was cut: not the peer, but a handler made it end.
const PANICKED: u8 = u8::MAX;

// === impl Peer ===

impl Peer {
    pub(super) fn new(
        in_flight: InFlight,
        gate: Gate,
        handle: ShutdownHandle,
        place: Option<OwnedSemaphorePermit>,
        remote_addr: Option<SocketAddr>,
    ) -> Arc<Self> {
        Arc::new(Peer {
            in_flight: Some(in_flight),
            gate,
            handle,
            _place: place,
            remote_addr,
            turns: AtomicU64::new(0),
            bodies: AtomicU32::new(0),
            unread: AtomicU8::new(READ),
            withheld: AtomicBool::new(false),
            unflushed: AtomicBool::new(false),
            head: AtomicBool::new(false),
            open: AtomicBool::new(false),
            heard: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            h2: AtomicBool::new(false),
            upgraded: AtomicBool::new(false),
            blocked: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            tunnels: AtomicU32::new(0),
            handshaking: AtomicBool::new(false),
            closing: AtomicU8::new(Closing::No as u8),
            unanswered: AtomicBool::new(false),
            given_up: GivenUp::default(),
            ended: AtomicBool::new(false),
            cut: AtomicU8::new(0),
            driver: AtomicWaker::new(),
            lingering: AtomicBool::new(false),
            close_delimited: AtomicBool::new(false),
        })
    }

    pub(super) fn state(&self) -> State {
        let turns = self.turns.load(Relaxed);
        let (begun, answering) = (turns & (ANSWERING - 1), turns >> 32);
        if self.upgraded.load(Relaxed) {
            State::Upgraded
        } else if begun > answering || self.bodies.load(Relaxed) > 0 {
            State::Request
        } else if self.tunnels.load(Relaxed) > 0 {
            State::Upgraded
        } else if begun > 0 || self.is_unflushed() || self.has_withheld() && !self.is_h2() {
            // HTTP/1 cannot go on after a body that was not read to its end: the answer is the last one.
            State::Body
        } else if self.head.load(Relaxed) && !self.is_h2() {
            State::Head
        } else if self.handshaking.load(Relaxed) {
            State::Handshaking
        } else {
            State::Idle
        }
    }

    pub(super) fn begin(self: &Arc<Self>) -> Turn {
        self.turns.fetch_add(BEGUN, Relaxed);
        self.asked.store(true, Relaxed);
        self.head.store(false, Relaxed);
        self.unread.store(READ, Relaxed);
        self.close(Closing::No);
        Turn { peer: Arc::clone(self), answering: false, upgrade: false }
    }

    /// Whether it is only about to become a peer that can ask.
    pub(super) fn shake_hands(&self, handshaking: bool) {
        self.handshaking.store(handshaking, Relaxed);
    }

    /// What a request is told of the stop.
    pub(super) fn cx(&self) -> Option<RequestCx> {
        let in_flight = self.in_flight.as_ref()?;
        Some(RequestCx::of_connection(in_flight, self.remote_addr))
    }

    /// Bytes have come; as far as they show it, they end where a head does or are `open`.
    pub(super) fn hear(&self, open: bool) {
        self.heard.store(true, Relaxed);
        self.open.store(open, Relaxed);
        if self.bodies.load(Relaxed) == 0 {
            match (self.is_busy(), self.unread.load(Relaxed)) {
                (false, UNREAD) => self.unread.store(SKIPPED, Relaxed),
                (false, _) => self.head.store(true, Relaxed),
                // The request in progress has come whole: this follows it.
                (true, READ) => self.head.store(open, Relaxed),
                (true, _) => {}
            }
        }
        if self.closing() == Closing::Idle {
            self.close(Closing::No);
        }
    }

    /// A request ends with an empty line: what came after that, if anything did, begins the next.
    pub(super) fn no_more(&self) {
        self.head.store(self.open.load(Relaxed), Relaxed);
    }

    /// A request has a body that has not wholly come.
    pub(super) fn open_body(&self) {
        self.bodies.fetch_add(1, Relaxed);
        self.unread.store(UNREAD, Relaxed);
    }

    /// The end of a request's body has been read.
    pub(super) fn body_read(&self) {
        self.unread.store(READ, Relaxed);
    }

    /// Whether a request is answered, and somebody still reads it.
    pub(super) fn is_read_elsewhere(&self) -> bool {
        !self.is_busy() && self.bodies.load(Relaxed) > 0
    }

    /// Wakes the driver when something ends that runs in another task: that hyper was woken for it may be too early. To be
    /// called before the state is read.
    pub(super) fn watch(&self, cx: &Context<'_>) {
        self.driver.register(cx.waker());
    }

    /// Nobody reads that body any more.
    pub(super) fn close_body(&self) {
        self.bodies.fetch_sub(1, Relaxed);
        self.driver.wake();
    }

    /// A request's body was ended here, because there is no more time.
    pub(super) fn withhold_body(&self) {
        self.withheld.store(true, Relaxed);
    }

    pub(super) fn has_withheld(&self) -> bool {
        self.withheld.load(Relaxed)
    }

    /// Whether a request has come since this was last asked.
    pub(super) fn take_asked(&self) -> bool {
        self.asked.swap(false, Relaxed)
    }

    /// From here on [`take_asked`](Self::take_asked) tells of the requests that are in progress or come later.
    pub(super) fn forget_asked(&self) {
        self.asked.store(self.is_busy(), Relaxed);
    }

    /// Whether a request is in progress whose answer is not complete.
    pub(super) fn is_busy(&self) -> bool {
        self.turns.load(Relaxed) > 0
    }

    pub(super) fn has_heard(&self) -> bool {
        self.heard.load(Relaxed)
    }

    /// All that was written has left for the peer.
    pub(super) fn flushed(&self) {
        if self.unflushed.load(Relaxed) {
            self.unflushed.store(false, Relaxed);
        }
    }

    pub(super) fn is_h2(&self) -> bool {
        self.h2.load(Relaxed)
    }

    pub(super) fn set_h2(&self) {
        self.h2.store(true, Relaxed);
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Relaxed)
    }

    /// HTTP/2: whether bytes of ours wait until the peer reads.
    pub(super) fn block(&self, blocked: bool) {
        self.blocked.store(blocked, Relaxed);
    }

    fn is_unflushed(&self) -> bool {
        self.unflushed.load(Relaxed) || self.blocked.load(Relaxed)
    }

    /// HTTP/2: bytes have come or gone.
    pub(super) fn note_moved(&self) {
        self.moved.store(true, Relaxed);
    }

    /// Whether bytes have come or gone since this was last asked.
    pub(super) fn take_moved(&self) -> bool {
        self.moved.swap(false, Relaxed)
    }

    pub(super) fn open_tunnel(&self) {
        self.tunnels.fetch_add(1, Relaxed);
    }

    pub(super) fn close_tunnel(&self) {
        self.tunnels.fetch_sub(1, Relaxed);
        self.driver.wake();
    }

    pub(super) fn closing(&self) -> Closing {
        Closing::of(self.closing.load(Relaxed))
    }

    pub(super) fn close(&self, how: Closing) {
        self.closing.store(how as u8, Relaxed);
    }

    /// Whether the peer may be sending what nobody will read.
    pub(super) fn may_be_sending(&self) -> bool {
        if self.is_h2() {
            // Its frames about an answer that it has not read yet.
            return self.take_asked();
        }
        let unread = self.unread.load(Relaxed) != READ && self.closing() == Closing::No;
        unread || self.state() == State::Head
    }

    pub(super) fn linger(&self) {
        self.lingering.store(true, Relaxed);
    }

    pub(super) fn is_lingering(&self) -> bool {
        self.lingering.load(Relaxed)
    }

    /// The answer that begins says nothing of its length.
    pub(super) fn delimit_by_close(&self) {
        self.close_delimited.store(true, Relaxed);
    }

    /// Whether an end here would look like that of a whole answer, and is not.
    pub(super) fn would_look_whole(&self) -> bool {
        self.close_delimited.load(Relaxed) && (self.is_busy() || self.unflushed.load(Relaxed))
    }

    /// The peer is made to end in the state that it is in now.
    pub(super) fn cut(&self) {
        self.cut_in(self.state());
    }

    pub(super) fn cut_in(&self, state: State) {
        // The first state stays: later ones come of the cut itself.
        let overdue = if self.gate.is_cancelled() { OVERDUE } else { 0 };
        let _ = self.cut.compare_exchange(0, (state as u8 + 1) | overdue, Relaxed, Relaxed);
    }

    /// It was silent for as long as a PING may take.
    pub(super) fn answers_no_ping(&self) {
        self.unanswered.store(true, Relaxed);
    }

    pub(super) fn has_answered_pings(&self) -> bool {
        !self.unanswered.load(Relaxed)
    }

    /// The connection has come to its end by itself, or has become something else.
    pub(super) fn ended(&self) {
        self.ended.store(true, Relaxed);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let Some(in_flight) = self.in_flight.take() else { return };
        // An upgraded connection that outlived the drain, and a driver that was taken away, had no time to say it.
        let overdue = self.is_upgraded() && in_flight.is_cancelled();
        if overdue || !*self.ended.get_mut() && !*self.lingering.get_mut() {
            self.cut();
        }
        match *self.cut.get_mut() {
            0 => drop(in_flight),
            PANICKED => in_flight.cut("panicked"),
            cut => {
                let state = State::ALL[usize::from((cut & !OVERDUE) - 1)];
                in_flight.cut_as(state.as_str(), cut & OVERDUE != 0);
            }
        }
    }
}
