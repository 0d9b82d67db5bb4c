//! Our own queue, under our own worker.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use winddown::queue::redis::{List, Server};
use winddown::queue::{self, Handler, Leased, NewJob};
use winddown::{BoxError, Budget, Cx, ShutdownCoordinator, signal};

use super::{Doing, Job, Opening, Sender, Way};
use crate::measure::{Load, Tally};

/// The list of `winddown::queue::redis`.
pub struct Ours {
    pub name: &'static str,
    /// How many jobs it claims ahead.
    pub prefetch: usize,
}

struct Enqueuing(List<Load>);

struct Count(Arc<Tally>);

// === impl Count ===

impl Handler<Load> for Count {
    type Error = BoxError;

    async fn handle(&self, job: &Leased<Load>, _: &Cx) -> Result<(), BoxError> {
        self.0.job(&job.item);
        Ok(())
    }
}

async fn work(queue: List<Load>, job: Job, prefetch: usize, stop: oneshot::Receiver<()>) {
    let budget = Budget::given(Duration::from_secs(30), "bench");
    let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).expect("it fits");
    let worker = queue::work("bench", queue, Count(job.tally));
    shutdown.add(worker.concurrency(job.at_once).prefetch(prefetch));
    let handle = shutdown.handle();
    let stopped = async {
        let _ = stop.await;
        handle.trigger("measured");
    };
    let (report, ()) = tokio::join!(shutdown.run(), stopped);
    assert!(report.is_clean(), "{report}");
}

// === impl Ours ===

/// Over a connection of its own.
async fn open(url: &str) -> List<Load> {
    List::open(Server::at(url).expect("a good URL"), "bench").await.expect("it is ours")
}

impl Way for Ours {
    fn name(&self) -> &'static str {
        self.name
    }

    fn sender<'a>(&'a self, url: &'a str) -> Opening<'a> {
        Box::pin(async move { Box::new(Enqueuing(open(url).await)) as Box<dyn Sender> })
    }

    fn work(&self, job: Job, stop: oneshot::Receiver<()>) -> Doing<'static> {
        let prefetch = self.prefetch;
        Box::pin(async move { work(open(&job.url).await, job, prefetch, stop).await })
    }
}

impl Sender for Enqueuing {
    fn send(&mut self, loads: Vec<Load>) -> Doing<'_> {
        Box::pin(async move {
            let jobs: Vec<_> = loads.into_iter().map(new).collect();
            self.0.enqueue_all(&jobs).await.expect("it answers");
        })
    }
}

fn new(load: Load) -> NewJob<Load> {
    NewJob::new(format!("order-{}", load.number).parse().expect("a good name"), load)
}
