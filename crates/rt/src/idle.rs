//! Behaviour of a thread without ready work.
//!
//! It spins for about as long as a verb takes, then offers its core to other threads: on a machine with fewer
//! cores than workers, a waiting worker must not keep another one from running.

use std::hint::spin_loop;
use std::thread;

use pando_fabric::Endpoint;

/// Rounds that only spin, about a microsecond in all: the time in which a verb may complete.
const SPINS: u32 = 32;

/// Counts rounds without ready work.
#[derive(Default)]
pub(crate) struct Idle {
    rounds: u32,
}

impl Idle {
    /// Resets the count: there is ready work.
    #[inline]
    pub(crate) fn reset(&mut self) {
        self.rounds = 0;
    }

    /// Waits a little: spins at first, then sleeps if the endpoint can, or offers the core to other threads.
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

/// Offers the core to other threads once in a while although there is always ready work. Slots that yield may
/// be waiting for a thread that has no core. The offer costs a system call, so it must be rare.
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
