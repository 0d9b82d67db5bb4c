//! A program to be stopped: what the tests start as a real child process, and send real signals to.
//!
//! ```text
//! victim [OPTION VALUE]...
//!   --flavor current|multi   the runtime (multi, with --workers N, 2)
//!   --grace MS               the grace period (2000), divided as usual; --drain MS sets the drain in it
//!   --signals terminate|all|none|host   whose the signals are (terminate); `all` also pauses, resumes and prints what is in
//!                            flight; `host` has a SIGTERM handler of its own
//!   --before-new MS          blocks between `in hand` and the coordinator; with --before-run between that and `run`
//!   --task KIND              a task: sleep (60 s), end (at the trigger), pause (says `paused`, `resumed`), block (its thread), blocking (awaits a
//!                            blocking task), detached (leaves a blocking task behind and ends at the trigger)
//!   --jobs N                 jobs that await for ever; handed back with a line each
//!   --hook PHASE:KIND        a hook: ok, fail, panic, hang, block (its thread), slow (300 ms), quiet (slow, prints
//!                            nothing)
//!   --then code|print|exit|go-on   what follows on the report (code)
//!   --hold-stdout 1          a thread that holds the lock of standard output from the trigger on
//!   --soak N                 instead of all that: passes N units through, and prints the memory before and after
//! ```
//!
//! Each step is a line on standard output: `in hand as PID`, `built`, `ready` (work runs), `blocked` (each `block` task is in
//! its place), then `handed back N`, `PHASE hook`, `run has returned with CODE`.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use winddown::{BoxError, Budget, Phase, Report, ShutdownCoordinator, ShutdownHandle, Unfinished, signal};

#[path = "victim/soak.rs"]
mod soak;

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(30);

#[derive(Clone)]
struct Options {
    current: bool,
    workers: usize,
    grace: Duration,
    drain: Option<Duration>,
    signals: String,
    before_new: Duration,
    before_run: Duration,
    tasks: Vec<String>,
    jobs: usize,
    hooks: Vec<(Phase, String)>,
    then: String,
    hold_stdout: bool,
    soak: usize,
}

// === impl Options ===

impl Options {
    fn from_args() -> Result<Self, BoxError> {
        let mut options = Options {
            current: false,
            workers: 2,
            grace: Duration::from_secs(2),
            drain: None,
            signals: "terminate".into(),
            before_new: Duration::ZERO,
            before_run: Duration::ZERO,
            tasks: Vec::new(),
            jobs: 0,
            hooks: Vec::new(),
            then: "code".into(),
            hold_stdout: false,
            soak: 0,
        };
        let mut args = std::env::args().skip(1);
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} takes a value"))?;
            let ms = || value.parse().map(Duration::from_millis);
            match name.as_str() {
                "--flavor" => options.current = value == "current",
                "--workers" => options.workers = value.parse()?,
                "--grace" => options.grace = ms()?,
                "--drain" => options.drain = Some(ms()?),
                "--signals" => options.signals = value,
                "--before-new" => options.before_new = ms()?,
                "--before-run" => options.before_run = ms()?,
                "--task" => options.tasks.push(value),
                "--jobs" => options.jobs = value.parse()?,
                "--hook" => options.hooks.push(hook(&value)?),
                "--then" => options.then = value,
                "--hold-stdout" => options.hold_stdout = true,
                "--soak" => options.soak = value.parse()?,
                _ => return Err(format!("there is no option {name}").into()),
            }
        }
        Ok(options)
    }
}

fn hook(text: &str) -> Result<(Phase, String), BoxError> {
    let (phase, kind) = text.split_once(':').ok_or("a hook is PHASE:KIND")?;
    let phase =
        Phase::ALL.into_iter().find(|known| known.as_str() == phase).ok_or("there is no such phase")?;
    Ok((phase, kind.to_owned()))
}

fn main() -> Result<ExitCode, BoxError> {
    let options = Options::from_args()?;
    let runtime = if options.current {
        tokio::runtime::Builder::new_current_thread().enable_all().build()?
    } else {
        tokio::runtime::Builder::new_multi_thread().worker_threads(options.workers).enable_all().build()?
    };
    if options.soak > 0 {
        runtime.block_on(soak::run(options.soak))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Dropping the runtime is part of the scene: it waits for blocking tasks.
    let code = runtime.block_on(victim(options))?;
    drop(runtime);
    Ok(code)
}

async fn victim(options: Options) -> Result<ExitCode, BoxError> {
    let signals = match options.signals.as_str() {
        "terminate" => signal::terminate()?,
        "all" => signal::Builder::new().pause(true).dump(true).listen()?,
        _ => signal::none(),
    };
    println!("in hand as {}", std::process::id());
    std::thread::sleep(options.before_new);
    let mut budget = Budget::from_grace_period(options.grace);
    if let Some(drain) = options.drain {
        budget = budget.drain(drain);
    }
    let mut shutdown = ShutdownCoordinator::new(budget, signals)?;
    println!("built");
    std::thread::sleep(options.before_run);
    if options.signals == "host" {
        host(shutdown.handle())?;
    }
    add_jobs(&mut shutdown, options.jobs);
    for (phase, kind) in options.hooks.clone() {
        shutdown.on(phase, format!("{phase} {kind}"), async move |_| run_hook(phase, kind).await);
    }
    let blocks = options.tasks.iter().filter(|kind| *kind == "block").count();
    let blocked = Arc::new(AtomicUsize::new(0));
    for (index, kind) in options.tasks.iter().enumerate() {
        let task = run_task(kind.clone(), shutdown.handle(), Arc::clone(&blocked), blocks);
        shutdown.spawn(format!("{kind} {index}"), task);
    }
    if options.hold_stdout {
        hold_stdout(shutdown.handle());
    }
    shutdown.spawn("ready", async { println!("ready") }).optional();
    let report = shutdown.run().await;
    if !options.hold_stdout {
        println!("run has returned with {}", report.code());
    }
    then(&options.then, &report).await
}

async fn then(what: &str, report: &Report) -> Result<ExitCode, BoxError> {
    match what {
        "exit" => report.exit(),
        "print" => report.print(),
        "go-on" => {
            tokio::time::sleep(Duration::from_millis(100)).await;
            println!("the host goes on");
            return Ok(ExitCode::from(7));
        }
        _ => {}
    }
    Ok(report.exit_code())
}

/// A program whose signals are its own.
fn host(handle: ShutdownHandle) -> Result<(), BoxError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        while terminate.recv().await.is_some() {
            println!("the host saw SIGTERM");
            handle.trigger("the host was told to stop");
        }
    });
    Ok(())
}

fn add_jobs(shutdown: &mut ShutdownCoordinator, count: usize) {
    let jobs = shutdown.gate("jobs").requeue_with((), async |(), item: Unfinished<usize>| {
        println!("handed back {}", *item);
        Ok::<(), BoxError>(())
    });
    for number in 0..count {
        let Ok(job) = jobs.admit(number) else { continue };
        tokio::spawn(async move {
            let _ = job.run(async |_, _| std::future::pending::<Result<(), BoxError>>().await).await;
        });
    }
}

async fn run_hook(phase: Phase, kind: String) -> Result<(), BoxError> {
    if kind == "quiet" {
        tokio::time::sleep(Duration::from_millis(300)).await;
        return Ok(());
    }
    println!("{phase} hook");
    match kind.as_str() {
        "fail" => return Err("it failed".into()),
        "panic" => panic!("it panicked"),
        "hang" => std::future::pending().await,
        "block" => std::thread::sleep(LONG),
        "slow" => tokio::time::sleep(Duration::from_millis(300)).await,
        _ => {}
    }
    println!("{phase} hook done");
    Ok(())
}

async fn run_task(
    kind: String,
    handle: ShutdownHandle,
    blocked: Arc<AtomicUsize>,
    blocks: usize,
) -> Result<(), BoxError> {
    match kind.as_str() {
        "sleep" => tokio::time::sleep(2 * LONG).await,
        "block" => {
            if blocked.fetch_add(1, Ordering::SeqCst) + 1 == blocks {
                println!("blocked");
            }
            std::thread::sleep(LONG);
        }
        "blocking" => tokio::task::spawn_blocking(|| std::thread::sleep(LONG)).await?,
        "pause" => {
            for turn in 1.. {
                while !handle.is_paused() {
                    if handle.sleep(Duration::from_millis(5)).await.is_err() {
                        return Ok(());
                    }
                }
                println!("paused {turn}");
                handle.resumed().await;
                println!("resumed {turn}");
            }
        }
        "detached" => {
            drop(tokio::task::spawn_blocking(|| std::thread::sleep(LONG)));
            handle.triggered().await;
        }
        _ => handle.triggered().await,
    }
    Ok(())
}

fn hold_stdout(handle: ShutdownHandle) {
    tokio::spawn(async move {
        handle.triggered().await;
        std::thread::spawn(|| {
            let _held = std::io::stdout().lock();
            std::thread::sleep(LONG);
        });
    });
}
