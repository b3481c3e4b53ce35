//! A simulated cluster: its servers and its endpoints.
//!
//! The state is in [`crate::shared`] and [`crate::world`], the loop over the threads in [`crate::run`]. What
//! changes the cluster from outside of time is here.

use std::sync::Arc;

use pando_fabric::{Fabric, GlobalAddr, MemoryServerId, Nanos, RegionInfo, RequestHandler, Result};

use crate::endpoint::SimEndpoint;
use crate::faults::{Fault, FaultPlan};
use crate::model::{Model, ModelError};
use crate::shared::Shared;
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
        let shared = Arc::new(Shared::new(world, regions));
        Ok(Self { shared, compute_servers: config.compute_servers })
    }

    /// Adds a memory server with a region of `bytes` at the present time; returns its number. Threads may
    /// call this during a run; all endpoints reach the server at once. Its region is empty.
    ///
    /// # Errors
    /// [`ModelError::NoMemory`] if this machine has no memory for it.
    ///
    /// # Panics
    /// If `bytes` is not a multiple of 8, or more than [`LATER_MAX`](pando_fabric::LATER_MAX) servers join.
    pub fn add_memory_server(&self, bytes: u64) -> Result<MemoryServerId, ModelError> {
        assert!(bytes.is_multiple_of(8), "regions are made of words");
        self.shared.add_server(bytes)
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
        self.shared.set_handler(Some(handler));
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
        self.shared.set_handler(None);
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
