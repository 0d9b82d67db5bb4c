//! Requests of which a part has come.

use std::time::Duration;

use crate::child::{Child, Result, Setting};
use crate::client::{Client, Got, get};
use crate::frames::PREFACE;
use crate::serve::Which;
use crate::show::Shown;

/// The head's own limit, and what a busy machine adds.
const HEAD_LIMIT: Duration = Duration::from_secs(4);
pub async fn completed(which: Which) -> Result<Shown> {
    for _ in 0..Setting::TRIES {
        let child = Child::start(which, Setting::LONG).await?;
        let mut fresh = Client::connect(child.addr).await?;
        let mut kept = Client::kept(child.addr).await?;
        let request = get("/");
        let (first, rest) = request.split_at(20);
        fresh.send(first).await?;
        kept.send(first).await?;
        seen(child.addr).await?;
        let stopping = child.term();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let _ = (fresh.send(rest).await, kept.send(rest).await);
        let late = stopping.elapsed();
        let (fresh, kept) = tokio::join!(fresh.answer(), kept.answer());
        let ended = stopping.ended().await?;
        let held = fresh.is(200) && kept.is(200) && ended.within(Setting::SOON);
        if late < Setting::LATE {
            return Ok(Shown::new(held, format!("fresh: {fresh}; kept: {kept}; {ended}")));
        }
    }
    Err(Setting::TOO_SLOW.into())
}

pub async fn half_head(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    let client = Client::connect(child.addr).await?;
    head_never_completed(child, client).await
}

pub async fn half_head_kept(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    let client = Client::kept(child.addr).await?;
    head_never_completed(child, client).await
}

async fn head_never_completed(child: Child, mut client: Client) -> Result<Shown> {
    client.send(&get("/")[..20]).await?;
    seen(child.addr).await?;
    let stopping = child.term();
    let got = client.answer().await;
    let answered = stopping.elapsed();
    let (_, cleanly) = client.end().await;
    let ended = stopping.ended().await?;
    let held = got.is(408)
        && cleanly
        && answered < HEAD_LIMIT
        && ended.within(Setting::SOON)
        && ended.counts(1, &["head"]);
    Ok(Shown::new(held, format!("{got} after {:.1} s; {ended}; {}", answered.as_secs_f64(), ended.counted())))
}

/// The handler waits for the body, so that only the end of the drain is a limit. Then it may still answer, or is cut.
pub async fn half_body(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::SHORT).await?;
    let mut client = Client::connect(child.addr).await?;
    client.send("POST /upload HTTP/1.1\r\nhost: test\r\ncontent-length: 1000\r\n\r\n").await?;
    client.send([b'x'; 500]).await?;
    seen(child.addr).await?;
    let stopping = child.term();
    let got = client.answer().await;
    let ended = stopping.ended().await?;
    // What was answered was not cut.
    let counts = match &got {
        Got::Answer(answer) => answer.status >= 400 && ended.counts(0, &[]),
        _ => ended.counts(1, &["request", "body"]),
    };
    let held = counts && ended.within(Setting::SHORT.kill);
    Ok(Shown::new(held, format!("{got}; {ended}; {}", ended.counted())))
}

pub async fn half_preface(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    let mut client = Client::connect(child.addr).await?;
    client.send(&PREFACE[..10]).await?;
    seen(child.addr).await?;
    let stopping = child.term();
    let (cut, _) = client.end().await;
    let ended = stopping.ended().await?;
    let held = cut < HEAD_LIMIT && ended.within(Setting::SOON) && ended.counts(1, &["head"]);
    Ok(Shown::new(held, format!("cut after {:.1} s; {ended}; {}", cut.as_secs_f64(), ended.counted())))
}

/// Waits long enough that what was sent before has been read: one whole request, and a while.
async fn seen(addr: std::net::SocketAddr) -> Result<()> {
    drop(Client::kept(addr).await?);
    tokio::time::sleep(Duration::from_millis(50)).await;
    Ok(())
}
