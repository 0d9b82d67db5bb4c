//! actix-web, whose own handling of signals is left off: the stop is ours, and its workers end within the drain.
//!
//! ```text
//! cargo run -p winddown-servers --example actix_web
//! curl -i localhost:8080/slow        and meanwhile Ctrl+C, or `kill -TERM` of the process
//! ```

use std::process::ExitCode;
use std::time::Duration;

use actix_web::dev::Service;
use actix_web::error::ErrorServiceUnavailable;
use actix_web::http::header::{CONNECTION, HeaderValue};
use actix_web::{App, HttpServer, web};
use winddown::{BoxError, Budget, Phase, ShutdownCoordinator, signal};

// actix's workers have threads and runtimes of their own; ours is free for the stop.
#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
    let report = shutdown
        .run_with(async |shutdown| {
            let addr = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
            let (gate, handle) = (shutdown.gate("requests"), shutdown.handle());
            // Its default is 30 s, whatever the platform grants. In whole seconds, rounded up: the drain ends it before.
            let drain = shutdown.plan().drain_limit().as_secs() + 1;
            let server = HttpServer::new(move || {
                let (gate, handle) = (gate.clone(), handle.clone());
                App::new()
                    .wrap_fn(move |request, service| {
                        let (entered, handle) = (gate.enter(), handle.clone());
                        let answer = service.call(request);
                        async move {
                            // Dropped unpolled where it is refused: no handler has run.
                            let in_flight = entered.map_err(ErrorServiceUnavailable)?;
                            let mut answer =
                                in_flight.run(answer).await.map_err(ErrorServiceUnavailable)??;
                            if handle.is_triggered() {
                                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                            }
                            Ok(answer)
                        }
                    })
                    .route("/slow", web::get().to(slow))
            })
            .disable_signals()
            .shutdown_timeout(drain)
            .bind(addr)?;
            for addr in server.addrs() {
                println!("ready on {addr}");
            }

            let server = server.run();
            let handle = server.handle();
            // Told here; it is awaited in the drain, as the task that it is.
            shutdown.on(Phase::StopIntake, "actix", async move |_| drop(handle.stop(true)));
            shutdown.spawn("actix", server);
            Ok(())
        })
        .await;
    report.print();
    Ok(report.exit_code())
}

async fn slow() -> &'static str {
    println!("slow: begins");
    tokio::time::sleep(Duration::from_secs(1)).await;
    "done\n"
}
