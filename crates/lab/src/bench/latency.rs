//! Latency of operations: of all of them, or sampled.
//!
//! Where looking at the clock takes time, it is looked at before and after one operation in [`SAMPLED`] only. With several
//! slots in flight the latency of an operation includes the time that the others of its thread took meanwhile.

use std::cell::{Cell, RefCell};

use hdrhistogram::Histogram;
use pando_fabric::Nanos;

use crate::under_test::Port;

/// Where a look at the clock costs time, one operation in this many is timed.
pub const SAMPLED: u32 = 8;

/// A minute. Longer latencies count as a minute.
const NS_MAX: u64 = 60_000_000_000;

/// Latencies in nanoseconds, three significant digits.
pub type Latency = Histogram<u64>;

/// No latencies yet.
pub(crate) fn empty() -> Latency {
    Histogram::new_with_bounds(1, NS_MAX, 3).expect("a minute and three digits are valid bounds")
}

/// Times operations of one thread.
pub(crate) struct Stopwatch {
    until_next: Cell<u32>,
    latency: RefCell<Latency>,
}

impl Stopwatch {
    /// Threads start at different places, so that they do not look at the clock in step.
    pub fn new(thread: usize) -> Stopwatch {
        Stopwatch { until_next: Cell::new(thread as u32 % SAMPLED), latency: RefCell::new(empty()) }
    }

    /// Call it when an operation starts: the time, if it is to be timed.
    #[inline]
    pub fn start(&self, port: &impl Port) -> Option<Nanos> {
        if port.is_clock_free() {
            return Some(port.now());
        }
        match self.until_next.get() {
            0 => {
                self.until_next.set(SAMPLED - 1);
                Some(port.now())
            }
            left => {
                self.until_next.set(left - 1);
                None
            }
        }
    }

    /// Call it when that operation has ended.
    #[inline]
    pub fn stop(&self, port: &impl Port, started: Option<Nanos>) {
        if let Some(started) = started {
            let ns = port.now().saturating_sub(started);
            self.latency.borrow_mut().saturating_record(ns.max(1));
        }
    }

    pub fn into_latency(self) -> Latency {
        self.latency.into_inner()
    }
}
