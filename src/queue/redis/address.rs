//! Where a server is: said outright, or known to Sentinels.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, ServerErrorKind, Value,
};

/// How long one Sentinel is asked before the next one is.
const ASK: Duration = Duration::from_secs(1);

/// How a URL of Sentinels begins.
const SENTINEL: &str = "redis+sentinel://";

/// How other URLs begin that the library reads.
const SCHEMES: [&str; 5] = ["redis://", "redis+unix://", "unix://", "valkey://", "valkey+unix://"];

/// The port of a Sentinel that is named without one.
const SENTINEL_PORT: u16 = 26379;

/// Where a server is. Its text has no password in it.
#[derive(Clone)]
pub(super) enum Address {
    Direct(Box<ConnectionInfo>),
    Sentinels {
        at: Vec<(String, u16)>,
        /// What the Sentinels call the servers that are watched together.
        master: String,
        /// How to log in at the server itself.
        login: Box<RedisConnectionInfo>,
    },
}

// === impl Address ===

impl Address {
    /// Reads a URL; `Err` says what is wrong with it, without repeating it, since there may be a password in it.
    pub(super) fn parse(url: &str) -> Result<Address, String> {
        match url.strip_prefix(SENTINEL) {
            Some(rest) => sentinels(rest),
            None => url.into_connection_info().map(Box::new).map(Address::Direct).map_err(|error| {
                // The library's words for it: kind and all.
                let text = error.to_string();
                match text.split(" - ").next().unwrap_or_default() {
                    _ if url.starts_with("rediss") => {
                        "TLS is a feature of the crate redis, and not turned on there".to_owned()
                    }
                    // The library only says that it did not parse.
                    _ if !SCHEMES.iter().any(|scheme| url.starts_with(scheme)) => {
                        "it begins with none of these".to_owned()
                    }
                    text => text.to_lowercase(),
                }
            }),
        }
    }

    /// Where to connect to now.
    pub(super) async fn resolve(&self) -> Result<ConnectionInfo, RedisError> {
        let (at, master, login) = match self {
            Address::Direct(info) => return Ok(at_once((**info).clone())),
            Address::Sentinels { at, master, login } => (at, master, login),
        };
        let mut last: Option<RedisError> = None;
        for (host, port) in at {
            match ask(host, *port, master).await {
                Ok((host, port)) => {
                    let info = ConnectionAddr::Tcp(host, port).into_connection_info()?;
                    return Ok(at_once(info.set_redis_settings((**login).clone())));
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| (ErrorKind::EmptySentinelList, "no sentinel is named").into()))
    }

    /// Makes sure that a server that Sentinels have named is the master by its own account: they may not have noticed yet.
    pub(super) async fn check(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        if matches!(self, Address::Direct(_)) {
            return Ok(());
        }
        match Cmd::new().arg("ROLE").query_async::<Value>(connection).await {
            Ok(Value::Array(role)) if role.first() != Some(&Value::BulkString(b"master".to_vec())) => {
                Err((ErrorKind::Io, "the server that the sentinels name is not the master").into())
            }
            // Whoever may not ask finds out by the first write.
            Err(error) if error.kind() != ErrorKind::Server(ServerErrorKind::NoPerm) => Err(error),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Direct(info) => write!(f, "{}", info.addr()),
            Address::Sentinels { at, master, .. } => {
                let at: Vec<String> = at.iter().map(|(host, port)| format!("{host}:{port}")).collect();
                write!(f, "master {master} of the sentinels {}", at.join(", "))
            }
        }
    }
}

/// Every call waits for its answer: nothing is to wait in the socket for more.
fn at_once(info: ConnectionInfo) -> ConnectionInfo {
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    info.set_tcp_settings(tcp)
}

/// `[user:password@]host[:port],host[:port]/master[/db]`
fn sentinels(rest: &str) -> Result<Address, String> {
    let (authority, path) = rest.split_once('/').ok_or("it does not say which master: …/master")?;
    let (login, hosts) = match authority.rsplit_once('@') {
        Some((login, hosts)) => (format!("{login}@"), hosts),
        None => (String::new(), authority),
    };
    let (master, db) = path.split_once('/').unwrap_or((path, ""));
    if master.is_empty() {
        return Err("it does not say which master: …/master".to_owned());
    }
    let at = hosts.split(',').map(host_and_port).collect::<Result<Vec<_>, _>>()?;
    // The same words as of any other server, so that what is escaped there is escaped here.
    let like = format!("redis://{login}server/{db}");
    let Address::Direct(info) = Address::parse(&like)? else {
        return Err("it is none of a server".to_owned());
    };
    Ok(Address::Sentinels { at, master: master.to_owned(), login: Box::new(info.redis_settings().clone()) })
}

fn host_and_port(at: &str) -> Result<(String, u16), String> {
    let (host, port) = match at.rsplit_once(':') {
        // An IPv6 address is written in brackets.
        Some((host, port)) if !port.ends_with(']') => {
            let port = port.parse().map_err(|_| format!("{port:?} is no port of a sentinel"))?;
            (host, port)
        }
        _ => (at, SENTINEL_PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host {
        "" => Err("a sentinel has no host".to_owned()),
        _ => Ok((host.to_owned(), port)),
    }
}

/// Asks one Sentinel where the master is.
async fn ask(host: &str, port: u16, master: &str) -> Result<(String, u16), RedisError> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(ASK)).set_response_timeout(Some(ASK));
    let client = Client::open(ConnectionAddr::Tcp(host.to_owned(), port).into_connection_info()?)?;
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let found: Option<(String, u16)> = Cmd::new()
        .arg("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg(master)
        .query_async(&mut connection)
        .await?;
    found.ok_or_else(|| {
        let what = "the sentinel does not know the master";
        (ErrorKind::MasterNameNotFoundBySentinel, what, master.to_owned()).into()
    })
}
