//! The harness: what a test needs to judge how a program stops.
//!
//! [`process`] starts a real program and plays the platform that stops it.

#[doc(hidden)]
pub mod model_rules;
#[cfg(unix)]
pub mod process;
