//! What waits for jobs: one blocking pop a process, on a connection of its own, which is never dropped.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError, Value};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::{Shared, reply, scripts};
use crate::backoff::Backoff;
use crate::queue::redis::link::PATIENCE;

/// For how long one pop blocks. After it the server is asked what is due, which makes one request a second.
const BLOCK: Duration = Duration::from_secs(2);

/// How long to leave a server alone that does not let us wait.
const RETRY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));

/// How long the server may take to end a pop; after that its connection is dropped, which ends it too.
const END: Duration = Duration::from_secs(1);

/// How soon to ask again for the end of a pop that the server had not begun.
const AGAIN: Duration = Duration::from_millis(5);

/// A token in the list at `wake` says that there may be something to claim. Whoever pops it claims; whoever claims and leaves
/// something puts a token back. There is one token at the most, so nothing piles up where nobody waits.
pub(super) struct Waiter {
    wake: String,
    state: watch::Sender<State>,
    task: Mutex<Option<AbortHandle>>,
    /// Kept from one wait to the next.
    connection: Mutex<Option<Blocking>>,
}

/// A connection that blocks, and its number at the server.
type Blocking = (i64, MultiplexedConnection);

struct State {
    /// How many wait for a hint now.
    listeners: usize,
    /// A token is here, or the server is to be asked for another reason.
    hint: bool,
    /// A token was taken, and since then nobody has asked for jobs: it is to be passed on.
    taken: bool,
    /// When the next delay or lease ends, as far as is known.
    due: Option<Instant>,
    /// Whether `due` is known.
    looked: bool,
    running: bool,
    stopping: bool,
    /// The connection that blocks, by its number at the server.
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

// === impl Waiter ===

impl Waiter {
    pub(super) fn new(prefix: &str) -> Waiter {
        let state = State {
            listeners: 0,
            hint: false,
            taken: false,
            due: None,
            looked: false,
            running: false,
            stopping: false,
            blocked: None,
            failures: 0,
        };
        Waiter {
            wake: format!("{prefix}wake"),
            state: watch::Sender::new(state),
            task: Mutex::new(None),
            connection: Mutex::new(None),
        }
    }

    /// Somebody has asked for jobs: the script passes tokens on, and says when the next thing is due, unless there was enough to claim.
    pub(super) fn stepped(&self, next: Option<Option<Duration>>) {
        let due = next.flatten().map(|wait| Instant::now() + wait);
        // No waiter needs to be told: one that waits while another of its process claims is told by a token if need be.
        self.state.send_if_modified(|state| {
            (state.taken, state.due, state.looked) = (false, due, next.is_some());
            false
        });
    }

    /// Takes the hint, if there is one.
    fn take_hint(&self) -> bool {
        self.state.send_if_modified(|state| {
            let hint = state.hint || state.taken;
            if state.hint {
                (state.hint, state.taken) = (false, true);
            }
            hint
        })
    }
}

// === impl Shared ===

impl Shared {
    pub(super) async fn ready(self: &Arc<Shared>) {
        let state = &self.waiter.state;
        let _listener = Listener::new(state);
        let mut changed = state.subscribe();
        loop {
            self.see_to_the_task();
            // Marked as seen before looking: what changes after the look wakes.
            let due = changed.borrow_and_update().due;
            if self.waiter.take_hint() {
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

    pub(super) async fn stop_waiting(&self) {
        let state = &self.waiter.state;
        // Another worker of this process still listens, and the pop is its own, too.
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
                self.abort();
            }
            if let Some(id) = blocked {
                // It answers 0 where the pop has not begun there yet: that is why it is asked again.
                let mut unblock = Cmd::new();
                unblock.arg("CLIENT").arg("UNBLOCK").arg(id);
                drop(timeout_at(end, self.link().query(&unblock)).await);
            }
            drop(timeout_at(Instant::now() + AGAIN, changed.changed()).await);
        }
        let mut pass_on = false;
        state.send_modify(|state| {
            pass_on = state.hint || state.taken;
            (state.hint, state.taken) = (false, false);
        });
        drop(stopping);
        if pass_on {
            drop(timeout_at(end, self.put_back()).await);
        }
    }

    /// Starts what waits at the server, unless it runs.
    fn see_to_the_task(self: &Arc<Shared>) {
        let starts = self.waiter.state.send_if_modified(|state| {
            let starts = !state.running && !state.stopping;
            state.running |= starts;
            starts
        });
        if starts {
            let shared = Arc::clone(self);
            let task = tokio::spawn(async move { shared.wait().await });
            *lock(&self.waiter.task) = Some(task.abort_handle());
        }
    }

    fn abort(&self) {
        if let Some(task) = lock(&self.waiter.task).take() {
            task.abort();
        }
    }

    /// Waits at the server for as long as anybody listens here.
    async fn wait(self: Arc<Shared>) {
        let state = &self.waiter.state;
        let running = Running(state);
        let mut connection = lock(&self.waiter.connection).take();
        loop {
            let ends = state.send_if_modified(|state| {
                let ends = state.listeners == 0 || state.stopping;
                state.running = !ends;
                if ends {
                    // Before the next task can look for it.
                    *lock(&self.waiter.connection) = connection.take();
                }
                ends
            });
            if ends {
                // It was said above, in one step with the look for listeners; the next task may have begun by now.
                std::mem::forget(running);
                return;
            }
            let outcome = self.wait_once(&mut connection).await;
            let failed = outcome.is_err();
            if failed {
                connection = None;
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
                self.hand_over().await;
            }
        }
    }

    /// Gives the hint to whoever listens, or else passes it on to another process.
    async fn hand_over(&self) {
        let state = &self.waiter.state;
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
            drop(self.put_back().await);
        }
    }

    /// Looks what is due, if that is not known, or waits for a token; whether there may be something to claim.
    async fn wait_once(&self, connection: &mut Option<Blocking>) -> Result<bool, RedisError> {
        let state = &self.waiter.state;
        if !state.borrow().looked {
            let wait = reply::wait(reply::number(&self.run(&scripts::LOOK, |call| call).await?)?);
            if wait == Some(Duration::ZERO) {
                return Ok(true);
            }
            let due = wait.map(|wait| Instant::now() + wait);
            state.send_modify(|state| {
                // A claim may have been answered meanwhile: whichever of the two is the older one, the sooner moment does no harm.
                let known = state.due.filter(|_| state.looked);
                (state.due, state.looked) = (known.into_iter().chain(due).min(), true);
            });
        }
        let (id, connection) = match connection {
            Some((id, connection)) => (*id, connection),
            None => {
                let mut opened = self.link().open(BLOCK + PATIENCE).await?;
                let id = i64::from_redis_value(
                    opened.send_packed_command(Cmd::new().arg("CLIENT").arg("ID")).await?.extract_error()?,
                )?;
                let (_, opened) = connection.insert((id, opened));
                (id, opened)
            }
        };
        state.send_modify(|state| state.blocked = Some(id));
        let mut pop = Cmd::new();
        pop.arg("BLPOP").arg(&self.waiter.wake).arg(BLOCK.as_secs());
        let popped = connection.send_packed_command(&pop).await.and_then(Value::extract_error);
        state.send_modify(|state| {
            state.blocked = None;
            // Whatever it was that ended it, time has passed.
            state.looked = false;
        });
        Ok(popped? != Value::Nil)
    }

    async fn put_back(&self) -> Result<Value, RedisError> {
        self.run(&scripts::WAKE, |call| call).await
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
        self.0.send_modify(|state| (state.running, state.blocked) = (false, None));
    }
}
