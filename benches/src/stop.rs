//! Stopping with many in flight: from the trigger until all are gone, by the processor's time.

use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_shutdown::ShutdownManager;
use pin_project_lite::pin_project;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use winddown::Gate;

use crate::heap;
use crate::measure::{cpu, median};

/// What a way to stop costs a task.
struct Cost {
    cpu_ns: f64,
    heap: f64,
}

type Way = fn(usize) -> Cost;

const WAYS: [(&str, Way); 5] = [
    ("wakers and an atomic, the limit", limit),
    ("gate", gate),
    ("tracker and token", tracker_and_token),
    ("async-shutdown", async_shutdown),
    ("drain", drain),
];
const OURS: usize = 1;

/// Prints what each way costs at two or three sizes. Returns how many of our targets were missed.
pub fn print(quick: bool) -> usize {
    let sizes: &[(usize, usize)] =
        if quick { &[(10_000, 5), (100_000, 3)] } else { &[(10_000, 31), (100_000, 11), (1_000_000, 5)] };
    println!("\nStopping with many in flight (trigger to drained, per task, two workers, processor time)");
    println!("{:<34} {:>10} {:>9} {:>7} {:>16}", "", "tasks", "time", "ratio", "heap above bare");
    let mut missed = 0;
    let mut ours = Vec::new();
    for &(tasks, rounds) in sizes {
        let bare = bare(tasks);
        let mut times = vec![Vec::new(); WAYS.len()];
        let mut ratios = vec![Vec::new(); WAYS.len()];
        let mut heaps = vec![0.0; WAYS.len()];
        for _ in 0..rounds {
            for (n, (_, way)) in WAYS.iter().enumerate() {
                let cost = way(tasks);
                times[n].push(cost.cpu_ns);
                ratios[n].push(cost.cpu_ns / times[0][times[0].len() - 1]);
                heaps[n] = cost.heap - bare;
            }
        }
        for (n, (name, _)) in WAYS.iter().enumerate() {
            let (time, ratio) = (median(times[n].clone()), median(ratios[n].clone()));
            let line = format!("{name:<34} {tasks:>10} {time:>6.0} ns {ratio:>7.2} {:>14.0} B", heaps[n]);
            if n != OURS {
                println!("{line}");
                continue;
            }
            ours.push(time);
            let judged = tasks >= 100_000;
            let met = [ratio <= 1.25 || !judged, heaps[n] <= 160.0];
            missed += met.iter().filter(|met| !**met).count();
            println!("{line}  ◀ {} ≤ 1.25, {} ≤ 160 B", said(met[0]), said(met[1]));
        }
    }
    let growth = ours[ours.len() - 1] / ours[0];
    let linear = growth <= 1.3;
    println!(
        "ours grows by {growth:.2} a task from the smallest size to the largest  ◀ {} ≤ 1.30",
        said(linear)
    );
    missed + usize::from(!linear)
}

fn said(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// Two workers, with tasks that are all parked before the clock starts.
struct Parked {
    runtime: Runtime,
    heap: f64,
}

static PARKED: AtomicUsize = AtomicUsize::new(0);

pin_project! {
    /// Counts the work once it is parked. One byte: a task's size decides much of what it costs.
    struct Counting<F> {
        counted: bool,
        #[pin]
        work: F,
    }
}

// === impl Counting ===

impl<F: Future<Output = ()>> Future for Counting<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let poll = this.work.poll(cx);
        if !std::mem::replace(this.counted, true) {
            PARKED.fetch_add(1, Ordering::Release);
        }
        poll
    }
}

// === impl Parked ===

impl Parked {
    fn new<F: Future<Output = ()> + Send + 'static>(tasks: usize, work: impl Fn() -> F) -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
        PARKED.store(0, Ordering::Release);
        let ((), counts) = heap::counted(|| {
            for _ in 0..tasks {
                runtime.spawn(Counting { counted: false, work: work() });
            }
            while PARKED.load(Ordering::Acquire) < tasks {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self { runtime, heap: counts.kept as f64 / tasks as f64 }
    }

    fn stop(self, tasks: usize, stop: impl Future<Output = ()>) -> Cost {
        let before = cpu(libc::CLOCK_PROCESS_CPUTIME_ID);
        self.runtime.block_on(stop);
        let cpu_ns = (cpu(libc::CLOCK_PROCESS_CPUTIME_ID) - before).as_nanos() as f64 / tasks as f64;
        Cost { cpu_ns, heap: self.heap }
    }
}

fn bare(tasks: usize) -> f64 {
    Parked::new(tasks, pending::<()>).heap
}

struct Limit {
    stop: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
    left: AtomicUsize,
    done: Notify,
}

fn limit(tasks: usize) -> Cost {
    let limit = Arc::new(Limit {
        stop: AtomicBool::new(false),
        wakers: Mutex::default(),
        left: AtomicUsize::new(tasks),
        done: Notify::new(),
    });
    let parked = Parked::new(tasks, || {
        let limit = limit.clone();
        async move {
            poll_fn(|cx| {
                if limit.stop.load(Ordering::Acquire) {
                    return Poll::Ready(());
                }
                limit.wakers.lock().expect("no panics").push(cx.waker().clone());
                Poll::Pending
            })
            .await;
            if limit.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                limit.done.notify_one();
            }
        }
    });
    parked.stop(tasks, async {
        limit.stop.store(true, Ordering::Release);
        let wakers = std::mem::take(&mut *limit.wakers.lock().expect("no panics"));
        wakers.into_iter().for_each(Waker::wake);
        limit.done.notified().await;
    })
}

fn gate(tasks: usize) -> Cost {
    let gate = Gate::standalone("bench");
    let parked = Parked::new(tasks, || {
        let guard = gate.enter().expect("open");
        async move {
            let _ = guard.run(pending::<()>()).await;
        }
    });
    parked.stop(tasks, async {
        gate.cancel();
        gate.drained().await;
    })
}

fn tracker_and_token(tasks: usize) -> Cost {
    let tracker = TaskTracker::new();
    let token = CancellationToken::new();
    let parked = Parked::new(tasks, || {
        let (counted, token) = (tracker.token(), token.clone());
        async move {
            let _ = token.run_until_cancelled(pending::<()>()).await;
            drop(counted);
        }
    });
    parked.stop(tasks, async {
        tracker.close();
        token.cancel();
        tracker.wait().await;
    })
}

fn async_shutdown(tasks: usize) -> Cost {
    let manager = ShutdownManager::<()>::new();
    let parked = Parked::new(tasks, || {
        let (manager, delay) = (manager.clone(), manager.delay_shutdown_token());
        async move {
            let _ = manager.wrap_cancel(pending::<()>()).await;
            drop(delay);
        }
    });
    parked.stop(tasks, async {
        let _ = manager.trigger_shutdown(());
        manager.wait_shutdown_complete().await;
    })
}

fn drain(tasks: usize) -> Cost {
    let (signal, watch) = drain::channel();
    let parked = Parked::new(tasks, || {
        let watch = watch.clone();
        async move {
            drop(watch.signaled().await);
        }
    });
    drop(watch);
    parked.stop(tasks, signal.drain())
}
