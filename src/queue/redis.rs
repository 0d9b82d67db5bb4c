//! Queues in Redis, which any number of processes may share.
//!
//! [`List`] is the queue to start from: it keeps all the rules of [`Queue`](super::Queue), and a move of up to a thousand jobs is one
//! script, done as a whole or not at all. [`Stream`] is for where other programs write to a stream, or read from the same group.
//!
//! ```no_run
//! use winddown::queue::redis::{List, Server};
//! use winddown::queue::{self, Leased, NewJob};
//! use winddown::{BoxError, Budget, Cx, ShutdownCoordinator, signal};
//!
//! async fn fulfil(order: &Leased<String>, cx: &Cx) -> Result<(), BoxError> {
//!     println!("{} for the {}. time", order.item, order.attempts + 1);
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), BoxError> {
//! let jobs: List<String> = List::open(Server::at("redis://localhost")?, "orders").await?;
//! for warning in jobs.warnings().await? {
//!     eprintln!("{warning}");
//! }
//! jobs.enqueue(&NewJob::new("order-1".parse()?, "tea".to_owned())).await?;
//!
//! let mut shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
//! shutdown.add(queue::work("orders", jobs, fulfil).concurrency(16));
//! shutdown.run().await.print();
//! # Ok(()) }
//! ```
//!
//! # The server
//!
//! Redis 7 or later, or what calls itself so. To lose no job it needs, in its own configuration:
//!
//! - `maxmemory-policy noeviction`. A server that is full then refuses new jobs, with an error; those that it has are still claimed,
//!   renewed, acked and handed back. With a policy named `allkeys-…` it drops whole queues.
//! - `appendonly yes`. With `appendfsync always` a job whose enqueuing was answered survives a loss of power; with `everysec` up to
//!   about a second of moves is undone by that. Where only the server's process dies, nothing is undone with either.
//!
//! [`List::warnings`] names what is set otherwise.
//!
//! # What a failover can lose
//!
//! Redis sends its writes to replicas without waiting for them. A failover undoes the last moves, those of some milliseconds as a
//! rule, and also such that were answered. So does a start from a disk that is behind. Each move is undone as a whole, the last ones
//! first: the queue is as it was at some moment before. Compared with what callers were told,
//!
//! - a job that was enqueued may be missing, together with what [`List::enqueue_once`] remembered of it. Where the job is stored elsewhere
//!   until then, repeat the call. `min-replicas-to-write` in the server's configuration bounds how much can be undone.
//! - a job that was acked may be there again, and runs again.
//! - a job that was claimed may be free again, and run elsewhere, while its first holder learns of that only by the next renewal, after a
//!   third of a lease: for so long it may run twice at once. Epochs grow on over a failover as long as the clocks of the servers agree
//!   to within the time that it takes, so a fenced effect lets only the later holder through.
//! - a job that was handed back, or had failed, may be held again by whoever held it, until that lease ends; then it counts as crashed.
//! - an attempt, an interruption or a crash may be counted once too few, and a queue that was paused or resumed may not be.
//!
//! Nothing is undone in any other way.
//!
//! # Clusters
//!
//! All keys of a queue are in one slot of a cluster: their braces see to that. Redirections are not followed, so the URL has to name the
//! master that has the slot; any other one answers `MOVED`, which is an error.
//!
//! # Keys and users
//!
//! This is what a [`List`] has; see there for a [`Stream`]. All keys begin with `{NAME}:`, braces included. Nothing expires by itself.
//!
//! | key | is | holds |
//! | --- | --- | --- |
//! | `layout` | string | kind and version of this layout; another one is refused |
//! | `jobs` | hash | each job: its place in the order, when it was enqueued (ms), its priority, a space each, then its JSON |
//! | `meta` | hash | what a job went through, where that is anything: attempts, interruptions, crashes, last hand-back, checkpoint |
//! | `pending` | list | jobs of priority 0 that are free, in their order |
//! | `line` | sorted set | the other free ones, by priority and order: other priorities, and what came back |
//! | `scheduled` | sorted set | jobs that wait, by the end of their delay (ms) |
//! | `h:EPOCH:OWNER` | set | jobs that were claimed together and are held, where there were several |
//! | `leases` | sorted set | these claims, as `EPOCH:OWNER`, and those of a single job with a newline and its name behind that, by the end of their lease (ms) |
//! | `epoch` | string | the last epoch |
//! | `ending` | hash | owners that are ending: when they are killed, and since when that is known (ms) |
//! | `dead`, `reasons` | sorted set, hash | dead letters, by when they were given up (ms), and why |
//! | `once` | sorted set | names that [`List::enqueue_once`] remembers, by when (ms) |
//! | `wake` | list | at most one token, for whoever waits |
//! | `paused` | string | is there while the queue is paused |
//! | `state` | hash | the last place in the order, totals, how far a search for lost leases has come |
//!
//! A lease is that of a claim, with all its jobs: renewing one of them renews all. When all jobs are done, `layout`, `epoch`, `state` and
//! perhaps `wake` are left; for a week also `once`, for names that were not forgotten, and `ending`, for owners that were killed in their stop.
//!
//! A user of the server needs, for a queue `orders`: `~{orders}:* -@all +@hash +@list +@set +@sortedset +@string +evalsha +eval +exists
//! +type +del +scan +time +info +client|id +client|unblock`, and with Sentinels `+role`.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use redis::RedisError;

use self::address::Address;
use self::link::Link;

mod address;
mod calls;
mod layout;
mod link;
mod list;
mod stream;
mod wait;
mod warnings;

pub use self::list::List;
pub use self::stream::Stream;

/// The longest name of a queue, a stream or a group.
const NAME_MAX: usize = 64;

/// Where a Redis is, and how it is reached; clones share the connection.
///
/// One connection carries all calls, and each queue that waits has one more for that. They are opened when something is asked, with
/// 5 s for a call, and dropped when they fail; the next call opens a new one and looks anew for where the server is.
///
/// What waits is told of jobs by the server. It asks by itself when the next lease or delay ends, and every 2 to 3 s, with another wait each
/// time, so that processes which were started together do not ask together: an idle one makes no more than one request a second.
#[derive(Debug, Clone)]
pub struct Server(Arc<Link>);

/// The queue cannot be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// The URL is none of a Redis; says why, and never what it was, since there may be a password in it.
    BadUrl(String),
    /// The name is not one of letters, digits, dots, dashes and underscores (of a stream or a group also colons), 1 to 64 of them.
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
    ///   master is, each time a connection is opened. User and password are the master's. Each is given a second, and the opening as a
    ///   whole 4 s: more than three are of little use.
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

/// Refuses a name that has other characters than letters, digits and these, none at all, or too many.
fn check_name(name: &str, others: &'static str) -> Result<(), OpenError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(plain) {
        return Err(OpenError::BadName(name.chars().take(NAME_MAX).collect()));
    }
    Ok(())
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
                "{name:?} cannot name a queue: letters, digits, '.', '_' and '-' (of a stream also ':'), at least 1 and at most {NAME_MAX}"
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
