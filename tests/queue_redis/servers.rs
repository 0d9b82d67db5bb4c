//! Queues on different servers, worked on as one.

use std::sync::Mutex;

use winddown::queue::{Handler, Strict};

use super::*;

/// Never done; notes what has begun, and what was cut.
#[derive(Clone, Default)]
struct Notes {
    begun: Arc<Mutex<Vec<String>>>,
    cut: Arc<Mutex<Vec<String>>>,
}

struct Cut<'a>(&'a Notes, String);

impl Drop for Cut<'_> {
    fn drop(&mut self) {
        self.0.cut.lock().unwrap().push(self.1.clone());
    }
}

impl Handler<String> for Notes {
    type Error = BoxError;

    async fn handle(&self, job: &Leased<String>, _: &Cx) -> Result<(), BoxError> {
        let name = job.lease.id.to_string();
        self.begun.lock().unwrap().push(name.clone());
        let _cut = Cut(self, name);
        std::future::pending().await
    }
}

#[tokio::test]
async fn of_several_servers_one_that_is_gone_ends_only_the_leases_of_its_own_jobs() {
    for gone in [0, 1] {
        let mut servers = [Redis::start(), Redis::start()];
        let queues = [open(&servers[0], "first").await, open(&servers[1], "second").await];
        for (queue, name) in queues.iter().zip(["a", "b"]) {
            queue.enqueue(&job(name)).await.unwrap();
        }
        let (theirs, ours) = if gone == 0 { ("a", "b") } else { ("b", "a") };
        let notes = Notes::default();
        // Long enough for a machine with much else to do.
        let (lease, budget) = (secs(6), Budget::given(secs(8), "test").drain(secs(1)));
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        let work = queue::work("work", Strict::new(queues.clone()), notes.clone());
        shutdown.add(work.concurrency(2).lease(lease));
        let handle = shutdown.handle();
        let run = tokio::spawn(shutdown.run());
        let began = Instant::now();
        while notes.begun.lock().unwrap().len() < 2 {
            assert!(began.elapsed() < SOON);
            sleep(Duration::from_millis(5)).await;
        }
        servers[gone].kill();
        sleep(lease + secs(2)).await;
        assert_eq!(*notes.cut.lock().unwrap(), [theirs]);
        handle.trigger("test");
        let report = run.await.unwrap();
        let gate = report.gate("work").unwrap();
        assert_eq!((gate.held, gate.handed_back, gate.lost), (2, 1, 1), "{report}");
        assert_eq!(report.lost()[0].item, theirs, "{report}");
        assert!(report.lost()[0].why.contains(&format!("number {gone}: could not hand back")), "{report}");
        let again = claim(&queues[1 - gone], "next", 9).await;
        assert_eq!(names(&again), [ours]);
        assert_eq!((again[0].interruptions, again[0].crashes), (1, 0));
    }
}
