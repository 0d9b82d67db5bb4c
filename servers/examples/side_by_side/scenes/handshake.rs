//! Connections that are not yet secured.

use std::time::Duration;

use crate::child::{Child, Result, Setting};
use crate::client::{Client, get};
use crate::serve::Which;
use crate::show::Shown;
use crate::tls::Hello;

const SECURED: Setting = Setting { tls: true, ..Setting::LONG };

/// The only one of the three that leaves TLS to others.
fn has_none(which: Which) -> bool {
    which == Which::Axum
}

/// A connection with half of a hello sent and, as far as time can tell, read.
async fn half(child: &Child) -> Result<(Hello, Client)> {
    let hello = Hello::new(&child.certificate)?;
    let mut client = Client::connect(child.addr).await?;
    client.send(&hello.bytes[..hello.bytes.len() / 2]).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok((hello, client))
}

pub async fn completed(which: Which) -> Result<Shown> {
    if has_none(which) {
        return Ok(Shown::nothing("has no TLS"));
    }
    for _ in 0..Setting::TRIES {
        let child = Child::start(which, SECURED).await?;
        let (hello, mut client) = half(&child).await?;
        let stopping = child.term();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let _ = client.send(&hello.bytes[hello.bytes.len() / 2..]).await;
        let late = stopping.elapsed();
        let stream = client.into_blocking()?;
        let answer = tokio::task::spawn_blocking(move || hello.ask(stream, &get("/"))).await?;
        let ended = stopping.ended().await?;
        let got = match &answer {
            Ok(answer) => answer.lines().next().unwrap_or("closed").to_owned(),
            Err(error) => error.to_string(),
        };
        let held = got == "HTTP/1.1 200 OK" && ended.within(Setting::SOON);
        if late < Setting::LATE {
            return Ok(Shown::new(held, format!("{got}; {ended}")));
        }
    }
    Err(Setting::TOO_SLOW.into())
}

pub async fn half_hello(which: Which) -> Result<Shown> {
    if has_none(which) {
        return Ok(Shown::nothing("has no TLS"));
    }
    let child = Child::start(which, SECURED).await?;
    let (_, mut client) = half(&child).await?;
    let stopping = child.term();
    let (cut, _) = client.end().await;
    let ended = stopping.ended().await?;
    let held =
        cut < Duration::from_secs(4) && ended.within(Setting::SOON) && ended.counts(1, &["handshaking"]);
    Ok(Shown::new(held, format!("cut after {:.1} s; {ended}; {}", cut.as_secs_f64(), ended.counted())))
}
