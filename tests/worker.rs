//! The queue worker: what it claims it finishes, hands back, or leaves to its lease.

use std::time::Duration;

use winddown::queue::{self, Claimed, JobId, Leased, NewJob, Owner, Queue, memory::Memory};
use winddown::{Budget, Cx, Reason, Report, ShutdownCoordinator, signal};

type Jobs = Memory<String>;

fn id(name: &str) -> JobId {
    name.parse().unwrap()
}

fn enqueue(jobs: &Jobs, names: impl IntoIterator<Item = u32>) {
    for name in names {
        jobs.enqueue(NewJob::new(id(&format!("job-{name}")), format!("item {name}")));
    }
}

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

async fn plain(_job: &Leased<String>, _cx: &Cx) -> Result<(), std::io::Error> {
    tokio::time::sleep(ms(100)).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_backlog_is_not_pulled_after_the_trigger() {
    let jobs = Jobs::new();
    enqueue(&jobs, 1..=10);
    let mut shutdown = ShutdownCoordinator::new(Budget::default(), signal::none()).unwrap();
    shutdown.add(queue::work("jobs", jobs.clone(), plain).concurrency(1));
    shutdown.add(queue::work("jobs2", Jobs::new(), async |job: &Leased<String>, cx: &Cx| {
        cx.checkpoint()?;
        println!("{}", job.item);
        Ok::<(), winddown::BoxError>(())
    }));
    let handle = shutdown.handle();
    let run = tokio::spawn(shutdown.run());
    tokio::time::sleep(ms(50)).await;
    handle.trigger("test");
    let report = run.await.unwrap();
    println!("{report}");
    assert_eq!(report.took(), ms(50));
    let left = jobs.claim(&Owner::unique("test"), 100, ms(1000)).await.unwrap();
    let names: Vec<&str> = left.iter().map(|job| job.lease.id.as_str()).collect();
    assert_eq!(names, ["job-2", "job-3", "job-4", "job-5", "job-6", "job-7", "job-8", "job-9", "job-10"]);
    assert!(left.iter().all(|job| job.interruptions == 0 && job.attempts == 0));
}
