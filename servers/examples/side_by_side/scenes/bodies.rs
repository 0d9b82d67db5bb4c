//! Bodies, there and back.

use std::time::Duration;

use crate::child::{Child, Result, Setting};
use crate::client::{Client, get};
use crate::serve::{BIG, Which};
use crate::show::Shown;

pub async fn stalled(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::SHORT).await?;
    let mut stalls = Client::connect_with_small_buffer(child.addr).await?;
    stalls.send(get("/big")).await?;
    stalls.head().await.map_err(|got| got.to_string())?;
    let mut other = Client::kept(child.addr).await?;
    other.send(get("/slow?ms=700")).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopping = child.term();
    let served = other.answer().await;
    let meanwhile = stopping.elapsed() < Setting::SHORT.drain;
    let ended = stopping.ended().await?;
    let whole = stalls.exactly(BIG).await.is_ok();
    let held = served.is(200)
        && meanwhile
        && !whole
        && ended.took >= Setting::SHORT.drain
        && ended.within(Setting::SHORT.kill)
        && ended.counts(1, &["body"]);
    Ok(Shown::new(held, format!("{ended}; {}; another request: {served}", ended.counted())))
}

pub async fn slow_reader(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    let mut client = Client::connect_with_small_buffer(child.addr).await?;
    client.send(get("/big")).await?;
    let head = client.head().await.map_err(|got| got.to_string())?;
    let promised = head.contains(&format!("content-length: {BIG}\r\n"));
    let stopping = child.term();
    let read = client.slowly(BIG, 1 << 16, Duration::from_millis(20)).await;
    let took = stopping.elapsed();
    let (_, cleanly) = client.end().await;
    let ended = stopping.ended().await?;
    let held = promised && read.is_ok() && cleanly && !ended.killed;
    let read = read.map_or_else(|got| got.to_string(), |()| "whole".to_owned());
    Ok(Shown::new(held, format!("{read}, read for {:.1} s; {ended}", took.as_secs_f64())))
}

pub async fn half_closed(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    let mut client = Client::kept(child.addr).await?;
    client.send(get("/slow?ms=500")).await?;
    client.finish_sending().await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopping = child.term();
    let got = client.answer().await;
    let ended = stopping.ended().await?;
    Ok(Shown::new(got.is(200) && ended.within(Setting::SOON), format!("{got}; {ended}")))
}

/// As many clients do, it reads only when it has sent all it can.
pub async fn early_answer(which: Which) -> Result<Shown> {
    const ALL: usize = 20_000_000;
    let child = Child::start(which, Setting::LONG).await?;
    let mut client = Client::kept(child.addr).await?;
    client.send(format!("POST /refuse HTTP/1.1\r\nhost: test\r\ncontent-length: {ALL}\r\n\r\n")).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopping = child.term();
    let piece = vec![b'x'; 1 << 16];
    let mut left = ALL;
    while left > 0 && client.send(&piece[..piece.len().min(left)]).await.is_ok() {
        left -= piece.len().min(left);
    }
    let got = client.answer().await;
    let ended = stopping.ended().await?;
    let sent = (ALL - left) as f64 / 1e6;
    Ok(Shown::new(got.is(413) && !ended.killed, format!("{got}, after {sent:.1} MB were sent; {ended}")))
}
