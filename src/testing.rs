//! Not written yet.

#[doc(hidden)]
pub mod model_rules;
