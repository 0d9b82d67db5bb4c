#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod error;
mod latch;
mod outcome;
mod phase;
mod trigger;

mod budget;
mod escalation;
mod gate;
mod readiness;

mod hook;
mod intake;
mod report;
mod watchdog;

mod handle;

mod coordinator;

pub mod background;
pub mod platform;
pub mod pool;
pub mod queue;
#[cfg(feature = "http")]
pub mod server;
pub mod signal;
#[cfg(feature = "test-util")]
pub mod testing;

pub use error::{BoxError, Cancelled, GateClosed, Interrupted, TooLate};
pub use gate::{Gate, InFlight};
pub use readiness::Readiness;
