//! The example `orders` from outside: a real program, real signals, real sockets, a real file.
//!
//! What it answers and what it leaves behind is judged by what a client and an operator can see, and by the tables.
#![cfg(all(unix, feature = "orders", feature = "test-util"))]

#[path = "orders/api.rs"]
mod api;
#[path = "orders/client.rs"]
mod client;
#[path = "orders/database.rs"]
mod database;
#[path = "orders/listen.rs"]
mod listen;
#[path = "orders/lost.rs"]
mod lost;
#[path = "orders/measure.rs"]
mod measure;
#[path = "orders/options.rs"]
mod options;
#[path = "orders/outbox.rs"]
mod outbox;
#[path = "orders/redis.rs"]
mod redis;
#[path = "support/redis.rs"]
#[allow(dead_code)]
mod redis_server;
#[path = "support/sentinel.rs"]
mod sentinel;
#[path = "orders/service.rs"]
mod service;
#[path = "orders/stop.rs"]
mod stop;
