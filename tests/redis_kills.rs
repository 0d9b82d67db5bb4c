//! No job lost, none run twice at once, whatever dies: a Redis queue and processes that are killed, frozen and asked to stop.
#![cfg(all(unix, feature = "orders", feature = "test-util"))]

#[path = "support/crew.rs"]
#[allow(dead_code)]
mod crew;
#[path = "support/redis.rs"]
#[allow(dead_code)]
mod redis_server;

#[path = "redis_kills/conservation.rs"]
mod conservation;
#[path = "redis_kills/memory.rs"]
mod memory;
#[path = "redis_kills/moment.rs"]
mod moment;
#[path = "redis_kills/points.rs"]
mod points;
#[path = "redis_kills/soon.rs"]
mod soon;
