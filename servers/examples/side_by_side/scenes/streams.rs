//! Answers that do not end by themselves.

use std::time::Duration;

use crate::child::{Child, Result, Setting};
use crate::client::{Client, Got, get};
use crate::frames::Websocket;
use crate::serve::Which;
use crate::show::Shown;

pub async fn events(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    let mut client = Client::connect(child.addr).await?;
    client.send(get("/events")).await?;
    client.head().await.map_err(|got| got.to_string())?;
    client.chunk().await.map_err(|got| got.to_string())?;
    let stopping = child.term();
    let last = loop {
        match client.chunk().await {
            Ok(chunk) if chunk.is_empty() => break Ok(()),
            Ok(_) => {}
            Err(got) => break Err(got),
        }
    };
    let at = stopping.elapsed().as_secs_f64();
    let ended = stopping.ended().await?;
    let words = match last {
        Ok(()) => "the final chunk",
        Err(_) => "cut without the final chunk",
    };
    Ok(Shown::new(last.is_ok() && ended.within(Setting::SOON), format!("{words} after {at:.1} s; {ended}")))
}

pub async fn long_poll(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    let mut client = Client::kept(child.addr).await?;
    client.send(get("/poll")).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let stopping = child.term();
    let got = client.answer().await;
    let at = stopping.elapsed().as_secs_f64();
    let ended = stopping.ended().await?;
    Ok(Shown::new(got.is(200) && ended.within(Setting::SOON), format!("{got} after {at:.1} s; {ended}")))
}

pub async fn websocket(which: Which) -> Result<Shown> {
    const TEXT: u8 = 1;
    const CLOSE: u8 = 8;
    let child = Child::start(which, Setting::LONG).await?;
    let mut socket = Websocket::open(Client::connect(child.addr).await?, "/ws").await?;
    socket.send(TEXT, b"hello").await?;
    if socket.next().await != Ok((TEXT, b"hello".to_vec())) {
        return Err("no echo".into());
    }
    let stopping = child.term();
    let got = socket.next().await;
    let away = matches!(&got, Ok((CLOSE, code)) if code.starts_with(&1001_u16.to_be_bytes()));
    // The client's half of the closing.
    let _ = socket.send(CLOSE, &1001_u16.to_be_bytes()).await;
    socket.0.end().await;
    let ended = stopping.ended().await?;
    let words = match got {
        Ok(_) if away => "close 1001".to_owned(),
        Ok((kind, _)) => format!("a frame of kind {kind}"),
        Err(Got::Closed) => "closed without a close frame".to_owned(),
        Err(got) => got.to_string(),
    };
    let living = match ended.websockets {
        Some(living) => format!("{living} alive at the end"),
        None => "no end".to_owned(),
    };
    let held = away && ended.websockets == Some(0) && ended.within(Setting::SOON);
    Ok(Shown::new(held, format!("{words}; {ended}; {living}")))
}
