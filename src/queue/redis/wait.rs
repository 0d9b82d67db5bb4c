//! What waits for jobs: one command that blocks, for all of a process that wait, on a connection of its own; it is never dropped.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError, Value};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::link::{Link, PATIENCE};
use crate::BoxError;
use crate::backoff::{Backoff, scattered};

/// For how long one command blocks, at most. After it the server is asked what is due.
const BLOCK: Duration = Duration::from_secs(3);

/// How much less it may be, so that waiters that began together do not ask together ever after. Two requests in what is left of it
/// make one a second.
const SCATTER: Duration = Duration::from_secs(1);

/// How long to leave a server alone that does not let us wait.
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// How long the server may take to end what blocks; after that its connection is dropped, which ends it too.
const END: Duration = Duration::from_secs(1);

/// How soon to ask again for the end of a command that the server had not begun.
const AGAIN: Duration = Duration::from_millis(5);

/// Where something is waited for.
pub(super) trait Source: Clone + Send + Sync + 'static {
    fn waiter(&self) -> &Waiter;

    fn link(&self) -> &Link;

    /// Waits at the server, by [`Waiter::block`]; whether there may be something to claim.
    fn wait_once(&self, line: &mut Option<Line>) -> impl Future<Output = Result<bool, BoxError>> + Send;

    /// Tells another process what was told here, and is of no use here any more.
    fn pass_on(&self) -> impl Future<Output = ()> + Send;
}

/// Who waits in this process, and what is known of the one task that waits for them at the server.
pub(super) struct Waiter {
    state: watch::Sender<State>,
    task: Mutex<Option<AbortHandle>>,
    /// Kept from one wait to the next, until the stop.
    line: Mutex<Option<Line>>,
}

/// A connection for what blocks, and its number at the server.
pub(super) struct Line {
    client: i64,
    connection: MultiplexedConnection,
}

#[derive(Default)]
struct State {
    /// How many wait for a hint now.
    listeners: usize,
    /// The server has told of something, or is to be asked for another reason.
    hint: bool,
    /// A hint was taken, and since then nobody has asked for jobs: it is to be passed on.
    taken: bool,
    /// When the next delay or lease ends, as far as is known.
    due: Option<Instant>,
    /// Whether `due` is known.
    looked: bool,
    running: bool,
    stopping: bool,
    /// The connection that blocks, by its number at the server; of no meaning where nothing runs.
    blocked: Option<i64>,
    failures: u32,
}

/// Somebody waits, until dropped.
struct Listener<'a>(&'a watch::Sender<State>);

/// The task is to end, and none to be started, until dropped: also where whoever stops is given up half-way.
struct Stopping<'a>(&'a watch::Sender<State>);

/// The task runs, until dropped, also by an abort or with its runtime.
struct Running<'a>(&'a watch::Sender<State>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing behind these locks is ever half-changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For how long the next command is to block: another time for each.
pub(super) fn block_for() -> Duration {
    scattered(BLOCK, SCATTER)
}

/// Returns with the next hint.
///
/// # Cancel safety
///
/// May be dropped at any time: a hint that nobody takes is passed on.
pub(super) async fn ready<S: Source>(source: &S) {
    let waiter = source.waiter();
    let state = &waiter.state;
    let _listener = Listener::new(state);
    let mut changed = state.subscribe();
    loop {
        see_to_the_task(source);
        // Marked as seen before looking: what changes after the look wakes.
        let due = changed.borrow_and_update().due;
        if waiter.take_hint() {
            return;
        }
        tokio::select! {
            // The sender is ours.
            _ = changed.changed() => {}
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                state.send_modify(|state| (state.due, state.looked) = (None, false));
                return;
            }
        }
    }
}

/// Ends what waits at the server, where nobody is in [`ready`] any more, closes its connection, and passes on what it still brought.
pub(super) async fn stop<S: Source>(source: &S) {
    let waiter = source.waiter();
    let state = &waiter.state;
    // Another worker of this process still listens, and what blocks is its own, too.
    let ends = state.send_if_modified(|state| {
        state.stopping = state.listeners == 0;
        state.stopping
    });
    if !ends {
        return;
    }
    let stopping = Stopping(state);
    let end = Instant::now() + END;
    let mut changed = state.subscribe();
    loop {
        let (running, blocked) = {
            let state = changed.borrow_and_update();
            (state.running, state.blocked)
        };
        if !running {
            break;
        }
        if Instant::now() >= end {
            waiter.abort();
        }
        if let Some(client) = blocked {
            // It answers 0 where the command has not begun there yet: that is why it is asked again.
            let mut unblock = Cmd::new();
            unblock.arg("CLIENT").arg("UNBLOCK").arg(client);
            drop(timeout_at(end, source.link().query(&unblock)).await);
        }
        drop(timeout_at(Instant::now() + AGAIN, changed.changed()).await);
    }
    *lock(&waiter.line) = None;
    let mut pass_on = false;
    state.send_modify(|state| {
        pass_on = state.hint || state.taken;
        (state.hint, state.taken) = (false, false);
    });
    drop(stopping);
    if pass_on {
        drop(timeout_at(end, source.pass_on()).await);
    }
}

/// Starts what waits at the server, unless it runs.
fn see_to_the_task<S: Source>(source: &S) {
    let waiter = source.waiter();
    let starts = waiter.state.send_if_modified(|state| {
        let starts = !state.running && !state.stopping;
        state.running |= starts;
        starts
    });
    if starts {
        let source = source.clone();
        let task = tokio::spawn(async move { wait(&source).await });
        *lock(&waiter.task) = Some(task.abort_handle());
    }
}

/// Waits at the server for as long as anybody listens here.
async fn wait<S: Source>(source: &S) {
    let waiter = source.waiter();
    let state = &waiter.state;
    let running = Running(state);
    let mut line = lock(&waiter.line).take();
    loop {
        let ends = state.send_if_modified(|state| {
            let ends = state.listeners == 0 || state.stopping;
            state.running = !ends;
            if ends {
                // Before the next task can look for it.
                *lock(&waiter.line) = line.take();
            }
            ends
        });
        if ends {
            // It was said above, in one step with the look for listeners; the next task may have begun by now.
            std::mem::forget(running);
            return;
        }
        let outcome = source.wait_once(&mut line).await;
        let failed = outcome.is_err();
        if failed {
            line = None;
            let failures = state.borrow().failures;
            let mut changed = state.subscribe();
            tokio::select! {
                () = sleep(RETRY.scattered(failures)) => {}
                _ = changed.wait_for(|state| state.stopping || state.listeners == 0) => {}
            }
        }
        // A failure is a hint, too: the claim that follows says what is wrong.
        let hint = outcome.unwrap_or(true);
        state.send_modify(|state| {
            state.failures = if failed { state.failures.saturating_add(1) } else { 0 };
            state.hint |= hint;
        });
        if hint {
            hand_over(source).await;
        }
    }
}

/// Gives the hint to whoever listens, or else passes it on to another process.
async fn hand_over<S: Source>(source: &S) {
    let state = &source.waiter().state;
    let mut changed = state.subscribe();
    // The sender is ours.
    drop(changed.wait_for(|state| !state.hint || state.listeners == 0 || state.stopping).await);
    // At a stop it is left to whoever stops.
    let left = state.send_if_modified(|state| {
        let left = state.hint && !state.stopping;
        state.hint &= !left;
        left
    });
    if left {
        source.pass_on().await;
    }
}

// === impl Waiter ===

impl Waiter {
    pub(super) fn new() -> Waiter {
        let state = watch::Sender::new(State::default());
        Waiter { state, task: Mutex::default(), line: Mutex::default() }
    }

    /// Somebody has asked for jobs, and was told when the next thing is due: `None` where that is not known.
    pub(super) fn stepped(&self, next: Option<Option<Duration>>) {
        let due = next.flatten().map(|wait| Instant::now() + wait);
        // No waiter needs to be told: one that waits while another of its process claims is told by the server if need be.
        self.state.send_if_modified(|state| {
            (state.taken, state.due, state.looked) = (false, due, next.is_some());
            false
        });
    }

    /// Whether it is known when the next thing is due: [`ready`] returns at that moment by itself.
    pub(super) fn has_looked(&self) -> bool {
        self.state.borrow().looked
    }

    /// The server was asked when the next thing is due.
    pub(super) fn looked(&self, wait: Option<Duration>) {
        let due = wait.map(|wait| Instant::now() + wait);
        self.state.send_modify(|state| {
            // A claim may have been answered meanwhile: whichever of the two is the older one, the sooner moment does no harm.
            let known = state.due.filter(|_| state.looked);
            (state.due, state.looked) = (known.into_iter().chain(due).min(), true);
        });
    }

    /// Sends a command that blocks for [`block_for`] or less, and may be ended by [`stop`].
    pub(super) async fn block(
        &self,
        link: &Link,
        line: &mut Option<Line>,
        command: &Cmd,
    ) -> Result<Value, RedisError> {
        let line = match line {
            Some(line) => line,
            none => none.insert(Line::open(link).await?),
        };
        self.state.send_modify(|state| state.blocked = Some(line.client));
        let answer = line.connection.send_packed_command(command).await.and_then(Value::extract_error);
        self.state.send_modify(|state| {
            state.blocked = None;
            // Whatever it was that ended it, time has passed.
            state.looked = false;
        });
        answer
    }

    /// Takes the hint, if there is one.
    fn take_hint(&self) -> bool {
        self.state.send_if_modified(|state| {
            let hint = std::mem::take(&mut state.hint);
            state.taken |= hint;
            hint
        })
    }

    fn abort(&self) {
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

// === impl Line ===

impl Line {
    async fn open(link: &Link) -> Result<Line, RedisError> {
        let mut connection = link.open(Some(BLOCK + PATIENCE)).await?;
        let client = connection.send_packed_command(Cmd::new().arg("CLIENT").arg("ID")).await?;
        Ok(Line { client: i64::from_redis_value(client.extract_error()?)?, connection })
    }
}

// === impl Listener ===

impl<'a> Listener<'a> {
    fn new(state: &'a watch::Sender<State>) -> Listener<'a> {
        state.send_modify(|state| state.listeners += 1);
        Listener(state)
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|state| state.listeners -= 1);
    }
}

// === impl Stopping ===

impl Drop for Stopping<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|state| state.stopping = false);
    }
}

// === impl Running ===

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|state| state.running = false);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn waiters_that_began_together_do_not_ask_together_and_none_asks_more_than_once_a_second() {
        let all: BTreeSet<Duration> = (0..100).map(|_| block_for()).collect();
        assert!(all.len() > 50, "they differ");
        // After each the server is asked what is due, and asked to block again.
        let requests = 2;
        for block in &all {
            assert!(*block >= Duration::from_secs(requests) && *block <= Duration::from_secs(3), "{block:?}");
        }
        let (first, last) = (all.first().unwrap(), all.last().unwrap());
        assert!(*last - *first > Duration::from_millis(500), "all over that second: {first:?} to {last:?}");
    }
}
