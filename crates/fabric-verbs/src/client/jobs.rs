//! Verbs and chains of one endpoint that are under way, with the buffers that the device uses meanwhile.
//!
//! An entry belongs to the future of its verb until that takes the end or is dropped. The buffers of a verb whose future is gone
//! stay here until the device is done with them. Entries are used again.

use std::task::Waker;

use pando_fabric::{GlobalAddr, PageBuf, Result};

use crate::queue::Work;

/// One work request: of a verb, or of a chain.
pub(super) struct Step {
    pub at: GlobalAddr,
    pub work: Work,
    /// Registered memory.
    pub buffer: PageBuf,
    /// The device's name for it.
    pub key: u32,
}

impl Step {
    /// Whether others may see that it was executed.
    pub fn changes(&self) -> bool {
        self.work != Work::Read
    }
}

/// What ends together.
pub(super) enum Job {
    One(Step),
    Chain(Vec<Step>),
}

impl Job {
    pub fn steps(&self) -> &[Step] {
        match self {
            Self::One(step) => std::slice::from_ref(step),
            Self::Chain(steps) => steps,
        }
    }
}

enum State {
    Free,
    Waiting(Job),
    /// Nobody waits any more.
    Abandoned(Job),
    Ended(Result<Job>),
}

struct Entry {
    state: State,
    /// Of the slot that waits.
    slot_bit: u64,
    waker: Option<Waker>,
}

#[derive(Default)]
pub(super) struct Jobs {
    entries: Vec<Entry>,
    free: Vec<u32>,
}

impl Jobs {
    /// Enters a job of a slot.
    pub fn enter(&mut self, job: Job, slot_bit: u64) -> u32 {
        let entry = Entry { state: State::Waiting(job), slot_bit, waker: None };
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

    /// The work requests of a job that has not ended.
    pub fn steps(&self, number: u32) -> &[Step] {
        match &self.entries[number as usize].state {
            State::Waiting(job) | State::Abandoned(job) => job.steps(),
            State::Free | State::Ended(_) => &[],
        }
    }

    /// How the job ended, if it did; the entry is free then. If not, `waker` will be woken.
    pub fn take(&mut self, number: u32, waker: &Waker) -> Option<Result<Job>> {
        let entry = &mut self.entries[number as usize];
        if let State::Ended(_) = entry.state
            && let State::Ended(ended) = std::mem::replace(&mut entry.state, State::Free)
        {
            self.free.push(number);
            return Some(ended);
        }
        if !entry.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            entry.waker = Some(waker.clone());
        }
        None
    }

    /// The future of the job is gone.
    pub fn abandon(&mut self, number: u32) {
        let entry = &mut self.entries[number as usize];
        match std::mem::replace(&mut entry.state, State::Free) {
            State::Waiting(job) => entry.state = State::Abandoned(job),
            State::Free | State::Abandoned(_) | State::Ended(_) => self.free.push(number),
        }
    }

    /// The device is done with a job; the bit of the slot that waits.
    pub fn end(&mut self, number: u32, result: Result<()>) -> u64 {
        let entry = &mut self.entries[number as usize];
        match std::mem::replace(&mut entry.state, State::Free) {
            State::Waiting(job) => {
                entry.state = State::Ended(result.map(|()| job));
                if let Some(waker) = entry.waker.take() {
                    waker.wake();
                }
                entry.slot_bit
            }
            State::Abandoned(_) => {
                self.free.push(number);
                0
            }
            State::Free | State::Ended(_) => unreachable!("a job ends once"),
        }
    }
}
