//! A worker on a Redis queue that the tests kill, freeze and starve, as often as they like and wherever they like.
//!
//! ```text
//! crew --url URL --queue NAME [OPTION VALUE]...
//!   --stamps URL|none        where runs are noted (the queue's own server), in keys of the queue's name and `crew:`
//!   --group NAME             works on the stream of that name, in this group, rather than on the list
//!   --owner NAME             who claims (a unique name)
//!   --concurrency N (4)      --prefetch N (0)       --lease MS (3000)      --attempts N (3)
//!   --threads N              of the runtime; 0 for a single one (0)
//!   --grace MS (5000)        the grace period, divided as usual; --drain, --requeue, --close, --margin MS set a part of it
//!   --fail POINT:N:kill|stop   sends itself SIGKILL or SIGSTOP when it passes that point for the n-th time. Points are
//!                            claim, ack, nack, requeue, extend and begin_drain, each with `.before` and `.after`, `reclaim.after` (a claim
//!                            that brought what another had held), and run.start, run.middle and run.end in the handler
//! ```
//!
//! Standard output: `ready OWNER` when the worker is about to start; after the stop `ledger {..}`, what the queue has confirmed,
//! and `report {..}`. What is logged goes to standard error, a line an event.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use winddown::queue::redis::{List, Server, Stream};
use winddown::queue::{self, Owner, Queue};
use winddown::{BoxError, Budget, ShutdownCoordinator, signal};

#[path = "crew/duty.rs"]
mod duty;
#[path = "crew/faulty.rs"]
mod faulty;
#[path = "crew/points.rs"]
mod points;
#[path = "crew/stamps.rs"]
mod stamps;

use duty::{Crew, Duty};
use faulty::Faulty;
use points::Points;
use stamps::Stamps;

struct Options {
    url: String,
    queue: String,
    group: Option<String>,
    stamps: Option<String>,
    owner: Option<String>,
    concurrency: usize,
    prefetch: usize,
    lease: Duration,
    attempts: u32,
    threads: usize,
    budget: Budget,
    points: Points,
}

// === impl Options ===

impl Options {
    fn from_args() -> Result<Options, BoxError> {
        let mut options = Options {
            url: String::new(),
            queue: String::new(),
            group: None,
            stamps: None,
            owner: None,
            concurrency: 4,
            prefetch: 0,
            lease: Duration::from_secs(3),
            attempts: 3,
            threads: 0,
            budget: Budget::from_grace_period(Duration::from_secs(5)),
            points: Points::default(),
        };
        let mut args = std::env::args().skip(1);
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} takes a value"))?;
            let ms = || value.parse().map(Duration::from_millis);
            match name.as_str() {
                "--url" => options.url = value,
                "--queue" => options.queue = value,
                "--group" => options.group = Some(value),
                "--stamps" => options.stamps = Some(value),
                "--owner" => options.owner = Some(value),
                "--concurrency" => options.concurrency = value.parse()?,
                "--prefetch" => options.prefetch = value.parse()?,
                "--lease" => options.lease = ms()?,
                "--attempts" => options.attempts = value.parse()?,
                "--threads" => options.threads = value.parse()?,
                "--grace" => options.budget = Budget::from_grace_period(ms()?),
                "--drain" => options.budget = options.budget.drain(ms()?),
                "--requeue" => options.budget = options.budget.requeue(ms()?),
                "--close" => options.budget = options.budget.close(ms()?),
                "--margin" => options.budget = options.budget.margin(ms()?),
                "--fail" => options.points.add(&value)?,
                _ => return Err(format!("there is no option {name}").into()),
            }
        }
        Ok(options)
    }
}

fn main() -> Result<ExitCode, BoxError> {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let options = Options::from_args()?;
    let mut runtime = match options.threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if options.threads > 0 {
        runtime.worker_threads(options.threads);
    }
    let runtime = runtime.enable_all().build()?;
    let code = runtime.block_on(crew(options))?;
    // A handler that blocks a thread would hold the runtime's end for as long.
    runtime.shutdown_background();
    Ok(code)
}

async fn crew(options: Options) -> Result<ExitCode, BoxError> {
    let shutdown = ShutdownCoordinator::new(options.budget.clone(), signal::terminate()?)?;
    let stamps = match options.stamps.as_deref() {
        Some("none") => None,
        Some(url) => Some(Stamps::open(url, &options.queue).await?),
        None => Some(Stamps::open(&options.url, &options.queue).await?),
    };
    let server = Server::at(&options.url)?;
    match &options.group {
        Some(group) => {
            let stream = Stream::<Duty>::open(server, &options.queue, group).await?;
            work(shutdown, stream, stamps, options).await
        }
        None => {
            let list = List::<Duty>::open(server, &options.queue).await?;
            work(shutdown, list, stamps, options).await
        }
    }
}

async fn work<Q: Queue<Item = Duty>>(
    mut shutdown: ShutdownCoordinator,
    queue: Q,
    stamps: Option<Stamps>,
    options: Options,
) -> Result<ExitCode, BoxError> {
    let queue = Faulty::new(queue, options.points.clone());
    let ledger = queue.ledger();
    let owner = match &options.owner {
        Some(name) => Owner::from_str(name)?,
        None => Owner::unique("crew"),
    };
    println!("ready {owner}");
    let crew = Crew { stamps, points: options.points };
    let work = queue::work("crew", queue, crew).owner(owner).concurrency(options.concurrency);
    let work = work.prefetch(options.prefetch).lease(options.lease).attempts(options.attempts);
    shutdown.add(work);
    let report = shutdown.run().await;
    println!("ledger {}", ledger.to_json());
    println!("report {}", report.to_json());
    Ok(report.exit_code())
}
