//! What is under way of one endpoint, and how it ends.
//!
//! An entry belongs to the future that waits for it until that takes the end or is dropped. What waits with it, buffers
//! perhaps, stays until the end also when the future is gone: a device may still use it, and the answer still comes.
//! Entries are used again, so nothing is allocated for one.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pando_fabric::Result;

enum State<W, E> {
    Free,
    Waiting(W),
    /// Nobody waits any more, but it will end.
    Abandoned(W),
    Ended(Result<E>),
}

struct Entry<W, E> {
    state: State<W, E>,
    /// Of the slot that waits.
    slot_bit: u64,
    waker: Option<Waker>,
}

/// Things that wait, as `W`, until they end, as `E`. See the module documentation.
pub struct Pending<W, E> {
    entries: Vec<Entry<W, E>>,
    free: Vec<u32>,
}

impl<W, E> Default for Pending<W, E> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<W, E> Pending<W, E> {
    /// Enters something that a slot waits for.
    pub fn enter(&mut self, waiting: W, slot_bit: u64) -> u32 {
        let entry = Entry { state: State::Waiting(waiting), slot_bit, waker: None };
        match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = entry;
                number
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// What waits under a number, until it ends.
    pub fn waiting(&self, number: u32) -> Option<&W> {
        match &self.entries.get(number as usize)?.state {
            State::Waiting(waiting) | State::Abandoned(waiting) => Some(waiting),
            State::Free | State::Ended(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn waiting_mut(&mut self, number: u32) -> Option<&mut W> {
        match &mut self.entries.get_mut(number as usize)?.state {
            State::Waiting(waiting) | State::Abandoned(waiting) => Some(waiting),
            State::Free | State::Ended(_) => None,
        }
    }

    /// The end, if it is there; the entry is free then. If not, `waker` will be woken.
    fn take(&mut self, number: u32, waker: &Waker) -> Option<Result<E>> {
        let entry = &mut self.entries[number as usize];
        if matches!(entry.state, State::Ended(_)) {
            let State::Ended(end) = std::mem::replace(&mut entry.state, State::Free) else {
                unreachable!("it was looked at just now")
            };
            self.free.push(number);
            return Some(end);
        }
        if !entry.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            entry.waker = Some(waker.clone());
        }
        None
    }

    /// The future that waits is gone.
    fn abandon(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        match std::mem::replace(&mut entry.state, State::Free) {
            State::Waiting(waiting) => entry.state = State::Abandoned(waiting),
            State::Free | State::Abandoned(_) | State::Ended(_) => self.free.push(number),
        }
    }

    /// Ends what waits under a number; the bit of the slot that waits for it.
    ///
    /// # Panics
    /// If it has ended already.
    pub fn end(&mut self, number: u32, end: impl FnOnce(W) -> Result<E>) -> u64 {
        let entry = &mut self.entries[number as usize];
        match std::mem::replace(&mut entry.state, State::Free) {
            State::Waiting(waiting) => {
                entry.state = State::Ended(end(waiting));
                if let Some(waker) = entry.waker.take() {
                    waker.wake();
                }
                entry.slot_bit
            }
            State::Abandoned(_) => {
                self.free.push(number);
                0
            }
            State::Free | State::Ended(_) => unreachable!("it ends once"),
        }
    }
}

/// Waits for the end of an entry, and gives it up when it goes.
pub struct Ending<'p, W, E> {
    pending: &'p RefCell<Pending<W, E>>,
    number: u32,
    is_over: bool,
}

impl<'p, W, E> Ending<'p, W, E> {
    pub fn new(pending: &'p RefCell<Pending<W, E>>, number: u32) -> Self {
        Self { pending, number, is_over: false }
    }
}

impl<W, E> Future for Ending<'_, W, E> {
    type Output = Result<E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let taken = self.pending.borrow_mut().take(self.number, cx.waker());
        match taken {
            Some(end) => {
                self.is_over = true;
                Poll::Ready(end)
            }
            None => Poll::Pending,
        }
    }
}

impl<W, E> Drop for Ending<'_, W, E> {
    fn drop(&mut self) {
        if !self.is_over {
            self.pending.borrow_mut().abandon(self.number);
        }
    }
}
