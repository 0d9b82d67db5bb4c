//! Rollouts for real: `orders` behind HAProxy, behind nginx, and in place on one port, each restarted in turn under load.
//!
//! The load is that of `wrk` and `hey`, the verdict theirs: how many requests they sent, and how many failed.
#![cfg(all(target_os = "linux", feature = "orders", feature = "test-util"))]

#[path = "rollout/balancer.rs"]
mod balancer;
#[path = "rollout/haproxy.rs"]
mod haproxy;
#[path = "rollout/in_place.rs"]
mod in_place;
#[path = "rollout/load.rs"]
mod load;
#[path = "rollout/nginx.rs"]
mod nginx;
#[path = "rollout/place.rs"]
mod place;
#[path = "rollout/replica.rs"]
mod replica;
#[path = "rollout/streams.rs"]
mod streams;
