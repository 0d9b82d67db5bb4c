//! Every interleaving of a few threads, up to a bound on preemptions. Leaks are found by the latches' `Arc`s, which loom counts; a block
//! that is freed too early by its `Drop`, which asks loom for what came before.

use loom::future::block_on;
use loom::sync::Arc;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

use super::*;

/// Loom's own count of what is inside: entered before it, left after it.
struct Inside(Arc<AtomicUsize>);

// === impl Inside ===

impl Inside {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Inside(count.clone())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn model(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(check);
}

/// Enters and leaves, counted on both sides of the guard.
fn work(gate: &Gate, inside: &Arc<AtomicUsize>) -> bool {
    match gate.enter() {
        Ok(guard) => {
            let inside = Inside::new(inside);
            drop(inside);
            drop(guard);
            true
        }
        Err(_) => false,
    }
}

#[test]
fn entering_races_the_close_and_is_counted_or_refused() {
    model(3, || {
        let gate = Gate::standalone("g");
        let inside = Arc::new(AtomicUsize::new(0));
        let entrants = [(); 2].map(|()| {
            let (gate, inside) = (gate.clone(), inside.clone());
            thread::spawn(move || work(&gate, &inside))
        });
        gate.close();
        block_on(gate.drained());
        // Let in before the close, and so gone; or refused.
        assert_eq!(inside.load(Ordering::SeqCst), 0);
        entrants.into_iter().for_each(|entrant| drop(entrant.join()));
        assert_eq!(gate.in_flight(), 0);
        assert!(gate.held_at_close() <= 2);
    });
}

#[test]
fn entering_with_a_keeper_races_the_close_and_is_counted_twice_or_refused() {
    for paused in [false, true] {
        model(3, move || {
            let gate = Gate::standalone("g");
            if paused {
                gate.pause();
            }
            let inside = Arc::new(AtomicUsize::new(0));
            let entrant = {
                let (gate, inside) = (gate.clone(), inside.clone());
                thread::spawn(move || {
                    let Ok((guard, keeper)) = gate.enter_kept() else { return };
                    let counted = Inside::new(&inside);
                    drop(guard);
                    drop(counted);
                    drop(keeper);
                })
            };
            gate.close();
            block_on(gate.drained());
            assert_eq!(inside.load(Ordering::SeqCst), 0, "the keeper is held longer");
            drop(entrant.join());
            assert_eq!(gate.in_flight(), 0);
            assert!(gate.held_at_close() <= if paused { 0 } else { 2 });
        });
    }
}

#[test]
fn a_refused_entry_never_drains_a_gate_that_still_holds_a_guard() {
    model(3, || {
        let gate = Gate::standalone("g");
        let inside = Arc::new(AtomicUsize::new(0));
        let guard = gate.enter().unwrap();
        let counted = Inside::new(&inside);
        let refused = {
            let gate = gate.clone();
            thread::spawn(move || drop(gate.enter()))
        };
        let worker = thread::spawn(move || {
            drop(counted);
            drop(guard);
        });
        gate.close();
        block_on(gate.drained());
        assert_eq!(inside.load(Ordering::SeqCst), 0);
        refused.join().unwrap();
        worker.join().unwrap();
    });
}

#[test]
fn an_entry_refused_by_a_pause_does_not_keep_the_gate_from_draining() {
    model(3, || {
        let gate = Gate::standalone("g");
        gate.pause();
        let refused = {
            let gate = gate.clone();
            thread::spawn(move || gate.enter().is_err())
        };
        gate.close();
        block_on(gate.drained());
        assert_eq!(gate.held_at_close(), 0, "refused is not held");
        assert!(refused.join().unwrap());
    });
}

#[test]
fn pause_and_resume_race_an_entry_and_the_close() {
    model(2, || {
        let gate = Gate::standalone("g");
        let inside = Arc::new(AtomicUsize::new(0));
        let entrant = {
            let (gate, inside) = (gate.clone(), inside.clone());
            thread::spawn(move || work(&gate, &inside))
        };
        let pauser = {
            let gate = gate.clone();
            thread::spawn(move || {
                gate.pause();
                gate.resume();
            })
        };
        gate.close();
        block_on(gate.drained());
        assert_eq!(inside.load(Ordering::SeqCst), 0);
        entrant.join().unwrap();
        pauser.join().unwrap();
        assert!(!gate.enter().unwrap_err().is_paused(), "a resume does not open a closed gate");
        assert_eq!(gate.in_flight(), 0);
    });
}

#[test]
fn a_child_made_as_the_gate_closes_is_waited_for() {
    model(3, || {
        let gate = Gate::standalone("g");
        let inside = Arc::new(AtomicUsize::new(0));
        let parent = gate.enter().unwrap();
        let worker = {
            let inside = inside.clone();
            thread::spawn(move || {
                let child = parent.child();
                let counted = Inside::new(&inside);
                // On a third thread, so that it ends whenever it likes.
                let dropper = thread::spawn(move || {
                    drop(counted);
                    drop(child);
                });
                drop(parent);
                dropper
            })
        };
        gate.close();
        block_on(gate.drained());
        assert_eq!(inside.load(Ordering::SeqCst), 0);
        worker.join().unwrap().join().unwrap();
        assert_eq!(gate.in_flight(), 0);
        assert!(gate.held_at_close() + gate.children_after_close() <= 2, "in the ledger once");
    });
}

#[test]
fn the_last_handle_and_the_last_guard_free_the_block_once_in_either_order() {
    model(3, || {
        let gate = Gate::standalone("g");
        let drained = gate.drained();
        let guards = [gate.enter().unwrap(), gate.enter().unwrap()];
        let workers = guards.map(|guard| thread::spawn(move || drop(guard)));
        drop(gate);
        block_on(drained);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}

#[test]
fn handles_dropped_on_two_threads_close_once_and_free_the_block() {
    model(3, || {
        let gate = Gate::standalone("g");
        let guard = gate.enter().unwrap();
        let other = gate.clone();
        let handle = thread::spawn(move || drop(other));
        let worker = thread::spawn(move || drop(guard));
        drop(gate);
        handle.join().unwrap();
        worker.join().unwrap();
    });
}

#[test]
fn who_waits_for_the_drain_on_several_threads_is_woken() {
    model(2, || {
        let gate = Gate::standalone("g");
        let guard = gate.enter().unwrap();
        let waiter = {
            let drained = gate.drained();
            thread::spawn(move || block_on(drained))
        };
        let worker = thread::spawn(move || drop(guard));
        gate.close();
        block_on(gate.drained());
        waiter.join().unwrap();
        worker.join().unwrap();
    });
}

#[test]
fn a_keeper_and_its_clones_that_go_as_the_gate_closes_are_no_work() {
    model(3, || {
        let gate = Gate::standalone("g");
        let request = gate.enter().unwrap();
        let keeper = request.child().keep_open();
        let worker = thread::spawn(move || {
            let clone = keeper.child().keep_open();
            drop(keeper);
            drop(clone);
        });
        gate.close();
        drop(request);
        block_on(gate.drained());
        // At once, as the report is made: all that is left is the request.
        let (held, late) = gate.seat().keepers();
        assert_eq!(gate.held_at_close() + gate.children_after_close(), 1 + held + late);
        worker.join().unwrap();
    });
}

#[test]
fn what_is_handed_back_or_cut_as_the_gate_closes_is_in_the_ledger_when_the_drain_ends() {
    model(3, || {
        let gate = Gate::standalone("g");
        let (item, connection) = (gate.enter().unwrap(), gate.enter().unwrap());
        let workers = [
            {
                let gate = gate.clone();
                thread::spawn(move || gate.seat().handed_back(item))
            },
            thread::spawn(move || connection.cut("idle")),
        ];
        gate.close();
        block_on(gate.drained());
        let cut: usize = gate.seat().cuts().iter().map(|(_, count)| count).sum();
        assert_eq!(gate.seat().handed_back_count() + cut, gate.held_at_close());
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
}
