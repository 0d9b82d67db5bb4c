<<<<<<< HEAD
//! The harness: what a test needs to judge how a program stops.
//!
//! [`process`] starts a real program and plays the platform that stops it.

#[cfg(unix)]
pub mod process;
=======
//! Not written yet.

#[doc(hidden)]
pub mod model_rules;
>>>>>>> budget
