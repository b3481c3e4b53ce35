//! Many operations in flight on one thread: slots.
//!
//! The ready set is a word of bits. A round polls the slots of the set bits in order and then asks the
//! endpoint for new bits. So a slot that yields runs again after every other ready slot has run once.
//!
//! Wakers work too, at the price of one store per wake: a slot's waker sets a flag, and the flags are checked
//! when no bit is set and every [`FLAGS_EVERY`] rounds. So a slot may wait for something that does not know
//! slots, such as another thread; a stale flag costs one spurious poll.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use pando_fabric::Endpoint;

use crate::idle::{Courtesy, Idle};

/// Maximum number of slots of one worker: the bits of a word.
pub const SLOTS_MAX: usize = 64;

/// Rounds between two checks of the wakers' flags while slots are ready.
const FLAGS_EVERY: u32 = 64;
/// Polls between two offers of the core while slots are ready: more than 10 µs, where the offer costs under 1
/// µs.
const POLLS_BETWEEN_OFFERS: u32 = 4096;

/// Runs a fixed number of futures of one type on the calling thread.
#[derive(Debug)]
pub struct Worker<'e, E> {
    endpoint: &'e E,
    slots: u32,
}

impl<'e, E: Endpoint> Worker<'e, E> {
    /// A worker of `slots` slots over `endpoint`.
    ///
    /// # Panics
    /// If `slots` is not 1 to 64.
    pub fn new(endpoint: &'e E, slots: usize) -> Self {
        assert!((1..=SLOTS_MAX).contains(&slots), "a worker has 1 to {SLOTS_MAX} slots, not {slots}");
        Self { endpoint, slots: slots as u32 }
    }

    /// Runs the future that `make` returns for each slot to completion; returns their outputs by slot.
    ///
    /// The endpoint knows the number of slots meanwhile, and is set to 1 slot afterwards, even after a panic.
    /// A future is dropped as soon as it is done. Must not be called from within a slot of the same endpoint.
    pub fn run<F: Future>(&self, make: impl FnMut(u32) -> F) -> Vec<F::Output> {
        self.endpoint.set_slots(self.slots);
        let _restore = Restore(self.endpoint);
        let mut slots: Vec<_> = (0..self.slots).map(make).map(Slot::new).collect();
        // Discard bits from an earlier use of the endpoint.
        self.endpoint.poll_ready();
        self.run_rounds(&mut slots);
        slots.into_iter().map(|slot| slot.output.expect("every slot ran to its end")).collect()
    }

    fn run_rounds<F: Future>(&self, slots: &mut [Slot<F>]) {
        let (mut idle, mut courtesy) = (Idle::default(), Courtesy::every(POLLS_BETWEEN_OFFERS));
        let mut live = u64::MAX >> (u64::BITS - self.slots);
        let mut ready = live;
        let mut rounds_to_flags = FLAGS_EVERY;
        loop {
            let polls = ready.count_ones();
            live &= !self.run_ready(slots, ready);
            if live == 0 {
                return;
            }
            ready = self.endpoint.poll_ready() & live;
            rounds_to_flags -= 1;
            if ready == 0 || rounds_to_flags == 0 {
                ready |= take_flags(slots, live);
                rounds_to_flags = FLAGS_EVERY;
            }
            if ready == 0 {
                idle.wait(self.endpoint);
            } else {
                idle.reset();
                courtesy.count(polls);
            }
        }
    }

    /// Polls the slots of `ready`; returns the bits of those that are done.
    #[inline]
    fn run_ready<F: Future>(&self, slots: &mut [Slot<F>], mut ready: u64) -> u64 {
        let mut done = 0;
        while ready != 0 {
            let slot = ready.trailing_zeros();
            ready &= ready - 1;
            self.endpoint.enter_slot(slot);
            if slots[slot as usize].is_done() {
                done |= 1 << slot;
            }
        }
        done
    }
}

/// Runs `futures` concurrently to completion, one slot each; returns their outputs in the same order.
///
/// # Panics
/// If there are more than 64.
pub fn run_slots<E: Endpoint, F: Future>(endpoint: &E, futures: Vec<F>) -> Vec<F::Output> {
    if futures.is_empty() {
        return Vec::new();
    }
    let worker = Worker::new(endpoint, futures.len());
    let mut futures = futures.into_iter();
    worker.run(|_| futures.next().expect("as many slots as futures"))
}

/// Sets the endpoint back to one slot.
struct Restore<'e, E: Endpoint>(&'e E);

impl<E: Endpoint> Drop for Restore<'_, E> {
    fn drop(&mut self) {
        self.0.set_slots(1);
        self.0.enter_slot(0);
        self.0.poll_ready();
    }
}

struct Slot<F: Future> {
    /// `None` once it is done.
    future: Option<Pin<Box<F>>>,
    output: Option<F::Output>,
    flag: Arc<Flag>,
    waker: Waker,
}

impl<F: Future> Slot<F> {
    fn new(future: F) -> Self {
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&flag));
        Self { future: Some(Box::pin(future)), output: None, flag, waker }
    }

    /// Polls the future if there is one; returns whether the slot is done.
    #[inline]
    fn is_done(&mut self) -> bool {
        let Some(future) = &mut self.future else { return true };
        match future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Pending => false,
            Poll::Ready(output) => {
                self.output = Some(output);
                self.future = None;
                true
            }
        }
    }
}

/// Set by a slot's waker, from any thread.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    #[inline]
    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Takes the flags of the live slots. A flag is cleared only here, before the poll that it causes, by a swap
/// that reads what it clears. So no wake is lost, and the poll sees all that the waking thread did before.
fn take_flags<F: Future>(slots: &[Slot<F>], live: u64) -> u64 {
    let mut woken = 0;
    for (number, slot) in slots.iter().enumerate() {
        let Flag(flag) = &*slot.flag;
        if flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::AcqRel) {
            woken |= 1 << number;
        }
    }
    woken & live
}
