//! hyper by hand: an accept loop of one's own, where a gate lets connections in.
//!
//! ```text
//! cargo run --example hyper --features http
//! curl -i localhost:8080/slow        and meanwhile Ctrl+C, or `kill -TERM` of the process
//! ```
//!
//! It shows the words, not all that a public server needs: limits for silent peers, a grace for requests that arrive with the
//! signal, and the backlog are in `server::serve`.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use winddown::{BoxError, Budget, Gate, InFlight, ShutdownCoordinator, signal};

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
    let report = shutdown
        .run_with(async |shutdown| {
            let addr = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
            let listener = TcpListener::bind(addr).await?;
            println!("ready on {}", listener.local_addr()?);
            let gate = shutdown.gate("connections");
            shutdown.spawn("http", accept(listener, gate));
            Ok(())
        })
        .await;
    report.print();
    Ok(report.exit_code())
}

/// Accepts until intake stops, closes the listener, and awaits what it has let in.
async fn accept(listener: TcpListener, gate: Gate) -> io::Result<()> {
    let mut stopping = pin!(gate.stopping());
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = &mut stopping => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted?.0,
        };
        let Ok(in_flight) = gate.enter() else { break };
        connections.spawn(serve(stream, in_flight));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// Serves one connection, which ends after the request that it has when it hears of the stop.
async fn serve(stream: TcpStream, in_flight: InFlight) {
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut connection =
        pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service_fn(answer)));
    let serving = async {
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = in_flight.stopping() => connection.as_mut().graceful_shutdown(),
        }
        connection.await
    };
    match in_flight.run(serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => eprintln!("a connection failed: {error}"),
        Err(cancelled) => eprintln!("a connection was cut: {cancelled}"),
    }
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/slow" {
        println!("slow: begins");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(Response::new(Full::from("done\n")))
}
