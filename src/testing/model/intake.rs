//! Any items, handlers, callbacks and times, through a real coordinator: each item ends exactly once, and the ledger says how.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::Choices;
use crate::budget::Budget;
use crate::coordinator::ShutdownCoordinator;
use crate::error::BoxError;
use crate::gate::Gate;
use crate::intake::{Cx, Done, Intake, Job, Unfinished, Why};
use crate::overrun::Overrun;
use crate::report::Report;
use crate::trigger::Signal;

/// How an item ended, and whether the gate had closed by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Finished { late: bool },
    HandedBack { late: bool },
    StillRunning,
    Lost,
}

/// An item counts its own copies, so that one that is kept for ever shows.
#[derive(Debug)]
struct Item {
    id: usize,
    _alive: Arc<()>,
}

/// What a handler does. Times are in milliseconds.
#[derive(Debug, Clone, Copy)]
enum Script {
    Work(u64),
    Fail(u64, After),
    Panic(u64),
    Steps { each: u64, shield: bool },
    Shield(u64),
    Never,
}

/// What is done with a job whose handler failed.
#[derive(Debug, Clone, Copy)]
enum After {
    Finish,
    HandBack,
    Drop,
    Again,
}

/// How the re-enqueue callback behaves, besides working.
#[derive(Debug, Clone)]
struct Queue {
    takes: u64,
    /// How many calls fail, and whether one of them panics.
    fails: Arc<Mutex<u8>>,
    panics: bool,
    ends: Ends,
}

/// Who ended, and how: an item that is noted twice has ended twice.
#[derive(Debug, Clone)]
struct Ends {
    ends: Arc<Mutex<BTreeMap<usize, End>>>,
    /// Promises that were seen broken where a panic would be caught.
    broken: Arc<Mutex<Vec<String>>>,
    gate: Arc<Mutex<Option<Gate>>>,
}

/// Lets items in, ends them and hurries the stop, at any time before and during it.
struct Driver {
    jobs: Intake<Item>,
    signals: crate::testing::FakeSignals,
    handle: crate::handle::ShutdownHandle,
    ends: Ends,
    alive: Arc<()>,
    admitted: usize,
    tasks: Vec<JoinHandle<()>>,
    held: Vec<Job<Item>>,
}

/// Every item ends exactly once: finished, handed back, or lost by name; and the ledger adds up.
pub fn intake(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let Ok(runtime) = runtime else { return };
    let alive = Arc::new(());
    let (ends, admitted) = runtime.block_on(run(Choices(data), Arc::clone(&alive)));
    drop(runtime);
    ends.check();
    let all: Vec<usize> = ends.lock().keys().copied().collect();
    assert_eq!(all, (0..admitted).collect::<Vec<_>>(), "an item has no end");
    ends.forget_gate();
    assert_eq!(Arc::strong_count(&alive), 1, "an item is still alive");
}

async fn run(mut choices: Choices<'_>, alive: Arc<()>) -> (Ends, usize) {
    let grace = [1, 3, 10][usize::from(choices.byte() % 3)];
    let (signals, fake) = crate::testing::signals();
    let budget = Budget::given(Duration::from_secs(grace), "a model");
    let Ok(mut shutdown) = ShutdownCoordinator::new(budget, signals) else { return (Ends::new(None), 0) };
    let gate = shutdown.gate("jobs");
    let gate = if choices.byte() % 2 == 0 { gate.pulled() } else { gate };
    let ends = Ends::new(Some(gate.clone()));
    let jobs = intake_of(gate, &mut choices, &ends);
    let driver = Driver {
        jobs,
        signals: fake,
        handle: shutdown.handle(),
        ends: ends.clone(),
        alive,
        admitted: 0,
        tasks: Vec::new(),
        held: Vec::new(),
    };
    let driven = tokio::spawn(driver.drive(choices.0.to_vec()));
    let report = shutdown.run().await;
    let at_the_end = ends.lock().clone();
    ends.check();
    check(&report, &at_the_end, Duration::from_secs(grace));
    let admitted = match driven.await {
        Ok(admitted) => admitted,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    assert_eq!(*ends.lock(), at_the_end, "an item ended after the report");
    (ends, admitted)
}

fn intake_of(gate: Gate, choices: &mut Choices<'_>, ends: &Ends) -> Intake<Item> {
    let options = choices.byte();
    let queue = Queue {
        takes: [0, 5, 300, 5_000][usize::from(choices.byte() % 4)],
        fails: Arc::new(Mutex::new(if options & 1 != 0 { choices.byte() } else { 0 })),
        panics: options & 2 != 0,
        ends: ends.clone(),
    };
    let jobs = if options & 4 != 0 {
        gate.requeue_with(queue, async |queue: Queue, item: Unfinished<Item>| queue.take(&[item]).await)
    } else {
        gate.requeue_batch_with(queue, async |queue: Queue, items: Vec<Unfinished<Item>>| {
            let sorted = items.is_sorted_by_key(Unfinished::number);
            queue.ends.holds(sorted, || format!("a batch is oldest first: {items:?}"));
            queue.take(&items).await
        })
    };
    let sink = ends.clone();
    let jobs = jobs.named(|item| format!("item {}", item.id)).last_resort(move |item, why| {
        sink.holds(!why.is_empty(), || format!("item {} is lost for no reason", item.id));
        sink.note(item.id, End::Lost);
    });
    let jobs = match options & 8 {
        0 => jobs,
        _ => jobs.still_running(ends.clone(), async |ends: Ends, item: Unfinished<Item>| {
            ends.holds(item.why() == Why::StillRunning, || format!("{item:?} is not still running"));
            ends.note(item.id, End::StillRunning);
            Ok::<(), BoxError>(())
        }),
    };
    let jobs = if options & 16 != 0 { jobs.task_limit(Duration::from_millis(700)) } else { jobs };
    let jobs = if options & 32 != 0 { jobs.concurrency(usize::from(options >> 6) + 1) } else { jobs };
    if options & 64 != 0 { jobs.overrun(Overrun::Step(Duration::from_millis(400))) } else { jobs }
}

fn check(report: &Report, ends: &BTreeMap<usize, End>, grace: Duration) {
    let Some(gate) = report.gate("jobs") else { panic!("the gate is not in the report") };
    let count = |wanted: &[End]| ends.values().filter(|end| wanted.contains(end)).count();
    assert!(gate.adds_up(), "{report}");
    assert_eq!(gate.finished, count(&[End::Finished { late: true }]), "{ends:?}\n{report}");
    assert_eq!(gate.still_running, count(&[End::StillRunning]), "{ends:?}\n{report}");
    let handed_back = count(&[End::HandedBack { late: true }, End::StillRunning]);
    assert_eq!(gate.handed_back, handed_back, "{ends:?}\n{report}");
    assert_eq!((gate.lost, report.lost().len()), (count(&[End::Lost]), count(&[End::Lost])), "{report}");
    assert!(report.took() <= grace, "{report}");
    for item in report.lost() {
        let id = item.item.strip_prefix("item ").and_then(|id| id.parse().ok());
        assert_eq!(id.and_then(|id: usize| ends.get(&id)), Some(&End::Lost), "lost by its name");
    }
}

// === impl Driver ===

impl Driver {
    async fn drive(mut self, data: Vec<u8>) -> usize {
        let mut choices = Choices(&data);
        let holds_on = choices.byte() % 2 == 0;
        while !choices.0.is_empty() {
            match choices.byte() % 16 {
                0..=4 => self.admit(&mut choices),
                5 => self.admit_and_hold(),
                6..=8 => sleep(Duration::from_millis(u64::from(choices.byte()) * 4)).await,
                9 => tokio::task::yield_now().await,
                10 => self.abort(choices.byte()),
                11 | 12 => self.end_held(choices.byte()).await,
                13 => self.handle.pause(),
                14 => self.handle.resume(),
                _ if choices.byte() % 3 == 0 => drop(self.signals.send(Signal::Terminate)),
                _ => {}
            }
        }
        self.handle.trigger("all choices are made");
        if holds_on {
            self.handle.ended().await;
        }
        for job in self.held.drain(..) {
            // After the end of the stop all have been given up.
            let id = job.id;
            if job.finish().is_ok() {
                assert!(!holds_on, "item {id} was neither handed back nor given up");
                self.ends.finished(id);
            }
        }
        for task in self.tasks {
            let panic = task.await.err().and_then(|error| error.try_into_panic().ok());
            if let Some(panic) = panic.filter(|panic| panic.downcast_ref::<Scripted>().is_none()) {
                std::panic::resume_unwind(panic);
            }
        }
        self.admitted
    }

    fn let_in(&mut self) -> Option<Job<Item>> {
        let item = Item { id: self.admitted, _alive: Arc::clone(&self.alive) };
        match self.jobs.admit(item) {
            Ok(job) => {
                self.admitted += 1;
                Some(job)
            }
            Err(refused) => {
                assert_eq!(refused.why().is_paused(), !self.jobs.gate().is_closed());
                assert_eq!(refused.into_inner().id, self.admitted, "the item comes back");
                None
            }
        }
    }

    fn admit(&mut self, choices: &mut Choices<'_>) {
        let script = Script::choose(choices);
        let Some(job) = self.let_in() else { return };
        let ends = self.ends.clone();
        self.tasks.push(tokio::spawn(attempt(job, script, ends)));
    }

    fn admit_and_hold(&mut self) {
        if let Some(job) = self.let_in() {
            self.held.push(job);
        }
    }

    fn abort(&mut self, which: u8) {
        if !self.tasks.is_empty() {
            self.tasks[usize::from(which) % self.tasks.len()].abort();
        }
    }

    async fn end_held(&mut self, which: u8) {
        if self.held.is_empty() {
            return;
        }
        let job = self.held.swap_remove(usize::from(which) % self.held.len());
        match which % 3 {
            0 => finish(job, &self.ends),
            1 => job.hand_back(),
            _ => drop(job),
        }
    }
}

/// What a handler panics with, so that it is not taken for a broken promise.
struct Scripted;

async fn attempt(job: Job<Item>, script: Script, ends: Ends) {
    let id = job.id;
    match job.run(async |_, cx| script.play(cx).await).await {
        Done::Finished(()) => ends.finished(id),
        Done::Failed(job, _) => match script {
            Script::Fail(_, After::Finish) => finish(job, &ends),
            Script::Fail(_, After::HandBack) => job.hand_back(),
            Script::Fail(after, After::Again) => {
                let again = job.run(async |_, cx| Script::Work(after).play(cx).await).await;
                if let Done::Finished(()) = again {
                    ends.finished(id);
                }
            }
            _ => drop(job),
        },
        Done::Overran(job) => drop(job),
        Done::HandedBack(why) => assert!(why.is_shutdown(), "{why}"),
        Done::TooLate(_) => {}
    }
}

fn finish(job: Job<Item>, ends: &Ends) {
    let id = job.id;
    if job.finish().is_ok() {
        ends.finished(id);
    }
}

// === impl Script ===

impl Script {
    fn choose(choices: &mut Choices<'_>) -> Self {
        let what = choices.byte();
        let time = u64::from(choices.byte()) * [1, 20, 100][usize::from(what >> 6) % 3];
        match what % 12 {
            0..=2 => Script::Work(time),
            3 => Script::Fail(time, After::Finish),
            4 => Script::Fail(time, After::HandBack),
            5 => Script::Fail(time, After::Drop),
            6 => Script::Fail(time, After::Again),
            7 => Script::Panic(time),
            8 => Script::Steps { each: time, shield: false },
            9 => Script::Steps { each: time, shield: true },
            10 => Script::Shield(time),
            _ => Script::Never,
        }
    }

    async fn play(self, cx: &Cx) -> Result<(), BoxError> {
        let pause = |ms| sleep(Duration::from_millis(ms));
        match self {
            Script::Work(time) => pause(time).await,
            Script::Fail(time, _) => {
                pause(time).await;
                return Err("it is in the script".into());
            }
            Script::Panic(time) => {
                pause(time).await;
                // Without the hook: it is no news, and a fuzzer would take it for a find.
                std::panic::resume_unwind(Box::new(Scripted));
            }
            Script::Steps { each, shield } => {
                for _ in 0..4 {
                    cx.checkpoint()?;
                    if shield { cx.shield(pause(each)).await } else { pause(each).await }
                }
            }
            Script::Shield(time) => cx.shield(pause(time)).await,
            Script::Never => std::future::pending().await,
        }
        Ok(())
    }
}

// === impl Queue ===

impl Queue {
    async fn take(&self, items: &[Unfinished<Item>]) -> Result<(), BoxError> {
        self.ends.holds(!items.is_empty(), || "a call for nothing".to_owned());
        if self.takes > 0 {
            sleep(Duration::from_millis(self.takes)).await;
        }
        let fail = {
            let mut fails = self.fails.lock().unwrap_or_else(PoisonError::into_inner);
            let fail = *fails > 0;
            *fails = fails.saturating_sub(1);
            fail
        };
        if fail && self.panics {
            std::panic::resume_unwind(Box::new(Scripted));
        }
        if fail {
            return Err("the queue is away".into());
        }
        for item in items {
            self.ends.handed_back(item.id);
        }
        Ok(())
    }
}

// === impl Ends ===

impl Ends {
    fn new(gate: Option<Gate>) -> Self {
        Ends { ends: Arc::default(), broken: Arc::default(), gate: Arc::new(Mutex::new(gate)) }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, End>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, id: usize, end: End) {
        let before = self.lock().insert(id, end);
        self.holds(before.is_none(), || format!("item {id} ended twice: as {before:?}, then as {end:?}"));
    }

    fn holds(&self, promise: bool, words: impl FnOnce() -> String) {
        if !promise {
            self.broken.lock().unwrap_or_else(PoisonError::into_inner).push(words());
        }
    }

    fn check(&self) {
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(broken.is_empty(), "{}", broken.join("; "));
    }

    fn finished(&self, id: usize) {
        self.note(id, End::Finished { late: self.is_late() });
    }

    fn handed_back(&self, id: usize) {
        self.note(id, End::HandedBack { late: self.is_late() });
    }

    /// What ends before the close is in no ledger.
    fn is_late(&self) -> bool {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        gate.as_ref().is_some_and(Gate::is_closed)
    }

    fn forget_gate(&self) {
        *self.gate.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
