//! Force at every moment of every phase: whatever the moment, each item is settled once, before anything closes.
#![cfg(feature = "test-util")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::{Instant, sleep};
use winddown::testing;
use winddown::{BoxError, Budget, Outcome, Phase, ShutdownCoordinator, Signal, Unfinished};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<(u32, &'static str)>>>);

impl Notes {
    fn note(&self, item: u32, what: &'static str) {
        self.0.lock().unwrap().push((item, what));
    }
}

/// Force comes `at` after the trigger; what is planned takes eight seconds.
async fn stop_forced(at: Duration, seed: u32, in_set_up: bool) {
    let (signals, fake) = testing::signals_with_exit();
    let budget = Budget::given(10 * SECOND, "test").unready(SECOND);
    let shutdown = ShutdownCoordinator::new(budget, signals).unwrap();
    let notes = Notes::default();
    let began = Instant::now();
    fake.send_at(began, Signal::Terminate);
    if !in_set_up {
        // As soon as the set-up has returned.
        sleep(Duration::ZERO).await;
    }
    fake.send_at(began + at, Signal::Interrupt);
    let (ours, case) = (notes.clone(), format!("at {at:?}, seed {seed}, {in_set_up}"));
    let report = shutdown
        .run_with(async move |shutdown| {
            let notes = ours;
            let mut part =
                ShutdownCoordinator::new(Budget::given(20 * SECOND, "part"), winddown::signal::none())?;
            for (which, shutdown) in [&mut *shutdown, &mut part].into_iter().enumerate() {
                let gate = shutdown.gate("jobs");
                let gate = if seed % 2 == 0 { gate.pulled() } else { gate };
                let units = shutdown.gate("units").detailed();
                let jobs = gate.requeue_with(notes.clone(), async |notes: Notes, item: Unfinished<u32>| {
                    sleep((*item % 5) * 20 * MS).await;
                    if *item % 7 == 3 && notes.0.lock().unwrap().iter().all(|n| *n != (*item, "tried")) {
                        notes.note(*item, "tried");
                        return Err(BoxError::from("once"));
                    }
                    notes.note(*item, "back");
                    Ok(())
                });
                let lost = notes.clone();
                let jobs = jobs.last_resort(move |item, _| lost.note(*item, "lost"));
                for item in 0..30_u32 {
                    let item = item + 100 * u32::try_from(which)?;
                    let Ok(job) = jobs.admit(item) else { continue };
                    notes.note(item, "in");
                    let (notes, takes) = (notes.clone(), ((item + seed) % 11) * 700 * MS);
                    tokio::spawn(async move {
                        let done = job
                            .run(async |item, cx| {
                                cx.shield(sleep(takes / 3)).await;
                                sleep(takes / 3).await;
                                cx.checkpoint()?;
                                cx.shield(sleep(takes / 3)).await;
                                Ok::<_, BoxError>(*item)
                            })
                            .await;
                        if let winddown::Done::Finished(item) = done {
                            notes.note(item, "done");
                        }
                    });
                    if let Ok(unit) = units.enter_named("unit") {
                        tokio::spawn(async move { unit.run(sleep(takes)).await.is_ok() });
                    }
                }
                for phase in Phase::ALL {
                    for hook in 0..3_u32 {
                        let takes = ((hook + seed) % 4) * 150 * MS;
                        let notes = notes.clone();
                        shutdown.on(phase, format!("{phase} {hook}"), async move |_| {
                            sleep(takes).await;
                            if phase == Phase::Close {
                                notes.note(1000 + 100 * which as u32, "closed")
                            }
                        });
                    }
                }
                let handle = shutdown.handle();
                shutdown
                    .spawn("cooperative", async move { handle.cancelled().await })
                    .optional()
                    .cooperative();
                let handle = shutdown.handle();
                shutdown.spawn("ends", async move { drop(handle.ended().await) }).optional();
            }
            shutdown.add(part);
            if in_set_up {
                sleep(2 * SECOND).await;
            }
            Ok(())
        })
        .await;
    assert_eq!(fake.exits(), [], "{case}");
    let notes = notes.0.lock().unwrap();
    for (item, _) in notes.iter().filter(|(_, what)| *what == "in") {
        let ends: Vec<_> = notes
            .iter()
            .enumerate()
            .filter(|(_, (other, what))| other == item && matches!(*what, "done" | "back" | "lost"))
            .collect();
        assert_eq!(ends.len(), 1, "{case}: item {item}: {ends:?}\n{report}");
        assert_ne!(ends[0].1.1, "lost", "{case}\n{report}");
        let which = item / 100;
        let closed = notes.iter().position(|note| *note == (1000 + 100 * which, "closed"));
        assert!(
            closed.is_none_or(|closed| closed > ends[0].0),
            "{case}: item {item} after the close\n{report}"
        );
    }
    assert!(report.gates().iter().all(winddown::GateReport::adds_up), "{case}\n{report}");
    assert!(report.phases().iter().map(|phase| phase.phase).eq(Phase::ALL), "{case}");
    let late = report
        .phases()
        .iter()
        .find(|phase| phase.began + phase.took > phase.deadline.max(phase.began) + 25 * MS);
    assert!(late.is_none(), "{case}: {late:?}\n{report}");
    assert!(
        report.took() <= at + 250 * MS + 2 * SECOND + 25 * MS || report.took() <= 9500 * MS,
        "{case}\n{report}"
    );
    let failed =
        report.hooks().iter().find(|hook| matches!(hook.outcome, Outcome::NotStarted | Outcome::Panicked));
    assert!(failed.is_none(), "{case}: {failed:?}\n{report}");
}

#[tokio::test(start_paused = true)]
async fn whatever_the_moment_of_the_force_each_item_is_settled_once_before_anything_closes() {
    for step in 0..24_u32 {
        for seed in 0..4 {
            for in_set_up in [false, true] {
                stop_forced(251 * MS + step * 391 * MS, seed, in_set_up).await;
            }
        }
    }
}
