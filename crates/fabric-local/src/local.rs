//! `local`: memory servers in the memory of this process.
//!
//! Each server is an anonymous mapping without reservation, so untouched memory costs nothing and sizes may
//! exceed the memory of the machine. The last clone or endpoint frees it. There is nothing to reserve, flush
//! or lock.

use std::path::Path;
use std::sync::Arc;

use pando_fabric::{Fabric, MemoryServerId, RegionInfo, RequestHandler, Result};

use crate::region::{PAGE, Region, check_size, open_error};
use crate::regions::{Regions, check_servers};
use crate::{LocalEndpoint, ServedRegion};

/// Shape of a [`LocalFabric`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalConfig {
    /// Bytes of each memory server, rounded up to 4096. Untouched memory costs nothing.
    pub server_sizes: Vec<u64>,
    /// Whether to ask the kernel for huge pages; memory is then allocated in steps of 2 MiB where they are
    /// available.
    pub huge_pages: bool,
}

/// Name of the pool in errors.
const NAME: &str = "local";

/// Memory servers within this process. Clones share them; the last clone or endpoint frees them.
#[derive(Clone)]
pub struct LocalFabric {
    regions: Arc<Regions>,
    huge_pages: bool,
}

impl LocalFabric {
    /// Creates the memory servers, zeroed.
    ///
    /// # Errors
    /// `Open` if there are no memory servers or too many, one is empty or too large, or the address space is
    /// used up.
    pub fn new(config: LocalConfig) -> Result<Self> {
        let name = Path::new(NAME);
        check_servers(name, config.server_sizes.len())?;
        let mut list = Vec::with_capacity(config.server_sizes.len());
        for &size in &config.server_sizes {
            list.push(anonymous(size, config.huge_pages)?);
        }
        Ok(Self { regions: Arc::new(Regions::new(list, name)), huge_pages: config.huge_pages })
    }

    /// Creates one memory server on reserved huge pages; its size is rounded up to whole pages. All pages are
    /// allocated at once.
    ///
    /// # Errors
    /// `Open` if the size is impossible or there are too few free huge pages.
    pub fn of_huge_pages(bytes: u64) -> Result<Self> {
        let name = Path::new("hugetlb");
        check_size(name, bytes)?;
        let region = Region::of_huge_pages(bytes).map_err(|err| {
            let free = huge_pages_free().map_or_else(String::new, |free| format!(", {free} are free"));
            open_error(
                name,
                format!("there are no huge pages for {bytes} bytes{free}; /proc/sys/vm/nr_hugepages sets them aside ({err})"),
            )
        })?;
        Ok(Self { regions: Arc::new(Regions::new(vec![region], name)), huge_pages: true })
    }

    /// Adds a memory server of `bytes` and returns its number. All endpoints reach it at once. Its region is
    /// empty.
    ///
    /// # Errors
    /// `Open` if its size is impossible, or too many have joined; `System` if threads for its requests cannot
    /// be started.
    pub fn add_server(&self, bytes: u64) -> Result<MemoryServerId> {
        self.regions.add(|_| anonymous(bytes, self.huge_pages))
    }

    /// Sets the handler of two-sided calls of all endpoints. It runs on `threads` threads per memory server,
    /// or on the calling thread if that is 0. A handler that owns this fabric keeps it alive until
    /// [`LocalFabric::clear_handler`].
    ///
    /// # Errors
    /// `System` if a thread cannot be started; the previous handler then stays.
    pub fn set_handler(&self, handler: Arc<dyn RequestHandler>, threads: usize) -> Result<()> {
        self.regions.set_handler(handler, threads)
    }

    /// The region of one memory server, for a server that executes verbs of remote clients.
    ///
    /// # Errors
    /// `UnknownServer`.
    pub fn served_region(&self, server: MemoryServerId) -> Result<ServedRegion> {
        ServedRegion::new(Arc::clone(&self.regions), server)
    }

    /// Removes the handler: every later two-sided call is refused.
    pub fn clear_handler(&self) {
        self.regions.clear_handler();
    }
}

impl Fabric for LocalFabric {
    type Endpoint = LocalEndpoint;

    fn endpoint(&self, seed: u64) -> Result<LocalEndpoint> {
        Ok(LocalEndpoint::new(Arc::clone(&self.regions), seed))
    }

    fn regions(&self) -> &[RegionInfo] {
        self.regions.infos()
    }
}

impl std::fmt::Debug for LocalFabric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("LocalFabric").field(&self.regions.infos()).finish()
    }
}

/// Number of free huge pages of the default size, if the kernel reports it.
fn huge_pages_free() -> Option<u64> {
    let said = std::fs::read_to_string("/proc/meminfo").ok()?;
    said.lines().find_map(|line| line.strip_prefix("HugePages_Free:"))?.trim().parse().ok()
}

fn anonymous(size: u64, huge_pages: bool) -> Result<Region> {
    let name = Path::new(NAME);
    check_size(name, size)?;
    let bytes = size.next_multiple_of(PAGE) as usize;
    Region::anonymous(bytes, huge_pages)
        .map_err(|err| open_error(name, format!("cannot map {bytes} bytes: {err}")))
}
