//! The verbs that a worker has, and where endpoints come from.
//!
//! The traits are used by static dispatch only: an operation on an index is one future, compiled for its fabric, without
//! a box or an allocation per verb. Time and random numbers come from the endpoint too, so that code above it runs the
//! same on real hardware and in a simulation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{
    Chain, EndpointState, FabricError, GlobalAddr, MemoryServerId, Nanos, PageBuf, Request, Result,
    TimeLimit, VerbCounters, VerbResult, WORD, Work,
};

/// A memory server as a compute server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    pub server: MemoryServerId,
    /// Bytes of its region.
    pub len: u64,
}

impl RegionInfo {
    /// Checks that a verb on `len` bytes at `at` stays within the region.
    ///
    /// # Errors
    /// `Misaligned`, `OutOfRegion`.
    #[inline]
    pub fn check(&self, at: GlobalAddr, len: usize) -> Result<()> {
        if !at.offset().is_multiple_of(WORD as u64) || !len.is_multiple_of(WORD) {
            return Err(FabricError::Misaligned { at, len });
        }
        if len as u64 > self.len || at.offset() > self.len - len as u64 {
            return Err(FabricError::OutOfRegion { at, len, region_len: self.len });
        }
        Ok(())
    }
}

/// One worker thread's way to the memory servers. Not `Send`: counters, slots and randomness are the worker's own.
///
/// A worker runs up to 64 *slots*, each a future that loops over operations. A future that waits returns
/// `Pending`; when its verb completes, its bit shows up in [`Endpoint::poll_ready`]. A future may have several verbs
/// outstanding at once, whose own futures it polls side by side; the bit shows up for each. A future that is polled by a
/// foreign executor is woken through its waker instead, so an implementation does both.
#[allow(async_fn_in_trait, reason = "an endpoint belongs to one thread, and so do its futures")]
pub trait Endpoint {
    /// The state that the default methods work on.
    fn state(&self) -> &EndpointState;

    /// A registered buffer of `len` bytes (a multiple of 8), not necessarily zeroed.
    #[inline]
    fn buffer(&self, len: usize) -> PageBuf {
        self.state().buffers.take(len)
    }

    /// Gives a buffer back for reuse.
    #[inline]
    fn recycle(&self, buf: PageBuf) {
        self.state().buffers.put(buf);
    }

    /// READ: fills the window of `into` from `at` on.
    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf>;

    /// WRITE: stores the window of `from` from `at` on.
    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf>;

    /// READ of one word.
    async fn read_word(&self, at: GlobalAddr) -> Result<u64>;

    /// WRITE of one word.
    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()>;

    /// Stores `new` if the word at `at` is `expected`; the word before either way.
    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64>;

    /// Compares the bits of `compare_mask` only and swaps those of `swap_mask` only; the word before either way.
    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64>;

    /// Adds, wrapping; the word before.
    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64>;

    /// Executes a chain; one result per verb, in order.
    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>>;

    /// Two-sided call.
    async fn call<R: Request>(&self, server: MemoryServerId, request: &R) -> Result<R::Reply>;

    /// Makes sure that `len` bytes at `at` are backed by memory, so that a later WRITE cannot run out of it.
    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()>;

    /// Makes `len` bytes at `at` durable: once this has returned, what completed verbs stored there outlives a crash of the
    /// memory server's machine. Without it those bytes may be lost, or become durable before bytes that were stored earlier.
    /// The default does nothing, for fabrics whose memory does not outlive the machine.
    ///
    /// # Errors
    /// After any error the bytes may or may not be durable.
    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        let _ = (at, len);
        Ok(())
    }

    /// Lets the other slots of this worker run.
    #[inline]
    async fn yield_now(&self) {
        let state = self.state();
        state.make_ready(state.slot_bit());
        yield_once().await;
    }

    /// Lets the other slots of this worker run until its clock shows `at`.
    async fn sleep_until(&self, at: Nanos) {
        while self.now() < at {
            self.yield_now().await;
        }
    }

    /// Waits until no other worker is behind this worker's clock. A driver of several workers calls it between operations.
    /// It does nothing on real fabrics, whose workers share one time. In a simulation, a worker whose operations wait for no
    /// verb would otherwise run arbitrarily far ahead of the others.
    #[inline]
    async fn pace(&self) {}

    /// The memory servers, by ascending number. Some may join while the endpoint is in use, and none ever leaves.
    fn regions(&self) -> &[RegionInfo];

    #[inline]
    fn counters(&self) -> &VerbCounters {
        &self.state().counters
    }

    /// Charges compute-side work. Does nothing on real fabrics.
    #[inline]
    fn charge(&self, _work: Work) {}

    fn now(&self) -> Nanos;

    /// Time limit of the operation that is being polled, if this endpoint keeps limits ([`crate::limited`]).
    #[inline]
    fn time_limit(&self) -> Option<&TimeLimit> {
        None
    }

    /// Starts the time of the operation that is being polled anew, because it made progress ([`TimeLimit::renew`]).
    #[inline]
    fn renew_time_limit(&self) {
        if let Some(limit) = self.time_limit() {
            limit.renew();
        }
    }

    /// Whether the time of the operation that is being polled is used up.
    #[inline]
    fn is_over(&self, now: Nanos) -> bool {
        self.time_limit().and_then(|limit| limit.over(now)).is_some_and(|over| over <= now)
    }

    /// Latest time that a wait of at most `patience` starting at `now` may last: no longer than the operation that is being
    /// polled may take, but at least a quarter of `patience`, since an operation whose time is up has locks to release.
    #[inline]
    fn wait_until(&self, now: Nanos, patience: Nanos) -> Nanos {
        let (least, until) = (now.saturating_add(patience / 4), now.saturating_add(patience));
        self.time_limit().and_then(|limit| limit.over(now)).map_or(until, |over| over.clamp(least, until))
    }

    /// Next random number of the worker, whose seed came from [`Fabric::endpoint`].
    #[inline]
    fn random(&self) -> u64 {
        self.state().random.next()
    }

    /// Number of slots that the worker runs; 1 until [`Endpoint::set_slots`].
    #[inline]
    fn slots(&self) -> u32 {
        self.state().slots.get()
    }

    /// Tells the endpoint how many slots its worker runs.
    fn set_slots(&self, slots: u32) {
        self.state().slots.set(slots);
    }

    /// Tells the endpoint which slot the executor polls next.
    #[inline]
    fn enter_slot(&self, slot: u32) {
        self.state().enter_slot(slot);
    }

    /// Rings doorbells, polls completions, and takes the bits of the slots that became ready. The default is for fabrics
    /// whose verbs complete at once.
    #[inline]
    fn poll_ready(&self) -> u64 {
        self.state().take_ready()
    }

    /// Called by an executor that has polled in vain for a while. May sleep until a verb completes, but for a millisecond at
    /// most, since a slot may wait for something else. Returns whether it slept; if not, the executor yields its core.
    fn idle(&self) -> bool {
        false
    }
}

/// The memory servers as one process reaches them. It makes endpoints.
pub trait Fabric: Send + Sync {
    type Endpoint: Endpoint;

    /// An endpoint for the calling thread; `seed` starts its random numbers.
    fn endpoint(&self, seed: u64) -> Result<Self::Endpoint>;

    fn regions(&self) -> &[RegionInfo];
}

/// A future that is pending once and wakes its waker at once. [`Endpoint::yield_now`] awaits it after marking its slot ready.
pub fn yield_once() -> impl Future<Output = ()> {
    struct YieldOnce(bool);
    impl Future for YieldOnce {
        type Output = ();
        #[inline]
        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
            if self.0 {
                return Poll::Ready(());
            }
            self.0 = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        }
    }
    YieldOnce(false)
}
