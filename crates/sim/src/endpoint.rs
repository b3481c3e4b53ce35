//! The endpoint of one simulated thread, and the direct endpoint outside of time.
//!
//! A thread has its own clock, which runs ahead of the cluster's while the thread computes and stands still
//! while it waits. A verb is refused at once, or posted at the thread's time; [`World`](crate::world::World)
//! executes it.
//!
//! A *direct* endpoint belongs to no thread. Its verbs take effect at once, undivided, at the present, and no
//! time passes. Work charged on it counts only while a memory server executes a call, which it makes longer.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::{Poll, Waker};

use pando_fabric::{
    Chain, Endpoint, EndpointState, FabricError, GlobalAddr, MemoryServerId, Nanos, PageBuf, RegionInfo,
    Result, VerbResult, WORD, Work,
};

use crate::events::Event;
use crate::op::{Call, Op, OpId, Poster, WorkerId};
use crate::preemption::preempt;
use crate::shared::Shared;
use crate::verb::Verb;

/// Time that passes with each yield on a direct endpoint, so that unsuccessful waits end.
const DIRECT_YIELD_NS: Nanos = 1_000;

/// One thread of a simulated compute server ([`SimFabric::thread`](crate::SimFabric::thread)), or direct
/// access to the memory ([`SimFabric::direct`](crate::SimFabric::direct)).
pub struct SimEndpoint {
    pub(crate) shared: Arc<Shared>,
    /// `None` if the endpoint is direct.
    pub(crate) worker: Option<WorkerId>,
    /// In this state, the ready slots are the ones that yielded.
    pub(crate) state: EndpointState,
    /// The thread's time, or the total waiting time of a direct endpoint.
    pub(crate) clock: Cell<Nanos>,
    /// Wakers of the slots during a run, which does not need to wake them.
    pub(crate) wakers: RefCell<Vec<Waker>>,
    /// Whether the slot polled last continues once the other workers have reached its time.
    pub(crate) paced: Cell<bool>,
    /// Whether the thread may be preempted where it computes ([`crate::Preemption`]).
    pub(crate) is_preemptible: Cell<bool>,
}

impl SimEndpoint {
    /// Creates a thread of a compute server, or a direct endpoint.
    pub(crate) fn new(shared: Arc<Shared>, compute_server: Option<usize>, seed: u64) -> Self {
        let mut world = shared.world();
        let worker = compute_server.map(|server| world.add_worker(server));
        let now = if worker.is_some() { world.now } else { 0 };
        drop(world);
        Self {
            shared,
            worker,
            state: EndpointState::new(seed),
            clock: Cell::new(now),
            wakers: RefCell::default(),
            paced: Cell::new(false),
            is_preemptible: Cell::new(false),
        }
    }

    #[inline]
    fn spend(&self, ns: Nanos) {
        self.clock.set(self.clock.get() + ns);
    }

    fn region(&self, server: MemoryServerId) -> Result<RegionInfo> {
        self.shared.regions().get(usize::from(server.0)).copied().ok_or(FabricError::UnknownServer(server))
    }

    fn check(&self, at: GlobalAddr, len: usize) -> Result<()> {
        self.region(at.server())?.check(at, len)
    }

    fn count(&self, verb: &Verb) {
        let bytes = verb.words() * WORD;
        match verb {
            Verb::Read { .. } | Verb::ReadWord { .. } => self.state.counters.count_read(bytes),
            Verb::Write { .. } | Verb::WriteWord { .. } => self.state.counters.count_write(bytes),
            Verb::MaskedSwap { .. } | Verb::FetchAdd { .. } => self.state.counters.count_atomic(),
        }
    }

    /// Posts an operation of a thread; `fill` sets its content.
    fn post(&self, worker: WorkerId, server: MemoryServerId, fill: impl FnOnce(&mut Op)) -> Posted<'_> {
        self.spend(self.shared.compute.post_ns);
        let server = usize::from(server.0);
        let poster = Poster { worker, slot_bit: self.state.slot_bit(), server, posted: self.clock.get() };
        Posted { endpoint: self, op: Some(self.shared.world().post(poster, fill)) }
    }

    async fn one(&self, verb: Verb) -> Result<VerbResult> {
        self.check(verb.at(), verb.words() * WORD)?;
        let server = verb.at().server();
        let Some(worker) = self.worker else { return self.one_direct(server, verb) };
        self.count(&verb);
        let posted = self.post(worker, server, |op| op.verbs.push(verb));
        posted.result(|op| op.results.pop().expect("one result for one verb")).await
    }

    /// Whether a waker belongs to the slot that a run is polling.
    fn is_own(&self, waker: &Waker) -> bool {
        let slot = self.state.slot_bit().trailing_zeros() as usize;
        self.wakers.borrow().get(slot).is_some_and(|own| own.will_wake(waker))
    }

    /// Lets time pass until the thread's clock reaches `at`, while its other slots continue. It serves events
    /// at a given time of a [run](crate::SimFabric::run), in a slot of that run. A direct endpoint does not
    /// wait.
    pub async fn sleep_until(&self, at: Nanos) {
        let Some(worker) = self.worker.filter(|_| self.clock.get() < at) else { return };
        let slot = self.state.slot_bit().trailing_zeros() as u8;
        self.shared.world().schedule(at, Event::Awake(worker, slot));
        // Verbs of other futures of this slot wake the slot too.
        while self.clock.get() < at {
            self.pause().await;
        }
    }

    /// Is pending once. In a run, the bit of the slot resumes it.
    async fn pause(&self) {
        let mut paused = false;
        std::future::poll_fn(|cx| {
            if std::mem::replace(&mut paused, true) {
                return Poll::Ready(());
            }
            if !self.is_own(cx.waker()) {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await;
    }

    fn one_direct(&self, server: MemoryServerId, verb: Verb) -> Result<VerbResult> {
        self.count(&verb);
        self.shared.world().take_effect_now(server, verb)
    }

    /// Executes a call at once and returns the body of the reply.
    fn call_direct(&self, server: MemoryServerId, op: u16, body: &[u8]) -> Result<Vec<u8>> {
        self.shared.world().check_up(server)?;
        let mut reply = Vec::new();
        self.shared.execute(server, op, body, &mut reply)?;
        Ok(reply)
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

/// A posted operation. If the future is dropped early, the operation still takes place.
struct Posted<'e> {
    endpoint: &'e SimEndpoint,
    op: Option<OpId>,
}

impl Posted<'_> {
    /// Waits until the operation has completed. Returns its error, or the value that `take` takes from it.
    async fn result<T>(mut self, take: impl FnOnce(&mut Op) -> T) -> Result<T> {
        let mut take = Some(take);
        std::future::poll_fn(|cx| {
            let id = self.op.expect("not polled again after its end");
            let waker = (!self.endpoint.is_own(cx.waker())).then(|| cx.waker());
            let mut world = self.endpoint.shared.world();
            let Some(op) = world.ops.take_done(id, waker) else { return Poll::Pending };
            let result = match op.error.take() {
                Some(error) => Err(error),
                None => Ok(take.take().expect("done only once")(op)),
            };
            world.ops.forget(id);
            self.op = None;
            Poll::Ready(result)
        })
        .await
    }
}

impl Drop for Posted<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.op {
            self.endpoint.shared.world().ops.abandon(id);
        }
    }
}

impl Endpoint for SimEndpoint {
    #[inline]
    fn state(&self) -> &EndpointState {
        &self.state
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
        match self.worker {
            Some(worker) => {
                verbs.iter().for_each(|verb| self.count(verb));
                let posted = self.post(worker, server, |op| op.verbs.extend(verbs));
                posted.result(|op| std::mem::take(&mut op.results)).await
            }
            None => verbs.into_iter().map(|verb| self.one_direct(server, verb)).collect(),
        }
    }

    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        self.region(server)?;
        let sent = body.len();
        let reply = match self.worker {
            None => self.call_direct(server, op, &body),
            Some(worker) => {
                let call = Call { op, body, reply: Vec::new() };
                let posted = self.post(worker, server, |op| op.call = Some(call));
                posted.result(|op| op.call.take().expect("it was one").reply).await
            }
        };
        self.state.counters.count_two_sided(sent + reply.as_ref().map_or(0, Vec::len));
        reply
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        let region_len = self.region(at.server())?.len;
        match at.offset().checked_add(len) {
            Some(end) if end <= region_len => Ok(()),
            _ => Err(FabricError::OutOfRegion { at, len: len as usize, region_len }),
        }
    }

    async fn yield_now(&self) {
        if self.worker.is_none() {
            self.spend(DIRECT_YIELD_NS);
        }
        self.state.make_ready(self.state.slot_bit());
        self.pause().await;
    }

    async fn sleep_until(&self, at: Nanos) {
        SimEndpoint::sleep_until(self, at).await;
        while self.now() < at {
            self.yield_now().await;
        }
    }

    async fn pace(&self) {
        if self.worker.is_some() && self.shared.next_time().is_some_and(|at| at < self.clock.get()) {
            self.paced.set(true);
            self.pause().await;
        }
    }

    fn regions(&self) -> &[RegionInfo] {
        self.shared.regions()
    }

    #[inline]
    fn charge(&self, work: Work) {
        match (self.worker, work) {
            (Some(worker), Work::Hold(resource)) => {
                let at = self.clock.get();
                self.clock.set(self.shared.world().hold(worker, resource, at));
            }
            (Some(worker), Work::Observe(resource)) => {
                let at = self.clock.get();
                self.clock.set(self.shared.world().observe(worker, resource, at));
            }
            (Some(worker), work) => {
                self.spend(self.shared.compute.cost(work));
                // Code that charges this work holds no latch.
                if self.is_preemptible.get() && matches!(work, Work::TableLookup | Work::NodeSearch) {
                    self.clock.set(preempt(&self.shared, worker, self.clock.get()));
                }
            }
            (None, work) => self.shared.charge_call(work),
        }
    }

    #[inline]
    fn now(&self) -> Nanos {
        match self.worker {
            Some(_) => self.clock.get(),
            None => self.shared.world().now + self.clock.get(),
        }
    }

    /// Lets time pass until a slot of this worker is ready. Concurrent workers are driven by
    /// [`SimFabric::run`](crate::SimFabric::run) instead.
    fn poll_ready(&self) -> u64 {
        let mut ready = self.state.take_ready();
        let Some(worker) = self.worker else { return ready };
        if self.paced.take() {
            ready |= self.state.slot_bit();
        } else {
            self.spend(self.shared.compute.poll_ns);
        }
        while self.shared.next_time().is_some_and(|at| ready == 0 || at <= self.clock.get()) {
            self.shared.step();
            ready |= self.shared.world().take_ready(worker);
        }
        ready |= self.shared.world().take_ready(worker);
        self.clock.set(self.clock.get().max(self.shared.world().now));
        ready
    }
}
