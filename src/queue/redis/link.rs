//! The connections to a server: opened when something is asked, dropped when they fail.

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::timeout;

use super::address::Address;
use crate::budget::Human;

/// How long a call may take, the opening of the connection included. A stop that has less time does not wait for it.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// How long the opening of a connection may take; less than a call, so that the error says which of the two it was.
const CONNECT: Duration = Duration::from_secs(4);

/// A script, known to the server by its hash.
pub(super) struct Script {
    code: &'static str,
    sha: OnceLock<String>,
}

/// The way to one server, with one connection for calls.
///
/// A call that fails leaves open whether it was done: the server may not have got it, or its answer was lost. What is called is
/// to be safe to repeat. Nothing is repeated here but a script that the server did not know, since that has done nothing.
///
/// After an error of the connection, a call that took too long, or an answer of a server that is not (or no longer) the one to
/// ask, the connection is dropped, and the next call opens a new one, which resolves the address anew. There is no pause between: whoever
/// calls in a loop waits by itself.
pub(super) struct Link {
    address: Address,
    line: Mutex<Line>,
    // Held while a connection is opened, so that many calls at once open one.
    opening: tokio::sync::Mutex<()>,
}

struct Line {
    connection: Option<MultiplexedConnection>,
    /// Counts the connections, so that an error of an old one does not drop its successor.
    number: u64,
}

// === impl Script ===

impl Script {
    pub(super) const fn new(code: &'static str) -> Script {
        Script { code, sha: OnceLock::new() }
    }

    /// The beginning of a call, which takes the rest of the arguments by [`Cmd::arg`].
    pub(super) fn on(&self, keys: &[&str]) -> Cmd {
        // Room for what settles a job or two, so that a short call does not grow piece by piece.
        let mut call = Cmd::with_capacity(24, 512);
        let sha = self.sha.get_or_init(|| redis::Script::new(self.code).get_hash().to_owned());
        call.arg("EVALSHA").arg(sha).arg(keys.len()).arg(keys);
        call
    }

    /// The same call with the script itself, which the server then knows.
    fn in_full(&self, call: &Cmd) -> Cmd {
        let mut full = Cmd::new();
        full.arg("EVAL").arg(self.code);
        for arg in call.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                full.arg(arg);
            }
        }
        full
    }
}

// === impl Link ===

impl Link {
    pub(super) fn new(address: Address) -> Link {
        let line = Mutex::new(Line { connection: None, number: 0 });
        Link { address, line, opening: tokio::sync::Mutex::new(()) }
    }

    /// Runs a script; `call` is begun by [`Script::on`].
    pub(super) async fn call(&self, script: &Script, call: &Cmd) -> Result<Value, RedisError> {
        match self.query(call).await {
            // The server has been started anew, or its scripts were flushed.
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.query(&script.in_full(call)).await
            }
            answer => answer,
        }
    }

    /// Has the server know scripts before they are first called: a stop may have no time for a second way there and back.
    pub(super) async fn teach(&self, scripts: &[&Script]) {
        let lessons = scripts.iter().map(async |script| {
            let mut load = Cmd::new();
            load.arg("SCRIPT").arg("LOAD").arg(script.code);
            self.query(&load).await
        });
        // One that was not learned is called in full when it is needed.
        drop(futures_util::future::join_all(lessons).await);
    }

    /// Runs one command, which must not block at the server.
    pub(super) async fn query(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut used = None;
        let answer = timeout(PATIENCE, async {
            let (number, mut connection) = self.connection().await?;
            used = Some(number);
            connection.send_packed_command(command).await.and_then(Value::extract_error)
        });
        let answer = answer.await.unwrap_or_else(|_| Err(self.too_slow(PATIENCE)));
        if let (Err(error), Some(number)) = (&answer, used) {
            if is_over(error) {
                self.drop_connection(number);
            }
        }
        answer
    }

    /// Opens a connection of its own, for commands that block at the server. A call on it may take up to `patience`.
    pub(super) async fn open(&self, patience: Option<Duration>) -> Result<MultiplexedConnection, RedisError> {
        let opened: Result<Result<_, RedisError>, _> = timeout(CONNECT, async {
            let client = Client::open(self.address.resolve().await?)?;
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(CONNECT))
                .set_response_timeout(patience);
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            self.address.check(&mut connection).await?;
            Ok(connection)
        })
        .await;
        match opened {
            // The system's words alone do not say which server it was.
            Ok(Err(error)) if error.kind() == ErrorKind::Io => {
                Err(io::Error::other(format!("{}: {error}", self.address)).into())
            }
            Ok(opened) => opened,
            Err(_) => Err(self.too_slow(CONNECT)),
        }
    }

    async fn connection(&self) -> Result<(u64, MultiplexedConnection), RedisError> {
        if let Some(open) = self.line().open() {
            return Ok(open);
        }
        let _opening = self.opening.lock().await;
        // Whoever held the lock before may have opened it.
        if let Some(open) = self.line().open() {
            return Ok(open);
        }
        // Each call has a limit of its own.
        let connection = self.open(None).await?;
        let mut line = self.line();
        line.number += 1;
        line.connection = Some(connection.clone());
        Ok((line.number, connection))
    }

    fn too_slow(&self, limit: Duration) -> RedisError {
        let why = format!("{} did not answer within {}", self.address, Human(limit));
        io::Error::new(io::ErrorKind::TimedOut, why).into()
    }

    fn drop_connection(&self, number: u64) {
        let mut line = self.line();
        if line.number == number {
            line.connection = None;
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        // Nothing behind this lock is ever half-changed.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("address", &format_args!("{}", self.address)).finish_non_exhaustive()
    }
}

// === impl Line ===

impl Line {
    fn open(&self) -> Option<(u64, MultiplexedConnection)> {
        self.connection.clone().map(|connection| (self.number, connection))
    }
}

/// Whether the next call should go over a new connection, perhaps to another server.
pub(super) fn is_over(error: &RedisError) -> bool {
    use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, ReadOnly};
    matches!(
        error.kind(),
        ErrorKind::Io
            | ErrorKind::Parse
            | ErrorKind::AuthenticationFailed
            | ErrorKind::Server(ReadOnly | BusyLoading | MasterDown | ClusterDown)
    ) || error.is_unrecoverable_error()
}
