//! A compute server's access to memory servers by RDMA.
//!
//! [`VerbsFabric`] also has a [`TcpFabric`] to the same servers, over which it asks for queue pairs and sends
//! everything except one-sided verbs and calls. An endpoint has one queue pair for each server that it uses,
//! and one completion queue, which it polls.

mod buffers;
mod calls;
mod endpoint;
mod jobs;
mod link;

use std::sync::Arc;

use pando_fabric::{Fabric, FabricError, RegionInfo, Result};
use pando_fabric_net::{TcpConfig, TcpFabric, wait_for};

use crate::VerbsOptions;
use crate::device::Device;
pub use endpoint::VerbsEndpoint;

struct Shared {
    control: TcpFabric,
    device: Arc<Device>,
}

/// Memory servers accessed by RDMA. Clones share their state.
#[derive(Clone)]
pub struct VerbsFabric {
    shared: Arc<Shared>,
}

impl VerbsFabric {
    /// Connects to each memory server once, and pairs with it.
    ///
    /// # Errors
    /// As [`TcpFabric::connect`]; `Open` if there is no such device here or a memory server offers none,
    /// `System` if a server is not reachable by RDMA.
    pub fn connect(config: TcpConfig, options: &VerbsOptions) -> Result<Self> {
        let device = Device::open(options)?;
        let fabric = Self { shared: Arc::new(Shared { control: TcpFabric::connect(config)?, device }) };
        let ep = fabric.endpoint(0)?;
        for region in fabric.regions().iter().filter(|region| region.len > 0) {
            wait_for(&ep, ep.connect(region.server)).map_err(|error| {
                let path = format!("verbs: memory server {}", region.server);
                match error {
                    FabricError::Refused { reason, .. } => FabricError::Open { path, reason },
                    FabricError::NotConnected { reason, .. } => FabricError::System { path, reason },
                    other => other,
                }
            })?;
        }
        Ok(fabric)
    }

    /// The connections for everything except one-sided verbs and calls: liveness of processes, locks.
    pub fn control(&self) -> &TcpFabric {
        &self.shared.control
    }
}

impl Fabric for VerbsFabric {
    type Endpoint = VerbsEndpoint;

    /// Queue pairs are made when they are needed.
    fn endpoint(&self, seed: u64) -> Result<VerbsEndpoint> {
        VerbsEndpoint::new(Arc::clone(&self.shared), seed)
    }

    fn regions(&self) -> &[RegionInfo] {
        self.shared.control.regions()
    }
}

impl std::fmt::Debug for VerbsFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerbsFabric({:?} by {:?})", self.shared.control, self.shared.device)
    }
}
