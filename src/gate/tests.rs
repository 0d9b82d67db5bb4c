use super::*;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn is_drained(gate: &Gate) -> bool {
    poll(pin!(gate.drained())).is_ready()
}

#[test]
fn a_guard_is_one_pointer() {
    assert_eq!(size_of::<InFlight>(), size_of::<usize>());
    assert_eq!(size_of::<Option<InFlight>>(), size_of::<usize>());
    fn sendable<T: Send + Sync + 'static>() {}
    sendable::<InFlight>();
    sendable::<Gate>();
}

#[test]
fn it_drains_when_closed_and_the_last_of_its_work_is_done() {
    let gate = Gate::standalone("uploads");
    let first = gate.enter().unwrap();
    let second = gate.enter().unwrap();
    assert_eq!((gate.name(), gate.in_flight()), ("uploads", 2));
    drop(first);
    assert!(!is_drained(&gate));
    assert_eq!(gate.close(), 1);
    assert!(gate.is_closed() && gate.is_stopping() && !gate.is_cancelled());
    assert_eq!(gate.enter().unwrap_err(), GateClosed { paused: false });
    assert!(!is_drained(&gate), "a refused entry drains nothing");
    let child = second.child();
    drop(second);
    assert!(!is_drained(&gate), "follow-up work is waited for");
    drop(child);
    assert!(is_drained(&gate));
    assert_eq!((gate.close(), gate.held_at_close(), gate.children_after_close()), (1, 1, 1));
}

#[test]
fn an_empty_gate_drains_at_once_and_not_before_it_is_closed() {
    let gate = Gate::standalone("g");
    assert!(!is_drained(&gate));
    gate.enter().map(drop).unwrap();
    assert!(!is_drained(&gate));
    assert_eq!(gate.close(), 0);
    assert!(is_drained(&gate));
}

#[test]
fn a_pause_refuses_for_now_and_a_close_for_good() {
    let gate = Gate::standalone("g");
    let inside = gate.enter().unwrap();
    gate.pause();
    assert!(gate.is_paused() && !gate.is_closed());
    assert!(gate.enter().unwrap_err().is_paused());
    drop(inside.child());
    assert_eq!(gate.in_flight(), 1);
    gate.resume();
    drop(gate.enter().unwrap());
    gate.pause();
    gate.close();
    assert!(!gate.is_paused());
    assert!(!gate.enter().unwrap_err().is_paused());
    gate.resume();
    gate.pause();
    assert!(gate.enter().is_err());
    drop(inside);
    assert!(is_drained(&gate));
    assert_eq!(gate.held_at_close(), 1);
}

#[test]
fn work_may_outlive_all_handles_which_close_the_gate() {
    let gate = Gate::standalone("g");
    let drained = gate.drained();
    let mut drained = pin!(drained);
    let work = gate.enter().unwrap();
    drop(gate.clone());
    assert!(!work.is_stopping(), "one handle keeps it open");
    drop(gate);
    assert!(work.is_stopping());
    assert!(poll(drained.as_mut()).is_pending());
    let child = work.child();
    drop(work);
    assert!(!child.is_cancelled());
    assert!(poll(drained.as_mut()).is_pending());
    drop(child);
    assert!(poll(drained.as_mut()).is_ready());
}

#[test]
fn signals_come_apart_and_reach_the_work() {
    let gate = Gate::standalone("g").pulled();
    assert!(gate.is_pulled());
    let work = gate.enter().unwrap();
    gate.stop();
    assert!(poll(pin!(work.stopping())).is_ready() && poll(pin!(gate.stopping())).is_ready());
    assert!(!gate.is_closed());
    assert!(poll(pin!(work.cancelled())).is_pending() && poll(pin!(gate.cancelled())).is_pending());
    gate.cancel();
    assert!(gate.is_closed());
    assert!(poll(pin!(work.cancelled())).is_ready() && work.is_cancelled());
    assert!(poll(pin!(work.cut_signal())).is_pending());
    gate.cut();
    assert!(poll(pin!(work.cut_signal())).is_ready());
}

#[test]
fn cancelled_work_is_dropped_in_place_and_counted() {
    let gate = Gate::standalone("g");
    let guard = gate.enter().unwrap();
    let held = Arc::new(());
    let inner = held.clone();
    let mut run = pin!(guard.run(async move {
        let _inner = inner;
        std::future::pending::<()>().await
    }));
    assert!(poll(run.as_mut()).is_pending());
    assert!(poll(run.as_mut()).is_pending());
    gate.cancel();
    assert_eq!(Arc::strong_count(&held), 2);
    assert_eq!(poll(run.as_mut()), Poll::Ready(Err(Cancelled)));
    assert_eq!(Arc::strong_count(&held), 1, "gone before the answer");
    assert_eq!(poll(run.as_mut()), Poll::Ready(Err(Cancelled)), "asked again it says the same");
    assert_eq!(gate.cut_count(), 1);
}

#[test]
fn a_result_that_is_ready_wins_and_work_not_begun_is_not_polled() {
    let gate = Gate::standalone("g");
    let guard = gate.enter().unwrap();
    let (tx, rx) = tokio::sync::oneshot::channel();
    let mut run = pin!(guard.run(rx));
    assert!(poll(run.as_mut()).is_pending());
    tx.send(7).unwrap();
    gate.cancel();
    assert_eq!(poll(run.as_mut()), Poll::Ready(Ok(Ok(7))));
    assert_eq!(gate.cut_count(), 0);

    let mut late = pin!(guard.run(async { unreachable!("polled after the hard signal") }));
    assert_eq!(poll(late.as_mut()), Poll::<Result<(), _>>::Ready(Err(Cancelled)));
    assert_eq!(gate.cut_count(), 1);
}

#[test]
fn a_count_never_leaks_on_a_panic_or_a_future_dropped_half_way() {
    for gate in [Gate::standalone("g"), Gate::standalone("g").detailed()] {
        let inner = gate.clone();
        let panicked = std::panic::catch_unwind(move || {
            let guard = inner.enter().unwrap();
            let _child = guard.child();
            panic!("in the middle of the work");
        });
        assert!(panicked.is_err());
        assert_eq!(gate.in_flight(), 0);
        let guard = gate.enter().unwrap();
        {
            let mut run = Box::pin(async move { guard.run(std::future::pending::<()>()).await });
            assert!(poll(run.as_mut()).is_pending());
        }
        assert_eq!((gate.in_flight(), gate.details().len()), (0, 0));
        gate.close();
        assert!(is_drained(&gate));
    }
}

#[cfg(feature = "tower")]
#[tokio::test]
async fn a_guard_and_its_keeper_are_let_in_together_or_not_at_all() {
    for gate in [Gate::standalone("g"), Gate::standalone("g").detailed()] {
        gate.pause();
        assert!(gate.enter_kept().unwrap_err().is_paused());
        assert_eq!(gate.in_flight(), 0);
        gate.resume();
        let (guard, keeper) = gate.enter_kept().unwrap();
        assert_eq!(gate.in_flight(), 2);
        assert_eq!(gate.details().len(), if gate.is_detailed() { 2 } else { 0 });
        assert_eq!(gate.close(), 2);
        assert!(!gate.enter_kept().unwrap_err().is_paused());
        assert_eq!(gate.in_flight(), 2);
        drop(guard);
        assert_eq!(gate.in_flight(), 1, "the keeper holds it open");
        drop(keeper);
        gate.drained().await;
        assert_eq!(
            (gate.held_at_close(), gate.seat().keepers(), gate.children_after_close()),
            (2, (1, 0), 0)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_detailed_gate_knows_name_age_and_place() {
    let gate = Gate::standalone("g").detailed();
    assert!(gate.is_detailed());
    let started = tokio::time::Instant::now();
    let old = gate.enter_named("a1").unwrap();
    tokio::time::advance(std::time::Duration::from_secs(3)).await;
    let line = line!() + 1;
    let nameless = gate.enter().unwrap();
    let child = old.child();
    drop(old);
    let details = gate.details();
    assert_eq!(details.len(), 2);
    assert!(details.iter().all(|unit| unit.since == started + std::time::Duration::from_secs(3)));
    let of = |name: Option<&str>| details.iter().find(|unit| unit.name.as_deref() == name).unwrap();
    assert_eq!((of(None).place.line(), of(None).place.file()), (line, file!()));
    assert_eq!(of(Some("a1")).place.line(), line + 1, "a child has the name of its parent and its own place");
    tokio::time::advance(std::time::Duration::from_secs(1)).await;
    let young = gate.enter_named(String::from("late")).unwrap();
    assert_eq!(gate.details().last().unwrap().name.as_deref(), Some("late"));
    {
        let _held = gate.block().units.lock().unwrap();
        assert!(gate.try_details().is_none(), "a watchdog does not wait");
    }
    assert_eq!(gate.try_details().unwrap().len(), 3);
    drop((nameless, child, young));
    assert!(gate.details().is_empty());
    gate.close();
    assert!(gate.enter_named("x").is_err());
    assert!(is_drained(&gate));
}

#[test]
fn a_gate_that_keeps_no_details_makes_no_name() {
    struct Never;
    impl From<Never> for Cow<'static, str> {
        fn from(_: Never) -> Self {
            unreachable!("made a name that nobody keeps")
        }
    }
    let gate = Gate::standalone("g");
    let _work = gate.enter_named(Never).unwrap();
    assert!(gate.details().is_empty());
}

#[test]
fn a_name_that_panics_leaves_no_count_behind() {
    struct Bad;
    impl From<Bad> for Cow<'static, str> {
        fn from(_: Bad) -> Self {
            panic!("a name of the worst kind")
        }
    }
    let gate = Gate::standalone("g").detailed();
    let inner = gate.clone();
    assert!(std::panic::catch_unwind(move || drop(inner.enter_named(Bad))).is_err());
    assert_eq!(gate.in_flight(), 0);
}

/// I10.
#[test]
fn what_is_let_in_while_the_gate_closes_is_waited_for() {
    use std::sync::atomic::{AtomicIsize, Ordering::SeqCst};
    let rounds = if cfg!(miri) { 20 } else { 10_000 };
    let entrants = 3;
    for _ in 0..rounds {
        let gate = Gate::standalone("g");
        let granted = AtomicIsize::new(0);
        let start = std::sync::Barrier::new(entrants + 1);
        std::thread::scope(|scope| {
            for _ in 0..entrants {
                scope.spawn(|| {
                    start.wait();
                    while let Ok(guard) = gate.enter() {
                        granted.fetch_add(1, SeqCst);
                        let child = guard.child();
                        drop(guard);
                        granted.fetch_sub(1, SeqCst);
                        drop(child);
                        // Leaves the core now and then, or the closer waits for a whole time slice.
                        std::thread::yield_now();
                    }
                });
            }
            start.wait();
            gate.close();
            let closed_at = std::time::Instant::now();
            while !is_drained(&gate) {
                assert!(closed_at.elapsed().as_secs() < 60, "never drains");
                std::thread::yield_now();
            }
            assert_eq!(granted.load(SeqCst), 0, "drained while work that was let in went on");
            assert!(gate.in_flight() <= entrants, "no more than who was refused may flicker");
        });
        assert_eq!(gate.in_flight(), 0);
    }
}
