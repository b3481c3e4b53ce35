//! Where the memory is, and how much of this process's own to use.
//!
//! Everything has a default and bounds, which are checked when the cluster is opened and answered with a sentence.
//! Sizes are bytes. The defaults of the cache are those of the DEX paper (§5, §8.1).

use std::path::{Path, PathBuf};
use std::time::Duration;

use pando_cache::{Admission, CacheConfig, Eviction};
use pando_dex::OffloadPolicy;
use pando_fabric::MAX_SERVERS;
use pando_pool::{AttachMode, AttachOptions};

use crate::access::Access;
use crate::error::{Error, Result};

/// Compute servers that one process runs at most.
pub const MAX_COMPUTE_SERVERS: usize = 4096;
/// Leaves that a scan READs together at most, unless [`Config::read_ahead`] says otherwise.
pub const READ_AHEAD: usize = 8;
const READ_AHEAD_MAX: usize = 1 << 16;
const MEMORY_CORES_MAX: usize = 256;

/// What to do about a pool that is not there, or is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// The pool must be there.
    Never,
    /// It is made if it is not there.
    IfMissing,
    /// It must not be there, and is made.
    New,
    /// It is made, and what was there is thrown away, unless a process uses it.
    Replace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Embedded,
    At(PathBuf),
    /// `host:port` of memory servers, of some at least.
    Tcp(Vec<String>),
    /// The same, where their memory is reached by RDMA.
    Verbs(Vec<String>),
}

/// How the cache of a compute server chooses what to keep. The defaults are those of the DEX paper (§5, §8.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheOptions {
    /// Probability with which a leaf is admitted once the cache is full, 0 to 1; 0.1.
    pub leaf_admission: f64,
    /// How victims are chosen; [`Eviction::PathAware`].
    pub eviction: Eviction,
    /// One FIFO queue in place of the cooling map; `false`.
    pub fifo: bool,
    /// Whether pointers to cached children are swizzled; `true`.
    pub swizzle: bool,
    /// Share of the frames that may be cooling, 0 to 0.9; 0.1.
    pub cooling_share: f64,
}

impl Default for CacheOptions {
    fn default() -> Self {
        let config = CacheConfig::new(0, 0);
        Self {
            leaf_admission: 0.1,
            eviction: config.eviction,
            fifo: config.fifo,
            swizzle: config.swizzle,
            cooling_share: config.cooling_share,
        }
    }
}

impl CacheOptions {
    /// # Errors
    /// [`Error::InvalidOption`] for what is out of its bounds.
    pub fn check(&self) -> Result<()> {
        let Self { leaf_admission, cooling_share, .. } = self;
        let invalid = |text: String| Err(Error::InvalidOption(text));
        if !(0.0..=1.0).contains(leaf_admission) {
            return invalid(format!("a leaf admission of {leaf_admission} is not between 0 and 1"));
        }
        if !(0.0..=0.9).contains(cooling_share) {
            return invalid(format!("a cooling share of {cooling_share} is not between 0 and 0.9"));
        }
        Ok(())
    }

    /// The configuration of a cache of `bytes` for nodes of `node_size` bytes.
    pub fn config(&self, bytes: u64, node_size: usize) -> CacheConfig {
        CacheConfig {
            cooling_share: self.cooling_share,
            admission: Admission::lazy(self.leaf_admission),
            eviction: self.eviction,
            fifo: self.fifo,
            swizzle: self.swizzle,
            ..CacheConfig::new(bytes, node_size)
        }
    }
}

/// How to open a [`crate::Cluster`].
///
/// ```
/// use pando::{Cluster, Config};
///
/// // Two memory servers of 16 MiB in this process; every index divided among two compute servers.
/// let config = Config::embedded().memory_servers(2).memory(16 << 20).compute_servers(2).cache(1 << 20);
/// assert_eq!(Cluster::open(config)?.stats()?.pool.len(), 2);
/// # Ok::<(), pando::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) place: Place,
    pub(crate) memory_servers: usize,
    pub(crate) memory: u64,
    pub(crate) create: Create,
    pub(crate) compute_servers: Option<usize>,
    pub(crate) cache: u64,
    pub(crate) cache_options: CacheOptions,
    pub(crate) huge_pages: bool,
    pub(crate) read_ahead: usize,
    pub(crate) offload: OffloadPolicy,
    pub(crate) memory_cores: usize,
    pub(crate) seed: Option<u64>,
    pub(crate) read_only: bool,
    pub(crate) read_only_unclean: bool,
    pub(crate) access: Access,
}

impl Config {
    fn new(place: Place) -> Self {
        Self {
            place,
            memory_servers: 1,
            memory: 1 << 30,
            create: Create::Never,
            compute_servers: None,
            cache: 64 << 20,
            cache_options: CacheOptions::default(),
            huge_pages: true,
            read_ahead: READ_AHEAD,
            offload: OffloadPolicy::Never,
            memory_cores: 1,
            seed: None,
            read_only: false,
            read_only_unclean: false,
            access: Access::default(),
        }
    }

    /// A pool in the memory of this process, which ends with it.
    pub fn embedded() -> Self {
        Self::new(Place::Embedded)
    }

    /// A pool in a file or a directory, which outlives the process and may be used by several at once.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self::new(Place::At(path.as_ref().to_owned()))
    }

    /// A pool in the memory of memory servers that run elsewhere: `host:port` of any of them, which know where the others are. That
    /// is where they were when the pool was last opened by naming all. A new pool is made of those that are named, which have their
    /// numbers in this order.
    pub fn tcp(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::new(Place::Tcp(addresses.into_iter().map(Into::into).collect()))
    }

    /// The same for memory servers whose memory is reached by RDMA. Opening it is an error unless this was built with the
    /// feature `verbs`.
    pub fn verbs(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::new(Place::Verbs(addresses.into_iter().map(Into::into).collect()))
    }

    /// How memory servers elsewhere are reached. A verb that they do not answer in time fails.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Memory servers of a new pool, 1 to 32768; 1. More than one make the pool a directory.
    pub fn memory_servers(mut self, servers: usize) -> Self {
        self.memory_servers = servers;
        self
    }

    /// Bytes of each memory server of a new pool; 1 GiB. What is not used takes no memory.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// What to do if the pool is not there, or is; [`Create::Never`]. An embedded pool is always made.
    pub fn create(mut self, create: Create) -> Self {
        self.create = create;
        self
    }

    /// Compute servers, that is partitions, of every index that is opened with all its keys, 1 to 4096. Unless this
    /// is set, an index has the partitions that it had last, and a new one has 1. Each has a cache of its own.
    pub fn compute_servers(mut self, servers: usize) -> Self {
        self.compute_servers = Some(servers);
        self
    }

    /// Bytes of the cache that each compute server of each index has; 64 MiB.
    pub fn cache(mut self, bytes: u64) -> Self {
        self.cache = bytes;
        self
    }

    /// How caches choose what to keep.
    pub fn cache_options(mut self, options: CacheOptions) -> Self {
        self.cache_options = options;
        self
    }

    /// Whether a new pool asks for huge pages, which are never required; `true`.
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// How long an operation may take before it fails, 1 ms to 1 h; 10 s. It is that of [`Config::access`]. A scan may take so
    /// long from one leaf to the next, and each step of opening, moving or closing something waits so long for others.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.access = self.access.deadline(deadline);
        self
    }

    /// Leaves that a scan READs together at most when they are not cached, 1 to 65536; 8. They take memory besides the
    /// cache while the scan runs, at most a quarter of the cache's size. A scan with a limit reads no leaf that it does
    /// not need.
    pub fn read_ahead(mut self, leaves: usize) -> Self {
        self.read_ahead = leaves;
        self
    }

    /// Whether operations whose nodes are not cached are finished by memory servers (DEX §6);
    /// [`OffloadPolicy::Never`]. On the fabrics inside one host that seldom pays: what it saves is round trips.
    pub fn offload(mut self, policy: OffloadPolicy) -> Self {
        self.offload = policy;
        self
    }

    /// Threads with which this process serves as the processor of each memory server, if anything is offloaded, 1 to 256;
    /// 1.
    pub fn memory_cores(mut self, threads: usize) -> Self {
        self.memory_cores = threads;
        self
    }

    /// Makes the random choices of sessions (admission, eviction) start from `seed`; otherwise they differ each time.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Opens the pool for reading only; `false`. A reader takes no place in the pool, locks nothing and keeps nobody out, so any
    /// number of processes may read an index at once, and however they end the pool stays as it is. What changes something is
    /// refused with [`Error::ReadOnly`].
    ///
    /// An index is read beside other readers and while no process owns any of it, and all of it is open whatever
    /// [`crate::OpenOptions`] say. One that a process has open for writing is refused with [`Error::OpenForWriting`]. If one opens
    /// it while it is being read, each operation waits for that one to close it, until the deadline, and then sees what was
    /// written. So every answer is right; that of a scan as if the scan had been continued after each of its batches.
    ///
    /// ```
    /// use pando::{Cluster, Config, Create, Error, IndexOptions};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let path = directory.path().join("words.pando");
    /// let cluster = Cluster::open(Config::at(&path).memory(64 << 20).create(Create::New))?;
    /// cluster.create_index("words", &IndexOptions::bytes())?.session()?.put(b"aspen", b"a tree")?;
    /// let reading = || Cluster::open(Config::at(&path).read_only(true));
    /// assert!(matches!(reading()?.open_index("words"), Err(Error::OpenForWriting { .. })));
    /// cluster.close()?;
    ///
    /// let readers = [reading()?, reading()?];
    /// for reader in &readers {
    ///     let session = reader.open_index("words")?.session()?;
    ///     assert_eq!(session.get(b"aspen")?.as_deref(), Some(&b"a tree"[..]));
    ///     assert!(matches!(session.put(b"birch", b"a tree"), Err(Error::ReadOnly)));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_only(mut self, reading_only: bool) -> Self {
        self.read_only = reading_only;
        self
    }

    /// Opens the pool for looking only, even if it was not closed cleanly; `false`. What it then shows may be
    /// incomplete, and reading may end in errors.
    pub fn read_only_unclean(mut self, looking_only: bool) -> Self {
        self.read_only_unclean = looking_only;
        self
    }

    /// The same pool, opened only to look at it.
    pub(crate) fn for_looking(mut self) -> Self {
        (self.create, self.offload, self.read_only_unclean) = (Create::Never, OffloadPolicy::Never, true);
        self
    }

    /// How the pool is attached to.
    pub(crate) fn mode(&self) -> AttachMode {
        match (self.read_only_unclean, self.read_only) {
            (true, _) => AttachMode::ReadOnlyUnclean,
            (false, true) => AttachMode::ReadOnly,
            (false, false) => AttachMode::ReadWrite,
        }
    }

    /// # Errors
    /// [`Error::InvalidOption`] for what is out of its bounds.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::InvalidOption(text));
        let servers = self.memory_servers;
        if !(1..=MAX_SERVERS).contains(&servers) {
            return invalid(format!("{servers} memory servers are not between 1 and {MAX_SERVERS}"));
        }
        if let Some(servers) = self.compute_servers.filter(|n| !(1..=MAX_COMPUTE_SERVERS).contains(n)) {
            return invalid(format!("{servers} compute servers are not between 1 and {MAX_COMPUTE_SERVERS}"));
        }
        if !(1..=READ_AHEAD_MAX).contains(&self.read_ahead) {
            let leaves = self.read_ahead;
            return invalid(format!("{leaves} leaves read together are not between 1 and {READ_AHEAD_MAX}"));
        }
        if !(1..=MEMORY_CORES_MAX).contains(&self.memory_cores) {
            let cores = self.memory_cores;
            return invalid(format!(
                "{cores} cores of a memory server are not between 1 and {MEMORY_CORES_MAX}"
            ));
        }
        self.access.check()?;
        self.cache_options.check()?;
        let changes = self.place == Place::Embedded || self.create != Create::Never;
        if changes && self.mode() != AttachMode::ReadWrite {
            return invalid("a pool that is opened for reading only must be there already".to_owned());
        }
        Ok(())
    }

    /// How long anything waits for others.
    pub(crate) fn patience(&self) -> Duration {
        self.access.deadline
    }

    pub(crate) fn patience_ns(&self) -> u64 {
        self.patience().as_nanos() as u64
    }

    /// Attaches with this patience. What was left by a dropped future rests for as long as a verb may take, and an operation has
    /// time to wait for that.
    pub(crate) fn waiting(&self, options: AttachOptions) -> AttachOptions {
        let verbs_take = self.access.of_verb().as_nanos() as u64;
        options.wait_ns_max(self.patience_ns()).verbs_take_ns(verbs_take)
    }

    /// Nanoseconds after which an operation begins nothing that may take long. The rest of its time is for what it began
    /// before that, and for giving back what it holds ([`pando_fabric::Endpoint::wait_until`]).
    pub(crate) fn operation_ns(&self) -> u64 {
        self.patience_ns() / 4 * 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_bounded() {
        let bad = [
            Config::embedded().memory_servers(0),
            Config::embedded().memory_servers(MAX_SERVERS + 1),
            Config::embedded().compute_servers(0),
            Config::embedded().deadline(Duration::ZERO),
            Config::embedded().deadline(Duration::MAX),
            Config::tcp(["host:1"]).access(Access::default().deadline(Duration::ZERO)),
            Config::embedded().read_ahead(0),
            Config::embedded().memory_cores(0),
            Config::embedded().cache_options(CacheOptions { leaf_admission: f64::NAN, ..Default::default() }),
            Config::embedded().cache_options(CacheOptions { cooling_share: 1.0, ..Default::default() }),
            Config::embedded().read_only_unclean(true),
            Config::at("x").create(Create::IfMissing).read_only_unclean(true),
            Config::embedded().read_only(true),
            Config::at("x").create(Create::Replace).read_only(true),
        ];
        for config in bad {
            assert!(config.check().is_err_and(|error| error.is_bad_input()), "{config:?}");
        }
        assert!(Config::embedded().check().is_ok());
    }
}
