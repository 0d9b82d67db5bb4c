//! Queues in Redis, which any number of processes may share.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use redis::RedisError;

use self::address::Address;
use self::link::Link;

mod address;
mod layout;
mod link;
mod list;
mod stream;
mod warnings;

pub use self::list::List;
pub use self::stream::Stream;

/// The longest name of a queue.
const NAME_MAX: usize = 64;

/// Where a Redis is, and how it is reached; clones share the connection.
///
/// One connection carries all calls, and each queue that waits has one more for that. They are opened when something is asked, with
/// 5 s for a call, and dropped when they fail; the next call opens a new one and looks anew for where the server is.
#[derive(Debug, Clone)]
pub struct Server(Arc<Link>);

/// The queue cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL is none of a Redis; says why, and never what it was, since there may be a password in it.
    BadUrl(String),
    /// The name is not one of letters, digits, dots, dashes and underscores, at most 64.
    BadName(String),
    /// A key of the queue is there, and is not a queue's.
    Foreign {
        /// The key.
        key: String,
        /// What it holds.
        found: String,
    },
    /// The keys were made by another version, whose layout this one does not read.
    Layout {
        /// The key that says so.
        key: String,
        /// The layout it names.
        found: u32,
        /// The layout it would need.
        needed: u32,
    },
    /// The server is older than what the queue needs.
    Version {
        /// Its version.
        found: String,
        /// The oldest that will do.
        needed: u32,
    },
    /// The server could not be asked.
    Server(RedisError),
}

// === impl Server ===

impl Server {
    /// Takes the address of a server, and does not connect yet.
    ///
    /// - `redis://[user:password@]host[:port][/db]`
    /// - `redis+unix:///path[?db=1&user=…&pass=…]`
    /// - `redis+sentinel://[user:password@]host[:port],host[:port]/master[/db]`: asks the Sentinels, one after the other, where the
    ///   master is, each time a connection is opened. User and password are the master's. Each is given a second.
    ///
    /// ```
    /// use winddown::queue::redis::Server;
    ///
    /// let server = Server::at("redis://localhost/1")?;
    /// let watched = Server::at("redis+sentinel://one:26379,two:26379/orders")?;
    /// assert!(Server::at("http://localhost").is_err());
    /// # Ok::<(), winddown::queue::redis::OpenError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`OpenError::BadUrl`].
    pub fn at(url: &str) -> Result<Server, OpenError> {
        let address = Address::parse(url).map_err(OpenError::BadUrl)?;
        Ok(Server(Arc::new(Link::new(address))))
    }

    fn link(&self) -> &Arc<Link> {
        &self.0
    }
}

/// What all keys of a queue begin with: its name in braces, so that a cluster keeps them together.
fn prefix(name: &str) -> Result<String, OpenError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
        return Err(OpenError::BadName(name.chars().take(NAME_MAX).collect()));
    }
    Ok(format!("{{{name}}}:"))
}

// === impl OpenError ===

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::BadUrl(why) => {
                write!(f, "the URL is none of a Redis (redis://, redis+unix:// or redis+sentinel://): {why}")
            }
            OpenError::BadName(name) => write!(
                f,
                "{name:?} cannot name a queue: letters, digits, '.', '_' and '-', at least 1 and at most {NAME_MAX}"
            ),
            OpenError::Foreign { key, found } => write!(f, "key {key} is not a queue's: {found}"),
            OpenError::Layout { key, found, needed } => {
                write!(f, "key {key} says layout {found}, and this version needs layout {needed}")
            }
            OpenError::Version { found, needed } => {
                write!(f, "the server is Redis {found}, and the queue needs {needed} or later")
            }
            OpenError::Server(_) => f.write_str("could not open the queue"),
        }
    }
}

impl Error for OpenError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            OpenError::Server(error) => Some(error),
            _ => None,
        }
    }
}
