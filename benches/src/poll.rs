//! Waiting for the stop while working.

use std::future::Future;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::{AbortHandle, Abortable};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use winddown::Gate;

use crate::measure::{Op, Row, Run};

struct Silent;

/// Work that is never done.
struct Forever;

// === impl Silent ===

impl Wake for Silent {
    fn wake(self: Arc<Self>) {}
}

// === impl Forever ===

impl Future for Forever {
    type Output = ();

    #[inline(never)]
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        black_box(Poll::Pending)
    }
}

/// What a pending poll costs more than that of the work alone. The first line is the work alone.
pub fn pending() -> Row {
    Row {
        title: "Waiting for the stop while working (added per pending poll)",
        times: 200_000,
        added: true,
        target: |_, _| 1.0,
        ops: vec![
            op("poll-bare", || again(|times| poll(Forever, times))),
            Op { ours: true, ..op("poll-run", || guarded(|guard, times| poll(guard.run(Forever), times))) },
            op("poll-run-until-cancelled", || {
                let token = CancellationToken::new();
                again(move |times| poll(token.run_until_cancelled(Forever), times))
            }),
            op("poll-select-token", || {
                let token = CancellationToken::new();
                again(move |times| {
                    poll(
                        async {
                            tokio::select! { () = token.cancelled() => (), () = Forever => () }
                        },
                        times,
                    )
                })
            }),
            op("poll-select-notify", || {
                let notify = Notify::new();
                again(move |times| {
                    poll(
                        async {
                            tokio::select! { () = notify.notified() => (), () = Forever => () }
                        },
                        times,
                    )
                })
            }),
            op("poll-select-watch", || {
                let (sender, receiver) = watch::channel(false);
                again(move |times| {
                    let _ = &sender;
                    let mut receiver = receiver.clone();
                    poll(
                        async {
                            tokio::select! { _ = receiver.changed() => (), () = Forever => () }
                        },
                        times,
                    )
                })
            }),
            op("poll-abortable", || {
                again(|times| poll(Abortable::new(Forever, AbortHandle::new_pair().1), times))
            }),
        ],
    }
}

/// The same with a new future each time, which registers and is dropped.
pub fn wrapped() -> Row {
    Row {
        title: "Wrap + one pending poll + drop",
        times: 50_000,
        added: false,
        // Promised in instructions only; by time it shall cost no more than the token.
        target: |token, _| token,
        ops: vec![
            op("wrap-run-until-cancelled", || {
                let token = CancellationToken::new();
                again(move |times| poll_new(|| token.run_until_cancelled(Forever), times))
            }),
            Op {
                ours: true,
                ..op("wrap-run", || guarded(|guard, times| poll_new(|| guard.run(Forever), times)))
            },
            op("wrap-bare", || again(|times| poll_new(|| Forever, times))),
        ],
    }
}

/// Asking without waiting.
pub fn asked() -> Row {
    Row {
        title: "Asking whether it stops",
        times: 1_000_000,
        added: false,
        target: |load, _| load * 1.5 + 0.1,
        ops: vec![
            op("plain-load", || {
                let flag = AtomicBool::new(false);
                again(move |times| {
                    (0..times).for_each(|_| {
                        black_box(flag.load(Ordering::Acquire));
                    })
                })
            }),
            Op {
                ours: true,
                ..op("is-stopping", || {
                    guarded(|guard, times| {
                        (0..times).for_each(|_| {
                            black_box(guard.is_stopping());
                        })
                    })
                })
            },
            op("is-cancelled", || {
                let token = CancellationToken::new();
                again(move |times| {
                    (0..times).for_each(|_| {
                        black_box(token.is_cancelled());
                    })
                })
            }),
        ],
    }
}

fn op(name: &'static str, make: fn() -> Box<Run>) -> Op {
    Op { name, make, bytes: None, ours: false }
}

fn again(run: impl Fn(u64) + Send + Sync + 'static) -> Box<Run> {
    Box::new(run)
}

/// Each thread with a guard of its own, of one gate.
fn guarded(run: impl Fn(&winddown::InFlight, u64) + Send + Sync + 'static) -> Box<Run> {
    let gate = Gate::standalone("bench");
    Box::new(move |times| {
        if let Ok(guard) = gate.enter() {
            run(&guard, times);
        }
    })
}

thread_local!(static WAKER: Waker = Waker::from(Arc::new(Silent)));

/// Polls one future so many times.
fn poll(future: impl Future, times: u64) {
    let mut future = pin!(future);
    with_context(|cx| {
        for _ in 0..times {
            let _ = black_box(future.as_mut().poll(cx).is_pending());
        }
    });
}

/// Makes a future, polls it once and drops it, so many times.
fn poll_new<F: Future>(make: impl Fn() -> F, times: u64) {
    with_context(|cx| {
        for _ in 0..times {
            let _ = black_box(pin!(make()).poll(cx).is_pending());
        }
    });
}

/// Outside of a runtime, whose budget would make some of the others yield.
fn with_context(poll: impl FnOnce(&mut Context<'_>)) {
    WAKER.with(|waker| poll(&mut Context::from_waker(waker)));
}
