//! Takes orders over HTTP, fulfils them in three steps, and stops without losing one.
//!
//! `cargo run --release --example orders --features orders`; `--help` lists the options, README has a session to follow.
//!
//! Orders and their effects are in a database of SQLite. The jobs are there too, or with `--queue redis://…` in Redis: then an
//! order goes there by way of an [`outbox`], and its effects are fenced by their [`claims`]. Several processes may share both.

mod api;
mod claims;
mod fulfil;
mod jobs;
mod listen;
mod options;
mod order;
mod outbox;
mod store;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use axum::Router;
use options::Options;
use store::Store;
use winddown::queue::sql;
use winddown::server::{Listener, Server};
use winddown::{Report, ShutdownCoordinator, pool, server, signal};

#[tokio::main]
async fn main() -> ExitCode {
    // SIGTERM and SIGINT are ours from this line on; one that arrives during start-up is kept. SIGUSR1 says what is in flight.
    let signals = match signal::Builder::new().dump(true).listen() {
        Ok(signals) => signals,
        Err(error) => return refuse(&format!("signals cannot be caught: {error}")),
    };
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => return refuse(&error),
    };
    if options.help {
        print(options::HELP);
        return ExitCode::SUCCESS;
    }
    let shutdown = match ShutdownCoordinator::new(options.budget.clone(), signals) {
        Ok(shutdown) => shutdown,
        Err(error) => return refuse(&error.to_string()),
    };
    if options.plan {
        print(&shutdown.plan().to_string());
        return ExitCode::SUCCESS;
    }
    // Now rather than at the end, when there would be no second chance; what an earlier stop left there stays for now.
    if let Some(Err(error)) = options.report.as_deref().map(can_be_written) {
        return refuse(&error);
    }
    log_to_stderr();
    eprint(&shutdown.plan().to_string());

    let report_to = options.report.clone();
    let report = shutdown.run_with(async |shutdown| set_up(shutdown, options).await).await;
    report.print();
    match report_to.map(|path| std::fs::write(&path, report.to_json()).map_err(|error| (path, error))) {
        Some(Err((path, error))) => {
            eprint(&format!("orders: the report was not written to {}: {error}\n", path.display()));
            leave(&report, 1)
        }
        _ => leave(&report, 0),
    }
}

async fn set_up(shutdown: &mut ShutdownCoordinator, options: Options) -> Result<(), winddown::BoxError> {
    let file = sql::options(&options.database)?;
    let connect = sql::pool().max_connections(4).connect_with(file);
    let db = shutdown.start(format!("database {}", options.database), connect).await?;
    shutdown.add(pool::close("database", db.clone()));
    shutdown.start("store", Store::prepare(&db)).await?;
    let jobs = jobs::open(shutdown, &db, &options).await?;
    let store = Store::new(db, jobs);

    let listeners = listen::bind(shutdown, &options).await?;
    let addresses = listeners.iter().map(Listener::local_addr).collect::<Result<Vec<_>, _>>()?;
    let app: Router =
        api::router(store.clone(), shutdown.handle()).merge(server::axum::probes(shutdown.readiness()));
    let mut listeners = listeners.into_iter();
    let first = listeners.next().ok_or("there is nothing to listen on")?;
    shutdown.add(listeners.fold(server::axum::serve("http", first, app), Server::also));

    if let Some(address) = options.admin {
        let bind = tokio::net::TcpListener::bind(address);
        let listener = shutdown.start(format!("listener on {address}"), bind).await?;
        print(&format!("admin on http://{}\n", listener.local_addr()?));
        shutdown.add(server::admin("admin", listener));
    }

    jobs::work(shutdown, store, &options);

    for address in addresses {
        print(&format!("listening on http://{address}\n"));
    }
    // Registered last, and so run when all the rest does.
    shutdown.spawn("ready", async { print("ready\n") }).optional();
    Ok(())
}

fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
}

fn can_be_written(report: &Path) -> Result<(), String> {
    let opened = OpenOptions::new().create(true).append(true).open(report);
    opened.map(drop).map_err(|error| format!("--report {report:?} cannot be written: {error}"))
}

fn refuse(why: &str) -> ExitCode {
    eprint(&format!("orders: {why}\n"));
    ExitCode::from(2)
}

/// The report's code, or this one where that says that all is well.
fn leave(report: &Report, code: u8) -> ExitCode {
    ExitCode::from(report.code().max(code))
}

/// A closed pipe is no reason to panic.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn eprint(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
