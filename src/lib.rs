#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backoff;
mod error;
mod latch;
mod outcome;
mod overrun;
mod phase;
mod trigger;

mod budget;
mod catch;
mod escalation;
mod gate;
mod readiness;
mod watchdog;

mod hook;
mod intake;
mod report;

mod handle;

mod coordinator;

pub mod background;
pub mod platform;
pub mod pool;
#[cfg(all(unix, feature = "process"))]
pub mod process;
pub mod queue;
#[cfg(feature = "http")]
pub mod server;
pub mod signal;
#[cfg(feature = "test-util")]
pub mod testing;

pub use budget::{Budget, BudgetError, DurationError, Grace, Plan, parse_duration};
pub use coordinator::{Component, HookOptions, NewError, ShutdownCoordinator, StartError, TaskOptions};
pub use error::{BoxError, Cancelled, GateClosed, Interrupted, TooLate};
pub use escalation::{Escalation, Step};
pub use gate::{Gate, InFlight, Keeper};
pub use handle::ShutdownHandle;
pub use hook::{Deadline, HookCx, IntoResult, Rank};
pub use intake::{Cx, Done, Intake, Job, Refused, Unfinished, Why};
pub use outcome::Outcome;
pub use overrun::Overrun;
pub use phase::Phase;
pub use readiness::Readiness;
pub use report::{GateReport, HookReport, LostItem, PhaseReport, Report, TaskReport};
pub use trigger::{Reason, Signal, Signals};
