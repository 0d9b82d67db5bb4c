//! apalis-redis.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use apalis_core::backend::TaskSink;
use apalis_core::error::BoxDynError;
use apalis_core::task::data::Data;
use apalis_core::worker::builder::WorkerBuilder;
use apalis_redis::{Config, RedisStorage};
use redis::aio::ConnectionManagerConfig;
use tokio::sync::oneshot;
use tower::limit::ConcurrencyLimitLayer;

use super::{Doing, Job, Opening, Sender, Way};
use crate::measure::{Load, Tally};

pub struct Apalis {
    pub name: &'static str,
    /// How many jobs it fetches in one go, where that is not left as it is.
    pub batch: Option<usize>,
}

/// A worker's name is registered, and not to be used again.
static WORKERS: AtomicUsize = AtomicUsize::new(0);

struct Pushing(RedisStorage<Load>);

// === impl Apalis ===

impl Apalis {
    async fn storage(url: &str, batch: Option<usize>) -> RedisStorage<Load> {
        // Patient: with a large backlog its scripts take longer than the half second that is redis-rs' default.
        let patient = ConnectionManagerConfig::new().set_response_timeout(None);
        let client = redis::Client::open(url).expect("a good URL");
        let connection = client.get_connection_manager_with_config(patient).await.expect("it listens");
        let config = Config::default().queue("bench");
        let config = match batch {
            Some(jobs) => config.batch_size(jobs),
            None => config,
        };
        RedisStorage::new(connection).with_config(config)
    }
}

impl Way for Apalis {
    fn name(&self) -> &'static str {
        self.name
    }

    fn sender<'a>(&'a self, url: &'a str) -> Opening<'a> {
        Box::pin(async move { Box::new(Pushing(Apalis::storage(url, self.batch).await)) as Box<dyn Sender> })
    }

    fn work(&self, job: Job, stop: oneshot::Receiver<()>) -> Doing<'static> {
        let batch = self.batch;
        Box::pin(async move {
            let storage = Apalis::storage(&job.url, batch).await;
            let name = format!("bench-{}", WORKERS.fetch_add(1, Ordering::Relaxed));
            let worker = WorkerBuilder::new(name)
                .backend(storage)
                .data(Arc::clone(&job.tally))
                .layer(ConcurrencyLimitLayer::new(job.at_once))
                .build(handle);
            tokio::select! {
                ended = worker.run() => ended.expect("it works until it is stopped"),
                _ = stop => {}
            }
        })
    }
}

// === impl Pushing ===

impl Sender for Pushing {
    fn send(&mut self, loads: Vec<Load>) -> Doing<'_> {
        Box::pin(async move { self.0.push_bulk(loads).await.expect("it answers") })
    }
}

async fn handle(load: Load, tally: Data<Arc<Tally>>) -> Result<(), BoxDynError> {
    tally.job(&load);
    Ok(())
}
