//! rusty-sidekiq.

use std::sync::Arc;

use sidekiq::{Processor, ProcessorConfig, RedisConnectionManager, RedisPool, Worker};
use tokio::sync::oneshot;

use super::{Doing, Job, Opening, Pushes, Sender, Way, connect};
use crate::measure::{Load, Tally};

pub struct Sidekiq;

struct Counter(Arc<Tally>);

#[async_trait::async_trait]
impl Worker<Load> for Counter {
    async fn perform(&self, load: Load) -> sidekiq::Result<()> {
        self.0.job(&load);
        Ok(())
    }
}

// === impl Sidekiq ===

impl Way for Sidekiq {
    fn name(&self) -> &'static str {
        "rusty-sidekiq"
    }

    fn sender<'a>(&'a self, url: &'a str) -> Opening<'a> {
        Box::pin(async move {
            Box::new(Pushes { connection: connect(url).await, list: "queue:bench", text }) as Box<dyn Sender>
        })
    }

    fn work(&self, job: Job, stop: oneshot::Receiver<()>) -> Doing<'static> {
        Box::pin(async move {
            let manager = RedisConnectionManager::new(job.url.as_str()).expect("a good URL");
            // A worker of its holds a connection while it waits: with fewer they would wait for each other.
            let connections = job.at_once as u32 + 4;
            let pool: RedisPool =
                bb8::Pool::builder().max_size(connections).build(manager).await.expect("it listens");
            let config = ProcessorConfig::default().num_workers(job.at_once);
            let mut processor = Processor::new(pool, vec!["bench".into()]).with_config(config);
            processor.register(Counter(Arc::clone(&job.tally)));
            tokio::select! {
                () = processor.run() => {}
                _ = stop => {}
            }
        })
    }
}

fn text(load: &Load) -> String {
    let job = sidekiq::opts().queue("bench").create_job(Counter::class_name(), load);
    serde_json::to_string(&job.expect("it is plain")).expect("it is plain")
}
