//! Latency of operations: of all of them, or of a sample.
//!
//! If reading the clock takes time, only one operation in [`SAMPLED`] is timed. With several slots in flight,
//! the latency of an operation includes the work of the thread's other operations in the meantime.

use std::cell::{Cell, RefCell};

use hdrhistogram::Histogram;
use pando_fabric::Nanos;

use crate::under_test::Port;

/// One operation in this many is timed if reading the clock takes time.
pub const SAMPLED: u32 = 8;

/// Greatest recorded latency: one minute. Longer ones are recorded as this.
const NS_MAX: u64 = 60_000_000_000;

/// Histogram of latencies in nanoseconds, with three significant digits.
pub type Latency = Histogram<u64>;

/// Makes a histogram without latencies.
pub(crate) fn empty() -> Latency {
    Histogram::new_with_bounds(1, NS_MAX, 3).expect("a minute and three digits are valid bounds")
}

/// Times operations of one thread. Threads of a simulated cluster, which run on one thread of the host, share a
/// histogram: it takes 0.2 MB.
pub(crate) struct Stopwatch<'l> {
    until_next: Cell<u32>,
    latency: &'l RefCell<Latency>,
}

impl<'l> Stopwatch<'l> {
    /// Threads start at different positions, so that they do not read the clock in step.
    pub fn new(thread: usize, latency: &'l RefCell<Latency>) -> Self {
        Self { until_next: Cell::new(thread as u32 % SAMPLED), latency }
    }

    /// Starts an operation; returns the time if the operation is timed.
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

    /// Ends the operation that [`Stopwatch::start`] returned `started` for.
    #[inline]
    pub fn stop(&self, port: &impl Port, started: Option<Nanos>) {
        if let Some(started) = started {
            let ns = port.now().saturating_sub(started);
            self.latency.borrow_mut().saturating_record(ns.max(1));
        }
    }
}
