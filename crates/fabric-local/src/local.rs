//! `local`: memory servers in the memory of this process.
//!
//! Each is an anonymous mapping without reservation, so memory that nobody touched costs nothing and sizes may
//! exceed what the machine has. It ends with the last clone or endpoint; there is nothing to reserve, flush or
//! lock.

use std::path::Path;
use std::sync::Arc;

use pando_fabric::{Fabric, MAX_OFFSET, MAX_SERVERS, MemoryServerId, RegionInfo, RequestHandler, Result};

use crate::region::{Region, open_error};
use crate::regions::Regions;
use crate::{LocalEndpoint, ServedRegion};

/// Unit of memory that the kernel hands out: sizes are rounded up to it.
pub(crate) const PAGE: u64 = 4096;

/// Size of a [`LocalFabric`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalConfig {
    /// Bytes of each memory server, rounded up to 4096. Memory that nobody touched costs nothing.
    pub server_sizes: Vec<u64>,
    /// Whether to ask the kernel for huge pages; memory then comes in steps of 2 MiB where it has them.
    pub huge_pages: bool,
}

/// What errors call the pool.
const NAME: &str = "local";

/// Memory servers inside this process. Clones share them; the last clone or endpoint frees them.
#[derive(Clone)]
pub struct LocalFabric {
    regions: Arc<Regions>,
    huge_pages: bool,
}

impl LocalFabric {
    /// # Errors
    /// `Open` if there are no memory servers or too many, one is empty or too large, or the address space is used up.
    pub fn new(config: LocalConfig) -> Result<Self> {
        let name = Path::new(NAME);
        check_servers(name, config.server_sizes.len())?;
        let mut list = Vec::with_capacity(config.server_sizes.len());
        for &size in &config.server_sizes {
            list.push(anonymous(size, config.huge_pages)?);
        }
        Ok(Self { regions: Arc::new(Regions::new(list, name)), huge_pages: config.huge_pages })
    }

    /// One memory server whose memory is made of huge pages that the system has set aside, rounded up to whole ones. All of it
    /// is taken at once.
    ///
    /// # Errors
    /// `Open` if the size is impossible or there are not as many huge pages.
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

    /// Lets one more memory server of `bytes` join; its number. All endpoints reach it from now on. Nothing of a pool is in it
    /// yet.
    ///
    /// # Errors
    /// `Open` if its size is impossible, or too many have joined; `System` if threads for its requests cannot be started.
    pub fn add_server(&self, bytes: u64) -> Result<MemoryServerId> {
        self.regions.add(|_| anonymous(bytes, self.huge_pages))
    }

    /// Lets `handler` execute the two-sided calls of all endpoints, on `threads` threads per memory server, or on the thread that
    /// calls if that is 0. A handler that owns this fabric keeps it alive until [`LocalFabric::clear_handler`].
    ///
    /// # Errors
    /// `System` if a thread cannot be started; the handler before stays then.
    pub fn set_handler(&self, handler: Arc<dyn RequestHandler>, threads: usize) -> Result<()> {
        self.regions.set_handler(handler, threads)
    }

    /// The region of one memory server, for who executes the verbs of others on it.
    ///
    /// # Errors
    /// `UnknownServer`.
    pub fn served_region(&self, server: MemoryServerId) -> Result<ServedRegion> {
        ServedRegion::new(Arc::clone(&self.regions), server)
    }

    /// From now on every two-sided call is refused.
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

/// How many huge pages of the usual size nobody uses, if the kernel says so.
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

pub(crate) fn check_servers(path: &Path, servers: usize) -> Result<()> {
    match servers {
        0 => Err(open_error(path, "a pool needs at least one memory server")),
        1..=MAX_SERVERS => Ok(()),
        _ => Err(open_error(path, format!("{servers} memory servers are more than {MAX_SERVERS}"))),
    }
}

pub(crate) fn check_size(path: &Path, bytes: u64) -> Result<()> {
    match bytes {
        0 => Err(open_error(path, "a memory server needs at least one byte")),
        1..=MAX_OFFSET => Ok(()),
        _ => Err(open_error(path, format!("a memory server of {bytes} bytes is larger than 2^48"))),
    }
}
