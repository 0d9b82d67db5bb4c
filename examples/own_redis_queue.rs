//! A Redis queue of your own, made to stop well: plain lists, and winddown's gate, job and re-enqueue callback.
//!
//! For a program that has such a queue already, by hand or by a crate. Whoever pushes does `RPUSH jobs ...`; what is taken stands in
//! `jobs:taken:NAME` until it is done. At a stop nothing more is taken, what runs may finish in the drain, and the rest goes back to
//! the head in its order.
//!
//! A process that is killed leaves what it had taken in its list, and whoever starts next under its name puts that back first. So the
//! names are a fixed few, as those of a StatefulSet, and at any time one process has a name at the most. Until that next start the jobs wait:
//! the leases of `winddown::queue::redis` need neither such names nor such a start.
//!
//! ```text
//! own_redis_queue REDIS_URL NAME JOBS_AT_ONCE MILLISECONDS_A_JOB
//! ```

use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection as Redis;
use redis::{AsyncConnectionConfig, Client, RedisResult, cmd, pipe};
use tokio::sync::Semaphore;
use winddown::{BoxError, Budget, Cx, Job, ShutdownCoordinator, ShutdownHandle, Unfinished, signal};

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, at_once, length] = &args[..] else {
        return Err("usage: own_redis_queue REDIS_URL NAME JOBS_AT_ONCE MILLISECONDS_A_JOB".into());
    };
    let room = Arc::new(Semaphore::new(at_once.parse()?));
    let length = Duration::from_millis(length.parse()?);
    let mut shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
    let client = Client::open(url.as_str())?;
    let redis = client.get_multiplexed_async_connection().await?;
    let lists = Lists { redis, taken: format!("jobs:taken:{name}") };
    lists.put_back_all().await?;
    let mut fetch = Fetch::open(&client, lists.clone(), shutdown.handle()).await?;

    // What this is about, in fifteen lines.
    let jobs = shutdown
        .gate("jobs")
        .pulled()
        .requeue_with(lists.clone(), async |lists: Lists, job: Unfinished<String>| {
            lists.put_back(&job).await
        });
    shutdown.spawn("worker", async move {
        while let Ok(place) = Arc::clone(&room).acquire_owned().await {
            let Some(job) = fetch.next().await? else { break };
            match jobs.admit(job) {
                Ok(job) => drop(tokio::spawn(work(job, lists.clone(), length, place))),
                // It came too late, and goes back untouched.
                Err(refused) => lists.put_back(&refused.into_inner()).await?,
            }
        }
        RedisResult::Ok(())
    });

    println!("ready");
    let report = shutdown.run().await;
    report.print();
    Ok(report.exit_code())
}

/// The queue, and what this process has taken of it.
#[derive(Clone)]
struct Lists {
    redis: Redis,
    taken: String,
}

impl Lists {
    /// To the head: jobs are handed back newest first, so that they stand there in their old order.
    async fn put_back(&self, job: &str) -> RedisResult<()> {
        let (taken, back) = ([&self.taken, "-1", job], ["jobs", job]);
        pipe()
            .atomic()
            .cmd("LREM")
            .arg(&taken)
            .cmd("LPUSH")
            .arg(&back)
            .exec_async(&mut self.redis.clone())
            .await
    }

    /// What a process of this name has left that was killed; newest first, too.
    async fn put_back_all(&self) -> RedisResult<()> {
        let mut put_back = cmd("LMOVE");
        put_back.arg(&[&self.taken, "jobs", "RIGHT", "LEFT"]);
        while put_back.query_async::<Option<String>>(&mut self.redis.clone()).await?.is_some() {}
        Ok(())
    }

    async fn note_done(&self, job: &str) -> RedisResult<()> {
        let (taken, done) = ([&self.taken, "-1", job], ["jobs:done", job]);
        pipe()
            .atomic()
            .cmd("RPUSH")
            .arg(&done)
            .cmd("LREM")
            .arg(&taken)
            .exec_async(&mut self.redis.clone())
            .await
    }
}

/// Does one job; dropped unfinished, it goes back through the callback.
async fn work<P>(job: Job<String>, lists: Lists, length: Duration, _place: P) {
    let done = job.run(async |job, cx: &Cx| {
        tokio::time::sleep(length).await;
        // The effect and the note that the job is done, together: never cut in the middle.
        cx.shield(lists.note_done(job)).await
    });
    if let winddown::Done::Failed(job, error) = done.await {
        eprintln!("{}: {error}", *job);
    }
}

/// Takes jobs, one at a time, on a connection of its own: whatever else is sent there waits for the blocking command.
struct Fetch {
    blocking: Redis,
    id: i64,
    lists: Lists,
    shutdown: ShutdownHandle,
}

impl Fetch {
    async fn open(client: &Client, lists: Lists, shutdown: ShutdownHandle) -> RedisResult<Fetch> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let mut blocking = client.get_multiplexed_async_connection_with_config(&config).await?;
        let id = cmd("CLIENT").arg("ID").query_async(&mut blocking).await?;
        Ok(Fetch { blocking, id, lists, shutdown })
    }

    /// The next job; none once the stop has begun.
    ///
    /// The command is never dropped: the server would go on waiting, and take the next job for nobody. It is ended there, and
    /// awaited; what it still brings is not lost.
    async fn next(&mut self) -> RedisResult<Option<String>> {
        while !self.shutdown.is_triggered() {
            let mut command = cmd("BLMOVE");
            command.arg(&["jobs", &self.lists.taken, "LEFT", "RIGHT", "5"]);
            let mut job = pin!(command.query_async(&mut self.blocking));
            let job: Option<String> = loop {
                tokio::select! {
                    biased;
                    job = &mut job => break job?,
                    () = self.shutdown.triggered() => {}
                }
                // Again and again: the command may not have come to the server yet.
                cmd("CLIENT").arg("UNBLOCK").arg(self.id).exec_async(&mut self.lists.redis).await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            };
            if job.is_some() {
                return Ok(job);
            }
        }
        Ok(None)
    }
}
