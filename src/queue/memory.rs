//! A queue within one process, on tokio's clock.
