//! What is to happen with work that a stop overtakes.

use std::time::Duration;

/// What is to happen with work that can take longer than the drain, by what a repeat costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Overrun {
    /// It must be finished: its limit has to fit into the drain, or start-up is refused.
    Finish,
    /// It goes in steps, each done within this limit: no step is begun once less than that is left.
    Step(Duration),
    /// It is safe to repeat: what is not finished is handed back.
    #[default]
    Requeue,
}
