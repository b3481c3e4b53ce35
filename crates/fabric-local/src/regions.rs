//! The memory servers of one fabric: what all its endpoints share.
//!
//! Regions are numbered from 0 without gaps and stay mapped while any endpoint lives. Beside them stand the handler
//! of two-sided calls, which may be replaced at any time, and the zero of the endpoints' clock.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use pando_fabric::{FabricError, GlobalAddr, MemoryServerId, RegionInfo, RequestHandler, Result};

use crate::cores::Cores;
use crate::region::Region;

pub(crate) struct Regions {
    list: Arc<[Region]>,
    infos: Vec<RegionInfo>,
    cores: RwLock<Option<Arc<Cores>>>,
    started: Instant,
}

impl Regions {
    /// Memory servers 0, 1, ... in this order; at most `MAX_SERVERS`.
    pub(crate) fn new(list: Vec<Region>) -> Self {
        let infos = (0..)
            .zip(&list)
            .map(|(server, region)| RegionInfo { server: MemoryServerId(server), len: region.bytes() })
            .collect();
        Self { list: list.into(), infos, cores: RwLock::new(None), started: Instant::now() }
    }

    #[inline]
    pub(crate) fn of(&self, at: GlobalAddr) -> Result<&Region> {
        self.server(at.server())
    }

    #[inline]
    pub(crate) fn server(&self, server: MemoryServerId) -> Result<&Region> {
        self.list.get(usize::from(server.0)).ok_or(FabricError::UnknownServer(server))
    }

    pub(crate) fn list(&self) -> &[Region] {
        &self.list
    }

    pub(crate) fn infos(&self) -> &[RegionInfo] {
        &self.infos
    }

    /// Zero of the clock of all endpoints.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    pub(crate) fn cores(&self) -> Option<Arc<Cores>> {
        self.cores.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_handler(&self, handler: Arc<dyn RequestHandler>, threads: usize) -> Result<()> {
        self.replace(Some(Arc::new(Cores::start(Arc::clone(&self.list), handler, threads)?)));
        Ok(())
    }

    pub(crate) fn clear_handler(&self) {
        self.replace(None);
    }

    fn replace(&self, cores: Option<Arc<Cores>>) {
        let before =
            std::mem::replace(&mut *self.cores.write().unwrap_or_else(PoisonError::into_inner), cores);
        // Dropped after the lock: a handler may own an endpoint of this fabric.
        drop(before);
    }
}
