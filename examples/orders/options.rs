//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use winddown::queue::redis::Server;
use winddown::{Budget, parse_duration};

pub const HELP: &str = "\
orders: takes orders over HTTP, fulfils them in three steps, and loses none

usage: orders [options]

  --listen WHERE     ADDR:PORT (port 0 picks one), unix:/path, or systemd for
                     what LISTEN_FDS hands over; may be given several times
                                                           (127.0.0.1:8080)
  --reuse-port       let the next process listen there as well (SO_REUSEPORT)
  --admin ADDR:PORT  probes, status, pause and resume there; closed last
  --database URL     where orders are kept; made if missing (sqlite:orders.db)
  --queue URL        where their jobs are, if not in the database:
                     redis://host:port/db, redis+unix:///path,
                     redis+sentinel://host:port,host:port/master/db; all
                     processes that share it share the database as well
  --workers N        how many orders are worked on at once (8)
  --lease D          how long an order is claimed for      (30s)
  --grace D          how long the platform waits before it kills
  --unready D        how long to serve on after readiness turned false
  --drain D          how long work in flight may take to finish
  --requeue D        what is kept for handing back
  --close D          what is kept for closing
  --report FILE      write the report of the stop there, as JSON
  --plan             print the plan of a stop, and end
  --help             print this, and end

Durations are like 500ms, 8s, 1m30s. What is not given is divided from the
grace period. SIGTERM or Ctrl+C stops it; twice: now; three times: at once.
";

pub struct Options {
    pub listen: Vec<Listen>,
    pub reuse_port: bool,
    pub admin: Option<SocketAddr>,
    pub database: String,
    pub queue: Option<Elsewhere>,
    pub workers: usize,
    pub lease: Duration,
    pub budget: Budget,
    pub report: Option<PathBuf>,
    pub plan: bool,
    pub help: bool,
}

pub enum Listen {
    Tcp(SocketAddr),
    Unix(PathBuf),
    Systemd,
}

/// A queue that is not in the database.
pub struct Elsewhere {
    pub server: Server,
    /// Its URL, without user and password.
    pub shown: String,
}

// === impl Options ===

impl Options {
    /// Reads the command line; the error is one line.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options = Options {
            listen: Vec::new(),
            reuse_port: false,
            admin: None,
            database: "sqlite:orders.db".to_owned(),
            queue: None,
            workers: 8,
            lease: Duration::from_secs(30),
            budget: Budget::detect(),
            report: None,
            plan: false,
            help: false,
        };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (arg, None),
            };
            if let ("--plan" | "--help" | "--reuse-port", Some(value)) = (name.as_str(), &inline) {
                return Err(format!("{name} takes no value, and {value:?} was given"));
            }
            let mut value = || inline.clone().or_else(|| args.next()).ok_or(format!("{name} needs a value"));
            let budget = options.budget.clone();
            match name.as_str() {
                "--plan" => options.plan = true,
                "--help" => options.help = true,
                "--listen" => options.listen.push(listen(&value()?)?),
                "--reuse-port" => options.reuse_port = true,
                "--admin" => options.admin = Some(address(&name, &value()?)?),
                "--database" => options.database = database(value()?)?,
                "--queue" => options.queue = Some(queue(&value()?)?),
                "--workers" => options.workers = workers(&value()?)?,
                "--lease" => options.lease = lease(&name, &value()?)?,
                "--grace" => options.budget = budget.grace(duration(&name, &value()?)?),
                "--unready" => options.budget = budget.unready(duration(&name, &value()?)?),
                "--drain" => options.budget = budget.drain(duration(&name, &value()?)?),
                "--requeue" => options.budget = budget.requeue(duration(&name, &value()?)?),
                "--close" => options.budget = budget.close(duration(&name, &value()?)?),
                "--report" => options.report = Some(report(value()?)?),
                _ => return Err(format!("there is no option {name:?}; --help lists them")),
            }
        }
        if options.listen.is_empty() {
            options.listen.push(Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 8080))));
        }
        if options.reuse_port && !options.listen.iter().any(|listen| matches!(listen, Listen::Tcp(_))) {
            return Err("--reuse-port needs a --listen with an address like 127.0.0.1:8080".to_owned());
        }
        Ok(options)
    }
}

fn address(name: &str, value: &str) -> Result<SocketAddr, String> {
    value.parse().map_err(|_| format!("{name} takes an address like 127.0.0.1:9090, and {value:?} is none"))
}

fn listen(value: &str) -> Result<Listen, String> {
    // What the kernel's structure holds, less the final zero; the least of the common systems.
    const LONGEST: usize = 103;
    match value.strip_prefix("unix:") {
        Some(path) if (1..=LONGEST).contains(&path.len()) => Ok(Listen::Unix(path.into())),
        Some(_) => {
            Err(format!("--listen unix: takes a path of 1 to {LONGEST} bytes, and {value:?} has none such"))
        }
        None if value == "systemd" => Ok(Listen::Systemd),
        None => value.parse().map(Listen::Tcp).map_err(|_| {
            format!(
                "--listen takes an address like 127.0.0.1:8080, unix:/path or systemd, and {value:?} is none"
            )
        }),
    }
}

fn duration(name: &str, value: &str) -> Result<Duration, String> {
    parse_duration(value).map_err(|error| format!("{name}: {error}"))
}

fn database(url: String) -> Result<String, String> {
    match url.strip_prefix("sqlite:") {
        Some(rest) if !rest.is_empty() => match winddown::queue::sql::options(&url) {
            Ok(_) => Ok(url),
            Err(error) => Err(format!("--database {url:?}: {error}")),
        },
        _ => Err(format!("--database takes a URL like sqlite:orders.db, and {url:?} is none")),
    }
}

fn queue(url: &str) -> Result<Elsewhere, String> {
    let shown = without_login(url);
    match Server::at(url) {
        Ok(server) => Ok(Elsewhere { server, shown }),
        Err(error) => Err(format!("--queue {shown:?}: {error}")),
    }
}

/// What may be logged of a URL.
fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let rest = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
}

fn report(file: String) -> Result<PathBuf, String> {
    if file.is_empty() { Err("--report takes a file, and \"\" is none".to_owned()) } else { Ok(file.into()) }
}

fn workers(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(workers @ 1..=1024) => Ok(workers),
        _ => Err(format!("--workers takes a number from 1 to 1024, and {value:?} is none")),
    }
}

fn lease(name: &str, value: &str) -> Result<Duration, String> {
    // It is renewed at a third of its length: shorter ones would be lost to a slow disk.
    const SHORTEST: Duration = Duration::from_secs(1);
    const LONGEST: Duration = Duration::from_secs(86_400);
    let lease = duration(name, value)?;
    if (SHORTEST..=LONGEST).contains(&lease) {
        Ok(lease)
    } else {
        Err(format!("{name} takes from 1s to 24h, and {value:?} is not in there"))
    }
}
