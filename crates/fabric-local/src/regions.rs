//! The memory servers of one fabric: the state shared by its endpoints.
//!
//! Regions are numbered from 0 without gaps and stay mapped while any endpoint lives; regions may join at any
//! time. The handler of two-sided calls, which may be replaced at any time, and the zero of the endpoints'
//! clock are kept here too.
//!
//! Where regions are files, another process may add one. An address on an unmapped memory server makes the
//! endpoint look for a new file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use pando_fabric::{
    FabricError, GlobalAddr, Growing, LATER_MAX, MAX_SERVERS, MemoryServerId, RegionInfo, RequestHandler,
    Result,
};

use crate::cores::Cores;
use crate::region::{Region, open_error};

/// Opens the region of memory server `n` if another process added it; the argument is `n`.
type Finder = Box<dyn Fn(usize) -> Result<Option<Region>> + Send + Sync>;

pub(crate) struct Regions {
    list: Arc<Growing<Region>>,
    /// The infos after each addition; the last list is current.
    infos: Growing<Vec<RegionInfo>>,
    cores: RwLock<Option<Arc<Cores>>>,
    /// Serialises additions.
    adding: Mutex<()>,
    finder: Option<Finder>,
    name: PathBuf,
    started: Instant,
}

impl Regions {
    /// Creates memory servers 0, 1, ..., at most `MAX_SERVERS`, of the pool named `name`.
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

    /// Sets the finder of regions that other processes add.
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

    /// Finds a region that another process may have added.
    #[cold]
    fn find(&self, server: MemoryServerId) -> Result<&Region> {
        self.look_for_more(usize::from(server.0))?;
        self.list.get(usize::from(server.0)).ok_or(FabricError::UnknownServer(server))
    }

    /// Maps the regions that other processes added, up to the one of memory server `last`.
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

    /// Maps all regions that other processes added.
    pub(crate) fn look_for_all(&self) -> Result<()> {
        self.look_for_more(usize::MAX - 1)
    }

    /// Adds a region for the next memory server; `make` gets its number.
    pub(crate) fn add(&self, make: impl FnOnce(usize) -> Result<Region>) -> Result<MemoryServerId> {
        let adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_room()?;
        let server = self.push(make(self.list.len())?)?;
        drop(adding);
        self.serve_all()?;
        Ok(server)
    }

    /// Gives memory server `number`, which is not in use and has no file any more, a place, if it is the next one.
    pub(crate) fn leave_out(&self, number: usize) {
        let adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        if self.finder.is_some() && self.list.len() == number {
            // Without room for it, whoever needs a later server is told.
            let _ = self.push(Region::nowhere());
        }
        drop(adding);
    }

    /// Restarts the handler so that it also serves the new memory servers. The caller must not hold the lock
    /// of additions, because this waits for the handler's previous threads.
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

    /// Appends a region. The caller holds the lock of additions.
    fn push(&self, region: Region) -> Result<MemoryServerId> {
        self.check_room()?;
        let number = self.list.len();
        check_servers(&self.name, number + 1)?;
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
        // Drop outside the lock: a handler may own an endpoint of this fabric.
        drop(before);
    }
}

fn info(server: u16, region: &Region) -> RegionInfo {
    RegionInfo { server: MemoryServerId(server), len: region.bytes() }
}

pub(crate) fn check_servers(path: &Path, servers: usize) -> Result<()> {
    match servers {
        0 => Err(open_error(path, "a pool needs at least one memory server")),
        1..=MAX_SERVERS => Ok(()),
        _ => Err(open_error(path, format!("{servers} memory servers are more than {MAX_SERVERS}"))),
    }
}
