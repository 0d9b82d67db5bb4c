//! The whole idea: work is let in through a gate, finished at a stop, and what it uses is closed after it.
use winddown::{Budget, Phase, ShutdownCoordinator, signal};

#[tokio::main]
async fn main() -> Result<std::process::ExitCode, Box<dyn std::error::Error>> {
    let mut shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
    let gate = shutdown.gate("work").pulled();
    shutdown.spawn("worker", async move {
        while let Ok(in_flight) = gate.enter() {
            let _cut = in_flight.run(tokio::time::sleep(std::time::Duration::from_secs(2))).await;
        }
    });
    shutdown.on(Phase::Close, "database", async |_| println!("closed after the last of it"));
    let report = shutdown.run().await;
    report.print();
    Ok(report.exit_code())
}
