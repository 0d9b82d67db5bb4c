//! The whole idea: work is let in through a gate, finished at a stop, and what it uses is closed after it.
use std::time::Duration;
use winddown::{Budget, Phase, ShutdownCoordinator, signal};

#[tokio::main]
async fn main() -> Result<std::process::ExitCode, Box<dyn std::error::Error>> {
    let mut shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
    let (gate, handle) = (shutdown.gate("work").pulled(), shutdown.handle());
    shutdown.spawn("worker", async move {
        while let Ok(in_flight) = gate.enter() {
            let _cut = in_flight.run(tokio::time::sleep(Duration::from_secs(2))).await;
            println!("a piece of work is done; stopping: {}", handle.is_triggered());
        }
    });
    shutdown.on(Phase::Close, "database", async |_| println!("closed after the last of it"));
    let report = shutdown.run().await;
    report.print();
    Ok(report.exit_code())
}
