//! tonic, with the layer around its services: health turns first, calls are finished, and the signal has a deadline.
//!
//! ```text
//! cargo run -p winddown-servers --example tonic
//! grpcurl -plaintext localhost:8080 grpc.health.v1.Health/Watch        and meanwhile Ctrl+C
//! ```
//!
//! The watcher is told *not serving*, and its stream ends. tonic alone would wait for it for ever.

use std::process::ExitCode;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use winddown::server::tower::InFlightLayer;
use winddown::{BoxError, Budget, Phase, ShutdownCoordinator, signal};

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
    let report = shutdown
        .run_with(async |shutdown| {
            let addr = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
            let listener = TcpListener::bind(addr).await?;
            println!("ready on {}", listener.local_addr()?);

            let health = HealthReporter::new();
            let (unready, mut ended) = (health.clone(), health.clone());
            shutdown.on(Phase::Unready, "health", async move |_| {
                unready.set_service_status("", ServingStatus::NotServing).await;
            });
            // A watcher has been told by now, and would hold the drain to its end.
            shutdown.on(Phase::StopIntake, "watchers of health", async move |_| {
                ended.clear_service_status("").await;
            });

            let server = Server::builder()
                // The only limit that tonic has for a peer that is silent; without it such a one holds the drain.
                .http2_keepalive_interval(Some(Duration::from_secs(20)))
                .http2_keepalive_timeout(Some(Duration::from_secs(5)))
                .layer(InFlightLayer::new(shutdown.gate("calls")))
                .add_service(HealthServer::new(HealthService::from_health_reporter(health)));
            let stopping = shutdown.handle().stopping();
            let incoming = TcpIncoming::from(listener);
            shutdown
                .spawn("grpc", async move { server.serve_with_incoming_shutdown(incoming, stopping).await });
            Ok(())
        })
        .await;
    report.print();
    Ok(report.exit_code())
}
