//! HTTP/2, with prior knowledge.

use crate::child::{Child, Result, Setting};
use crate::client::Client;
use crate::frames::{GOAWAY, HEADERS, Http2, PING, REFUSED_STREAM, RST_STREAM};
use crate::serve::Which;
use crate::show::Shown;

/// What a GOAWAY says that does not know yet what the last stream will have been.
const NOT_YET: u32 = u32::MAX >> 1;

pub async fn streams(which: Which) -> Result<Shown> {
    const RUNNING: u32 = 1;
    const NEW: u32 = 3;
    let child = Child::start(which, Setting::LONG).await?;
    let mut peer = Http2::start(Client::connect(child.addr).await?).await?;
    peer.get(RUNNING, "/slow?ms=1500").await?;
    peer.seen().await?;
    let stopping = child.term();
    let (mut last, mut asked, mut ok, mut finished) = (None, false, false, false);
    let (mut refused, mut served) = (false, false);
    // Until the connection ends, however it does.
    while let Ok(frame) = peer.next().await {
        match (frame.kind, frame.stream) {
            // A peer that is gone has its end seen by the next read.
            (PING, _) => drop(peer.pong(&frame).await),
            (GOAWAY, _) => {
                last = Some(frame.number(0));
                if last < Some(NOT_YET) && !asked {
                    asked = true;
                    drop(peer.get(NEW, "/").await);
                }
            }
            (HEADERS, RUNNING) => ok = frame.is_ok(),
            (HEADERS, NEW) => served = true,
            (RST_STREAM, NEW) => refused = frame.number(0) == REFUSED_STREAM,
            _ => {}
        }
        finished |= frame.stream == RUNNING && frame.ends_stream();
    }
    let ended = stopping.ended().await?;
    // By RFC 9113, 6.8: streams beyond the last one that is named were not acted on and can be sent again.
    let retryable = asked && !served && (refused || last < Some(NEW));
    let words = match (ok && finished, asked, retryable) {
        (false, ..) => "the running stream is lost",
        (true, false, _) => "finished, no GOAWAY that names the last stream",
        (true, true, false) => "finished, the new one not refused",
        (true, true, true) => "finished, the new one refused retryably",
    };
    let held = ok && finished && retryable && ended.within(Setting::SOON);
    Ok(Shown::new(held, format!("{words}; {ended}")))
}

pub async fn silent(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    let mut peer = Http2::start(Client::connect(child.addr).await?).await?;
    peer.get(1, "/slow?ms=60000").await?;
    peer.seen().await?;
    let stopping = child.term();
    let (cut, _) = peer.0.end().await;
    let ended = stopping.ended().await?;
    let held = cut < Setting::SOON && !ended.killed && ended.took < Setting::LONG.drain;
    Ok(Shown::new(held, format!("cut after {:.1} s; {ended}; {}", cut.as_secs_f64(), ended.counted())))
}

/// The GOAWAY that names the last stream waits for the peer, which has none.
pub async fn idle_silent(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    let mut peer = Http2::start(Client::connect(child.addr).await?).await?;
    peer.seen().await?;
    let stopping = child.term();
    let (cut, _) = peer.0.end().await;
    let ended = stopping.ended().await?;
    let held = cut < Setting::SOON && ended.within(Setting::SOON) && ended.counts(1, &["idle"]);
    Ok(Shown::new(held, format!("cut after {:.1} s; {ended}; {}", cut.as_secs_f64(), ended.counted())))
}
