//! Access of a thread to an index, as the driver uses it.
//!
//! A port has the clock that times operations, their time limit, and the counters of their verbs. On the
//! simulated cluster these are virtual time and simulated verbs.

use std::future::Future;
use std::sync::LazyLock;
use std::time::Instant;

use pando::{Session, VerbCounts};
use pando_fabric::{Endpoint, Limit, Nanos, limited};
use pando_rt::Worker;

use crate::copies::SimEndpoint;
use crate::spec::BenchError;

/// Origin of the clocks of all threads.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time of the host, in ns since the first call.
#[inline]
pub(crate) fn host_now() -> Nanos {
    EPOCH.elapsed().as_nanos() as Nanos
}

/// Makes a port for the calling thread.
pub(crate) type Connect<'c, P> = dyn Fn() -> Result<P, BenchError> + 'c;

/// Access of one thread to an index.
#[allow(async_fn_in_trait, reason = "a port belongs to one thread, and so do its futures")]
pub trait Port {
    /// Whether reading the clock is free, since time is virtual. Then every operation is timed, and a
    /// deadline is checked before each operation.
    fn is_clock_free(&self) -> bool;

    /// Time of the clock that times operations.
    fn now(&self) -> Nanos;

    /// Must be awaited after each operation: in virtual time, a thread whose operations never wait would run
    /// ahead of the others.
    async fn pace(&self);

    /// Verbs of this thread so far.
    fn verbs(&self) -> VerbCounts;

    /// Performs an operation within its time limit.
    fn limited<T>(&self, operation: impl Future<Output = T>) -> impl Future<Output = T>;

    /// Restarts the time limit of the current operation.
    fn renew_limit(&self) {}
}

/// A port for threads of this machine.
pub(crate) trait HostPort: Port {
    /// Runs a future in each of `slots` slots of the thread to completion.
    fn run_slots<F: Future>(&self, slots: usize, make: impl FnMut(u32) -> F) -> Result<(), BenchError>;

    /// Runs one future to completion.
    fn block_on<F: Future>(&self, future: F) -> F::Output;
}

/// An endpoint as a port.
pub struct EndpointPort<E> {
    pub ep: E,
    /// Time limit of an operation. `None` on a simulated cluster, which uses the endpoint's clock.
    operation_ns: Option<Nanos>,
}

/// A thread of a simulated cluster.
pub type SimPort = EndpointPort<SimEndpoint>;

impl<E> EndpointPort<E> {
    /// Port of a thread of a simulated cluster.
    pub fn simulated(ep: E) -> Self {
        Self { ep, operation_ns: None }
    }

    /// Port of a thread of this machine; each operation may take `operation_ns`.
    pub fn hosted(ep: E, operation_ns: Nanos) -> Self {
        Self { ep, operation_ns: Some(operation_ns) }
    }
}

impl<E: Endpoint> Port for EndpointPort<E> {
    fn is_clock_free(&self) -> bool {
        self.operation_ns.is_none()
    }

    fn now(&self) -> Nanos {
        if self.is_clock_free() { self.ep.now() } else { host_now() }
    }

    async fn pace(&self) {
        self.ep.pace().await;
    }

    fn verbs(&self) -> VerbCounts {
        self.ep.counters().snapshot()
    }

    async fn limited<T>(&self, operation: impl Future<Output = T>) -> T {
        match self.operation_ns {
            Some(ns) => limited(&self.ep, &Limit::new(ns), operation).await,
            None => operation.await,
        }
    }

    fn renew_limit(&self) {
        self.ep.renew_time_limit();
    }
}

impl<E: Endpoint> HostPort for EndpointPort<E> {
    fn run_slots<F: Future>(&self, slots: usize, make: impl FnMut(u32) -> F) -> Result<(), BenchError> {
        Worker::new(&self.ep, slots).run(make);
        Ok(())
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        pando_rt::block_on(&self.ep, future)
    }
}

/// A session limits its operations itself. Threads of this machine need no pacing.
impl Port for Session {
    #[inline]
    fn is_clock_free(&self) -> bool {
        false
    }

    #[inline]
    fn now(&self) -> Nanos {
        host_now()
    }

    #[inline]
    async fn pace(&self) {}

    fn verbs(&self) -> VerbCounts {
        Session::verbs(self)
    }

    #[inline]
    fn limited<T>(&self, operation: impl Future<Output = T>) -> impl Future<Output = T> {
        operation
    }
}

impl HostPort for Session {
    fn run_slots<F: Future>(&self, slots: usize, mut make: impl FnMut(u32) -> F) -> Result<(), BenchError> {
        self.in_flight(slots, |slot, _| make(slot))?;
        Ok(())
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        pando::block_on(self, future)
    }
}
