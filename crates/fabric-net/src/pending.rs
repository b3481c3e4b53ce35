//! Requests in flight of one endpoint, and their ends.
//!
//! An entry belongs to the waiting future until that takes the end or is dropped. The data of a waiting
//! entry, buffers for instance, stays until the end even if the future is gone: a device may still use it,
//! and the answer still comes. Entries are reused, so none is allocated per request.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use pando_fabric::Result;

enum State<W, E> {
    Free,
    Waiting(W),
    /// The future was dropped, but the end will come.
    Abandoned(W),
    Ended(Result<E>),
}

struct Entry<W, E> {
    state: State<W, E>,
    /// Bit of the waiting slot.
    slot_bit: u64,
    waker: Option<Waker>,
}

/// Requests in flight with data `W`, which end with a value `E`. See the module documentation.
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
    /// Adds an entry for which a slot waits; returns its number.
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

    /// Data of an entry that has not ended.
    pub fn waiting(&self, number: u32) -> Option<&W> {
        match &self.entries.get(number as usize)?.state {
            State::Waiting(waiting) | State::Abandoned(waiting) => Some(waiting),
            State::Free | State::Ended(_) => None,
        }
    }

    /// Data of an entry that has not ended, mutable.
    pub fn waiting_mut(&mut self, number: u32) -> Option<&mut W> {
        match &mut self.entries.get_mut(number as usize)?.state {
            State::Waiting(waiting) | State::Abandoned(waiting) => Some(waiting),
            State::Free | State::Ended(_) => None,
        }
    }

    /// Takes the end, if there is one, and frees the entry. Otherwise `waker` is called at the end.
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

    /// Records that the future was dropped.
    fn abandon(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        match std::mem::replace(&mut entry.state, State::Free) {
            State::Waiting(waiting) => entry.state = State::Abandoned(waiting),
            State::Free | State::Abandoned(_) | State::Ended(_) => self.free.push(number),
        }
    }

    /// Ends an entry; returns the bit of the waiting slot.
    ///
    /// # Panics
    /// If it has already ended.
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

/// Future of the end of an entry. Dropping it abandons the entry.
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
