//! Firing against registering, in every interleaving up to a bound on preemptions.

use std::future::poll_fn;
use std::pin::pin;

use loom::future::block_on;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

use super::*;

fn model(preemptions: usize, check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(check);
}

#[test]
fn a_waiter_that_registers_as_it_fires_is_woken() {
    model(4, || {
        let latch = Latch::new();
        let waiters = [(); 2].map(|()| {
            let fired = latch.fired_owned();
            thread::spawn(move || block_on(fired))
        });
        assert!(latch.fire());
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

#[test]
fn only_one_of_two_fires_first_and_what_came_before_is_seen() {
    model(4, || {
        let latch = Latch::new();
        let before = Arc::new(AtomicUsize::new(0));
        let firing = {
            let (latch, before) = (latch.clone(), before.clone());
            thread::spawn(move || {
                before.fetch_add(1, Ordering::Relaxed);
                latch.fire()
            })
        };
        block_on(latch.fired());
        assert_eq!(before.load(Ordering::Relaxed), 1);
        assert!(!latch.fire());
        assert!(firing.join().unwrap());
    });
}

#[test]
fn a_waiter_dropped_as_it_fires_leaves_nothing() {
    model(4, || {
        let latch = Latch::new();
        let quitter = {
            let latch = latch.clone();
            thread::spawn(move || {
                block_on(poll_fn(|cx| {
                    let mut fired = latch.fired();
                    let _ = pin!(&mut fired).poll(cx);
                    Poll::Ready(())
                }));
            })
        };
        let waiter = {
            let latch = latch.clone();
            thread::spawn(move || block_on(latch.fired()))
        };
        latch.fire();
        quitter.join().unwrap();
        waiter.join().unwrap();
        assert_eq!(latch.0.lists.iter().map(|list| list.lock().iter().count()).sum::<usize>(), 0);
    });
}

#[test]
fn a_waiter_that_changes_its_waker_as_it_fires_is_woken() {
    model(4, || {
        let latch = Latch::new();
        let waiter = {
            let mut fired = latch.fired_owned();
            thread::spawn(move || {
                let first = Pin::new(&mut fired).poll(&mut Context::from_waker(Waker::noop()));
                if first.is_pending() {
                    block_on(fired);
                }
            })
        };
        latch.fire();
        waiter.join().unwrap();
    });
}
