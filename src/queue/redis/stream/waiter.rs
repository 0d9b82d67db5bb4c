//! Waits at the server for something to claim.
//!
//! A blocking `XREAD`, on a connection of its own, behind the last entry that was delivered: it ends when an entry comes, whoever
//! added it, and takes nothing, so that nothing can be lost with it. It also reads the queue's own `wake`, for what becomes free
//! in other ways. One task waits for all that are in `ready`, and it ends with its first news.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::link::{Link, PATIENCE};
use super::Place;
use super::answer::millis;
use super::scripts::LOOK;
use crate::queue::QueueError;

/// How long one `XREAD` waits. After it comes a look, so that an idle worker asks once a second.
const BLOCK: Duration = Duration::from_secs(2);

/// How long to leave a server alone that could not be asked. The claim that follows says what is wrong.
const PAUSE: Duration = Duration::from_millis(500);

/// How long one `CLIENT UNBLOCK` is given until the next: the first may come before the `XREAD` does.
const UNBLOCK: Duration = Duration::from_millis(20);

/// How often that is tried, within a second; then the connection is cut, which ends an `XREAD` as well.
const UNBLOCK_TRIES: u32 = 25;

/// Who waits in the process, and the one task that waits for them.
#[derive(Default)]
pub(super) struct Waiter(Mutex<State>);

#[derive(Default)]
struct State {
    task: Option<Task>,
    /// Kept from one task to the next.
    line: Option<Line>,
}

struct Task {
    /// Never sent on: that the sender is gone is the news.
    news: watch::Receiver<()>,
    /// One more for each that waits.
    waiting: Arc<()>,
    stop: CancellationToken,
    abort: Option<AbortHandle>,
    /// The connection that is blocked, as the server counts, or is about to be.
    blocked: Option<i64>,
}

/// A connection for what blocks.
struct Line {
    connection: MultiplexedConnection,
    client: i64,
}

/// The end of a task, however it comes.
struct End {
    place: Arc<Place>,
    line: Option<Line>,
    stop: CancellationToken,
    _news: watch::Sender<()>,
}

/// Whether there is something, else how long until there is (below 0: not known), and behind which entries of the stream and of
/// `wake` there would be something new.
type Look = (bool, i64, String, String);

// === impl Waiter ===

impl Waiter {
    /// Returns with the next news, or when the server could not be asked.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time; what waits at the server goes on for 2 s at most, or until [`stop`](Self::stop).
    pub(super) async fn ready(&self, place: &Arc<Place>, gone_after: Duration) {
        // A task that is about to end has news as good as any.
        let (mut news, _waiting) = self.join(place, gone_after);
        while news.changed().await.is_ok() {}
    }

    /// Ends what waits at the server, where nobody is in [`ready`](Self::ready) any more, and closes its connection.
    pub(super) async fn stop(&self, link: &Link) {
        let Some(mut news) = self.cancel() else { return };
        for _ in 0..UNBLOCK_TRIES {
            let blocked = self.state().task.as_ref().and_then(|task| task.blocked);
            if let Some(client) = blocked {
                let mut unblock = Cmd::new();
                unblock.arg("CLIENT").arg("UNBLOCK").arg(client);
                // It answers 0 where the `XREAD` has not come yet, or is over; its error is no other than that of the `XREAD`.
                let _ = timeout(UNBLOCK, link.query(&unblock)).await;
            }
            if timeout(UNBLOCK, async { while news.changed().await.is_ok() {} }).await.is_ok() {
                break;
            }
        }
        let mut state = self.state();
        state.line = None;
        let task = state.task.as_ref().filter(|task| task.stop.is_cancelled());
        if let Some(abort) = task.and_then(|task| task.abort.as_ref()) {
            abort.abort();
        }
    }

    /// Waits with the task that is there, or with a new one.
    fn join(&self, place: &Arc<Place>, gone_after: Duration) -> (watch::Receiver<()>, Arc<()>) {
        let mut state = self.state();
        if let Some(task) = &state.task {
            return (task.news.clone(), Arc::clone(&task.waiting));
        }
        let (sender, news) = watch::channel(());
        let (stop, waiting) = (CancellationToken::new(), Arc::new(()));
        let end =
            End { place: Arc::clone(place), line: state.line.take(), stop: stop.clone(), _news: sender };
        let task =
            Task { news: news.clone(), waiting: Arc::clone(&waiting), stop, abort: None, blocked: None };
        state.task = Some(task);
        // A runtime that is ending drops what is spawned at once, and the end of a task takes the lock.
        drop(state);
        let abort = tokio::spawn(wait(end, gone_after)).abort_handle();
        if let Some(task) = self.state().task.as_mut().filter(|task| task.news.same_channel(&news)) {
            task.abort = Some(abort);
        }
        (news, waiting)
    }

    /// Tells the task to end, unless somebody waits for it.
    fn cancel(&self) -> Option<watch::Receiver<()>> {
        let mut state = self.state();
        let Some(task) = state.task.as_ref() else {
            state.line = None;
            return None;
        };
        if task.is_wanted() {
            return None;
        }
        task.stop.cancel();
        Some(task.news.clone())
    }

    fn is_wanted(&self) -> bool {
        self.state().task.as_ref().is_some_and(Task::is_wanted)
    }

    fn blocked(&self, client: Option<i64>) {
        if let Some(task) = &mut self.state().task {
            task.blocked = client;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing behind this lock is ever half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Task ===

impl Task {
    fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.waiting) > 1
    }
}

/// Waits until there is something, or nobody who waits.
async fn wait(mut end: End, gone_after: Duration) {
    while !end.stop.is_cancelled() && end.place.waiter.is_wanted() {
        match look_and_wait(&mut end, gone_after).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(_) => {
                end.line = None;
                tokio::select! {
                    () = end.stop.cancelled() => {}
                    () = sleep(PAUSE) => {}
                }
                return;
            }
        }
    }
}

/// Whether there is something to claim.
async fn look_and_wait(end: &mut End, gone_after: Duration) -> Result<bool, QueueError> {
    let place = Arc::clone(&end.place);
    let mut look = place.call(&LOOK);
    look.arg(millis(gone_after));
    let (ready, due, delivered, woken): Look = place.ask("look for jobs", &LOOK, &look).await?;
    if ready || due == 0 {
        return Ok(true);
    }
    let wait = u64::try_from(due).map_or(BLOCK, |due| BLOCK.min(Duration::from_millis(due)));
    let wake = format!("{}wake", place.own);
    let mut read = Cmd::new();
    read.arg("XREAD").arg("BLOCK").arg(millis(wait)).arg("COUNT").arg(1).arg("STREAMS");
    read.arg(&place.stream).arg(&wake).arg(delivered).arg(woken);

    let failed = |error: RedisError| QueueError::new("wait for jobs", error);
    let line = match &mut end.line {
        Some(line) => line,
        none => none.insert(Line::open(&place.link).await.map_err(failed)?),
    };
    // Said before it is looked whether to stop, and read after that is said.
    place.waiter.blocked(Some(line.client));
    if end.stop.is_cancelled() {
        return Ok(false);
    }
    let news = read.query_async::<Option<Vec<(String, Value)>>>(&mut line.connection).await;
    place.waiter.blocked(None);
    // What `wake` brings is only a reason to look again.
    let news = news.map_err(failed)?.unwrap_or_default();
    Ok(news.iter().any(|(stream, _)| *stream == place.stream))
}

// === impl Line ===

impl Line {
    async fn open(link: &Link) -> Result<Line, RedisError> {
        let mut connection = link.open(BLOCK + PATIENCE).await?;
        let client = Cmd::new().arg("CLIENT").arg("ID").query_async(&mut connection).await?;
        Ok(Line { connection, client })
    }
}

// === impl End ===

impl Drop for End {
    fn drop(&mut self) {
        let mut state = self.place.waiter.state();
        state.task = None;
        state.line = self.line.take().filter(|_| !self.stop.is_cancelled());
    }
}
