//! What a connection may be doing, and how it is told to end.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum State {
    Idle,
    Head,
    Request,
    Body,
    Upgraded,
    Handshaking,
}

/// How an HTTP/1 peer is told to go, where it next has to be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Closing {
    No,
    /// Read once more; if there is nothing, the end.
    Idle,
    /// Read once more; if the head is still not complete, 408.
    Head,
}

// === impl State ===

impl State {
    pub(super) const ALL: [State; 6] =
        [State::Idle, State::Head, State::Request, State::Body, State::Upgraded, State::Handshaking];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Head => "head",
            State::Request => "request",
            State::Body => "body",
            State::Upgraded => "upgraded",
            State::Handshaking => "handshaking",
        }
    }
}

// === impl Closing ===

impl Closing {
    pub(super) fn of(number: u8) -> Self {
        match number {
            0 => Closing::No,
            1 => Closing::Idle,
            _ => Closing::Head,
        }
    }
}
