//! Connections that wait, and requests that come at the last moment.

use std::io;
use std::time::Duration;

use futures_util::future::join_all;

use crate::child::{Child, Result, Setting};
use crate::client::{Client, Got, get};
use crate::serve::Which;
use crate::show::Shown;

/// How late a request may have been sent to still have come *with* the signal; far below the idle grace.
const TOGETHER: Duration = Duration::from_millis(100);
const CLIENTS: usize = 50;

pub async fn idle(which: Which) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    let mut client = Client::kept(child.addr).await?;
    let stopping = child.term();
    let (closed, cleanly) = client.end().await;
    let ended = stopping.ended().await?;
    let held = cleanly && closed < Duration::from_secs(3) && ended.within(Setting::SOON);
    let how = if cleanly { "closed" } else { "reset" };
    Ok(Shown::new(held, format!("{how} after {:.1} s, {ended}", closed.as_secs_f64())))
}

pub async fn together(which: Which, run: u32) -> Result<Shown> {
    // The signal comes before, among and after them.
    let before = [0, CLIENTS / 2, CLIENTS, CLIENTS / 5, CLIENTS * 4 / 5][run as usize % 5];
    around(which, before, Duration::ZERO).await
}

pub async fn on_its_way(which: Which, _run: u32) -> Result<Shown> {
    around(which, 0, Duration::from_millis(100)).await
}

/// So many send their request before the signal, the others this long after it.
async fn around(which: Which, before: usize, after: Duration) -> Result<Shown> {
    for _ in 0..Setting::TRIES {
        let child = Child::start(which, Setting::LONG).await?;
        let clients = join_all((0..CLIENTS).map(|_| Client::kept(child.addr))).await;
        let mut clients = clients.into_iter().collect::<io::Result<Vec<_>>>()?;
        let request = get("/");
        for client in &clients[..before] {
            client.send_at_once(&request)?;
        }
        let stopping = child.term();
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        // One that is refused by its socket has no answer below.
        let _ = clients[before..].iter().map(|client| client.send_at_once(&request)).collect::<Vec<_>>();
        let late = stopping.elapsed();
        let got = join_all(clients.iter_mut().map(Client::answer)).await;
        let ended = stopping.ended().await?;
        if late < after + TOGETHER {
            return Ok(answered(&got, ended.within(Setting::SOON)));
        }
    }
    Err(Setting::TOO_SLOW.into())
}

pub async fn backlog(which: Which, _run: u32) -> Result<Shown> {
    waiting(which, 20).await
}

pub async fn long_backlog(which: Which, _run: u32) -> Result<Shown> {
    waiting(which, 100).await
}

/// So many connect and send while the server is frozen; then it sees them and the signal at once.
async fn waiting(which: Which, clients: usize) -> Result<Shown> {
    let child = Child::start(which, Setting::LONG).await?;
    // Once, so that the server is known to accept.
    drop(Client::kept(child.addr).await?);
    child.freeze().await?;
    let mut waiting = Vec::new();
    for _ in 0..clients {
        let mut client = Client::connect(child.addr).await?;
        client.send(get("/")).await?;
        waiting.push(client);
    }
    let stopping = child.term_and_thaw();
    let got = join_all(waiting.iter_mut().map(Client::answer)).await;
    let ended = stopping.ended().await?;
    Ok(answered(&got, ended.within(Setting::SOON)))
}

fn answered(got: &[Got], gone: bool) -> Shown {
    let answered = got.iter().filter(|got| got.is(200)).count();
    let hangs = if gone { "" } else { ", and the process hangs" };
    Shown::new(answered == got.len() && gone, format!("{answered} of {}{hangs}", got.len()))
}
