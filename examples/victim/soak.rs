//! Passes much work through, to see whether memory grows with it.

use futures_util::FutureExt;
use winddown::{BoxError, Budget, ShutdownCoordinator, Unfinished, signal};

/// Work in this many turns, so that nothing is counted which only has to warm up.
const TURNS: usize = 8;

/// Prints the resident memory after each turn, in KiB.
pub async fn run(units: usize) -> Result<(), BoxError> {
    let mut shutdown = ShutdownCoordinator::new(Budget::default(), signal::none())?;
    let gate = shutdown.gate("plain");
    let detailed = shutdown.gate("detailed").detailed();
    let jobs =
        shutdown.gate("jobs").requeue_with((), async |(), _: Unfinished<String>| Ok::<(), BoxError>(()));
    let handle = shutdown.handle();
    let running = tokio::spawn(shutdown.run());
    for _ in 0..TURNS {
        for number in 0..units / TURNS {
            let in_flight = gate.enter()?;
            let child = in_flight.child();
            in_flight.run(async {}).await?;
            drop(detailed.enter_named("one of many")?);
            let job = jobs.admit(format!("item {number}"))?;
            match number % 3 {
                0 => drop(job.run(async |_, _| Ok::<(), BoxError>(())).await),
                // Handed back, while the program runs.
                1 => drop(job),
                _ => job.finish()?,
            }
            if number % 4 == 0 {
                // Follow-up work in a task of its own.
                tokio::spawn(async move { child.run(tokio::task::yield_now()).await });
            } else {
                drop(child);
            }
            // A waiter that gives up.
            let _ = std::pin::pin!(handle.triggered()).now_or_never();
            drop(handle.stopping_token());
            if number % 64 == 0 {
                tokio::task::yield_now().await;
            }
        }
        while jobs.gate().in_flight() + gate.in_flight() > 0 {
            tokio::task::yield_now().await;
        }
        println!("resident {}", resident()?);
    }
    handle.trigger("soaked");
    let report = running.await?;
    println!("done with {}\n{report}", report.code());
    Ok(())
}

fn resident() -> Result<u64, BoxError> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.split_whitespace().nth(1).ok_or("no number")?.parse()?)
}
