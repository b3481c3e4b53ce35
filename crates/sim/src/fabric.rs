//! A simulated cluster: its servers, its endpoints, and the execution of calls.
//!
//! The world is locked while an event happens in it, and never while a slot is polled or a handler executes a
//! call, since both use endpoints. The loop over the threads is in [`crate::run`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use pando_fabric::{
    Fabric, FabricError, GlobalAddr, Growing, LATER_MAX, MemoryServerId, Nanos, RegionInfo, RequestHandler,
    Result, ServerMemory,
};

use crate::endpoint::SimEndpoint;
use crate::events::Event;
use crate::faults::{Fault, FaultPlan};
use crate::model::{Compute, Model, ModelError};
use crate::op::OpId;
use crate::usage::Usage;
use crate::world::World;

/// Servers of a simulated cluster.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Bytes of the region of each memory server; multiples of 8.
    pub regions: Vec<u64>,
    pub compute_servers: usize,
    /// Seed of the torn verbs. The threads' random numbers are seeded with their endpoints.
    pub seed: u64,
    pub model: Model,
}

/// A cluster in virtual time. Only [`SimFabric::run`], or an executor that polls one endpoint, makes events
/// happen, so everything is a function of the seeds, the model and the code that runs.
pub struct SimFabric {
    pub(crate) shared: Arc<Shared>,
    compute_servers: usize,
}

/// State shared by the endpoints of a cluster.
pub(crate) struct Shared {
    world: Mutex<World>,
    /// The list of regions after each addition; the last list is current.
    regions: Growing<Vec<RegionInfo>>,
    pub compute: Compute,
    handler: Mutex<Option<Arc<dyn RequestHandler>>>,
    /// Work charged by direct endpoints since the current call began, in ns.
    call_ns: AtomicU64,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    pub fn regions(&self) -> &[RegionInfo] {
        &self.regions[self.regions.len() - 1]
    }

    pub fn next_time(&self) -> Option<Nanos> {
        self.world().next_time()
    }

    /// Lets the next event happen, unless it belongs to a run. Returns whether there was one.
    pub fn step(&self) -> bool {
        let mut world = self.world();
        match world.next_event() {
            None => return false,
            Some(Event::Handle(op)) => {
                drop(world);
                self.handle(op);
            }
            Some(Event::Run(_)) => {}
            Some(event) => {
                world.happen(event);
                let wakers = world.take_wakers();
                drop(world);
                wakers.into_iter().for_each(Waker::wake);
            }
        }
        true
    }

    /// Has the server's handler execute a call. The handler may use endpoints, so the world is not locked
    /// meanwhile.
    pub fn handle(&self, op: OpId) {
        let Some((server, mut call)) = self.world().take_call(op) else { return };
        self.call_ns.store(0, Relaxed);
        let result = self.execute(server, call.op, &call.body, &mut call.reply);
        if result.is_err() {
            call.reply.clear();
        }
        self.world().handled(op, call, result, self.call_ns.load(Relaxed));
    }

    /// Executes a request without regard to time.
    pub fn execute(&self, server: MemoryServerId, op: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        let handler = lock(&self.handler).clone();
        match handler {
            Some(handler) => {
                let region = self.world().region(server).ok_or(FabricError::UnknownServer(server))?;
                let charge = |work| self.charge_call(self.compute.cost(work));
                handler.handle(&ServerMemory::new(server, &region, &charge), op, body, reply)
            }
            None => {
                let reason = "it has no handler for requests".to_owned();
                Err(FabricError::Refused { server, op, reason })
            }
        }
    }

    /// Adds to the work of the current call.
    pub fn charge_call(&self, ns: Nanos) {
        self.call_ns.fetch_add(ns, Relaxed);
    }
}

impl SimFabric {
    /// Creates a cluster.
    ///
    /// # Errors
    /// [`ModelError`] for a model with which nothing would ever end, or if this machine has no memory for a
    /// region.
    ///
    /// # Panics
    /// If there is no compute server or no memory server, or a region is not a multiple of 8 bytes.
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
        let world = World::new(config.model.clone(), &config.regions, config.compute_servers, config.seed)?;
        let shared = Shared {
            world: Mutex::new(world),
            regions: Growing::new(vec![regions]),
            compute: config.model.compute.clone(),
            handler: Mutex::default(),
            call_ns: AtomicU64::new(0),
        };
        Ok(Self { shared: Arc::new(shared), compute_servers: config.compute_servers })
    }

    /// Adds a memory server with a region of `bytes` at the present time; returns its number. Threads may
    /// call this during a run; all endpoints reach the server at once. Its region is empty.
    ///
    /// # Errors
    /// [`ModelError::NoMemory`] if this machine has no memory for it.
    ///
    /// # Panics
    /// If `bytes` is not a multiple of 8, or more than [`LATER_MAX`] servers join.
    pub fn add_memory_server(&self, bytes: u64) -> Result<MemoryServerId, ModelError> {
        assert!(bytes.is_multiple_of(8), "regions are made of words");
        let shared = &self.shared;
        let mut world = shared.world();
        let mut regions = shared.regions().to_vec();
        let server = MemoryServerId(regions.len() as u16);
        assert!(shared.regions.len() <= LATER_MAX, "{LATER_MAX} memory servers have joined already");
        world.add_server(bytes)?;
        regions.push(RegionInfo { server, len: bytes });
        shared.regions.push(regions).expect("there is room, and the world is borrowed");
        Ok(server)
    }

    /// Creates an endpoint for a new thread of a compute server.
    ///
    /// # Panics
    /// If there is no such compute server.
    pub fn thread(&self, compute_server: usize, seed: u64) -> SimEndpoint {
        assert!(
            compute_server < self.compute_servers,
            "{compute_server} of {} servers",
            self.compute_servers
        );
        SimEndpoint::new(Arc::clone(&self.shared), Some(compute_server), seed)
    }

    /// Creates an endpoint outside of time, for loads, verification, audits and handlers of memory servers.
    /// Its verbs take effect at once, undivided, at the present, and never wait. Its calls reach the handler
    /// at once. All are counted. A server that is down does not answer it either. Work that a handler charges
    /// on it makes the current call longer; other work on it costs nothing. Several host threads may use such
    /// endpoints while nothing [runs](SimFabric::run).
    pub fn direct(&self, seed: u64) -> SimEndpoint {
        SimEndpoint::new(Arc::clone(&self.shared), None, seed)
    }

    /// A fabric whose endpoints are all direct, for handlers to keep: it does not keep the cluster's handler
    /// alive.
    pub fn direct_fabric(&self) -> DirectFabric {
        DirectFabric { shared: Arc::clone(&self.shared) }
    }

    /// Sets the handler of two-sided calls until this fabric is dropped. Without one, memory servers refuse
    /// calls.
    pub fn set_handler(&self, handler: Arc<dyn RequestHandler>) {
        *lock(&self.shared.handler) = Some(handler);
    }

    /// Stops a memory server, which then does not answer, or resumes it.
    pub fn set_down(&self, server: MemoryServerId, is_down: bool) {
        self.fail(if is_down { Fault::Stop { server } } else { Fault::Resume { server } });
    }

    /// Applies a fault now.
    ///
    /// # Panics
    /// If there is no such server.
    pub fn fail(&self, fault: Fault) {
        self.shared.world().apply(fault);
    }

    /// Schedules the faults of a plan.
    ///
    /// # Panics
    /// At the time of a fault, if there is no such server.
    pub fn plan(&self, plan: &FaultPlan) {
        let mut world = self.shared.world();
        plan.faults.iter().for_each(|&(at, fault)| world.add_fault(at, fault));
    }

    /// Places `bytes` at `at` in the memory of their server's NIC, where atomics need no PCIe transaction.
    ///
    /// # Errors
    /// [`ModelError::NoOnChipMemory`] if the total exceeds the NIC's memory
    /// ([`Network::on_chip_bytes`](crate::Network)), [`ModelError::OutOfRegion`].
    pub fn set_on_chip(&self, at: GlobalAddr, bytes: u64) -> Result<(), ModelError> {
        self.shared.world().set_on_chip(at, bytes)
    }

    /// Busy times of all resources so far.
    pub fn usage(&self) -> Usage {
        Usage::of(&self.shared.world())
    }

    /// Virtual time of the cluster.
    pub fn now(&self) -> Nanos {
        self.shared.world().now
    }
}

impl Fabric for SimFabric {
    type Endpoint = SimEndpoint;

    /// Creates a [direct](SimFabric::direct) endpoint, so that code for any fabric can load and check an
    /// index here as on a local fabric. A simulated thread has a [thread](SimFabric::thread) endpoint.
    fn endpoint(&self, seed: u64) -> Result<SimEndpoint> {
        Ok(self.direct(seed))
    }

    fn regions(&self) -> &[RegionInfo] {
        self.shared.regions()
    }
}

/// The handler may own the cluster's memory, which owns the handler: break the cycle.
impl Drop for SimFabric {
    fn drop(&mut self) {
        *lock(&self.shared.handler) = None;
    }
}

/// A simulated cluster outside of time: every endpoint is [direct](SimFabric::direct).
#[derive(Clone)]
pub struct DirectFabric {
    shared: Arc<Shared>,
}

impl Fabric for DirectFabric {
    type Endpoint = SimEndpoint;

    fn endpoint(&self, seed: u64) -> Result<SimEndpoint> {
        Ok(SimEndpoint::new(Arc::clone(&self.shared), None, seed))
    }

    fn regions(&self) -> &[RegionInfo] {
        self.shared.regions()
    }
}
