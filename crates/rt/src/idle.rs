//! What a thread does that polls in vain.
//!
//! It spins for as long as a verb may take, then offers its core to other threads: a worker that waits for another
//! one, on a machine with fewer cores than workers, must not keep it from running.

use std::hint::spin_loop;
use std::thread;

use pando_fabric::Endpoint;

/// Vain rounds that only spin, about a microsecond: the time in which a verb may come back.
const SPINS: u32 = 32;

/// Counts rounds in which nothing was ready.
#[derive(Default)]
pub(crate) struct Idle {
    rounds: u32,
}

impl Idle {
    /// Something was ready.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.rounds = 0;
    }

    /// Nothing was ready: spins at first, then sleeps if the endpoint can, or offers the core to other threads.
    #[inline]
    pub(crate) fn wait(&mut self, endpoint: &impl Endpoint) {
        if self.rounds < SPINS {
            self.rounds += 1;
            spin_loop();
        } else if !endpoint.idle() {
            thread::yield_now();
        }
    }
}

/// Offers the core to other threads once in a while although something is always ready. Slots that yield may be
/// waiting for a thread that has no core; the offer costs a system call, which must not show.
pub(crate) struct Courtesy {
    polls_left: u32,
    polls_between: u32,
}

impl Courtesy {
    pub(crate) fn every(polls: u32) -> Self {
        Self { polls_left: polls, polls_between: polls }
    }

    #[inline]
    pub(crate) fn count(&mut self, polls: u32) {
        match self.polls_left.checked_sub(polls) {
            Some(left) => self.polls_left = left,
            None => {
                self.polls_left = self.polls_between;
                thread::yield_now();
            }
        }
    }
}
