//! The verbs that a worker has, and where endpoints come from.
//!
//! The traits are used by static dispatch only: an operation on an index is one future, compiled for its fabric, without
//! a box or an allocation per verb. Time and random numbers come from the endpoint too, so that code above it runs the
//! same on real hardware and in a simulation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::{
    Chain, GlobalAddr, MemoryServerId, PageBuf, Request, Result, TimeLimit, VerbCounters, VerbResult,
};

/// Nanoseconds since some fixed moment, of real or of virtual time.
pub type Nanos = u64;

/// A memory server as a compute server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    pub server: MemoryServerId,
    /// Bytes of its region.
    pub len: u64,
}

/// Compute-side work that a simulated fabric charges in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// Search of one node: a level of a descent, or the leaf.
    NodeSearch,
    /// Copy of `bytes` of a node or a value.
    Copy { bytes: usize },
    /// So many entries handed to whoever scans.
    Entries { count: usize },
    /// A look at the mapping table of the cache.
    TableLookup,
    /// Looking whether the bytes of a page that was READ are a node.
    PageCheck,
    /// One acquisition of something that one worker of a compute server has at a time. Others wait for it.
    Hold(Resource),
    /// Admission of a page to the cache.
    Admit,
    /// One attempt to make a frame free: sampling, cooling, eviction.
    Evict,
}

/// What the workers of one compute server contend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// The exclusive latch of a cache frame.
    Frame(u32),
    /// A bucket of the cooling map.
    CoolingBucket(u32),
    /// The one queue in place of the cooling map, while a page is put in, taken out or evicted under its lock.
    CoolingQueue,
    /// A part of the local queues in front of remote locks.
    LockQueue(u32),
}

/// One worker thread's way to the memory servers. Not `Send`: counters, slots and randomness are the worker's own.
///
/// A worker runs up to 64 *slots*, each a future that loops over operations. A future that waits returns
/// `Pending`; when its verb completes, its bit shows up in [`Endpoint::poll_ready`]. A future may have several verbs
/// outstanding at once, whose own futures it polls side by side; the bit shows up for each. A future that is polled by a
/// foreign executor is woken through its waker instead, so an implementation does both.
#[allow(async_fn_in_trait, reason = "an endpoint belongs to one thread, and so do its futures")]
pub trait Endpoint {
    /// A registered buffer of `len` bytes (a multiple of 8), not necessarily zeroed.
    fn buffer(&self, len: usize) -> PageBuf;

    /// Gives a buffer back for reuse.
    fn recycle(&self, buf: PageBuf);

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

    /// Makes `len` bytes at `at` last: what completed verbs stored there outlives a crash of the memory server's machine
    /// once this has returned. Without it they may be lost, or be there before what was stored earlier. Does nothing
    /// where memory does not outlive the machine, which is what happens unless a fabric says otherwise.
    ///
    /// # Errors
    /// Any after which the bytes may or may not last.
    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        let _ = (at, len);
        Ok(())
    }

    /// Lets the other slots of this worker run.
    async fn yield_now(&self);

    /// Lets the other slots of this worker run until its clock shows `at`.
    async fn sleep_until(&self, at: Nanos) {
        while self.now() < at {
            self.yield_now().await;
        }
    }

    /// To be called between operations by whoever drives many workers: waits until nobody else is behind this worker's
    /// clock. Nothing on real fabrics, whose workers share one time; in a simulation operations that wait for no verb
    /// would run ahead of those of other workers without end.
    #[inline]
    async fn pace(&self) {}

    /// The memory servers, by ascending number. Some may join while the endpoint is in use, and none ever leaves.
    fn regions(&self) -> &[RegionInfo];

    fn counters(&self) -> &VerbCounters;

    /// Charges compute-side work; nothing on real fabrics.
    #[inline]
    fn charge(&self, _work: Work) {}

    fn now(&self) -> Nanos;

    /// Where the limit of the operation that is being polled is kept, if this endpoint keeps limits ([`crate::limited`]).
    #[inline]
    fn time_limit(&self) -> Option<&TimeLimit> {
        None
    }

    /// The operation that is being polled has come a step further ([`TimeLimit::renew`]).
    #[inline]
    fn renew_time_limit(&self) {
        if let Some(limit) = self.time_limit() {
            limit.renew();
        }
    }

    /// Whether the operation that is being polled has taken all the time that it may.
    #[inline]
    fn is_over(&self, now: Nanos) -> bool {
        self.time_limit().and_then(|limit| limit.over(now)).is_some_and(|over| over <= now)
    }

    /// Until when somebody waits who begins to at `now` and has so much `patience`: no longer than the operation may take that is
    /// being polled, but for a quarter of the patience in any case. An operation whose time is over has locks to give back.
    #[inline]
    fn wait_until(&self, now: Nanos, patience: Nanos) -> Nanos {
        let (least, until) = (now.saturating_add(patience / 4), now.saturating_add(patience));
        self.time_limit().and_then(|limit| limit.over(now)).map_or(until, |over| over.clamp(least, until))
    }

    /// The worker's own random numbers, seeded by the fabric.
    fn random(&self) -> u64;

    /// How many slots the worker runs; 1 until [`Endpoint::set_slots`].
    fn slots(&self) -> u32;

    /// Tells the endpoint how many slots its worker runs.
    fn set_slots(&self, slots: u32);

    /// Tells the endpoint which slot the executor polls next.
    fn enter_slot(&self, slot: u32);

    /// Rings doorbells, polls completions, and takes the bits of the slots that became ready.
    fn poll_ready(&self) -> u64;

    /// Called by an executor that has polled in vain for a while: may sleep until a verb completes, but for a millisecond at
    /// most, since a slot may be waiting for something else. Whether it did; if not, the executor offers the core to others.
    fn idle(&self) -> bool {
        false
    }
}

/// Where endpoints come from: the memory servers as one process reaches them.
pub trait Fabric: Send + Sync {
    type Endpoint: Endpoint;

    /// An endpoint for the calling thread; `seed` starts its random numbers.
    fn endpoint(&self, seed: u64) -> Result<Self::Endpoint>;

    fn regions(&self) -> &[RegionInfo];
}

/// A future that is pending once and wakes its waker at once: what [`Endpoint::yield_now`] does apart from slots.
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
