//! A stream of Redis under test, and a hand in its server.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Value};
use winddown::queue::redis::{Server, Stream};
use winddown::queue::{Claimed, HandBack, JobId, Lease, NewJob, Owner, Queue};

use crate::redis_server::Redis;
use crate::within::within;

pub const LEASE: Duration = Duration::from_secs(30);
/// Far more than anything here takes.
pub const LONG: Duration = Duration::from_secs(60);
pub const OWN: &str = "{jobs}:group:workers:";

pub struct Bench {
    pub redis: Redis,
    pub connection: MultiplexedConnection,
    pub queue: Stream<String>,
}

pub async fn open(redis: &Redis) -> Stream<String> {
    Stream::open(Server::at(&redis.url()).unwrap(), "jobs", "workers").await.unwrap()
}

pub async fn bench() -> Bench {
    let redis = Redis::start();
    Bench { queue: open(&redis).await, connection: redis.connection().await, redis }
}

impl Bench {
    /// Says a command in one line, as at `redis-cli`.
    pub async fn says<R: FromRedisValue>(&self, line: &str) -> R {
        let words: Vec<&str> = line.split(' ').collect();
        self.sends(&words).await
    }

    pub async fn sends<R: FromRedisValue>(&self, words: &[&str]) -> R {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query_async(&mut self.connection.clone()).await.unwrap()
    }

    /// As a foreign program does.
    pub async fn add(&self, payload: &str) -> String {
        self.sends(&["XADD", "jobs", "*", "payload", payload]).await
    }

    pub async fn fill(&self, jobs: usize) {
        let jobs: Vec<_> =
            (0..jobs).map(|n| NewJob::new(id(&format!("job {n:04}")), n.to_string())).collect();
        self.queue.enqueue_all(&jobs).await.unwrap();
    }

    pub async fn claim(&self, who: &str, max: usize) -> Vec<Claimed<String>> {
        self.queue.claim(&owner(who), max, LEASE).await.unwrap()
    }

    /// What each consumer of the group holds.
    pub async fn consumers(&self) -> BTreeMap<String, usize> {
        let consumers: Vec<BTreeMap<String, Value>> = self.says("XINFO CONSUMERS jobs workers").await;
        let read = |consumer: &BTreeMap<String, Value>| {
            let name = String::from_redis_value(consumer["name"].clone()).unwrap();
            (name, usize::from_redis_value(consumer["pending"].clone()).unwrap())
        };
        consumers.iter().map(read).filter(|(name, _)| !name.starts_with("winddown:")).collect()
    }

    /// Ends a lease now.
    pub async fn expire(&self, entry: &str) {
        self.says::<()>(&format!("ZADD {OWN}leases XX 1 {entry}")).await;
    }

    /// Ends a delay now.
    pub async fn expire_delay(&self, name: &str) {
        let entry = self.entry(name).await;
        self.says::<()>(&format!("ZADD {OWN}later XX 1 {entry}")).await;
    }

    pub async fn entry(&self, name: &str) -> String {
        self.sends(&["HGET", &format!("{OWN}ids"), name]).await
    }

    pub async fn blocked_clients(&self) -> usize {
        let info: String = self.says("INFO clients").await;
        let line = info.lines().find_map(|line| line.strip_prefix("blocked_clients:")).unwrap();
        line.trim().parse().unwrap()
    }

    pub async fn is_waiting(&self) {
        within(LONG, async {
            while self.blocked_clients().await == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// What clients have asked so far; a script counts once, whatever it does.
    pub async fn requests(&self) -> u64 {
        let info: String = self.says("INFO commandstats").await;
        let calls = |name: &str| -> u64 {
            let start = format!("cmdstat_{name}:calls=");
            let line = info.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or("0,");
            line.split(',').next().unwrap().parse().unwrap()
        };
        ["evalsha", "eval", "xread", "client|unblock", "client|id"].into_iter().map(calls).sum()
    }
}

/// A claim whose answer is lost: it is done only when nobody waits for it any more.
pub async fn lose_a_claim(bench: &Bench, who: &str, max: usize) {
    let held = bench.consumers().await.get(who).copied().unwrap_or(0);
    bench.says::<()>("CLIENT PAUSE 60000 WRITE").await;
    tokio::time::timeout(Duration::from_millis(100), bench.claim(who, max)).await.unwrap_err();
    bench.says::<()>("CLIENT UNPAUSE").await;
    within(LONG, async {
        while bench.consumers().await.get(who).copied().unwrap_or(0) == held {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub fn id(name: &str) -> JobId {
    name.parse().unwrap()
}

pub fn owner(name: &str) -> Owner {
    name.parse().unwrap()
}

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub fn names(claimed: &[Claimed<String>]) -> Vec<&str> {
    claimed.iter().map(|job| job.lease.id.as_str()).collect()
}

pub fn items(claimed: &[Claimed<String>]) -> Vec<&str> {
    claimed.iter().map(|job| job.item.as_str()).collect()
}

pub fn leases(claimed: &[Claimed<String>]) -> Vec<Lease> {
    claimed.iter().map(|job| job.lease.clone()).collect()
}

pub fn interrupted(claimed: &[Claimed<String>]) -> Vec<HandBack> {
    claimed.iter().map(|job| HandBack::interrupted(job.lease.clone())).collect()
}
