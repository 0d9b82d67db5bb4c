//! The scenes: what clients are in the middle of when the signal comes, and what they must see.

mod bodies;
mod handshake;
mod http2;
mod idle;
mod order;
mod partial;
mod streams;

use std::future::Future;
use std::pin::Pin;

use crate::child::Result;
use crate::serve::Which;
use crate::show::Shown;

pub struct Scene {
    pub name: &'static str,
    /// What has to be seen.
    pub must: &'static str,
    /// Whether it is about a moment: run several times, and alone.
    pub race: bool,
    pub play: fn(Which, u32) -> Played,
}

type Played = Pin<Box<dyn Future<Output = Result<Shown>> + Send>>;

macro_rules! scene {
    ($name:literal, $play:path, $must:literal) => {
        Scene { name: $name, must: $must, race: false, play: |which, _| Box::pin($play(which)) }
    };
    ($name:literal, race $play:path, $must:literal) => {
        Scene { name: $name, must: $must, race: true, play: |which, run| Box::pin($play(which, run)) }
    };
}

#[rustfmt::skip] // One scene, one line.
pub const SCENES: &[Scene] = &[
    scene!("idle", idle::idle, "an idle connection: closed within its grace, and the process gone far below the drain"),
    scene!("together", race idle::together, "50 idle connections whose request comes with the signal: all are answered"),
    scene!("on-its-way", race idle::on_its_way, "50 idle connections whose request comes 100 ms later: all are answered"),
    scene!("backlog", race idle::backlog, "20 in the listen backlog when the signal comes: all are answered"),
    scene!("long-backlog", race idle::long_backlog, "100 there: all are answered"),
    scene!("partial", partial::completed, "half a head, completed 300 ms after the signal: answered"),
    scene!("half-head", partial::half_head, "half a head, never completed: 408 within its limit, counted"),
    scene!("half-head-kept", partial::half_head_kept, "the same on a connection that has had an answer"),
    scene!("half-body", partial::half_body, "half a body, never completed: an error with the end of the drain, or cut and counted"),
    scene!("half-preface", partial::half_preface, "half of what HTTP/2 begins with: cut within its limit, counted"),
    scene!("tls-completed", handshake::completed, "half a TLS hello, completed 300 ms after the signal: answered"),
    scene!("tls-half-hello", handshake::half_hello, "half a TLS hello, never completed: cut by its limit, counted"),
    scene!("stalled", bodies::stalled, "a peer that stops reading 5 MB: cut with the drain, counted; others are served"),
    scene!("events", streams::events, "server-sent events: ended with the final chunk"),
    scene!("long-poll", streams::long_poll, "a long poll: answered"),
    scene!("websocket", streams::websocket, "a websocket: close 1001, and nothing of it lives at the end"),
    scene!("h2-streams", http2::streams, "HTTP/2: the running stream is finished, a new one refused retryably"),
    scene!("h2-silent", http2::silent, "HTTP/2: a peer that answers no PING is cut by that limit"),
    scene!("h2-idle-silent", http2::idle_silent, "HTTP/2: an idle peer that does not answer the GOAWAY is cut, counted"),
    scene!("order", order::order, "not ready first, all served through the delay, then new connections refused"),
    scene!("slow-reader", bodies::slow_reader, "5 MB for a slow reader: whole"),
    scene!("half-closed", bodies::half_closed, "a client that has closed its sending half: answered"),
    scene!("early-answer", bodies::early_answer, "413 in the middle of an upload: read by its client"),
];
