//! The verbs of a worker, and the fabrics that create endpoints.
//!
//! The traits are used by static dispatch only: an operation on an index is one future, compiled for its
//! fabric, without a box or an allocation per verb. Time and random numbers also come from the endpoint, so
//! the code above runs unchanged on real hardware and in a simulation.

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

/// One worker thread's access to the memory servers. Counters, slots and random numbers belong to the worker,
/// so an endpoint is used by one thread at a time.
///
/// A worker runs up to 64 *slots*, each a future that loops over operations. A waiting future returns
/// `Pending`; when its verb completes, the bit of its slot appears in [`Endpoint::poll_ready`]. A future may
/// have several verbs in flight and poll their futures side by side; the bit appears for each. A future that
/// is polled by a foreign executor is woken through its waker, so an implementation does both.
#[allow(async_fn_in_trait, reason = "an endpoint belongs to one thread, and so do its futures")]
pub trait Endpoint {
    /// State used by the default methods.
    fn state(&self) -> &EndpointState;

    /// Takes a registered buffer of `len` bytes (a multiple of 8) with unspecified content.
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

    /// WRITE of bytes that nobody reads before it is answered, unless this process is dead by then. If it fails, or is not
    /// answered, copies of the bytes may differ.
    #[inline]
    async fn write_unread(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        self.write(at, from).await
    }

    /// WRITE that has taken effect when this returns, of whole words given as little-endian bytes. `false`, without an effect,
    /// if that is not possible: the memory is not mapped here, or the verb is refused.
    #[inline]
    fn write_now(&self, _at: GlobalAddr, _bytes: &[u8]) -> bool {
        false
    }

    /// A hint: these bytes will be written a few at a time, in order, and persisted often.
    fn expect_appends(&self, _at: GlobalAddr, _len: u64) {}

    /// WRITE of bytes that end with the word that gives a lock back: from then on, others may change them. So if it may have
    /// taken effect, it must not be sent again before the caller has looked at the lock.
    #[inline]
    async fn write_unlocking(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        self.write(at, from).await
    }

    /// READ of one word.
    async fn read_word(&self, at: GlobalAddr) -> Result<u64>;

    /// WRITE of one word.
    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()>;

    /// Stores `new` if the word at `at` is `expected`. Returns the word before in both cases.
    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64>;

    /// Compares only the bits of `compare_mask` and swaps only those of `swap_mask`. Returns the word before
    /// in both cases.
    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64>;

    /// Adds to the word at `at`, wrapping. Returns the word before.
    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64>;

    /// Executes a chain. Returns one result per verb, in order.
    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>>;

    /// Executes a two-sided call: operation `op` with `body`. Returns the bytes of the reply.
    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>>;

    /// Executes a two-sided call.
    async fn call<R: Request>(&self, server: MemoryServerId, request: &R) -> Result<R::Reply> {
        let mut body = Vec::new();
        request.encode(&mut body);
        request.decode_reply(server, &self.call_bytes(server, R::OP, body).await?)
    }

    /// Backs `len` bytes at `at` with memory, so that a later WRITE there cannot run out of space.
    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()>;

    /// Makes `len` bytes at `at` durable: after it returns, the effects of verbs that had completed there
    /// survive a crash of the memory server's machine. Without it those bytes may be lost, or become durable
    /// before bytes that were stored earlier. The default does nothing, for fabrics whose memory does not
    /// outlive the machine.
    ///
    /// # Errors
    /// After an error the bytes may or may not be durable.
    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        let _ = (at, len);
        Ok(())
    }

    /// Verbs that are sent from now on belong to view `epoch` of the memory servers, or a later one; those in flight
    /// that belong to an earlier view fail. Ignored by fabrics whose memory servers know of no views.
    fn enter_view(&self, epoch: u64) {
        let _ = epoch;
    }

    /// Tells this process's endpoints whether the pool uses a memory server. One that is not in use need not be there: verbs
    /// to it may be refused, nobody is fenced off there, and nothing is persisted.
    fn set_in_use(&self, _server: MemoryServerId, _is_in_use: bool) {}

    /// Lets the other slots of this worker run.
    #[inline]
    async fn yield_now(&self) {
        let state = self.state();
        state.make_ready(state.slot_bit());
        yield_once().await;
    }

    /// Lets the other slots of this worker run until the clock reaches `at`.
    async fn sleep_until(&self, at: Nanos) {
        while self.now() < at {
            self.yield_now().await;
        }
    }

    /// Waits until no other worker is behind this worker's clock. A driver of several workers calls it
    /// between operations. It does nothing on real fabrics, whose workers share one time. In a simulation, a
    /// worker whose operations wait for no verb would otherwise run arbitrarily far ahead.
    #[inline]
    async fn pace(&self) {}

    /// The memory servers, by ascending number. Servers may join while the endpoint is in use. One that is
    /// [not in use](Endpoint::set_in_use) keeps its place, and has no bytes if it was never reached.
    fn regions(&self) -> &[RegionInfo];

    #[inline]
    fn counters(&self) -> &VerbCounters {
        &self.state().counters
    }

    /// Charges compute-side work. Real fabrics ignore it.
    #[inline]
    fn charge(&self, _work: Work) {}

    fn now(&self) -> Nanos;

    /// Time limit of the operation that is being polled, if the endpoint keeps limits ([`crate::limited`]).
    #[inline]
    fn time_limit(&self) -> Option<&TimeLimit> {
        None
    }

    /// Restarts the time of the operation that is being polled, because it made progress
    /// ([`TimeLimit::renew`]).
    #[inline]
    fn renew_time_limit(&self) {
        if let Some(limit) = self.time_limit() {
            limit.renew();
        }
    }

    /// Whether the operation that is being polled has used up its time.
    #[inline]
    fn is_over(&self, now: Nanos) -> bool {
        self.time_limit().and_then(|limit| limit.over(now)).is_some_and(|over| over <= now)
    }

    /// Latest time that a wait of at most `patience` starting at `now` may last. It ends with the time limit
    /// of the operation that is being polled, but lasts at least a quarter of `patience`: an operation whose
    /// time is up still has locks to release.
    #[inline]
    fn wait_until(&self, now: Nanos, patience: Nanos) -> Nanos {
        let (least, until) = (now.saturating_add(patience / 4), now.saturating_add(patience));
        self.time_limit().and_then(|limit| limit.over(now)).map_or(until, |over| over.clamp(least, until))
    }

    /// Next random number of the worker. [`Fabric::endpoint`] seeds the generator.
    #[inline]
    fn random(&self) -> u64 {
        self.state().random.next()
    }

    /// Number of slots of the worker; 1 until [`Endpoint::set_slots`].
    #[inline]
    fn slots(&self) -> u32 {
        self.state().slots.get()
    }

    /// Sets the number of slots of the worker.
    fn set_slots(&self, slots: u32) {
        self.state().slots.set(slots);
    }

    /// Sets the slot that the executor polls next.
    #[inline]
    fn enter_slot(&self, slot: u32) {
        self.state().enter_slot(slot);
    }

    /// Rings doorbells, polls completions, and takes the bits of the slots that became ready. The default
    /// suits fabrics whose verbs complete at once.
    #[inline]
    fn poll_ready(&self) -> u64 {
        self.state().take_ready()
    }

    /// Called by an executor that has polled without success for a while. May sleep until a verb completes,
    /// but for at most a millisecond, since a slot may wait for something else. Returns whether it slept; if
    /// not, the executor yields its core.
    fn idle(&self) -> bool {
        false
    }
}

/// A process's access to the memory servers. It creates endpoints.
pub trait Fabric: Send + Sync {
    type Endpoint: Endpoint;

    /// Creates an endpoint for the calling thread. `seed` seeds its random numbers.
    fn endpoint(&self, seed: u64) -> Result<Self::Endpoint>;

    fn regions(&self) -> &[RegionInfo];
}

/// A future that is pending once and wakes its waker at once. [`Endpoint::yield_now`] awaits it after marking
/// its slot ready.
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
