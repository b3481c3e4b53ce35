//! Preemption of threads: a thread stands still while it is polled, and all others continue.
//!
//! The loop over the threads then continues within the poll, without that thread, until the time at which it
//! gets its core back.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pando_fabric::{Nanos, Random};

use crate::op::WorkerId;
use crate::shared::Shared;

/// Preemption of computing threads. A thread that accesses a node or the mapping table of a cache
/// occasionally stands still, as if the system had taken its core away, while all others continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Preemption {
    pub seed: u64,
    /// One access in this many is preempted.
    pub one_in: u64,
    /// Longest preemption in ns. Short ones are as frequent as long ones.
    pub longest_ns: Nanos,
}

/// Maximum number of threads that stand still within a poll at a time: each occupies stack of the host.
const STANDING_MAX: u32 = 2;

thread_local! {
    /// The run with preemption on this host thread.
    static PREEMPTING: RefCell<Option<Rc<Preempting>>> = const { RefCell::new(None) };
}

pub(crate) struct Preempting {
    shared: Arc<Shared>,
    /// Runs the other threads until a given time.
    go: Box<dyn Fn(Nanos)>,
    preemption: Preemption,
    random: Random,
    /// Number of threads that stand still, and the time until which the innermost one does; it resumes first.
    standing: Cell<u32>,
    until: Cell<Nanos>,
}

/// Ends the preemption on this host thread, also on a panic.
pub(crate) struct EndPreempting;

impl Drop for EndPreempting {
    fn drop(&mut self) {
        PREEMPTING.take();
    }
}

impl Preempting {
    /// Preempts threads of `shared` until the result is dropped; `go` runs the others until a given time.
    pub fn begin(shared: Arc<Shared>, go: impl Fn(Nanos) + 'static, preemption: Preemption) -> EndPreempting {
        let preempting = Self {
            shared,
            go: Box::new(go),
            preemption,
            random: Random::new(preemption.seed),
            standing: Cell::new(0),
            until: Cell::new(Nanos::MAX),
        };
        PREEMPTING.set(Some(Rc::new(preempting)));
        EndPreempting
    }

    /// Draws whether a thread is preempted now, and for how long.
    fn draw(&self) -> Option<Nanos> {
        let Preemption { one_in, longest_ns, .. } = self.preemption;
        if self.standing.get() == STANDING_MAX || !(self.random.next() >> 20).is_multiple_of(one_in.max(1)) {
            return None;
        }
        let longest = longest_ns.max(1) >> ((self.random.next() >> 20) % 8);
        Some(1 + self.random.next() % longest.max(1))
    }
}

/// Lets a thread stand still from its time `at` on, or not; returns the time at which it continues.
#[cold]
pub(crate) fn preempt(shared: &Arc<Shared>, worker: WorkerId, at: Nanos) -> Nanos {
    let Some(preempting) = PREEMPTING.with_borrow(Option::clone) else { return at };
    if !Arc::ptr_eq(&preempting.shared, shared) {
        return at;
    }
    let Some(pause) = preempting.draw() else { return at };
    let outer = preempting.until.get();
    let until = (at + pause).min(outer);
    if until <= at {
        return at;
    }
    // It is not polled before that time.
    shared.world().worker(worker).free_at = until;
    preempting.standing.set(preempting.standing.get() + 1);
    preempting.until.set(until);
    (preempting.go)(until);
    preempting.standing.set(preempting.standing.get() - 1);
    preempting.until.set(outer);
    until
}
