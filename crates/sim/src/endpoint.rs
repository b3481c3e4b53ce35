//! The endpoint of one simulated thread.
//!
//! It has a clock of its own, which runs ahead of the cluster's while its thread computes, and stands still while it
//! waits. A verb is refused at once, or posted at the thread's time; what becomes of it is the affair of
//! [`World`](crate::world::World).

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pando_fabric::{
    Buffers, Chain, Endpoint, FabricError, GlobalAddr, LINE, MemoryServerId, Nanos, PageBuf, Random,
    RegionInfo, Request, Result, VerbCounters, VerbResult, WORD, Work, yield_once,
};

use crate::fabric::Shared;
use crate::verb::Verb;
use crate::world::{Call, Op, OpId, WorkerId};

/// One thread of one simulated compute server.
pub struct SimEndpoint {
    pub(crate) shared: Arc<Shared>,
    pub(crate) worker: WorkerId,
    counters: VerbCounters,
    buffers: Buffers,
    random: Random,
    /// The thread's time.
    pub(crate) clock: Cell<Nanos>,
    slots: Cell<u32>,
    slot_bit: Cell<u64>,
    /// Slots that yielded.
    pub(crate) yielded: Cell<u64>,
}

impl SimEndpoint {
    pub(crate) fn new(shared: Arc<Shared>, compute_server: usize, seed: u64) -> Self {
        let (worker, now) = {
            let mut world = shared.world();
            (world.add_worker(compute_server), world.now)
        };
        Self {
            shared,
            worker,
            counters: VerbCounters::default(),
            buffers: Buffers::default(),
            random: Random::new(seed),
            clock: Cell::new(now),
            slots: Cell::new(1),
            slot_bit: Cell::new(1),
            yielded: Cell::new(0),
        }
    }

    fn spend(&self, ns: Nanos) {
        self.clock.set(self.clock.get() + ns);
    }

    fn region(&self, server: MemoryServerId) -> Result<RegionInfo> {
        self.shared.regions.get(usize::from(server.0)).copied().ok_or(FabricError::UnknownServer(server))
    }

    fn check(&self, at: GlobalAddr, len: usize) -> Result<()> {
        let region = self.region(at.server())?;
        if !at.offset().is_multiple_of(WORD as u64) || !len.is_multiple_of(WORD) {
            return Err(FabricError::Misaligned { at, len });
        }
        match at.offset().checked_add(len as u64) {
            Some(end) if end <= region.len => Ok(()),
            _ => Err(FabricError::OutOfRegion { at, len, region_len: region.len }),
        }
    }

    fn count(&self, verb: &Verb) {
        let bytes = verb.words() * WORD;
        match verb {
            Verb::Read { .. } | Verb::ReadWord { .. } => self.counters.count_read(bytes),
            Verb::Write { .. } | Verb::WriteWord { .. } => self.counters.count_write(bytes),
            Verb::MaskedSwap { .. } | Verb::FetchAdd { .. } => self.counters.count_atomic(),
        }
    }

    /// Posts an operation and waits for it.
    async fn perform(&self, server: MemoryServerId, verbs: Vec<Verb>, call: Option<Call>) -> Result<Op> {
        self.spend(self.shared.compute.post_ns);
        verbs.iter().for_each(|verb| self.count(verb));
        let poster = (self.worker, self.slot_bit.get());
        let id = self.shared.world().post(poster, self.clock.get(), server, verbs, call);
        let mut op = Completion { endpoint: self, op: Some(id) }.await;
        match op.error.take() {
            Some(error) => Err(error),
            None => Ok(op),
        }
    }

    async fn one(&self, verb: Verb) -> Result<VerbResult> {
        self.check(verb.at(), verb.words() * WORD)?;
        let server = verb.at().server();
        let mut op = self.perform(server, vec![verb], None).await?;
        Ok(op.results.pop().expect("one result for one verb"))
    }

    async fn buffer_of(&self, verb: Verb) -> Result<PageBuf> {
        match self.one(verb).await? {
            VerbResult::Buf(buf) => Ok(buf),
            other => unreachable!("a READ or WRITE gives its buffer back, not {other:?}"),
        }
    }

    async fn word_of(&self, verb: Verb) -> Result<u64> {
        match self.one(verb).await? {
            VerbResult::Word(word) => Ok(word),
            other => unreachable!("a verb of a word gives it back, not {other:?}"),
        }
    }
}

/// Waits for an operation. Dropped before, it leaves the operation to itself.
struct Completion<'e> {
    endpoint: &'e SimEndpoint,
    op: Option<OpId>,
}

impl Future for Completion<'_> {
    type Output = Op;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Op> {
        let id = self.op.expect("not polled again after its end");
        let done = self.endpoint.shared.world().take_done(id, cx.waker());
        match done {
            Some(op) => {
                self.op = None;
                Poll::Ready(op)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Completion<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.op {
            self.endpoint.shared.world().abandon(id);
        }
    }
}

impl Endpoint for SimEndpoint {
    fn buffer(&self, len: usize) -> PageBuf {
        self.buffers.take(len)
    }

    fn recycle(&self, buf: PageBuf) {
        self.buffers.put(buf);
    }

    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        self.buffer_of(Verb::Read { at, into }).await
    }

    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        self.buffer_of(Verb::Write { at, from }).await
    }

    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        self.word_of(Verb::ReadWord { at }).await
    }

    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.one(Verb::WriteWord { at, value }).await.map(drop)
    }

    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        self.word_of(Verb::swap(at, expected, new)).await
    }

    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64> {
        self.word_of(Verb::MaskedSwap { at, expected, compare_mask, new, swap_mask }).await
    }

    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        self.word_of(Verb::FetchAdd { at, add }).await
    }

    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        let Some(server) = chain.server() else { return Ok(Vec::new()) };
        let verbs: Vec<Verb> = chain.into_verbs().into_iter().map(Verb::from).collect();
        verbs.iter().try_for_each(|verb| self.check(verb.at(), verb.words() * WORD))?;
        Ok(self.perform(server, verbs, None).await?.results)
    }

    async fn call<R: Request>(&self, server: MemoryServerId, request: &R) -> Result<R::Reply> {
        self.region(server)?;
        let mut call = Call { op: R::OP, body: Vec::new(), reply: Vec::new() };
        request.encode(&mut call.body);
        let sent = call.body.len();
        let op = self.perform(server, Vec::new(), Some(call)).await;
        let reply = op.as_ref().ok().and_then(|op| op.call.as_ref()).map_or(&[][..], |call| &call.reply);
        self.counters.count_two_sided(sent + reply.len());
        request.decode_reply(server, op.map(|op| op.call.expect("it was one"))?.reply.as_slice())
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        let region_len = self.region(at.server())?.len;
        match at.offset().checked_add(len) {
            Some(end) if end <= region_len => Ok(()),
            _ => Err(FabricError::OutOfRegion { at, len: len as usize, region_len }),
        }
    }

    async fn yield_now(&self) {
        self.yielded.set(self.yielded.get() | self.slot_bit.get());
        yield_once().await;
    }

    fn regions(&self) -> &[RegionInfo] {
        &self.shared.regions
    }

    fn counters(&self) -> &VerbCounters {
        &self.counters
    }

    fn charge(&self, work: Work) {
        let compute = &self.shared.compute;
        self.spend(match work {
            Work::NodeSearch => compute.node_search_ns,
            Work::Copy { bytes } => compute.copy_line_ns * bytes.div_ceil(LINE) as u64,
            Work::Latch => compute.latch_ns,
            Work::Admit => compute.admit_ns,
            Work::Evict => compute.evict_ns,
            _ => 0,
        });
    }

    fn now(&self) -> Nanos {
        self.clock.get()
    }

    fn random(&self) -> u64 {
        self.random.next()
    }

    fn slots(&self) -> u32 {
        self.slots.get()
    }

    fn set_slots(&self, slots: u32) {
        self.slots.set(slots);
    }

    fn enter_slot(&self, slot: u32) {
        debug_assert!(slot < u64::BITS, "slot {slot} of 64");
        self.slot_bit.set(1 << slot);
    }

    /// Lets time pass until a slot of this worker is ready. Workers that run side by side are driven by
    /// [`SimFabric::run`](crate::SimFabric::run) instead.
    fn poll_ready(&self) -> u64 {
        self.spend(self.shared.compute.poll_ns);
        let mut ready = self.yielded.take();
        while self.shared.next_time().is_some_and(|at| ready == 0 || at <= self.clock.get()) {
            self.shared.step();
            ready |= self.shared.world().take_ready(self.worker);
        }
        ready |= self.shared.world().take_ready(self.worker);
        self.clock.set(self.clock.get().max(self.shared.world().now));
        ready
    }
}
