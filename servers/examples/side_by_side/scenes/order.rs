//! What a balancer sees.

use std::net::SocketAddr;
use std::time::Duration;

use crate::child::{Child, Result, Setting};
use crate::client::{Client, Got, get};
use crate::serve::Which;
use crate::show::Shown;

/// What a new connection gets; `None` where it is refused.
async fn ask(addr: SocketAddr, path: &str) -> Option<Got> {
    match Client::connect(addr).await {
        Ok(mut client) => Some(client.ask(path).await),
        Err(_) => None,
    }
}

pub async fn order(which: Which) -> Result<Shown> {
    const UNREADY: Duration = Duration::from_secs(1);
    let child = Child::start(which, Setting { unready: UNREADY, ..Setting::LONG }).await?;
    let addr = child.addr;
    if !ask(addr, "/readyz").await.is_some_and(|got| got.is(200)) {
        return Err("not ready from the start".into());
    }
    // Keeps the drain open for long enough to see it.
    let mut slow = Client::kept(addr).await?;
    slow.send(get("/slow?ms=6000")).await?;
    tokio::time::sleep(Duration::from_millis(100)).await;

    let stopping = child.term();
    let (mut unready, mut served, mut failed) = (None, 0, 0);
    let refused = loop {
        let (ready, ordinary) = (ask(addr, "/readyz").await, ask(addr, "/").await);
        match ready {
            Some(got) if got.is(503) => drop(unready.get_or_insert(stopping.elapsed())),
            Some(got) if !got.is(200) => failed += 1,
            _ => {}
        }
        match ordinary {
            Some(got) if got.is(200) => served += 1,
            Some(_) => failed += 1,
            None => break stopping.elapsed(),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let mut refused_again = true;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        refused_again &= ask(addr, "/").await.is_none();
    }
    let refused_until = stopping.elapsed();
    let last = slow.answer().await;
    // It was asked for 100 ms before the signal, or more.
    let draining = refused_until < Duration::from_millis(5500);
    let ended = stopping.ended().await?;
    let held = unready.is_some_and(|unready| unready < UNREADY)
        && served > 0
        && failed == 0
        && (UNREADY..UNREADY * 3).contains(&refused)
        && refused_again
        && draining
        && last.is(200)
        && !ended.killed;
    let unready = unready.map_or("never 503".to_owned(), |at| format!("503 after {:.1} s", at.as_secs_f64()));
    let refused = refused.as_secs_f64();
    Ok(Shown::new(
        held,
        format!(
            "{unready}; {served} served, {failed} failed; refused after {refused:.1} s; the slow one: {last}; {ended}"
        ),
    ))
}
