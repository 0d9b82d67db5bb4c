//! A Redis queue of your own, made to stop well: plain lists, and winddown's gate, job and re-enqueue callback.
//!
//! For a program that has such a queue already, by hand or by a crate. Whoever pushes does `RPUSH jobs ...`; what is taken stands in
//! `jobs:taken:NAME` until it is done; each job is a text of its own, as one with an ID is. At a stop nothing more is taken, what runs may
//! finish in the drain, and the rest goes back to the head in its order.
//!
//! A call that failed may have been done, or may yet be: so each is repeated, over a new connection, and bears that.
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
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection as Redis;
use redis::{AsyncConnectionConfig, Client, RedisResult, cmd};
use tokio::sync::Semaphore;
use winddown::{BoxError, Budget, Cx, Job, ShutdownCoordinator, ShutdownHandle, Unfinished, signal};

/// How long a call may take, and the opening of a connection. Unless told so, redis-rs gives up on an answer after 500 ms, which
/// a server that saves, or a failover, takes longer than: the call is done there, and has failed here.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the server waits for a job, in seconds; its answer may take [`PATIENCE`] more.
const BLOCK: u64 = 5;

/// The pause before something is tried again.
const PAUSE: Duration = Duration::from_millis(200);

/// Moves a job out of what is taken, unless that has been done before: pushed is only what was removed.
const MOVE: &str =
    "if redis.call('LREM', KEYS[1], -1, ARGV[2]) == 1 then redis.call(ARGV[1], KEYS[2], ARGV[2]) end";

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, name, at_once, length] = &args[..] else {
        return Err("usage: own_redis_queue REDIS_URL NAME JOBS_AT_ONCE MILLISECONDS_A_JOB".into());
    };
    let room = Arc::new(Semaphore::new(at_once.parse()?));
    let length = Duration::from_millis(length.parse()?);
    let mut shutdown = ShutdownCoordinator::new(Budget::detect(), signal::terminate()?)?;
    let lists = Lists::new(Client::open(url.as_str())?, name);
    lists.put_back_strays().await?;
    let mut fetch = Fetch { lists: lists.clone(), shutdown: shutdown.handle(), open: None, last_id: None };

    // What this is about, in twenty lines.
    let jobs = shutdown
        .gate("jobs")
        .pulled()
        .requeue_with(lists.clone(), async |lists: Lists, job: Unfinished<String>| lists.put_back(&job).await)
        .named(String::clone); // what could not be put back is in the report, by this name
    shutdown.spawn("worker", async move {
        while let Ok(place) = Arc::clone(&room).acquire_owned().await {
            let Some(job) = fetch.next().await else { break };
            match jobs.admit(job) {
                Ok(job) => drop(tokio::spawn(work(job, lists.clone(), length, place))),
                Err(refused) => {
                    // It came too late, and goes back untouched.
                    let job = refused.into_inner();
                    while let Err(error) = lists.put_back(&job).await {
                        pause(&error).await;
                    }
                }
            }
        }
    });

    println!("ready");
    let report = shutdown.run().await;
    report.print();
    Ok(report.exit_code())
}

/// Does one job; dropped unfinished, it goes back through the callback.
async fn work<P>(job: Job<String>, lists: Lists, length: Duration, _place: P) {
    // One of yours may fail, too: `Done::Failed` has it then.
    let run = job.run(async |job, cx: &Cx| {
        tokio::time::sleep(length).await;
        // The effect and the note that the job is done, together: never cut in the middle, and repeated until it is known to be done.
        cx.shield(async {
            while let Err(error) = lists.note_done(job).await {
                pause(&error).await;
            }
        })
        .await;
        Ok::<(), BoxError>(())
    });
    let _done = run.await;
}

async fn pause(error: &redis::RedisError) {
    eprintln!("once again: {error}");
    tokio::time::sleep(PAUSE).await;
}

/// The queue, and what this process has taken of it.
#[derive(Clone)]
struct Lists {
    client: Client,
    taken: String,
    /// One connection for all calls, opened when it is needed.
    calls: Arc<tokio::sync::Mutex<Option<Redis>>>,
    /// What is taken, as far as this process knows.
    held: Arc<Mutex<Vec<String>>>,
}

impl Lists {
    fn new(client: Client, name: &str) -> Lists {
        Lists { client, taken: format!("jobs:taken:{name}"), calls: Arc::default(), held: Arc::default() }
    }

    async fn connect(&self, patience: Duration) -> RedisResult<Redis> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(patience));
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    async fn call<A: redis::FromRedisValue>(&self, call: &redis::Cmd) -> RedisResult<A> {
        let mut redis = {
            let mut calls = self.calls.lock().await;
            match &*calls {
                Some(redis) => redis.clone(),
                None => calls.insert(self.connect(PATIENCE).await?).clone(),
            }
        };
        let answer = call.query_async(&mut redis).await;
        if answer.is_err() {
            *self.calls.lock().await = None; // the next call opens it anew
        }
        answer
    }

    async fn shift(&self, job: &str, push: &str, to: &str) -> RedisResult<()> {
        self.call::<()>(cmd("EVAL").arg(&[MOVE, "2", &self.taken, to, push, job])).await?;
        // One of it: put back, it may have been taken again by now.
        let mut held = self.held();
        if let Some(place) = held.iter().position(|held| held == job) {
            held.swap_remove(place);
        }
        Ok(())
    }

    /// To the head: jobs are handed back newest first, so that they stand there in their old order.
    async fn put_back(&self, job: &str) -> RedisResult<()> {
        self.shift(job, "LPUSH", "jobs").await
    }

    /// For what stands for an effect, and the note that the job is done.
    async fn note_done(&self, job: &str) -> RedisResult<()> {
        self.shift(job, "RPUSH", "jobs:done").await
    }

    /// What was taken and nobody here has heard of: a process of this name was killed, or an answer was lost. Newest first, too.
    async fn put_back_strays(&self) -> RedisResult<()> {
        let taken: Vec<String> = self.call(cmd("LRANGE").arg(&[&self.taken, "0", "-1"])).await?;
        for job in taken.iter().rev() {
            let known = self.held().contains(job);
            if !known {
                self.put_back(job).await?;
            }
        }
        Ok(())
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.held.lock().unwrap()
    }
}

/// Takes jobs, one at a time, on a connection of its own: whatever else is sent there waits for the blocking command.
struct Fetch {
    lists: Lists,
    shutdown: ShutdownHandle,
    open: Option<(Redis, i64)>,
    /// What the server calls the connection, or the one before.
    last_id: Option<i64>,
}

impl Fetch {
    /// The next job; none once the stop has begun. A connection that is lost is opened anew.
    async fn next(&mut self) -> Option<String> {
        while !self.shutdown.is_triggered() {
            match self.take().await {
                Ok(Some(job)) => return Some(job),
                Ok(None) => {}
                Err(error) => {
                    eprintln!("opens a new connection: {error}");
                    self.open = None;
                    let _stops = self.shutdown.sleep(PAUSE).await;
                }
            }
        }
        None
    }

    /// The command is never dropped: the server would go on waiting, and take the next job for nobody. It is ended there, and
    /// awaited; what it still brings is not lost.
    async fn take(&mut self) -> RedisResult<Option<String>> {
        if self.open.is_none() {
            self.open = Some(self.connect().await?);
        }
        let Some((blocking, id)) = &mut self.open else { return Ok(None) };
        let mut command = cmd("BLMOVE");
        command.arg(&["jobs", &self.lists.taken, "LEFT", "RIGHT"]).arg(BLOCK);
        let mut job = pin!(command.query_async::<Option<String>>(blocking));
        let job = loop {
            tokio::select! {
                biased;
                job = &mut job => break job?,
                () = self.shutdown.triggered() => {}
            }
            // Again and again: the command may not have come to the server yet.
            self.lists.call::<()>(cmd("CLIENT").arg("UNBLOCK").arg(*id)).await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        self.lists.held().extend(job.clone());
        Ok(job)
    }

    async fn connect(&mut self) -> RedisResult<(Redis, i64)> {
        let mut blocking = self.lists.connect(Duration::from_secs(BLOCK) + PATIENCE).await?;
        if let Some(last) = self.last_id {
            // Whatever still comes over the one before must not take a job after the look for what it has taken.
            cmd("CLIENT").arg("KILL").arg("ID").arg(last).exec_async(&mut blocking).await?;
            self.lists.put_back_strays().await?;
        }
        let id = cmd("CLIENT").arg("ID").query_async(&mut blocking).await?;
        self.last_id = Some(id);
        Ok((blocking, id))
    }
}
