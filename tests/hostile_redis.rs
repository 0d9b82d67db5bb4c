//! A queue on a Redis list whose callers, lines and servers do what they should not.
#![cfg(all(feature = "redis", unix))]

#[path = "hostile_redis/crowd.rs"]
mod crowd;
#[path = "hostile_redis/dice.rs"]
mod dice;
#[path = "hostile_redis/line.rs"]
mod line;
#[path = "hostile_redis/model.rs"]
mod model;
#[path = "support/proxy.rs"]
#[allow(dead_code)]
mod proxy;
#[path = "hostile_redis/random.rs"]
mod random;
#[path = "support/redis.rs"]
#[allow(dead_code)]
mod server;

use std::time::Duration;

use winddown::queue::JobId;

type Jobs = winddown::queue::redis::List<String>;

/// Far more than anything here takes on a slow machine.
const SOON: Duration = Duration::from_secs(60);

fn id(name: &str) -> JobId {
    name.parse().unwrap()
}
