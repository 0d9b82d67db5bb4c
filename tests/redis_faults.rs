//! A Redis that restarts, fails over, pauses, refuses, is full, is slow or is gone: what becomes of jobs and of a stop.
#![cfg(all(unix, feature = "orders", feature = "test-util"))]

#[path = "support/crew.rs"]
#[allow(dead_code)]
mod crew;
#[path = "support/proxy.rs"]
#[allow(dead_code)]
mod proxy;
#[path = "support/redis.rs"]
#[allow(dead_code)]
mod redis_server;
#[path = "support/sentinel.rs"]
mod sentinel;

#[path = "redis_faults/failover.rs"]
mod failover;
#[path = "redis_faults/incidents.rs"]
mod incidents;
#[path = "redis_faults/line.rs"]
mod line;
#[path = "redis_faults/outage.rs"]
mod outage;
#[path = "redis_faults/upheaval.rs"]
mod upheaval;
