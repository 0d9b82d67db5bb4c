//! Any order of entering, leaving, pausing, closing and letting go, against a gate that is a few numbers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::FutureExt;

use super::Choices;
use crate::error::Cancelled;
use crate::gate::{Gate, InFlight, Keeper};

/// What a guard is known by, where the gate keeps that.
type Name = Option<String>;

/// A guard inside a future that ends with the drain only.
struct Running {
    work: Pin<Box<dyn Future<Output = Cancelled>>>,
    woken: Arc<Flag>,
    name: Name,
}

/// Somebody who waits for a signal of the gate.
struct Waiting {
    signal: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Flag>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Stopping,
    Cancelled,
    Drained,
}

struct Flag(AtomicBool);

/// The real thing beside what it should be.
#[derive(Default)]
struct Model {
    gates: Vec<Gate>,
    guards: Vec<(InFlight, Name)>,
    keepers: Vec<(Keeper, Name)>,
    running: Vec<Running>,
    waiting: Vec<Waiting>,
    detailed: bool,
    paused: bool,
    stopping: bool,
    closed: bool,
    cancelled: bool,
    held: usize,
    children: usize,
    /// Of the keepers, those that are gone and went after the close, and those that came after it.
    keepers_gone: usize,
    late_keepers: usize,
    cuts: usize,
    peers: usize,
}

/// What goes in is counted until it comes out, whatever comes in between, and everybody who waits is told.
pub fn gate(data: &[u8]) {
    let mut choices = Choices(data);
    let mut model = Model::default();
    let gate = Gate::standalone("model");
    let handles_first = choices.byte() % 2 == 0;
    model.detailed = choices.byte() % 2 == 1;
    model.gates.push(if model.detailed { gate.detailed() } else { gate });
    while !choices.0.is_empty() {
        model.step(choices.byte(), choices.byte());
        model.check();
    }
    if handles_first {
        model.drop_gates();
        model.check();
        model.end_work();
    } else {
        model.end_work();
        model.check();
        model.drop_gates();
    }
    model.check();
}

// === impl Model ===

impl Model {
    fn step(&mut self, what: u8, which: u8) {
        let which = usize::from(which);
        match what % 23 {
            0..=2 => self.enter(which, None),
            3 | 4 => self.enter(which, Some(format!("unit {which}"))),
            5..=7 => self.leave(which),
            8 | 9 => self.child(which),
            10 => self.run(which),
            11 => self.run_ready(which),
            12 => self.wait(which),
            13 => self.clone_or_drop(which),
            14 => self.with_gate(which, |model, gate| {
                gate.pause();
                model.paused |= !model.closed;
            }),
            15 => self.with_gate(which, |model, gate| {
                gate.resume();
                model.paused &= model.closed;
            }),
            16 => self.stop(which),
            17 if which % 3 == 0 => self.with_gate(which, |model, gate| {
                let held = gate.close();
                model.close();
                // For a gate that closed before, what it held then.
                assert_eq!(held, model.held);
            }),
            18 if which % 5 == 0 => self.with_gate(which, |model, gate| {
                gate.cancel();
                model.close();
                model.cancelled = true;
            }),
            19 => self.cut_peer(which),
            20 | 21 => self.keep(which),
            22 => self.end_keeper(which),
            _ => {}
        }
    }

    fn with_gate(&mut self, which: usize, act: impl FnOnce(&mut Self, &Gate)) {
        if self.gates.is_empty() {
            return;
        }
        let gate = self.gates.swap_remove(which % self.gates.len());
        act(self, &gate);
        self.gates.push(gate);
    }

    fn enter(&mut self, which: usize, name: Name) {
        self.with_gate(which, |model, gate| {
            let entered = match name.clone() {
                Some(name) => gate.enter_named(name),
                None => gate.enter(),
            };
            match entered {
                Ok(guard) => {
                    assert!(!model.closed && !model.paused, "let in by a gate that is closed or paused");
                    model.guards.push((guard, name));
                }
                Err(refused) => {
                    assert!(model.closed || model.paused, "refused by a gate that is open");
                    assert_eq!(refused.is_paused(), !model.closed, "closed for good is not paused");
                }
            }
        });
    }

    fn leave(&mut self, which: usize) {
        if self.guards.is_empty() {
            return;
        }
        let (guard, _) = self.guards.swap_remove(which % self.guards.len());
        if which % 2 == 0 {
            return drop(guard);
        }
        let mut noted = false;
        guard.leave(|_| noted = true);
        assert_eq!(noted, self.closed);
    }

    fn child(&mut self, which: usize) {
        if self.guards.is_empty() {
            return;
        }
        let (parent, name) = &self.guards[which % self.guards.len()];
        let child = (parent.child(), name.clone());
        self.guards.push(child);
        self.children += usize::from(self.closed);
    }

    /// Work that never ends by itself.
    fn run(&mut self, which: usize) {
        if self.guards.is_empty() {
            return;
        }
        let (guard, name) = self.guards.swap_remove(which % self.guards.len());
        let work = Box::pin(async move {
            match guard.run(std::future::pending::<()>()).await {
                Ok(()) => unreachable!("it never ends"),
                Err(cancelled) => cancelled,
            }
        });
        self.running.push(Running { work, woken: Flag::raised(), name });
    }

    fn run_ready(&mut self, which: usize) {
        if self.guards.is_empty() {
            return;
        }
        let (guard, _) = &self.guards[which % self.guards.len()];
        let done = guard.run(std::future::ready(7)).now_or_never();
        assert_eq!(done, Some(if self.cancelled { Err(Cancelled) } else { Ok(7) }));
        self.cuts += usize::from(self.cancelled);
    }

    fn wait(&mut self, which: usize) {
        self.with_gate(which, |model, gate| {
            let (kind, signal): (Kind, Pin<Box<dyn Future<Output = ()>>>) = match which % 3 {
                0 => (Kind::Stopping, Box::pin(gate.stopping())),
                1 => (Kind::Cancelled, Box::pin(gate.cancelled())),
                _ => (Kind::Drained, Box::pin(gate.drained())),
            };
            model.waiting.push(Waiting { signal, woken: Flag::raised(), kind });
        });
    }

    fn clone_or_drop(&mut self, which: usize) {
        if which % 4 != 0 {
            return self.with_gate(which, |model, gate| {
                let other = gate.clone();
                model.gates.push(other);
            });
        }
        self.with_gate(which, |_, _| {});
        self.gates.pop();
        if self.gates.is_empty() {
            self.close();
        }
    }

    fn stop(&mut self, which: usize) {
        if which % 3 == 0 {
            self.with_gate(which, |model, gate| {
                gate.stop();
                model.stopping = true;
            });
        }
    }

    fn cut_peer(&mut self, which: usize) {
        if which % 2 == 1 && !self.guards.is_empty() {
            let (guard, _) = self.guards.swap_remove(which % self.guards.len());
            guard.cut("idle");
            self.peers += usize::from(self.closed);
        }
    }

    /// Makes a keeper as requests have them: of a guard's child, or of another keeper's.
    fn keep(&mut self, which: usize) {
        let keeper = match (self.keepers.get(which / 2 % self.keepers.len().max(1)), which % 2) {
            (Some((keeper, name)), 0) => (keeper.child().keep_open(), name.clone()),
            _ if self.guards.is_empty() => return,
            _ => {
                let (guard, name) = &self.guards[which % self.guards.len()];
                (guard.child().keep_open(), name.clone())
            }
        };
        self.keepers.push(keeper);
        self.children += usize::from(self.closed);
        self.late_keepers += usize::from(self.closed);
    }

    fn end_keeper(&mut self, which: usize) {
        if !self.keepers.is_empty() {
            drop(self.keepers.swap_remove(which % self.keepers.len()));
            self.keepers_gone += usize::from(self.closed);
        }
    }

    fn close(&mut self) {
        if !self.closed {
            self.held = self.in_flight();
        }
        (self.closed, self.stopping) = (true, true);
    }

    fn drop_gates(&mut self) {
        self.gates.clear();
        self.close();
    }

    fn end_work(&mut self) {
        self.guards.clear();
        self.running.clear();
        while !self.keepers.is_empty() {
            self.end_keeper(0);
        }
    }

    fn in_flight(&self) -> usize {
        self.guards.len() + self.running.len() + self.keepers.len()
    }

    fn check(&mut self) {
        self.poll_running();
        let drained = self.closed && self.in_flight() == 0;
        let (stopping, cancelled) = (self.stopping, self.cancelled);
        self.waiting.retain_mut(|waiting| {
            let fired = match waiting.kind {
                Kind::Stopping => stopping,
                Kind::Cancelled => cancelled,
                Kind::Drained => drained,
            };
            assert_eq!(waiting.woken.poll(&mut waiting.signal).is_ready(), fired, "{:?}", waiting.kind);
            !fired
        });
        for (guard, _) in &self.guards {
            assert_eq!((guard.is_stopping(), guard.is_cancelled()), (self.stopping, self.cancelled));
        }
        let Some(gate) = self.gates.first() else { return };
        assert_eq!(gate.in_flight(), self.in_flight());
        assert_eq!((gate.is_closed(), gate.is_paused()), (self.closed, self.paused && !self.closed));
        assert_eq!((gate.is_stopping(), gate.is_cancelled()), (self.stopping, self.cancelled));
        assert_eq!(gate.drained().now_or_never().is_some(), drained, "who asks late hears at once");
        assert_eq!((gate.held_at_close(), gate.children_after_close()), (self.held, self.children));
        let (seat, late) = (gate.seat(), self.late_keepers.min(self.keepers_gone));
        assert_eq!(seat.keepers(), (self.keepers_gone - late, late));
        assert_eq!(gate.cut_count(), self.cuts);
        let cut = seat.cuts();
        assert_eq!(cut.iter().map(|(_, count)| count).sum::<usize>(), self.peers);
        self.check_details(gate);
    }

    fn poll_running(&mut self) {
        let before = self.running.len();
        let cancelled = self.cancelled;
        self.running.retain_mut(|running| match running.woken.poll(&mut running.work) {
            Poll::Ready(Cancelled) => {
                assert!(cancelled, "cut before the drain was over");
                false
            }
            Poll::Pending => {
                assert!(!cancelled, "still running after the drain");
                true
            }
        });
        self.cuts += before - self.running.len();
    }

    fn check_details(&self, gate: &Gate) {
        let mut known: Vec<Name> =
            gate.details().into_iter().map(|unit| unit.name.map(String::from)).collect();
        let names = self.guards.iter().map(|(_, name)| name);
        let names = names.chain(self.keepers.iter().map(|(_, name)| name));
        let mut names: Vec<Name> = names.chain(self.running.iter().map(|work| &work.name)).cloned().collect();
        if !self.detailed {
            names.clear();
        }
        known.sort();
        names.sort();
        assert_eq!((known, gate.is_detailed()), (names, self.detailed));
    }
}

// === impl Flag ===

impl Flag {
    /// To be polled for the first time without having been woken.
    fn raised() -> Arc<Self> {
        Arc::new(Flag(AtomicBool::new(true)))
    }

    /// Polls as a runtime does: only what has been woken. What should have been and was not stays pending, and shows.
    fn poll<T>(self: &Arc<Self>, work: &mut Pin<Box<dyn Future<Output = T>>>) -> Poll<T> {
        if !self.0.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        work.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
    }
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}
