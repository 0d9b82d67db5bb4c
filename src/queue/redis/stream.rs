//! A queue on a Redis stream, read by a consumer group.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, RedisError};
use serde::{Serialize, de::DeserializeOwned};

use self::answer::is_entry_id;
use self::scripts::{ENQUEUE, FIND, GROUP};
use super::calls::Calls;
use super::link::{Link, Script};
use super::wait::Waiter;
use super::{OpenError, Server, check_name, layout};
use crate::queue::millis::millis;
use crate::queue::{Enqueued, JobId, MAX_CRASHES, NewJob, QueueError, Standing};

mod answer;
mod port;
mod scripts;
mod wait;

/// The layout of the keys.
const LAYOUT: u32 = 1;

/// How long another program's consumer is idle until it counts as gone.
const GONE_AFTER: Duration = Duration::from_secs(300);

/// A queue of `T` on a Redis stream, read by a consumer group; a clone is the same queue.
///
/// # What producers write
///
/// `XADD NAME * payload '{"order":1}'`: the field `payload` is read, as JSON; others are left alone. The name of such a job is the ID
/// of its entry, and its age and place follow from that. An entry without a `payload`, or with one that is not a `T`, becomes a dead
/// letter that says why. [`enqueue`](Self::enqueue) adds a field `id` with the name of the job; in entries of others a field `id` means
/// nothing.
///
/// # What becomes of entries
///
/// - One that is acked is deleted (`XACK`, `XDEL`), so that the stream holds what is to be done. While the stream has other groups
///   too, it is acked only, since they may have to read it: trim the stream then as you did before.
/// - Whatever was delivered once and is free again is claimed before what never was, in the order of IDs.
/// - Dead letters stay in the stream, with the consumer `winddown:dead`. Where somebody trims the stream (`XTRIM`, `MAXLEN`), what is
///   trimmed is gone, whatever state it was in.
/// - What a consumer of another program holds in the same group is taken over when it was idle for
///   [`gone_after`](Self::gone_after), and counts as crashed.
/// - What somebody else acks is over, and its name is free again. Where the group is destroyed or set back (`XGROUP SETID`), what is held
///   stays with its holder, delays and dead letters stay as they are, and all the rest is to be done.
///
/// A worker that is alive looks for consumers that are gone: with a claim, or while it waits, at most once in 5 s, whichever of the group's
/// workers it is. It also deletes consumers, those of our owners that have ended as well as those of other programs: one that holds
/// nothing and was idle for [`gone_after`](Self::gone_after), and never one that holds something, since Redis drops that together with
/// it. While no worker is alive, `XINFO CONSUMERS` goes on showing them.
///
/// A stream has one order: [`NewJob::priority`] is not looked at, and each job is told to have priority 0. Use a stream for each
/// priority where you need them, with [`Strict`](crate::queue::Strict).
///
/// An answer that was lost costs no job anything: what such a claim had brought goes back, untouched, with the next claim of that owner, or
/// its [`begin_drain`](crate::queue::Queue::begin_drain). For that an [`Owner`](crate::queue::Owner) claims by one `Stream` and its
/// clones. A claim brings a thousand jobs at most.
///
/// How many entries were never delivered is what Redis says, which gives no exact number after an entry in between was deleted or
/// trimmed: [`Counts::pending`](crate::queue::Counts::pending) is an estimate then.
///
/// # Keys and users
///
/// What the server has to be told, and what a failover can lose, is [the same as for lists](super). Jobs are in the stream `NAME` and in
/// the group's list of pending entries: with the consumer that bears the owner's name, or with one of three that park what nobody holds,
/// `winddown:back` (free to be claimed), `winddown:later` (its delay is not over) and `winddown:dead`. What a stream does not keep
/// is in keys that begin with `{NAME}:group:GROUP:`, braces included: `layout`, epochs and ends of leases, counts, checkpoints, the
/// names that [`enqueue`](Self::enqueue) has given, reasons, totals.
///
/// A user of the server needs, for a stream `orders` and a group `work`: `~orders ~{orders}:group:work:* -@all +@hash +@sortedset
/// +@stream +@string +evalsha +eval +exists +type +time +info +client|id +client|unblock`, and with Sentinels `+role`.
///
/// ```no_run
/// use winddown::queue::redis::{Server, Stream};
/// use winddown::queue::{self, Leased};
/// use winddown::{Cx, ShutdownCoordinator};
///
/// async fn fulfil(order: &Leased<String>, cx: &Cx) -> Result<(), winddown::BoxError> {
///     println!("{} of entry {}", order.item, order.lease.id);
///     Ok(())
/// }
///
/// # async fn example(mut shutdown: ShutdownCoordinator) -> Result<(), winddown::BoxError> {
/// let server = Server::at("redis://localhost")?;
/// let orders = Stream::<String>::open(server, "orders:new", "fulfilment").await?;
/// shutdown.add(queue::work("orders", orders, fulfil).concurrency(16));
/// # Ok(()) }
/// ```
pub struct Stream<T> {
    place: Arc<Place>,
    max_crashes: u32,
    gone_after: Duration,
    item: PhantomData<fn() -> T>,
}

/// Where the queue is, and what is known of it here.
struct Place {
    link: Arc<Link>,
    stream: String,
    group: String,
    /// What its own keys begin with.
    own: String,
    calls: Calls,
    waiter: Waiter,
}

// === impl Stream ===

impl<T: Serialize + DeserializeOwned + Send + Sync + 'static> Stream<T> {
    /// Opens the queue on the stream `name` for the consumer group `group`; makes the stream and the group where there are none.
    ///
    /// For a new group all that is in the stream is to be done. A group that is there goes on where it was. One that is lost later, as by
    /// `FLUSHALL` or `XGROUP DESTROY`, is made anew when it is missed; what the queue's own keys know of an entry holds on.
    ///
    /// # Errors
    ///
    /// A name is not one of letters, digits and `.`, `_`, `-`, `:`, at most 64; a key is somebody else's, or of another layout; the
    /// server is older than Redis 7, or could not be asked.
    ///
    /// # Cancel safety
    ///
    /// May be dropped, and repeated.
    pub async fn open(server: Server, name: &str, group: &str) -> Result<Stream<T>, OpenError> {
        check_name(name, "._-:")?;
        check_name(group, "._-:")?;
        let (stream, group) = (name.to_owned(), group.to_owned());
        let own = format!("{{{stream}}}:group:{group}:");
        let link = Arc::clone(server.link());
        // Before anything is written.
        let mut kind = Cmd::new();
        kind.arg("TYPE").arg(&stream);
        let found = link.query(&kind).await.and_then(|found| Ok(String::from_redis_value(found)?));
        let found = found.map_err(OpenError::Server)?;
        if found != "stream" && found != "none" {
            return Err(OpenError::Foreign {
                key: stream,
                found: format!("it is a {found}, and should be a stream"),
            });
        }
        layout::settle(&link, &own, scripts::KIND, LAYOUT, &scripts::KEYS).await?;
        let calls = Calls::open(&link).await.map_err(OpenError::Server)?;
        let place = Place { link, stream, group, own, calls, waiter: Waiter::new() };
        place.make_group().await.map_err(OpenError::Server)?;
        let place = Arc::new(place);
        Ok(Stream { place, max_crashes: MAX_CRASHES, gone_after: GONE_AFTER, item: PhantomData })
    }

    /// Crashes a job may cause before it becomes a dead letter; [`MAX_CRASHES`] unless said otherwise.
    pub fn max_crashes(mut self, max: u32) -> Stream<T> {
        self.max_crashes = max;
        self
    }

    /// How long a consumer of another program has to be idle until it counts as gone; 5 min unless said otherwise.
    ///
    /// What it holds is then taken over, so this is to be longer than its longest job. Owners of ours have leases instead; a consumer that
    /// holds nothing, theirs included, is deleted when it was idle for so long, by the next worker that looks.
    pub fn gone_after(mut self, idle: Duration) -> Stream<T> {
        self.gone_after = idle;
        self
    }

    /// Adds a job at the end, unless the queue holds one of that name, dead letters included. Its priority is not looked at.
    ///
    /// # Errors
    ///
    /// The item cannot be written as JSON, the name looks like the ID of an entry (`1-0`), or the server could not be asked.
    ///
    /// # Cancel safety
    ///
    /// Dropped half-way, the job may have been added or not; to repeat the call is safe while the job is not done.
    pub async fn enqueue(&self, job: &NewJob<T>) -> Result<Enqueued, QueueError> {
        let mut enqueued = self.enqueue_all(std::slice::from_ref(job)).await?;
        enqueued.pop().ok_or_else(|| QueueError::new("enqueue a job", "the server has not answered for it"))
    }

    /// Adds jobs in this order, all in one step; answers in the order given.
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Self::enqueue); where an item or a name is wrong, none is added.
    ///
    /// # Cancel safety
    ///
    /// As [`enqueue`](Self::enqueue).
    pub async fn enqueue_all(&self, jobs: &[NewJob<T>]) -> Result<Vec<Enqueued>, QueueError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let mut call = self.place.call(&ENQUEUE);
        for job in jobs {
            if is_entry_id(job.id.as_str()) {
                let why = format!("the name {} would be taken for the ID of an entry", job.id);
                return Err(QueueError::new("enqueue a job", why));
            }
            let payload = serde_json::to_string(&job.item)
                .map_err(|error| QueueError::new("write an item as JSON", error))?;
            call.arg(job.id.as_str()).arg(payload).arg(millis(job.delay));
        }
        let added: Vec<bool> = self.place.ask("enqueue a job", &ENQUEUE, &call).await?;
        Ok(added.into_iter().map(|new| if new { Enqueued::Added } else { Enqueued::Exists }).collect())
    }

    /// How a job stands; `None` where there is no such job, or it is done.
    ///
    /// # Errors
    ///
    /// The server could not be asked.
    pub async fn find(&self, id: &JobId) -> Result<Option<Standing>, QueueError> {
        let mut call = self.place.call(&FIND);
        call.arg(id.as_str());
        let found: Option<(String, Option<String>)> = self.place.ask("look for a job", &FIND, &call).await?;
        Ok(found.and_then(|(kind, past)| answer::standing(&kind, past.as_deref())))
    }

    /// What of the server's settings puts jobs at risk, each in one sentence: for the log, at the start.
    ///
    /// Jobs are at risk where the server may evict keys when it is full, and where it keeps nothing on disk.
    ///
    /// # Errors
    ///
    /// The server could not be asked.
    pub async fn warnings(&self) -> Result<Vec<String>, QueueError> {
        let warnings = super::warnings::warnings(&self.place.link).await;
        warnings.map_err(|error| QueueError::new("read the settings of the server", error))
    }
}

impl<T> Clone for Stream<T> {
    fn clone(&self) -> Stream<T> {
        Stream {
            place: Arc::clone(&self.place),
            max_crashes: self.max_crashes,
            gone_after: self.gone_after,
            item: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { stream, group, link, .. } = &*self.place;
        f.debug_struct("Stream")
            .field("name", stream)
            .field("group", group)
            .field("link", link)
            .finish_non_exhaustive()
    }
}

// === impl Place ===

impl Place {
    /// The beginning of a call of a script.
    fn call(&self, script: &Script) -> Cmd {
        let mut call = script.on(&[&self.stream, &self.own]);
        call.arg(&self.group);
        call
    }

    async fn ask<A: FromRedisValue>(
        &self,
        doing: &'static str,
        script: &Script,
        call: &Cmd,
    ) -> Result<A, QueueError> {
        let answer = match self.link.call(script, call).await {
            // Flushed, or lost with a server that keeps nothing; the script has done nothing.
            Err(error) if error.code() == Some("NOGROUP") => match self.make_group().await {
                Ok(()) => self.link.call(script, call).await,
                Err(error) => Err(error),
            },
            answer => answer,
        };
        let answer = answer.map_err(|error| QueueError::new(doing, error))?;
        A::from_redis_value(answer).map_err(|error| QueueError::new(doing, error))
    }

    /// Makes the group where there is none.
    async fn make_group(&self) -> Result<(), RedisError> {
        let mut call = self.call(&GROUP);
        call.arg(format!("winddown {} {LAYOUT}", scripts::KIND));
        self.link.call(&GROUP, &call).await.map(drop)
    }
}
