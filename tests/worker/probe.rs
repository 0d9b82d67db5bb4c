//! A queue in memory that keeps a record of its calls and can be slow, down, or lose its answers; and handlers for it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use winddown::queue::{
    Claimed, Counts, DeadLetter, HandBack, Handler, Held, JobId, Lease, Leased, NewJob, Owner, Queue,
    QueueError, memory::Memory,
};
use winddown::{BoxError, Cx};

pub type Jobs = Memory<String>;

pub const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[derive(Clone)]
pub struct Probe(Arc<State>);

pub struct State {
    pub jobs: Jobs,
    began: Instant,
    calls: Mutex<Vec<(Duration, String)>>,
    pub down: AtomicBool,
    pub extend_down: AtomicBool,
    pub extend_says_lost: AtomicBool,
    /// Ack, nack and dead letter do.
    pub settling_says_lost: AtomicBool,
    /// So many acks take effect, and their answers are lost.
    pub lost_acks: AtomicUsize,
    pub claim_takes: Mutex<Duration>,
    pub ack_takes: Mutex<Duration>,
    pub most_active: AtomicUsize,
    /// How long `ready` asks before it waits, as one does that needs a connection for that.
    pub ready_takes: Mutex<Duration>,
    asking: AtomicUsize,
    /// How long ending what `ready` left waiting takes.
    pub stop_takes: Mutex<Duration>,
    ending: AtomicBool,
    /// Asked while a wait was being ended.
    pub asked_while_ending: AtomicUsize,
    pub extend_takes: Mutex<Duration>,
    /// Claims and acks while `ready` was still asking.
    pub crossed: AtomicUsize,
}

struct Asking<'a>(&'a AtomicUsize);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl std::ops::Deref for Probe {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0
    }
}

impl Probe {
    /// With jobs of these numbers.
    pub fn with(numbers: impl IntoIterator<Item = u32>) -> Probe {
        let probe = Probe(Arc::new(State {
            jobs: Jobs::new(),
            began: Instant::now(),
            calls: Mutex::default(),
            down: AtomicBool::new(false),
            extend_down: AtomicBool::new(false),
            extend_says_lost: AtomicBool::new(false),
            settling_says_lost: AtomicBool::new(false),
            lost_acks: AtomicUsize::new(0),
            claim_takes: Mutex::default(),
            ack_takes: Mutex::default(),
            most_active: AtomicUsize::new(0),
            ready_takes: Mutex::default(),
            asking: AtomicUsize::new(0),
            stop_takes: Mutex::default(),
            ending: AtomicBool::new(false),
            asked_while_ending: AtomicUsize::new(0),
            extend_takes: Mutex::default(),
            crossed: AtomicUsize::new(0),
        }));
        for number in numbers {
            probe.enqueue(number);
        }
        probe
    }

    pub fn enqueue(&self, number: u32) {
        let id: JobId = format!("job-{number}").parse().unwrap();
        self.jobs.enqueue(NewJob::new(id, format!("item {number}")));
    }

    /// Calls that begin so, with the time since the beginning.
    pub fn calls(&self, of: &str) -> Vec<(Duration, String)> {
        self.calls.lock().unwrap().iter().filter(|(_, call)| call.starts_with(of)).cloned().collect()
    }

    /// What another process would get now.
    pub async fn claimable(&self) -> Vec<Claimed<String>> {
        self.jobs.claim(&Owner::unique("other"), 1000, ms(3_600_000)).await.unwrap()
    }

    fn called(&self, call: impl fmt::Display) -> Result<(), QueueError> {
        self.calls.lock().unwrap().push((self.began.elapsed(), call.to_string()));
        match self.down.load(Ordering::SeqCst) {
            true => Err(QueueError::new("ask the queue", "it is down")),
            false => Ok(()),
        }
    }
}

fn names<'a>(leases: impl IntoIterator<Item = &'a Lease>) -> String {
    leases.into_iter().map(|lease| lease.id.as_str()).collect::<Vec<_>>().join(" ")
}

pub fn ids(jobs: &[Claimed<String>]) -> Vec<&str> {
    jobs.iter().map(|job| job.lease.id.as_str()).collect()
}

impl Queue for Probe {
    type Item = String;

    /// The jobs are claimed at once; it is the answer that takes its time.
    async fn claim(
        &self,
        owner: &Owner,
        max: usize,
        lease: Duration,
    ) -> Result<Vec<Claimed<String>>, QueueError> {
        self.called(format_args!("claim {max}"))?;
        self.crossed.fetch_add(self.asking.load(Ordering::SeqCst), Ordering::SeqCst);
        let claimed = self.jobs.claim(owner, max, lease).await;
        let active = self.jobs.counts().await?.active as usize;
        self.most_active.fetch_max(active, Ordering::SeqCst);
        let takes = *self.claim_takes.lock().unwrap();
        if !takes.is_zero() {
            sleep(takes).await;
        }
        claimed
    }

    async fn ready(&self) {
        self.asked_while_ending.fetch_add(self.ending.load(Ordering::SeqCst).into(), Ordering::SeqCst);
        let takes = *self.ready_takes.lock().unwrap();
        if !takes.is_zero() {
            self.asking.fetch_add(1, Ordering::SeqCst);
            let _asking = Asking(&self.asking);
            sleep(takes).await;
        }
        if !self.down.load(Ordering::SeqCst) {
            self.jobs.ready().await;
        }
    }

    /// Recorded when it is over.
    async fn stop_waiting(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let takes = *self.stop_takes.lock().unwrap();
        if !takes.is_zero() {
            sleep(takes).await;
        }
        self.ending.store(false, Ordering::SeqCst);
        self.calls.lock().unwrap().push((self.began.elapsed(), "stopped waiting".to_owned()));
    }

    async fn extend(&self, leases: &[Lease], length: Duration) -> Result<Vec<Held>, QueueError> {
        self.called(format_args!("extend {length:?} {}", names(leases)))?;
        let takes = *self.extend_takes.lock().unwrap();
        if !takes.is_zero() {
            sleep(takes).await;
        }
        if self.extend_down.load(Ordering::SeqCst) {
            return Err(QueueError::new("extend", "it is down"));
        }
        if self.extend_says_lost.load(Ordering::SeqCst) {
            return Ok(vec![Held::Lost; leases.len()]);
        }
        self.jobs.extend(leases, length).await
    }

    async fn ack(&self, leases: &[Lease]) -> Result<Vec<Held>, QueueError> {
        self.called(format_args!("ack {}", names(leases)))?;
        self.crossed.fetch_add(self.asking.load(Ordering::SeqCst), Ordering::SeqCst);
        let takes = *self.ack_takes.lock().unwrap();
        if !takes.is_zero() {
            sleep(takes).await;
        }
        if self.settling_says_lost.load(Ordering::SeqCst) {
            return Ok(vec![Held::Lost; leases.len()]);
        }
        let held = self.jobs.ack(leases).await;
        let lost = self.lost_acks.load(Ordering::SeqCst);
        if lost > 0 {
            self.lost_acks.store(lost - 1, Ordering::SeqCst);
            return Err(QueueError::new("ack", "the answer was lost"));
        }
        held
    }

    async fn nack(&self, lease: &Lease, delay: Duration, reason: &str) -> Result<Held, QueueError> {
        self.called(format_args!("nack {} {reason}", lease.id))?;
        let takes = *self.ack_takes.lock().unwrap();
        if !takes.is_zero() {
            sleep(takes).await;
        }
        if self.settling_says_lost.load(Ordering::SeqCst) {
            return Ok(Held::Lost);
        }
        self.jobs.nack(lease, delay, reason).await
    }

    async fn dead_letter(&self, lease: &Lease, reason: &str) -> Result<Held, QueueError> {
        self.called(format_args!("dead_letter {} {reason}", lease.id))?;
        if self.settling_says_lost.load(Ordering::SeqCst) {
            return Ok(Held::Lost);
        }
        self.jobs.dead_letter(lease, reason).await
    }

    async fn requeue(&self, jobs: &[HandBack]) -> Result<Vec<Held>, QueueError> {
        self.called(format_args!("requeue {}", names(jobs.iter().map(|job| &job.lease))))?;
        self.jobs.requeue(jobs).await
    }

    async fn begin_drain(&self, owner: &Owner, kill_in: Option<Duration>) -> Result<(), QueueError> {
        self.called(format_args!("begin_drain {kill_in:?}"))?;
        self.jobs.begin_drain(owner, kill_in).await
    }

    async fn end_drain(&self, owner: &Owner) -> Result<(), QueueError> {
        self.called("end_drain")?;
        self.jobs.end_drain(owner).await
    }

    async fn counts(&self) -> Result<Counts, QueueError> {
        self.jobs.counts().await
    }

    async fn dead_letters(&self, max: usize) -> Result<Vec<DeadLetter>, QueueError> {
        self.jobs.dead_letters(max).await
    }

    async fn retry(&self, id: &JobId) -> Result<bool, QueueError> {
        self.called(format_args!("retry {id}"))?;
        self.jobs.retry(id).await
    }
}

/// What a handler does with every job.
#[derive(Clone)]
pub enum Act {
    Nothing,
    /// Until it is let go.
    Until(Arc<Notify>),
    Sleep(Duration),
    /// Deaf to everything, in a shield or not.
    Forever {
        shielded: bool,
    },
    /// For that long, in steps of 100 ms, with a checkpoint before each.
    Steps(Duration),
    /// As `Steps`, and takes no notice of what a checkpoint says.
    IgnoreCheckpoint(Duration),
    Fail,
    /// After that long.
    Panic(Duration),
    /// Blocks its thread until told otherwise.
    Block(Arc<AtomicBool>),
}

/// A handler that keeps a record of when it ran, and how that ended.
#[derive(Clone)]
pub struct Does(pub Act, pub Arc<Mutex<Vec<Run>>>);

#[derive(Debug, Clone)]
pub struct Run {
    pub id: String,
    pub from: Instant,
    /// When the future was gone.
    pub to: Option<Instant>,
    pub returned: bool,
}

struct Running<'a>(&'a Does, usize);

impl Does {
    pub fn new(act: Act) -> Does {
        Does(act, Arc::default())
    }

    pub fn runs(&self) -> Vec<Run> {
        self.1.lock().unwrap().clone()
    }

    pub fn ran(&self) -> Vec<String> {
        self.runs().into_iter().map(|run| run.id).collect()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.1.lock().unwrap()[self.1].to = Some(Instant::now());
    }
}

impl Handler<String> for Does {
    type Error = BoxError;

    async fn handle(&self, job: &Leased<String>, cx: &Cx) -> Result<(), BoxError> {
        let running = {
            let mut runs = self.1.lock().unwrap();
            let id = job.lease.id.to_string();
            runs.push(Run { id, from: Instant::now(), to: None, returned: false });
            Running(self, runs.len() - 1)
        };
        match &self.0 {
            Act::Nothing => {}
            Act::Until(go) => go.notified().await,
            Act::Sleep(length) => sleep(*length).await,
            Act::Forever { shielded: true } => cx.shield(std::future::pending()).await,
            Act::Forever { shielded: false } => {
                job.save(format!("halfway through {}", job.item));
                std::future::pending().await
            }
            Act::Steps(length) => {
                for step in 0..length.as_millis() / 100 {
                    cx.checkpoint()?;
                    sleep(ms(100)).await;
                    job.save(step.to_string());
                }
            }
            Act::IgnoreCheckpoint(length) => {
                cx.shield(async {
                    sleep(*length).await;
                    let _ = cx.checkpoint();
                })
                .await;
            }
            Act::Fail => {
                let inner = std::io::Error::other("no tea");
                return Err(std::io::Error::new(std::io::ErrorKind::NotFound, Outer(inner)).into());
            }
            Act::Panic(after) => {
                sleep(*after).await;
                panic!("spilled");
            }
            Act::Block(until) => {
                while !until.load(Ordering::SeqCst) {
                    std::thread::sleep(ms(1));
                }
            }
        }
        self.1.lock().unwrap()[running.1].returned = true;
        Ok(())
    }
}

#[derive(Debug)]
struct Outer(std::io::Error);

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cannot brew")
    }
}

impl std::error::Error for Outer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}
