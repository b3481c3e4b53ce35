//! The memory servers of one fabric: what all its endpoints share.
//!
//! Regions are numbered from 0 without gaps and stay mapped while any endpoint lives; more may join at any time. Beside
//! them stand the handler of two-sided calls, which may be replaced at any time, and the zero of the endpoints' clock.
//!
//! Where regions are files, another process may have added one. Who comes upon an address on a memory server that is
//! not mapped here looks whether there is such a file by now.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use pando_fabric::{
    FabricError, GlobalAddr, Growing, LATER_MAX, MemoryServerId, RegionInfo, RequestHandler, Result,
};

use crate::cores::Cores;
use crate::region::{Region, open_error};

/// Finds the region of memory server `n`, if one was added since; told the number.
type Finder = Box<dyn Fn(usize) -> Result<Option<Region>> + Send + Sync>;

pub(crate) struct Regions {
    list: Arc<Growing<Region>>,
    /// All infos as they were after each addition; the last list is the present one.
    infos: Growing<Vec<RegionInfo>>,
    cores: RwLock<Option<Arc<Cores>>>,
    /// One addition at a time.
    adding: Mutex<()>,
    finder: Option<Finder>,
    name: PathBuf,
    started: Instant,
}

impl Regions {
    /// Memory servers 0, 1, ... in this order, at most `MAX_SERVERS`, of the pool called `name`.
    pub(crate) fn new(list: Vec<Region>, name: &Path) -> Self {
        let infos = (0..).zip(&list).map(|(server, region)| info(server, region)).collect();
        Self {
            list: Arc::new(Growing::new(list)),
            infos: Growing::new(vec![infos]),
            cores: RwLock::new(None),
            adding: Mutex::new(()),
            finder: None,
            name: name.to_owned(),
            started: Instant::now(),
        }
    }

    /// The same, where others may add regions too.
    pub(crate) fn with_finder(mut self, finder: Finder) -> Self {
        self.finder = Some(finder);
        self
    }

    #[inline]
    pub(crate) fn of(&self, at: GlobalAddr) -> Result<&Region> {
        self.server(at.server())
    }

    #[inline]
    pub(crate) fn server(&self, server: MemoryServerId) -> Result<&Region> {
        match self.list.get(usize::from(server.0)) {
            Some(region) => Ok(region),
            None => self.find(server),
        }
    }

    /// A region that others may have added.
    #[cold]
    fn find(&self, server: MemoryServerId) -> Result<&Region> {
        self.look_for_more(usize::from(server.0))?;
        self.list.get(usize::from(server.0)).ok_or(FabricError::UnknownServer(server))
    }

    /// Maps the regions that others added, up to that of memory server `last`.
    fn look_for_more(&self, last: usize) -> Result<()> {
        let Some(finder) = &self.finder else { return Ok(()) };
        let adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.list.len();
        while self.list.len() <= last {
            match finder(self.list.len())? {
                Some(region) => self.push(region)?,
                None => break,
            };
        }
        drop(adding);
        if self.list.len() > before { self.serve_all() } else { Ok(()) }
    }

    /// Maps all regions that others added.
    pub(crate) fn look_for_all(&self) -> Result<()> {
        self.look_for_more(usize::MAX - 1)
    }

    /// Adds the region that `make` makes for the next memory server, which it is told.
    pub(crate) fn add(&self, make: impl FnOnce(usize) -> Result<Region>) -> Result<MemoryServerId> {
        let adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_room()?;
        let server = self.push(make(self.list.len())?)?;
        drop(adding);
        self.serve_all()?;
        Ok(server)
    }

    /// Has the handler serve the memory servers that joined, too. Nobody is adding any: threads of the handler before
    /// are waited for.
    fn serve_all(&self) -> Result<()> {
        match self.cores() {
            Some(cores) => self.set_handler(cores.handler(), cores.threads()),
            None => Ok(()),
        }
    }

    fn check_room(&self) -> Result<()> {
        if self.infos.len() <= LATER_MAX {
            return Ok(());
        }
        let reason = format!("{LATER_MAX} memory servers joined since it was opened; open it anew for more");
        Err(open_error(&self.name, reason))
    }

    /// To be called while adding.
    fn push(&self, region: Region) -> Result<MemoryServerId> {
        self.check_room()?;
        let number = self.list.len();
        crate::local::check_servers(&self.name, number + 1)?;
        let mut infos = self.infos().to_vec();
        infos.push(info(number as u16, &region));
        if self.list.push(region).is_err() || self.infos.push(infos).is_err() {
            unreachable!("there is room for as many infos as regions, and one adds at a time");
        }
        Ok(MemoryServerId(number as u16))
    }

    pub(crate) fn list(&self) -> &Growing<Region> {
        &self.list
    }

    pub(crate) fn infos(&self) -> &[RegionInfo] {
        &self.infos[self.infos.len() - 1]
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

fn info(server: u16, region: &Region) -> RegionInfo {
    RegionInfo { server: MemoryServerId(server), len: region.bytes() }
}
