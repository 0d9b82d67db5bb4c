//! Plain `axum::serve`, with the layer around its router: requests are counted, told of the stop, and cut at the deadline.
//!
//! ```text
//! cargo run --example axum_serve --features axum,tower
//! curl -i localhost:8080/slow        and meanwhile Ctrl+C, or `kill -TERM` of the process
//! ```
//!
//! The answer still comes, with `Connection: close`. A server of ours, `server::axum::serve`, also answers what arrives with the
//! signal, takes the backlog, and ends connections that this one leaves open.

use std::process::ExitCode;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use winddown::server::RequestCx;
use winddown::server::axum::probes;
use winddown::server::tower::InFlightLayer;
use winddown::{BoxError, Budget, ShutdownCoordinator, signal};

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
    let report = shutdown
        .run_with(async |shutdown| {
            let addr = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
            let listener = TcpListener::bind(addr).await?;
            println!("ready on {}", listener.local_addr()?);
            let app = Router::new()
                .route("/slow", get(slow))
                .layer(InFlightLayer::new(shutdown.gate("requests")))
                // Outside of the layer: probes are answered for as long as there is a connection.
                .merge(probes(shutdown.readiness()));
            let serving = axum::serve(listener, app).with_graceful_shutdown(shutdown.handle().stopping());
            // As a task, so that the last bytes are awaited in the drain, and given up when that is over.
            shutdown.spawn("http", async move { serving.await });
            Ok(())
        })
        .await;
    report.print();
    Ok(report.exit_code())
}

async fn slow(cx: RequestCx) -> &'static str {
    println!("slow: begins");
    tokio::time::sleep(Duration::from_secs(1)).await;
    // For work that may go on after the answer: counted until this is dropped.
    let follow_up = cx.child();
    tokio::spawn(async move {
        let _cut = follow_up.run(async { println!("slow: written to the log") }).await;
    });
    "done\n"
}
