//! The harness: what a test needs to judge how a program stops.
//!
//! In process, on paused time: [`Rig`] runs a coordinator and judges order and ledger, with [`signals()`] that hit nobody
//! else. Out of process: [`process`] starts a real program and plays the platform that stops it.

#[doc(hidden)]
pub mod model;
#[cfg(unix)]
pub mod process;
mod rig;
mod signals;

pub use rig::{Ledger, Notes, Rig, Stopped};
pub use signals::{Exit, FakeSignals, signals, signals_with_exit};
