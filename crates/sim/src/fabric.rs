//! A simulated cluster, and the loop that runs its threads.
//!
//! Whatever happens next in virtual time happens next, and that is all: an event of the network, or one poll of one slot of
//! one thread. Nothing is borrowed while a slot is polled, or while a handler executes a call.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pando_fabric::{
    Endpoint, Fabric, FabricError, MemoryServerId, Nanos, RegionInfo, RequestHandler, Result,
};

use crate::endpoint::SimEndpoint;
use crate::model::{Compute, Model, ModelError};
use crate::world::{Event, OpId, WorkerId, World};

/// Servers of a simulated cluster.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Bytes of the region of each memory server; multiples of 8.
    pub regions: Vec<u64>,
    pub compute_servers: usize,
    /// Decides what is torn. The threads' own random numbers are seeded with their endpoints.
    pub seed: u64,
    pub model: Model,
}

/// A cluster in virtual time. Nothing happens but what [`SimFabric::run`], or an executor that polls one endpoint, makes
/// happen; so everything is a function of the seeds, the model and the code that runs.
pub struct SimFabric {
    shared: Arc<Shared>,
    compute_servers: usize,
}

/// What the endpoints of a cluster share.
pub(crate) struct Shared {
    world: Mutex<World>,
    pub regions: Vec<RegionInfo>,
    pub compute: Compute,
    handler: Mutex<Option<Arc<dyn RequestHandler>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    pub fn next_time(&self) -> Option<Nanos> {
        self.world().next_time()
    }

    /// Lets the next event happen; the worker whose turn it is, if it is that.
    pub fn step(&self) -> Option<WorkerId> {
        let mut world = self.world();
        match world.next_event()? {
            Event::Arrive(op) => world.arrive(op),
            Event::Execute(op) => world.execute(op),
            Event::Handle(op) => {
                drop(world);
                self.handle(op);
                world = self.world();
            }
            Event::Complete(op) => world.complete(op),
            Event::Run(worker) => return Some(worker),
        }
        let wakers = world.take_wakers();
        drop(world);
        wakers.into_iter().for_each(Waker::wake);
        None
    }

    /// Has the server's handler execute a call. It may use endpoints, so the world is not borrowed meanwhile.
    fn handle(&self, op: OpId) {
        let (server, mut call) = self.world().take_call(op);
        let handler = lock(&self.handler).clone();
        let result = match handler {
            Some(handler) => handler.handle(server, call.op, &call.body, &mut call.reply),
            None => {
                let reason = "it has no handler for requests".to_owned();
                Err(FabricError::Refused { server, op: call.op, reason })
            }
        };
        if result.is_err() {
            call.reply.clear();
        }
        self.world().handled(op, call, result);
    }
}

impl SimFabric {
    /// # Errors
    /// [`ModelError`] for a model with which nothing would ever end.
    ///
    /// # Panics
    /// If there is no server of a kind, or a region is no multiple of 8 bytes.
    pub fn new(config: &SimConfig) -> Result<Self, ModelError> {
        config.model.check()?;
        assert!(
            config.compute_servers > 0 && !config.regions.is_empty(),
            "a cluster has servers of both kinds"
        );
        assert!(config.regions.iter().all(|len| len.is_multiple_of(8)), "regions are made of words");
        let regions = config.regions.iter().zip(0..);
        let regions =
            regions.map(|(&len, server)| RegionInfo { server: MemoryServerId(server), len }).collect();
        let world = World::new(config.model.clone(), &config.regions, config.compute_servers, config.seed);
        let shared = Shared {
            world: Mutex::new(world),
            regions,
            compute: config.model.compute.clone(),
            handler: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared), compute_servers: config.compute_servers })
    }

    /// An endpoint for one more thread of a compute server.
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn thread(&self, compute_server: usize, seed: u64) -> SimEndpoint {
        assert!(
            compute_server < self.compute_servers,
            "{compute_server} of {} servers",
            self.compute_servers
        );
        SimEndpoint::new(Arc::clone(&self.shared), compute_server, seed)
    }

    /// What the memory servers execute two-sided calls with; without one they refuse them.
    pub fn set_handler(&self, handler: Arc<dyn RequestHandler>) {
        *lock(&self.shared.handler) = Some(handler);
    }

    /// Stops a memory server, which then answers nothing, or lets it go on.
    pub fn set_down(&self, server: MemoryServerId, is_down: bool) {
        self.shared.world().set_down(usize::from(server.0), is_down);
    }

    /// Virtual time of the cluster.
    pub fn now(&self) -> Nanos {
        self.shared.world().now
    }

    /// Runs `slots` futures on each of the threads, side by side in virtual time, to their ends; their outputs by
    /// thread and slot. Nothing else may use these endpoints meanwhile.
    ///
    /// # Panics
    /// If all futures wait and nothing is under way that could wake one, or if `slots` is not 1 to 64.
    pub fn run<F: Future>(
        &self,
        threads: &[&SimEndpoint],
        slots: u32,
        mut make: impl FnMut(usize, u32) -> F,
    ) -> Vec<Vec<F::Output>> {
        assert!((1..=u64::BITS).contains(&slots), "a thread has 1 to 64 slots, not {slots}");
        let woken = Arc::new(Woken::default());
        let mut runs: Vec<_> = threads
            .iter()
            .enumerate()
            .map(|(thread, ep)| Run::new(ep, (0..slots).map(|slot| make(thread, slot)), &woken))
            .collect();
        let of_worker: HashMap<WorkerId, usize> =
            threads.iter().zip(0..).map(|(ep, thread)| (ep.worker, thread)).collect();
        for ep in threads {
            ep.set_slots(slots);
            let mut world = self.shared.world();
            world.drive(ep.worker, true);
            world.make_ready(ep.worker, u64::MAX >> (u64::BITS - slots));
        }
        let mut live = runs.len() * slots as usize;
        while live > 0 {
            assert!(self.shared.next_time().is_some(), "{live} futures wait for nothing that is under way");
            if let Some(worker) = self.shared.step() {
                live -= usize::from(runs[of_worker[&worker]].poll_one(&self.shared));
            }
            for (worker, slot) in woken.take() {
                self.shared.world().make_ready(worker, 1 << slot);
            }
        }
        for ep in threads {
            self.shared.world().drive(ep.worker, false);
            ep.set_slots(1);
            ep.enter_slot(0);
        }
        runs.into_iter().map(Run::outputs).collect()
    }
}

impl Fabric for SimFabric {
    type Endpoint = SimEndpoint;

    /// A thread of the first compute server.
    fn endpoint(&self, seed: u64) -> Result<SimEndpoint> {
        Ok(self.thread(0, seed))
    }

    fn regions(&self) -> &[RegionInfo] {
        &self.shared.regions
    }
}

/// One thread of [`SimFabric::run`].
struct Run<'e, F: Future> {
    endpoint: &'e SimEndpoint,
    slots: Vec<Slot<F>>,
    last: u32,
}

struct Slot<F: Future> {
    future: Option<Pin<Box<F>>>,
    output: Option<F::Output>,
    waker: Waker,
}

impl<'e, F: Future> Run<'e, F> {
    fn new(endpoint: &'e SimEndpoint, futures: impl Iterator<Item = F>, woken: &Arc<Woken>) -> Self {
        let slots = futures.zip(0..).map(|(future, slot)| Slot {
            future: Some(Box::pin(future)),
            output: None,
            waker: Waker::from(Arc::new(SlotWaker {
                worker: endpoint.worker,
                slot,
                woken: Arc::clone(woken),
            })),
        });
        Self { endpoint, slots: slots.collect(), last: 63 }
    }

    /// Polls the next ready slot at the time that the cluster has come to; whether its future ended.
    fn poll_one(&mut self, shared: &Shared) -> bool {
        let ep = self.endpoint;
        let (slot, now) = {
            let mut world = shared.world();
            (world.take_slot(ep.worker, self.last), world.now)
        };
        let Some(slot) = slot else { return false };
        self.last = slot;
        ep.clock.set(now);
        ep.enter_slot(slot);
        let ended = self.slots[slot as usize].poll();
        let free_at = ep.clock.get() + shared.compute.poll_ns;
        shared.world().polled(ep.worker, free_at, ep.yielded.take());
        ended
    }

    fn outputs(self) -> Vec<F::Output> {
        self.slots.into_iter().map(|slot| slot.output.expect("every slot ran to its end")).collect()
    }
}

impl<F: Future> Slot<F> {
    /// Whether the future ended by this poll.
    fn poll(&mut self) -> bool {
        let Some(future) = &mut self.future else { return false };
        match future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Pending => false,
            Poll::Ready(output) => {
                self.output = Some(output);
                self.future = None;
                true
            }
        }
    }
}

/// Slots whose wakers were called, for futures that wait for something else than verbs.
#[derive(Default)]
struct Woken {
    any: AtomicBool,
    slots: Mutex<Vec<(WorkerId, u32)>>,
}

impl Woken {
    fn take(&self) -> Vec<(WorkerId, u32)> {
        match self.any.swap(false, Relaxed) {
            true => std::mem::take(&mut *lock(&self.slots)),
            false => Vec::new(),
        }
    }
}

struct SlotWaker {
    worker: WorkerId,
    slot: u32,
    woken: Arc<Woken>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        lock(&self.woken.slots).push((self.worker, self.slot));
        self.woken.any.store(true, Relaxed);
    }
}
