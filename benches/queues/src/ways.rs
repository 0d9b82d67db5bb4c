//! The ways to do jobs that are compared: each enqueues, and each works until it is told to stop.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::measure::{Load, Tally};

mod apalis;
mod ours;
mod plain;
mod sidekiq;

pub use apalis::Apalis;
pub use ours::Ours;
pub use plain::{Batches, Loop};
pub use sidekiq::Sidekiq;

pub type Opening<'a> = Pin<Box<dyn Future<Output = Box<dyn Sender>> + Send + 'a>>;
pub type Doing<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Jobs that one call enqueues.
pub const CHUNK: usize = 500;

/// Where the server is, how many jobs run at once, and who counts them.
#[derive(Clone)]
pub struct Job {
    pub url: String,
    pub at_once: usize,
    /// There is more to do than can be done.
    pub backlog: bool,
    pub tally: Arc<Tally>,
}

pub trait Way: Sync {
    fn name(&self) -> &'static str;

    /// Connects, so as to enqueue.
    fn sender<'a>(&'a self, url: &'a str) -> Opening<'a>;

    /// Works until told to stop; may then be dropped.
    fn work(&self, job: Job, stop: oneshot::Receiver<()>) -> Doing<'static>;
}

/// Enqueues from a connection of its own, as another process would.
pub trait Sender: Send {
    /// Enqueues behind what is there, in one call; a [`CHUNK`] at the most.
    fn send(&mut self, loads: Vec<Load>) -> Doing<'_>;
}

/// Enqueues texts at the left end of a list.
struct Pushes {
    connection: redis::aio::MultiplexedConnection,
    list: &'static str,
    text: fn(&Load) -> String,
}

// === impl Pushes ===

impl Sender for Pushes {
    fn send(&mut self, loads: Vec<Load>) -> Doing<'_> {
        Box::pin(async move {
            let texts: Vec<String> = loads.iter().map(self.text).collect();
            let _: i64 = redis::cmd("LPUSH")
                .arg(self.list)
                .arg(texts)
                .query_async(&mut self.connection)
                .await
                .expect("it answers");
        })
    }
}

/// The connection that a careful user of redis-rs makes: patient, and shared.
async fn connect(url: &str) -> redis::aio::MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = redis::Client::open(url).expect("a good URL");
    client.get_multiplexed_async_connection_with_config(&config).await.expect("it listens")
}
