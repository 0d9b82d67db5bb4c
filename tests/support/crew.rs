//! A queue with a crew of real processes, and what their stamps and ledgers say of them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use winddown::queue::redis::{List, Server, Stream};
use winddown::queue::{Counts, Enqueued, NewJob, Queue, QueueError};
use winddown::testing::process::{Exit, Process, Running, Signal};

use super::redis_server::Redis;

#[path = "limits.rs"]
pub mod limits;

use limits::eventually_within;

/// Far more than anything here takes on a slow machine.
pub const SOON: Duration = Duration::from_secs(120);
pub const QUEUE: &str = "orders";
const GROUP: &str = "crew";

pub type Jobs = List<Value>;

/// The two kinds of queues in Redis.
pub enum Kind {
    List(Jobs),
    Stream(Stream<Value>),
}

/// A queue, and where its crew notes what it does.
pub struct Scene {
    pub jobs: Kind,
    url: String,
    stamps: Option<String>,
    connection: MultiplexedConnection,
}

/// What one run of a job noted.
#[derive(Debug, Clone)]
pub struct Stamp {
    pub note: String,
    pub job: String,
    pub epoch: u64,
    pub pid: u32,
    /// By the server's clock.
    pub us: u64,
    pub stale: bool,
    pub attempts: u32,
    pub interruptions: u32,
    pub crashes: u32,
}

/// How a process of the crew ended that was let end.
#[derive(Debug)]
pub struct Ended {
    pub exit: Exit,
    pub ledger: Value,
    pub report: Value,
}

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Looks again and again, for as long as is bearable.
pub async fn eventually(what: &str, look: impl AsyncFnMut() -> bool) {
    eventually_within(SOON, what, look).await;
}

pub fn duty(kind: &str, lengths: &[u64]) -> Value {
    json!({ "kind": kind, "ms": lengths })
}

// === impl Kind ===

impl Kind {
    pub async fn enqueue_all(&self, jobs: &[NewJob<Value>]) -> Result<Vec<Enqueued>, QueueError> {
        match self {
            Kind::List(list) => list.enqueue_all(jobs).await,
            Kind::Stream(stream) => stream.enqueue_all(jobs).await,
        }
    }

    pub async fn enqueue(&self, job: &NewJob<Value>) -> Result<Enqueued, QueueError> {
        match self {
            Kind::List(list) => list.enqueue(job).await,
            Kind::Stream(stream) => stream.enqueue(job).await,
        }
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        match self {
            Kind::List(list) => list.counts().await,
            Kind::Stream(stream) => stream.counts().await,
        }
    }
}

// === impl Scene ===

impl Scene {
    /// Where queue and stamps are with one server.
    pub async fn on(redis: &Redis) -> Scene {
        Scene::with(&redis.url(), None, redis).await
    }

    /// The same with a stream.
    pub async fn on_a_stream(redis: &Redis) -> Scene {
        let stream = Stream::open(Server::at(&redis.url()).unwrap(), QUEUE, GROUP).await.unwrap();
        let jobs = Kind::Stream(stream);
        Scene { jobs, url: redis.url(), stamps: None, connection: redis.connection().await }
    }

    /// The same with the stamps on a server of their own.
    pub async fn on_a_stream_apart(url: &str, stamps: &Redis) -> Scene {
        let jobs = Kind::Stream(Stream::open(Server::at(url).unwrap(), QUEUE, GROUP).await.unwrap());
        let connection = stamps.connection().await;
        Scene { jobs, url: url.to_owned(), stamps: Some(stamps.url()), connection }
    }

    /// Where the stamps are with a server of their own, which the crew's troubles do not reach.
    pub async fn apart(url: &str, stamps: &Redis) -> Scene {
        Scene::with(url, Some(stamps.url()), stamps).await
    }

    async fn with(url: &str, stamps: Option<String>, noted_by: &Redis) -> Scene {
        let jobs = Kind::List(Jobs::open(Server::at(url).unwrap(), QUEUE).await.unwrap());
        Scene { jobs, url: url.to_owned(), stamps, connection: noted_by.connection().await }
    }

    pub async fn push(&self, id: &str, item: Value) {
        let job = NewJob::new(id.parse().unwrap(), item);
        assert_eq!(self.jobs.enqueue(&job).await.unwrap(), Enqueued::Added, "{id}");
    }

    /// `job-0` and on.
    pub async fn push_all(&self, count: u64, item: impl FnMut(u64) -> Value) {
        self.push_from(0, count, item).await;
    }

    pub async fn push_from(&self, first: u64, count: u64, mut item: impl FnMut(u64) -> Value) {
        let numbers = first..first + count;
        let all: Vec<_> =
            numbers.map(|n| NewJob::new(format!("job-{n}").parse().unwrap(), item(n))).collect();
        for some in all.chunks(500) {
            let enqueued = self.jobs.enqueue_all(some).await.unwrap();
            assert!(enqueued.iter().all(|enqueued| *enqueued == Enqueued::Added));
        }
    }

    /// A process of the crew, yet to be started.
    pub fn crew(&self, owner: &str) -> Process {
        self.crew_at(&self.url, owner)
    }

    /// One that reaches the queue in another way.
    pub fn crew_at(&self, url: &str, owner: &str) -> Process {
        let crew = Process::example("crew").args(["--url", url, "--queue", QUEUE, "--owner", owner]);
        let crew = match self.jobs {
            Kind::List(_) => crew,
            Kind::Stream(_) => crew.args(["--group", GROUP]),
        };
        let crew = match &self.stamps {
            Some(url) => crew.args(["--stamps", url]),
            None => crew,
        };
        crew.ready_line("ready").patience(SOON)
    }

    /// From a server that may just have been away.
    pub async fn counts(&self) -> Counts {
        let began = Instant::now();
        loop {
            match self.jobs.counts().await {
                Ok(counts) => return counts,
                Err(error) => assert!(began.elapsed() < SOON, "{error:?}"),
            }
            tokio::time::sleep(ms(20)).await;
        }
    }

    /// Until all is done but what is dead.
    pub async fn until_done(&self) {
        eventually("all is done", async || {
            let counts = self.counts().await;
            counts.pending + counts.scheduled + counts.active == 0
        })
        .await;
    }

    /// All notes in the order in which the server had them.
    pub async fn stamps(&self) -> Vec<Stamp> {
        let key = format!("crew:{QUEUE}:log");
        let mut connection = self.connection.clone();
        let log: Vec<String> =
            redis::cmd("LRANGE").arg(key).arg(0).arg(-1).query_async(&mut connection).await.unwrap();
        log.iter().map(|line| Stamp::parse(line)).collect()
    }

    /// Until so many different jobs were begun by this process.
    pub async fn begun(&self, pid: u32, jobs: usize) {
        eventually("jobs are begun", async || {
            let stamps = self.stamps().await;
            let begun = stamps.iter().filter(|stamp| stamp.note == "start" && stamp.pid == pid);
            begun.map(|stamp| &stamp.job).collect::<BTreeSet<_>>().len() >= jobs
        })
        .await;
    }

    /// How often each job took effect.
    pub async fn effects(&self) -> BTreeMap<String, u64> {
        let key = format!("crew:{QUEUE}:effects");
        let mut connection = self.connection.clone();
        redis::cmd("HGETALL").arg(key).query_async(&mut connection).await.unwrap()
    }

    /// By the clock that the stamps are of.
    pub async fn now_us(&self) -> u64 {
        let mut connection = self.connection.clone();
        let (s, us): (u64, u64) = redis::cmd("TIME").query_async(&mut connection).await.unwrap();
        s * 1_000_000 + us
    }
}

/// The jobs that an owner holds, by what the server keeps: for one that is dead or frozen, whose last words may still be on
/// their way to the server.
pub async fn held_by(redis: &Redis, owner: &str) -> BTreeSet<String> {
    let mut connection = redis.connection().await;
    // What a client had sent before it ended is read in the same turn as this, or before.
    let _: String = redis::cmd("PING").query_async(&mut connection).await.unwrap();
    let _: String = redis::cmd("PING").query_async(&mut connection).await.unwrap();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg(format!("{{{QUEUE}}}:h:*:{owner}"))
        .query_async(&mut connection)
        .await
        .unwrap();
    let mut held = BTreeSet::new();
    for key in keys {
        let ids: Vec<String> = redis::cmd("SMEMBERS").arg(key).query_async(&mut connection).await.unwrap();
        held.extend(ids);
    }
    // A claim of a single job has its name in its own.
    let claims: Vec<String> = redis::cmd("ZRANGE")
        .arg(format!("{{{QUEUE}}}:leases"))
        .arg(0)
        .arg(-1)
        .query_async(&mut connection)
        .await
        .unwrap();
    let of_one = claims.iter().filter_map(|claim| claim.split_once('\n'));
    held.extend(
        of_one.filter(|(token, _)| token.ends_with(&format!(":{owner}"))).map(|(_, id)| id.to_owned()),
    );
    held.extend(held_of_the_stream(&mut connection, owner).await);
    held
}

/// The jobs whose entries have a lease, and whose holder it is.
async fn held_of_the_stream(connection: &mut MultiplexedConnection, owner: &str) -> Vec<String> {
    let own = |key: &str| format!("{{{QUEUE}}}:group:{GROUP}:{key}");
    // In one moment: what is reclaimed meanwhile is held by another.
    let mut all = redis::pipe();
    all.atomic().cmd("ZRANGE").arg(own("leases")).arg(0).arg(-1);
    all.cmd("HGETALL").arg(own("held")).cmd("HGETALL").arg(own("ids"));
    type All = (HashSet<String>, HashMap<String, String>, HashMap<String, String>);
    let (leased, holders, names): All = all.query_async(connection).await.unwrap();
    let is_held = |entry: &String| {
        leased.contains(entry)
            && holders.get(entry).is_some_and(|holder| holder.ends_with(&format!(" {owner}")))
    };
    names.into_iter().filter(|(_, entry)| is_held(entry)).map(|(name, _)| name).collect()
}

/// How many wait at the server for something to come.
pub async fn waiting(connection: &mut MultiplexedConnection) -> u64 {
    let info: String = redis::cmd("INFO").arg("clients").query_async(connection).await.unwrap();
    let blocked = info.lines().find_map(|line| line.strip_prefix("blocked_clients:")).unwrap();
    blocked.trim().parse().unwrap()
}

/// Notes of a job that came after those of a later claim: two processes had it at once. Those of a process that was frozen for longer
/// than its lease do not count.
pub fn overlaps(stamps: &[Stamp], frozen: Option<u32>) -> Vec<&Stamp> {
    let mut latest = BTreeMap::new();
    let mut overlaps = Vec::new();
    for stamp in stamps {
        let latest = latest.entry(&stamp.job).or_insert(stamp.epoch);
        if stamp.epoch < *latest && frozen != Some(stamp.pid) {
            overlaps.push(stamp);
        }
        *latest = stamp.epoch.max(*latest);
    }
    overlaps
}

/// What the last run of each job was told of those before it: interruptions and crashes, over all jobs.
pub fn told(stamps: &[Stamp]) -> (u64, u64) {
    let last: BTreeMap<&str, &Stamp> = stamps.iter().map(|stamp| (stamp.job.as_str(), stamp)).collect();
    last.values().fold((0, 0), |(interruptions, crashes), stamp| {
        (interruptions + u64::from(stamp.interruptions), crashes + u64::from(stamp.crashes))
    })
}

/// Whether a process is stopped, by a signal that stops.
pub fn is_frozen(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|stat| stat.starts_with('T'))
}

/// Stops a server from running, or lets it run on: what is connected stays so, and is not answered.
pub fn freeze(server: &Redis, frozen: bool) {
    use rustix::process::{Pid, Signal, kill_process};
    let signal = if frozen { Signal::STOP } else { Signal::CONT };
    kill_process(Pid::from_raw(server.pid() as i32).unwrap(), signal).unwrap();
}

/// Asks it to end, and waits.
pub async fn term(running: Running) -> Ended {
    running.signal(Signal::Term);
    ended(running).await
}

pub async fn ended(running: Running) -> Ended {
    let exit = running.wait().await;
    let line = |name: &str| {
        let line = exit.stdout.lines().find_map(|line| line.strip_prefix(name));
        line.map_or(Value::Null, |json| serde_json::from_str(json).unwrap())
    };
    Ended { ledger: line("ledger "), report: line("report "), exit }
}

/// Kills it, out of nothing.
pub async fn kill(running: Running) -> Exit {
    running.signal(Signal::Kill);
    running.wait().await
}

// === impl Stamp ===

impl Stamp {
    fn parse(line: &str) -> Stamp {
        let fields: Vec<&str> = line.split('|').collect();
        let number = |at: usize| fields[at].parse::<u64>().unwrap();
        Stamp {
            note: fields[0].to_owned(),
            job: fields[1].to_owned(),
            epoch: number(2),
            pid: number(3) as u32,
            us: number(4),
            stale: number(5) == 1,
            attempts: number(6) as u32,
            interruptions: number(7) as u32,
            crashes: number(8) as u32,
        }
    }
}

// === impl Ended ===

impl Ended {
    /// A number of the ledger.
    pub fn count(&self, name: &str) -> u64 {
        self.ledger[name].as_u64().unwrap_or_else(|| panic!("no {name}: {}", self.exit))
    }
}

/// Random numbers, others each time; the seed is printed.
pub struct Dice(u64);

// === impl Dice ===

impl Dice {
    pub fn new(number: u64) -> Dice {
        let random = std::hash::RandomState::new();
        let seed = std::hash::BuildHasher::hash_one(&random, number) | 1;
        eprintln!("dice {number}: {seed}");
        Dice(seed)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
