//! A queue on a list and what belongs to it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use redis::{Cmd, FromRedisValue, RedisError, Value};
use serde::{Serialize, de::DeserializeOwned};

use super::calls::Calls;
use super::link::{Link, Script};
use super::wait::Waiter;
use super::{OpenError, Server, check_name, layout};
use crate::queue::millis::millis;
use crate::queue::{Enqueued, JobId, MAX_CRASHES, NewJob, QueueError, Standing};

mod groups;
mod port;
mod reply;
mod scripts;
mod wait;

/// The layout that this version reads and writes; `place.lua` names it, too.
const LAYOUT: u32 = 1;

/// All keys but the sets of what is claimed, which are named `h:` and the claim; each with its type.
const KEYS: [(&str, &str); 13] = [
    ("dead", "zset"),
    ("ending", "hash"),
    ("epoch", "string"),
    ("jobs", "hash"),
    ("leases", "zset"),
    ("line", "zset"),
    ("meta", "hash"),
    ("once", "zset"),
    ("paused", "string"),
    ("pending", "list"),
    ("reasons", "hash"),
    ("scheduled", "zset"),
    ("state", "hash"),
];

/// The key that waiters sleep at.
const WAKE: (&str, &str) = ("wake", "list");

/// How many jobs one call is about, at most: a script holds up everybody else for as long as it runs.
const BATCH: usize = 1000;

/// A queue of `T`, stored as JSON, in a Redis; a clone is the same queue.
///
/// The keys, what the server has to be told, and what a failover can lose are described [in the module](super).
///
/// A thousand jobs go in one call, and are settled all or none; where a call is given more, they go a thousand at a time, and after an
/// error it is open how many had gone. A claim brings a thousand at most. For [`Counts::oldest`](crate::queue::Counts::oldest) a thousand
/// of the claimed jobs and a thousand of those that wait for their time are looked at, those that are due first, and fewer where
/// they are large.
///
/// Leases are those of claims: what was claimed together is renewed together. [`extend`](crate::queue::Queue::extend) of some jobs of a
/// claim makes the lease of all of them longer, and never shorter. An answer that was lost costs no job anything: what such a
/// claim had brought goes back, untouched, with the next claim of that owner, or its [`begin_drain`](crate::queue::Queue::begin_drain). For
/// that an [`Owner`](crate::queue::Owner) claims by one `List` and its clones.
pub struct List<T> {
    shared: Arc<Shared>,
    max_crashes: u32,
    item: PhantomData<fn() -> T>,
}

struct Shared {
    server: Server,
    name: String,
    prefix: String,
    calls: Calls,
    waiter: Waiter,
}

// === impl List ===

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> List<T> {
    /// Opens the queue `name`, and makes it where there is none.
    ///
    /// # Errors
    ///
    /// The name is no plain name; a key of the queue is somebody else's, or of another layout; the server is too old, or could not
    /// be asked.
    ///
    /// # Cancel safety
    ///
    /// May be dropped.
    pub async fn open(server: Server, name: &str) -> Result<List<T>, OpenError> {
        check_name(name, "._-")?;
        let prefix = format!("{{{name}}}:");
        let keys: Vec<_> = KEYS.into_iter().chain([WAKE]).collect();
        layout::settle(server.link(), &prefix, "list", LAYOUT, &keys).await?;
        server.link().teach(&[&scripts::BEGIN_DRAIN, &scripts::EXTEND, &scripts::REQUEUE]).await;
        let calls = Calls::open(server.link()).await.map_err(OpenError::Server)?;
        let shared = Shared { server, name: name.to_owned(), prefix, calls, waiter: Waiter::new() };
        Ok(List { shared: Arc::new(shared), max_crashes: MAX_CRASHES, item: PhantomData })
    }

    /// Crashes a job may cause before it becomes a dead letter; [`MAX_CRASHES`] unless said otherwise.
    pub fn max_crashes(mut self, max: u32) -> List<T> {
        self.max_crashes = max;
        self
    }

    /// Adds a job, unless the queue holds one of that name, dead letters included.
    ///
    /// # Errors
    ///
    /// The item cannot be written as JSON, or the server could not be asked, or is full.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the job may have been added or not; to repeat the call is safe while the job is not done. Where it may be
    /// done by then, see [`enqueue_once`](Self::enqueue_once).
    pub async fn enqueue(&self, job: &NewJob<T>) -> Result<Enqueued, QueueError> {
        let mut added = self.add("", std::slice::from_ref(job)).await?;
        added.pop().ok_or_else(|| QueueError::new("enqueue a job", "the server has not answered for it"))
    }

    /// Adds many jobs in their order; answers in that order, too.
    ///
    /// A thousand go at once, all or none of them; where there are more, an error leaves it open how many of those were added.
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Self::enqueue).
    ///
    /// # Cancel safety
    ///
    /// As [`enqueue`](Self::enqueue).
    pub async fn enqueue_all(&self, jobs: &[NewJob<T>]) -> Result<Vec<Enqueued>, QueueError> {
        self.add("", jobs).await
    }

    /// Adds jobs, and remembers their names until [`forget_once`](Self::forget_once): for so long another such call adds no job of that
    /// name, also where the first is done by then.
    ///
    /// For an outbox: read what is to be queued from your database, call this, delete it there, and then forget. Whatever fails
    /// between two of these steps, the whole may be repeated, and for as long as the name is remembered the job is queued once.
    ///
    /// Once the name is forgotten and the job is done, a call that is late adds the job again: that of a second relay which read the same row
    /// before it was deleted, or one that was dropped or has failed, and reaches the server after all. So forget a name only if no
    /// other relay can have had its row in hand, and no call for it of your own is unanswered. Where that is not sure, forget
    /// nothing: a name is forgotten by itself after 7 days, with the next call of this.
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Self::enqueue).
    ///
    /// # Cancel safety
    ///
    /// May be dropped, and repeated; its names are then better not told to be forgotten.
    pub async fn enqueue_once(&self, jobs: &[NewJob<T>]) -> Result<Vec<Enqueued>, QueueError> {
        self.add("once", jobs).await
    }

    /// Forgets names that [`enqueue_once`](Self::enqueue_once) has remembered; see there when that is right.
    ///
    /// # Errors
    ///
    /// The server could not be asked; some names may be forgotten.
    ///
    /// # Cancel safety
    ///
    /// May be dropped, and repeated.
    pub async fn forget_once(&self, ids: &[JobId]) -> Result<(), QueueError> {
        for ids in ids.chunks(BATCH) {
            let mut command = Cmd::new();
            command.arg("ZREM").arg(format!("{}once", self.shared.prefix));
            for id in ids {
                command.arg(id.as_str());
            }
            let forgotten = self.shared.link().query(&command).await;
            forgotten.map_err(|error| QueueError::new("forget names", error))?;
        }
        Ok(())
    }

    /// How a job stands; `None` where there is no such job, or it is done.
    ///
    /// # Errors
    ///
    /// The server could not be asked.
    pub async fn find(&self, id: &JobId) -> Result<Option<Standing>, QueueError> {
        let found = self.shared.run(&scripts::FIND, |call| call.arg(id.as_str())).await;
        found.and_then(reply::standing).map_err(|error| QueueError::new("look for a job", error))
    }

    /// Keeps everybody from claiming, in all processes, until [`resume`](Self::resume); what is claimed is not disturbed, and a lease
    /// that runs out meanwhile is reclaimed after that.
    ///
    /// # Errors
    ///
    /// The server could not be asked.
    pub async fn pause(&self) -> Result<(), QueueError> {
        let paused = self.shared.run(&scripts::WAKE, |call| call.arg("pause")).await;
        paused.map(drop).map_err(|error| QueueError::new("pause the queue", error))
    }

    /// Lets jobs be claimed again.
    ///
    /// # Errors
    ///
    /// The server could not be asked.
    pub async fn resume(&self) -> Result<(), QueueError> {
        let resumed = self.shared.run(&scripts::WAKE, |call| call.arg("resume")).await;
        resumed.map(drop).map_err(|error| QueueError::new("resume the queue", error))
    }

    /// Whether the queue is paused.
    ///
    /// # Errors
    ///
    /// The server could not be asked.
    pub async fn is_paused(&self) -> Result<bool, QueueError> {
        let mut command = Cmd::new();
        command.arg("EXISTS").arg(format!("{}paused", self.shared.prefix));
        let paused = self.shared.link().query(&command).await;
        paused
            .and_then(|paused| reply::number(&paused))
            .map(|paused| paused == 1)
            .map_err(|error| QueueError::new("see whether the queue is paused", error))
    }

    /// What of the server's settings puts jobs at risk, each in one sentence: for the log, at the start.
    ///
    /// Jobs are at risk where the server may evict keys when it is full, and where it keeps nothing on disk.
    ///
    /// # Errors
    ///
    /// The server could not be asked.
    pub async fn warnings(&self) -> Result<Vec<String>, QueueError> {
        let warnings = super::warnings::warnings(self.shared.link()).await;
        warnings.map_err(|error| QueueError::new("read the settings of the server", error))
    }

    async fn add(&self, once: &str, jobs: &[NewJob<T>]) -> Result<Vec<Enqueued>, QueueError> {
        // All are written first: what cannot be is to keep none from being said.
        let items: Result<Vec<String>, _> = jobs.iter().map(|job| serde_json::to_string(&job.item)).collect();
        let items = items.map_err(|error| QueueError::new("write an item as JSON", error))?;
        let mut added = Vec::with_capacity(jobs.len());
        for (jobs, items) in jobs.chunks(BATCH).zip(items.chunks(BATCH)) {
            let answer = self.shared.run(&scripts::ENQUEUE, |call| {
                call.arg(once);
                for (job, item) in jobs.iter().zip(items) {
                    call.arg(job.id.as_str()).arg(job.priority).arg(millis(job.delay)).arg(item);
                }
                call
            });
            let new = answer.await.and_then(|new| Ok(Vec::<bool>::from_redis_value(new)?));
            let new = new.map_err(|error| QueueError::new("enqueue jobs", error))?;
            added.extend(new.into_iter().map(|new| if new { Enqueued::Added } else { Enqueued::Exists }));
        }
        Ok(added)
    }
}

impl<T> Clone for List<T> {
    fn clone(&self) -> List<T> {
        List { shared: self.shared.clone(), max_crashes: self.max_crashes, item: PhantomData }
    }
}

impl<T> fmt::Debug for List<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List")
            .field("name", &self.shared.name)
            .field("server", &self.shared.server)
            .finish_non_exhaustive()
    }
}

// === impl Shared ===

impl Shared {
    fn link(&self) -> &Link {
        self.server.link()
    }

    async fn run(
        &self,
        script: &Script,
        args: impl FnOnce(&mut Cmd) -> &mut Cmd,
    ) -> Result<Value, RedisError> {
        let mut call = script.on(&[&self.prefix]);
        args(&mut call);
        self.link().call(script, &call).await
    }
}
