use super::*;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::Wake;

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn poll(future: &mut (impl Future<Output = ()> + Unpin), waker: &Waker) -> bool {
    Pin::new(future).poll(&mut Context::from_waker(waker)).is_ready()
}

fn places(latch: &Latch) -> usize {
    latch.0.lists.iter().map(|list| list.lock().iter().count()).sum()
}

#[test]
fn all_who_wait_are_woken_however_many_however_late() {
    let latch = Latch::new();
    let counter = std::sync::Arc::new(Counter::default());
    let waker = Waker::from(counter.clone());
    let mut waiting: Vec<_> = (0..1000).map(|_| latch.fired_owned()).collect();
    assert!(waiting.iter_mut().all(|fired| !poll(fired, &waker)));
    assert!(!latch.is_fired());
    assert!(latch.fire());
    assert!(!latch.fire(), "only the first call fires");
    assert_eq!(counter.0.load(SeqCst), 1000);
    assert!(waiting.iter_mut().all(|fired| poll(fired, &waker)));
    assert!(poll(&mut latch.fired(), &waker), "who comes late hears at once");
    drop(waiting);
    drop(waker);
    assert_eq!(std::sync::Arc::strong_count(&counter), 1, "no waker is kept");
}

#[test]
fn a_waiter_that_is_dropped_frees_its_place() {
    let latch = Latch::new();
    let waker = Waker::from(std::sync::Arc::new(Counter::default()));
    for _ in 0..if cfg!(miri) { 50 } else { 1000 } {
        let mut fired = latch.fired();
        assert!(!poll(&mut fired, &waker));
        assert!(!poll(&mut fired, &waker));
        assert_eq!(places(&latch), 1, "one place a waiter");
    }
    assert_eq!(places(&latch), 0);
}

#[test]
fn the_last_waker_polled_with_is_the_one_woken() {
    let latch = Latch::new();
    let [old, new] = std::array::from_fn(|_| std::sync::Arc::new(Counter::default()));
    let mut fired = latch.fired();
    assert!(!poll(&mut fired, &Waker::from(old.clone())));
    assert!(!poll(&mut fired, &Waker::from(new.clone())));
    assert_eq!(std::sync::Arc::strong_count(&old), 1, "the old waker is let go");
    latch.fire();
    assert_eq!((old.0.load(SeqCst), new.0.load(SeqCst)), (0, 1));
}

#[test]
fn a_waker_may_drop_other_waiters_and_wait_again() {
    struct Reenter(Latch, Mutex<Vec<FiredOwned>>, AtomicUsize);
    impl Wake for Reenter {
        fn wake(self: std::sync::Arc<Self>) {
            self.2.fetch_add(1, SeqCst);
            self.1.lock().unwrap_or_else(PoisonError::into_inner).clear();
            assert!(poll(&mut self.0.fired(), Waker::noop()));
        }
    }
    let latch = Latch::new();
    let reenter = std::sync::Arc::new(Reenter(latch.clone(), Mutex::default(), AtomicUsize::new(0)));
    let waker = Waker::from(reenter.clone());
    let mut waiting: Vec<_> = (0..10).map(|_| latch.fired_owned()).collect();
    assert!(waiting.iter_mut().all(|fired| !poll(fired, &waker)));
    reenter.1.lock().unwrap_or_else(PoisonError::into_inner).append(&mut waiting);
    latch.fire();
    assert_eq!(reenter.2.load(SeqCst), 10);
}

#[test]
fn a_waker_that_panics_keeps_none_of_the_others_asleep() {
    struct Bad;
    impl Wake for Bad {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("a waker of the worst kind");
        }
    }
    let latch = Latch::new();
    let counter = std::sync::Arc::new(Counter::default());
    let bad = Waker::from(std::sync::Arc::new(Bad));
    let good = Waker::from(counter.clone());
    let mut waiting: Vec<_> = (0..8).map(|_| latch.fired()).collect();
    for (n, fired) in waiting.iter_mut().enumerate() {
        assert!(!poll(fired, if n % 2 == 0 { &bad } else { &good }));
    }
    latch.fire();
    assert_eq!(counter.0.load(SeqCst), 4);
}

#[test]
fn no_wake_up_is_lost_to_a_waiter_that_registers_as_it_fires() {
    let rounds = if cfg!(miri) { 20 } else { 2_000 };
    for _ in 0..rounds {
        let latch = Latch::new();
        let counter = std::sync::Arc::new(Counter::default());
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                latch.fire();
            });
            let waker = Waker::from(counter.clone());
            let mut fired = latch.fired();
            start.wait();
            if !poll(&mut fired, &waker) {
                while counter.0.load(SeqCst) == 0 {
                    std::thread::yield_now();
                }
                assert!(poll(&mut fired, &waker));
            }
        });
    }
}
