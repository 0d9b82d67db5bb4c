//! Letting work in and out.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use async_shutdown::ShutdownManager;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use winddown::{Gate, InFlight};

use crate::measure::{Op, Row, Run};

thread_local!(static HERE: Cell<u64> = const { Cell::new(0) });

#[repr(align(128))]
struct Alone(AtomicI64);

pub fn row() -> Row {
    Row {
        title: "Letting work in and out (enter + drop)",
        times: 100_000,
        added: false,
        target: |limit, threads| limit * if threads == 1 { 1.05 } else { 1.10 },
        ops: vec![
            op("atomic", 8, atomic),
            Op { ours: true, ..op("gate", size_of::<InFlight>(), gate) },
            op("thread-local", 0, thread_local),
            op("tracker-token", size_of::<tokio_util::task::task_tracker::TaskTrackerToken>(), tracker_token),
            op("sender-clone", size_of::<mpsc::Sender<()>>(), sender_clone),
            op("semaphore-owned", size_of::<tokio::sync::OwnedSemaphorePermit>(), semaphore),
            op("cancellation-token-clone", size_of::<CancellationToken>(), token_clone),
            op("async-shutdown-delay", size_of::<async_shutdown::DelayShutdownToken<()>>(), async_shutdown),
            op("hyper-util-watcher", size_of::<hyper_util::server::graceful::Watcher>(), hyper_util),
            op("drain-watch-clone", size_of::<drain::Watch>(), drain_watch),
            op("tokio-graceful-guard", size_of::<tokio_graceful::ShutdownGuard>(), tokio_graceful),
            op("tracker-and-child-token", 16, tracker_and_child),
            op("gate-detailed", size_of::<InFlight>(), gate_detailed),
        ],
    }
}

fn op(name: &'static str, bytes: usize, make: fn() -> Box<Run>) -> Op {
    Op { name, make, bytes: Some(bytes), ours: false }
}

fn again(one: impl Fn() + Send + Sync + 'static) -> Box<Run> {
    Box::new(move |times| {
        for _ in 0..times {
            one();
        }
    })
}

/// The limit: nothing that is counted for all threads can cost less.
fn atomic() -> Box<Run> {
    let count = Box::new(Alone(AtomicI64::new(0)));
    again(move || {
        black_box(count.0.fetch_add(4, Ordering::AcqRel));
        black_box(count.0.fetch_sub(4, Ordering::AcqRel));
    })
}

fn gate() -> Box<Run> {
    let gate = Gate::standalone("bench");
    again(move || drop(gate.enter().map(black_box)))
}

fn gate_detailed() -> Box<Run> {
    let gate = Gate::standalone("bench").detailed();
    again(move || drop(gate.enter().map(black_box)))
}

fn thread_local() -> Box<Run> {
    again(|| {
        HERE.with(|here| here.set(black_box(here.get() + 1)));
        HERE.with(|here| here.set(black_box(here.get() - 1)));
    })
}

fn tracker_token() -> Box<Run> {
    let tracker = TaskTracker::new();
    again(move || drop(black_box(tracker.token())))
}

fn sender_clone() -> Box<Run> {
    let (sender, receiver) = mpsc::channel::<()>(1);
    again(move || {
        let _ = &receiver;
        drop(black_box(sender.clone()));
    })
}

fn semaphore() -> Box<Run> {
    let semaphore = Arc::new(Semaphore::new(1 << 20));
    again(move || drop(black_box(semaphore.clone().try_acquire_owned())))
}

fn token_clone() -> Box<Run> {
    let token = CancellationToken::new();
    again(move || drop(black_box(token.clone())))
}

fn async_shutdown() -> Box<Run> {
    let manager = ShutdownManager::<()>::new();
    again(move || drop(black_box(manager.delay_shutdown_token().ok())))
}

fn hyper_util() -> Box<Run> {
    let graceful = GracefulShutdown::new();
    again(move || drop(black_box(graceful.watcher())))
}

fn drain_watch() -> Box<Run> {
    let (signal, watch) = drain::channel();
    let signal = std::sync::Mutex::new(signal);
    again(move || {
        let _ = &signal;
        drop(black_box(watch.clone()));
    })
}

fn tokio_graceful() -> Box<Run> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let shutdown = runtime.block_on(async { tokio_graceful::Shutdown::new(std::future::pending::<()>()) });
    let guard = shutdown.guard();
    let kept = std::sync::Mutex::new((runtime, shutdown));
    again(move || {
        let _ = &kept;
        drop(black_box(guard.clone()));
    })
}

fn tracker_and_child() -> Box<Run> {
    let tracker = TaskTracker::new();
    let token = CancellationToken::new();
    again(move || drop(black_box((tracker.token(), token.child_token()))))
}
