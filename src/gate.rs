//! Lets work in until intake stops, and tells when the last of it is done.
//!
//! The count is also the reference count: an owned guard is one pointer, and letting in and out are one atomic operation each.
//! That takes the little `unsafe` of this file, each block with its argument beside it.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::mem;
use std::panic::Location;
use std::ptr::NonNull;
use std::sync::{PoisonError, TryLockError};

#[cfg(winddown_loom)]
use loom::sync::{
    Mutex, MutexGuard, atomic::AtomicI64, atomic::AtomicU8, atomic::AtomicUsize, atomic::Ordering,
};
#[cfg(not(winddown_loom))]
use std::sync::{
    Mutex, MutexGuard, atomic::AtomicI64, atomic::AtomicU8, atomic::AtomicUsize, atomic::Ordering,
};

use crate::error::{Cancelled, GateClosed};
use crate::latch::slab::Slab;
use crate::latch::{Fired, Latch};
pub(crate) use detail::UnitDetail;
pub use seat::Keeper;
pub(crate) use seat::{DrainEnd, Lost, Returns, Seat, Settled};

mod detail;
mod run;
mod seat;

/// Lets work in until it is closed, and tells when the last of it is done.
///
/// A closed gate never opens again, and work that is already in is not disturbed. Clones are the same gate; when the last of them is
/// dropped the gate closes, and the work that it let in may outlive it.
///
/// ```
/// # use winddown::Gate;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), winddown::GateClosed> {
/// let gate = Gate::standalone("uploads");
/// let in_flight = gate.enter()?;                 // counted until dropped
/// gate.close();
/// assert!(gate.enter().is_err());
/// drop(in_flight);
/// gate.drained().await;
/// # Ok(()) }
/// ```
pub struct Gate(NonNull<Block>);

/// Work that a [`Gate`] let in; done when dropped.
///
/// One pointer, owned: it goes wherever the work goes, may be dropped on any thread, and may outlive the gate.
#[must_use = "dropping this says that the work is done"]
pub struct InFlight(NonNull<()>);

/// What the handles and the guards of one gate share. It lies on the heap until both are gone; see `Block::release`.
struct Block {
    words: [Word; WORDS],
    /// Starts at one `BIAS` and reaches zero once: when the gate is closed and the last that it held is done.
    pending: Word,
    handles: AtomicUsize,
    life: AtomicU8,
    marks: AtomicU8,
    /// Held while the words' bits change; entering and leaving never take it.
    control: Mutex<()>,
    held_at_close: AtomicUsize,
    /// Refused because of a pause while the gate closed: counted as held for an instant, but never let in.
    refused_at_close: AtomicUsize,
    children_after_close: AtomicUsize,
    /// Counted while all are cancelled at once, by every worker.
    cuts: Word,
    name: Cow<'static, str>,
    drained: Latch,
    stopping: Latch,
    cancelled: Latch,
    cut: Latch,
    units: Mutex<Slab<UnitDetail>>,
    seat: Seat,
}

/// Alone on its cache lines: nothing that is only read shares them.
#[repr(align(128))]
struct Word(AtomicI64);

/// What a guard of a detailed gate points at instead of the block.
struct Ticket {
    block: NonNull<Block>,
    unit: usize,
}

/// Over how many words the count is spread. All code below holds for any number; see `here` for the choice between them.
const WORDS: usize = 1;

const CLOSED: i64 = 1;
const PAUSED: i64 = 2;
const DETAILED: i64 = 4;
const FLAGS: i64 = CLOSED | PAUSED | DETAILED;
/// One unit of work, above the flags.
const ONE: i64 = 8;
const SHIFT: u32 = 3;

/// More than ever is in flight, so that `pending` cannot reach zero before the close has taken it away.
const BIAS: i64 = 1 << 48;

/// The last handle is gone.
const GONE: u8 = 1;
/// The one that brought `pending` to zero has told of it and is done with the block.
const NOTIFIED: u8 = 2;

const PULLED: u8 = 1;

/// In the address of a guard: it points at a `Ticket`, not at the block.
const TICKET: usize = 1;

// SAFETY: all that handles and guards share is atomic, behind a mutex, or unchanging and `Sync`; the pointers are alive for as long as
// their owners are (see `Block::release`), whatever thread these are on.
unsafe impl Send for Gate {}
// SAFETY: as above.
unsafe impl Sync for Gate {}
// SAFETY: as above; a ticket is only read, and freed by its one owner.
unsafe impl Send for InFlight {}
// SAFETY: as above.
unsafe impl Sync for InFlight {}

// === impl Gate ===

impl Gate {
    /// A gate of its own, for a library or a program that drains without a coordinator.
    ///
    /// Gates of a coordinator are closed by it; this one by [`close`](Self::close) and [`cancel`](Self::cancel). An
    /// [`Intake`](crate::Intake) made of it hands back on the tokio runtime in which this was called; where there was none, what it
    /// would hand back goes to the [last resort](crate::Intake::last_resort).
    pub fn standalone(name: impl Into<Cow<'static, str>>) -> Gate {
        Self::new(name, tokio::runtime::Handle::try_current().ok(), DrainEnd::default())
    }

    pub(crate) fn new(
        name: impl Into<Cow<'static, str>>,
        runtime: Option<tokio::runtime::Handle>,
        drain_end: DrainEnd,
    ) -> Gate {
        let block = Block {
            words: std::array::from_fn(|_| Word(AtomicI64::new(0))),
            pending: Word(AtomicI64::new(BIAS)),
            handles: AtomicUsize::new(1),
            life: AtomicU8::new(0),
            marks: AtomicU8::new(0),
            control: Mutex::new(()),
            held_at_close: AtomicUsize::new(0),
            refused_at_close: AtomicUsize::new(0),
            children_after_close: AtomicUsize::new(0),
            cuts: Word(AtomicI64::new(0)),
            name: name.into(),
            drained: Latch::new(),
            stopping: Latch::new(),
            cancelled: Latch::new(),
            cut: Latch::new(),
            units: Mutex::new(Slab::new()),
            seat: Seat::new(runtime, drain_end),
        };
        Gate(NonNull::from(Box::leak(Box::new(block))))
    }

    /// Lets one piece of work in; it counts until the returned guard is dropped.
    ///
    /// # Errors
    ///
    /// [`GateClosed`] once intake has stopped, or while it is [paused](GateClosed::is_paused). Being let in and the close are one
    /// step: what is let in is waited for.
    #[inline]
    #[track_caller]
    pub fn enter(&self) -> Result<InFlight, GateClosed> {
        // Added first and undone if refused: a look before would fetch the cache line twice.
        let before = self.block().words[here()].0.fetch_add(ONE, Ordering::Acquire);
        if before & FLAGS == 0 { Ok(InFlight(self.0.cast())) } else { self.enter_marked(before, None) }
    }

    /// Like [`enter`](Self::enter), and known by `name` in reports if the gate is [detailed](Self::detailed).
    ///
    /// The name is made only then.
    ///
    /// # Errors
    ///
    /// As [`enter`](Self::enter).
    #[inline]
    #[track_caller]
    pub fn enter_named(&self, name: impl Into<Cow<'static, str>>) -> Result<InFlight, GateClosed> {
        let before = self.block().words[here()].0.fetch_add(ONE, Ordering::Acquire);
        if before & FLAGS == 0 {
            return Ok(InFlight(self.0.cast()));
        }
        if before & FLAGS != DETAILED {
            return self.enter_marked(before, None);
        }
        // The caller's code makes the name; the count must come back if that panics.
        let counted = InFlight(self.0.cast());
        let name = Some(name.into());
        mem::forget(counted);
        self.enter_marked(before, name)
    }

    /// As [`enter`](Self::enter), with a keeper beside the guard: two in one step.
    ///
    /// # Errors
    ///
    /// As [`enter`](Self::enter); then there is neither.
    #[cfg(any(feature = "tower", winddown_loom))]
    #[inline]
    #[track_caller]
    pub(crate) fn enter_kept(&self) -> Result<(InFlight, Keeper), GateClosed> {
        let before = self.block().words[here()].0.fetch_add(2 * ONE, Ordering::Acquire);
        if before & FLAGS == 0 {
            // Made here and not by `keep_open`, which would ask again, and might count it among those of after the close.
            return Ok((InFlight(self.0.cast()), Keeper(mem::ManuallyDrop::new(InFlight(self.0.cast())))));
        }
        self.enter_kept_marked(before)
    }

    /// Closes for good and tells the work inside that the stop has begun. Returns how much was in flight when it closed first.
    ///
    /// Closing again changes nothing. A coordinator closes its own gates; one that was closed before stays so.
    pub fn close(&self) -> usize {
        let block = self.block();
        let control = block.lock();
        if block.is_closed() {
            return block.held_at_close.load(Ordering::Relaxed);
        }
        // Acquire pairs with the leavers' release: what they did inside is done before `drained` says so.
        let held: i64 =
            block.words.iter().map(|word| word.0.fetch_or(CLOSED, Ordering::AcqRel) >> SHIFT).sum();
        let held_at_close = usize::try_from(held).unwrap_or(0);
        block.held_at_close.store(held_at_close, Ordering::Relaxed);
        drop(control);
        // SAFETY: `self` is a handle, so that the block is alive until we return; the close adds this once, in place of the bias.
        unsafe { Block::settle(self.0, held - BIAS) };
        block.stopping.fire();
        held_at_close
    }

    /// Tells all work inside that the drain is over: [`InFlight::run`] ends with [`Cancelled`].
    ///
    /// Also closes the gate, so that what is cancelled is not followed by more.
    pub fn cancel(&self) {
        self.close();
        self.block().cancelled.fire();
    }

    /// Waits until the gate is closed and all that it let in is done.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing, and it holds no gate open.
    pub fn drained(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        self.block().drained.fired_owned()
    }

    /// Waits until the work that this gate feeds is to come to an end: at the close, or already at the trigger for gates that are
    /// [pulled](Self::pulled).
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        self.block().stopping.fired_owned()
    }

    /// Whether the work that this gate feeds is to come to an end. One plain load.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.block().stopping.is_fired()
    }

    /// Waits until the drain is over for what is still in flight.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<> {
        self.block().cancelled.fired_owned()
    }

    /// Whether the drain is over for what is still in flight. One plain load.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.block().cancelled.is_fired()
    }

    /// What the gate is called in plans and reports.
    pub fn name(&self) -> &str {
        &self.block().name
    }

    /// How much is in flight, for display: [keepers](Keeper) are in it, and refused entrants make it flicker.
    pub fn in_flight(&self) -> usize {
        let sum: i64 = self.block().words.iter().map(|word| word.0.load(Ordering::Relaxed) >> SHIFT).sum();
        usize::try_from(sum).unwrap_or(0)
    }

    /// Whether it is closed for good.
    pub fn is_closed(&self) -> bool {
        self.block().is_closed()
    }

    /// Whether it refuses for now and may open again.
    pub fn is_paused(&self) -> bool {
        self.block().words[0].0.load(Ordering::Acquire) & FLAGS & !DETAILED == PAUSED
    }

    /// Says that the work behind this gate is pulled, as from a queue: it hears [`stopping`](Self::stopping) at the trigger, since no
    /// balancer has to be waited for.
    pub fn pulled(self) -> Self {
        self.block().marks.fetch_or(PULLED, Ordering::Release);
        self
    }

    /// Keeps name, age and place of what is in flight, for the report and the list of what is stuck.
    ///
    /// Costs an allocation and a lock for each piece of work; gates that do not ask pay nothing. What is already in stays unknown.
    pub fn detailed(self) -> Self {
        for word in &self.block().words {
            word.0.fetch_or(DETAILED, Ordering::AcqRel);
        }
        self
    }

    /// Refuses until [`resume`](Self::resume); without effect once closed.
    pub(crate) fn pause(&self) {
        let block = self.block();
        let _control = block.lock();
        if !block.is_closed() {
            for word in &block.words {
                word.0.fetch_or(PAUSED, Ordering::AcqRel);
            }
        }
    }

    /// Ends a pause; without effect once closed.
    pub(crate) fn resume(&self) {
        let block = self.block();
        let _control = block.lock();
        if !block.is_closed() {
            for word in &block.words {
                word.0.fetch_and(!PAUSED, Ordering::AcqRel);
            }
        }
    }

    /// Fires [`stopping`](Self::stopping) before the close.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn stop(&self) {
        self.block().stopping.fire();
    }

    /// Fires the last signal: shielded work must go too.
    pub(crate) fn cut(&self) {
        self.block().cut.fire();
    }

    pub(crate) fn seat(&self) -> &Seat {
        &self.block().seat
    }

    pub(crate) fn is_pulled(&self) -> bool {
        self.block().marks.load(Ordering::Acquire) & PULLED != 0
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn is_detailed(&self) -> bool {
        self.block().words[0].0.load(Ordering::Acquire) & DETAILED != 0
    }

    /// What was let in and not done when the gate closed; zero before.
    pub(crate) fn held_at_close(&self) -> usize {
        let block = self.block();
        block
            .held_at_close
            .load(Ordering::Acquire)
            .saturating_sub(block.refused_at_close.load(Ordering::Acquire))
    }

    pub(crate) fn children_after_close(&self) -> usize {
        self.block().children_after_close.load(Ordering::Acquire)
    }

    /// How many runs ended with [`Cancelled`].
    pub(crate) fn cut_count(&self) -> usize {
        self.block().cuts.0.load(Ordering::Acquire) as usize
    }

    /// What is in flight, oldest first; empty where the gate is not detailed.
    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn details(&self) -> Vec<UnitDetail> {
        detail::oldest_first(&self.block().units.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// As [`details`](Self::details), or nothing if that had to wait: for a thread that must not.
    pub(crate) fn try_details(&self) -> Option<Vec<UnitDetail>> {
        match self.block().units.try_lock() {
            Ok(units) => Some(detail::oldest_first(&units)),
            Err(TryLockError::Poisoned(units)) => Some(detail::oldest_first(&units.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    #[cold]
    #[track_caller]
    fn enter_marked(&self, before: i64, name: Option<Cow<'static, str>>) -> Result<InFlight, GateClosed> {
        if before & (CLOSED | PAUSED) != 0 {
            self.take_back(before);
            return Err(GateClosed { paused: before & CLOSED == 0 });
        }
        Ok(InFlight::with_detail(self.0, UnitDetail::new(name, Location::caller())))
    }

    /// Goes on with one of the two additions; the keeper's comes again, where there is one.
    #[cfg(any(feature = "tower", winddown_loom))]
    #[cold]
    #[track_caller]
    fn enter_kept_marked(&self, before: i64) -> Result<(InFlight, Keeper), GateClosed> {
        self.take_back(before);
        let in_flight = self.enter_marked(before, None)?;
        let keeper = in_flight.child().keep_open();
        Ok((in_flight, keeper))
    }

    /// Undoes an addition that found these marks.
    fn take_back(&self, before: i64) {
        let block = self.block();
        if before & CLOSED != 0 {
            // The close had summed up before us, so that `pending` knows nothing of us and must not be told. Undone as a leaver
            // does, this would take away what another guard still holds.
            block.words[here()].0.fetch_sub(ONE, Ordering::Release);
            return;
        }
        // A close may have come since and counted us as held, so that this one is undone as a leaver does.
        let note = |block: &Block| {
            block.refused_at_close.fetch_add(1, Ordering::AcqRel);
        };
        // SAFETY: our addition is taken back once; `self` keeps the block alive meanwhile.
        unsafe { Block::leave(self.0, note) };
    }

    #[inline]
    fn block(&self) -> &Block {
        // SAFETY: the block is freed after the last handle is gone, and `self` is one.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for Gate {
    fn clone(&self) -> Self {
        // Relaxed: the new handle is made from one that keeps the block alive.
        self.block().handles.fetch_add(1, Ordering::Relaxed);
        Gate(self.0)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // The last one acquires what the others did with the block before they went.
        if self.block().handles.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        self.close();
        // SAFETY: this was the last handle and touches the block no more; there is no way to get another.
        unsafe { Block::release(self.0, GONE) };
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("name", &self.name())
            .field("in_flight", &self.in_flight())
            .field("closed", &self.is_closed())
            .field("paused", &self.is_paused())
            .finish()
    }
}

// === impl InFlight ===

impl InFlight {
    /// Lets in work that follows from this one; also after closing, since it is part of what was let in.
    #[inline]
    #[track_caller]
    pub fn child(&self) -> InFlight {
        let block = self.block();
        let before = block.words[here()].0.fetch_add(ONE, Ordering::Relaxed);
        if before & (CLOSED | DETAILED) == 0 {
            InFlight(self.block_ptr().cast())
        } else {
            self.child_marked(before)
        }
    }

    /// Runs `work` until it is done or the drain is over, whichever comes first.
    ///
    /// The work is polled in place. If the drain is over before the first poll it is not polled at all; later, a result that is ready
    /// in the same poll wins.
    ///
    /// # Errors
    ///
    /// [`Cancelled`] when the drain is over; the work has then been dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping this future drops the work.
    #[inline]
    pub fn run<F: Future>(&self, work: F) -> impl Future<Output = Result<F::Output, Cancelled>> + use<'_, F> {
        run::Run::new(self, work)
    }

    /// Waits until this work is to come to an end of its own: start nothing long any more.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<'_> {
        self.block().stopping.fired()
    }

    /// Whether this work is to come to an end of its own. One plain load.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.block().stopping.is_fired()
    }

    /// Waits until the drain is over.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + Sync + Unpin + use<'_> {
        self.hard_signal()
    }

    /// Whether the drain is over. One plain load.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.block().cancelled.is_fired()
    }

    /// Ends this piece of work before it was done, because of the peer that it serves: idle, stalled or streaming.
    ///
    /// The report counts it as *cut*, under the state that the peer was in, and not as lost.
    pub fn cut(self, state: &'static str) {
        let overdue = self.is_cancelled();
        self.cut_as(state, overdue);
    }

    /// As [`cut`](Self::cut), with whether it was the end of the drain that cut it, where that was decided before.
    pub(crate) fn cut_as(self, state: &'static str, overdue: bool) {
        self.leave(|seat| seat.cut(state, overdue));
    }

    #[inline]
    fn seat(&self) -> &Seat {
        &self.block().seat
    }

    #[inline]
    fn is_gate_closed(&self) -> bool {
        self.block().is_closed()
    }

    /// Drops the guard, and has it noted if that falls after the close: before the drain can end by it.
    #[inline]
    pub(crate) fn leave(self, note: impl FnOnce(&Seat)) {
        let mut guard = mem::ManuallyDrop::new(self);
        let block = if guard.has_ticket() { guard.give_back_ticket() } else { guard.0.cast() };
        // SAFETY: as in `drop`, which does not run for this guard.
        unsafe { Block::leave(block, |block| note(&block.seat)) };
    }

    #[inline]
    pub(crate) fn hard_signal(&self) -> Fired<'_> {
        self.block().cancelled.fired()
    }

    /// The signal that ends shielded work too.
    #[inline]
    pub(crate) fn cut_signal(&self) -> Fired<'_> {
        self.block().cut.fired()
    }

    /// Notes that this work was ended before it was done.
    #[cold]
    pub(crate) fn note_cut(&self) {
        self.block().cuts.0.fetch_add(1, Ordering::AcqRel);
    }

    #[cold]
    #[track_caller]
    fn child_marked(&self, before: i64) -> InFlight {
        let block = self.block();
        if before & CLOSED != 0 {
            // Our parent is counted and borrowed, so that `pending` cannot have reached zero and cannot before this is added.
            block.pending.0.fetch_add(1, Ordering::Relaxed);
            block.children_after_close.fetch_add(1, Ordering::AcqRel);
        }
        if before & DETAILED == 0 {
            return InFlight(self.block_ptr().cast());
        }
        let name = self.ticket().and_then(|ticket| {
            let units = block.units.lock().unwrap_or_else(PoisonError::into_inner);
            units.get(ticket.unit).and_then(|unit| unit.name.clone())
        });
        Self::with_detail(self.block_ptr(), UnitDetail::new(name, Location::caller()))
    }

    /// A guard for an addition already made, whose detail is kept until it is dropped.
    fn with_detail(block: NonNull<Block>, unit: UnitDetail) -> InFlight {
        // SAFETY: the addition already made keeps the block alive.
        let units = unsafe { &block.as_ref().units };
        let unit = units.lock().unwrap_or_else(PoisonError::into_inner).insert(unit);
        let ticket = NonNull::from(Box::leak(Box::new(Ticket { block, unit })));
        InFlight(ticket.cast().map_addr(|addr| addr | TICKET))
    }

    #[inline]
    fn has_ticket(&self) -> bool {
        self.0.addr().get() & TICKET != 0
    }

    #[inline]
    fn ticket(&self) -> Option<&Ticket> {
        // SAFETY: the mark is set on pointers to a leaked ticket only, which is freed when its one guard, `self`, is dropped.
        self.has_ticket().then(|| unsafe { self.ticket_ptr().as_ref() })
    }

    /// Where the ticket lies, for a guard that has one.
    fn ticket_ptr(&self) -> NonNull<Ticket> {
        let unmarked = self.0.as_ptr().map_addr(|addr| addr & !TICKET);
        // SAFETY: taking the mark away gives back the address of a box, which is not null.
        unsafe { NonNull::new_unchecked(unmarked.cast()) }
    }

    #[inline]
    fn block_ptr(&self) -> NonNull<Block> {
        self.ticket().map_or(self.0.cast(), |ticket| ticket.block)
    }

    #[inline]
    fn block(&self) -> &Block {
        // SAFETY: the block is freed after `pending` has reached zero, which the unit that `self` counts for prevents.
        unsafe { self.block_ptr().as_ref() }
    }

    /// Forgets the detail and frees the ticket, which must not be used again.
    #[cold]
    fn give_back_ticket(&mut self) -> NonNull<Block> {
        // SAFETY: leaked by `with_detail` for this guard alone, which is being dropped.
        let ticket = unsafe { Box::from_raw(self.ticket_ptr().as_ptr()) };
        // SAFETY: our unit still counts and keeps the block alive; the reference ends before we leave.
        let units = unsafe { &ticket.block.as_ref().units };
        let unit = units.lock().unwrap_or_else(PoisonError::into_inner).remove(ticket.unit);
        drop(unit);
        ticket.block
    }
}

impl Drop for InFlight {
    #[inline]
    fn drop(&mut self) {
        let block = if self.has_ticket() { self.give_back_ticket() } else { self.0.cast() };
        // SAFETY: this guard's addition, taken back once; neither the guard nor a borrow of it is used afterwards.
        unsafe { Block::leave(block, |_| ()) };
    }
}

impl Drop for Keeper {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: taken by the drop alone, which runs once.
        let guard = unsafe { mem::ManuallyDrop::take(&mut self.0) };
        // Noted here and not when it is made: before the close, where requests have one each, it costs them nothing.
        guard.leave(Seat::keeper_gone);
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight").field("gate", &self.block().name).finish()
    }
}

// === impl Block ===

/// Which word this thread counts in: the one place to choose, where there are several.
#[inline]
fn here() -> usize {
    0
}

impl Block {
    #[inline]
    fn is_closed(&self) -> bool {
        self.words[0].0.load(Ordering::Acquire) & CLOSED != 0
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back one addition to a word, whichever it was; calls `note` if the gate was closed. That is known by this step
    /// alone, and by no look before or after; and whoever waits for the drain finds what was noted.
    ///
    /// # Safety
    ///
    /// An addition made by the caller stands that is neither refused by a closed gate nor taken back yet. What the caller does with the
    /// block afterwards needs another reason for it to be alive.
    #[inline]
    unsafe fn leave(block: NonNull<Block>, note: impl FnOnce(&Block)) {
        // SAFETY: alive until the addition is taken back. Only the atomic is borrowed, since another thread may free the block as soon
        // as it has changed: a reference to an atomic bears that, one to the whole block would not.
        let word = unsafe { &(*block.as_ptr()).words[here()].0 };
        // Release pairs with the close, which acquires what was done inside.
        let before = word.fetch_sub(ONE, Ordering::Release);
        if before & CLOSED == 0 {
            return;
        }
        // SAFETY: it was closed when we left, so that we are in the sum that the close adds to `pending`, or a child that added itself:
        // `pending` cannot be zero, nor the block be freed, before this is subtracted. The reference ends before that.
        note(unsafe { block.as_ref() });
        // SAFETY: as above.
        unsafe { Self::settle(block, -1) };
    }

    /// Adds to `pending`; whoever brings it to zero tells of it.
    ///
    /// # Safety
    ///
    /// The caller owns what it adds: a leaver its one, the close its sum. Until then that keeps the block alive.
    #[cold]
    unsafe fn settle(block: NonNull<Block>, delta: i64) {
        // SAFETY: alive until `delta` is added; only the atomic is borrowed, as in `leave`.
        let pending = unsafe { &(*block.as_ptr()).pending.0 };
        // Release what was done inside, acquire what the others released: the last one hands on all of it.
        if pending.fetch_add(delta, Ordering::AcqRel) + delta != 0 {
            return;
        }
        // Zero is reached once: no guard is left to make a child, and no refused entrant comes here.
        // SAFETY: the block is not freed before we set `NOTIFIED`.
        unsafe { block.as_ref() }.drained.fire();
        // SAFETY: the only witness of zero sets it once and touches the block no more.
        unsafe { Self::release(block, NOTIFIED) };
    }

    /// Lets go of the block from one of its two sides. The second frees it: the handles may be gone before the work is, or after.
    ///
    /// # Safety
    ///
    /// Each side does this once and uses the block no more; the side of the work after `pending` has reached zero.
    unsafe fn release(block: NonNull<Block>, side: u8) {
        // SAFETY: alive, since our side is not set yet; only the atomic is borrowed, as in `leave`.
        let life = unsafe { &(*block.as_ptr()).life };
        if life.fetch_or(side, Ordering::AcqRel) | side == GONE | NOTIFIED {
            // SAFETY: leaked from a box in `Gate::new`; both sides are done with it, and this is the second.
            drop(unsafe { Box::from_raw(block.as_ptr()) });
        }
    }
}

/// Asks loom whether everything that was done with the block happened before it is freed.
#[cfg(winddown_loom)]
impl Drop for Block {
    fn drop(&mut self) {
        self.words.iter_mut().chain([&mut self.pending]).for_each(|word| word.0.with_mut(|_| ()));
        self.handles.with_mut(|_| ());
        self.life.with_mut(|_| ());
    }
}

#[cfg(all(test, not(winddown_loom)))]
mod tests;
#[cfg(all(test, winddown_loom))]
mod tests_loom;
