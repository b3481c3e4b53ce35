//! Configuration of a cluster: where the memory is, and how many of its own resources this process uses.
//!
//! Every option has a default and bounds. Opening a cluster checks the bounds; an error says in one sentence
//! which one is violated. Sizes are in bytes. The defaults of the cache are those of the DEX paper (§5,
//! §8.1).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pando_cache::{Admission, CacheConfig, Eviction};
use pando_dex::OffloadPolicy;
use pando_fabric::MAX_SERVERS;
use pando_pool::{AttachMode, AttachOptions};

use super::{Access, check_count};
use crate::error::{Error, Result};

/// Largest number of compute servers that one process runs for an index.
pub const MAX_COMPUTE_SERVERS: usize = 4096;
/// Default of [`Config::read_ahead`], in leaves.
pub const READ_AHEAD: usize = 8;
const READ_AHEAD_MAX: usize = 1 << 16;
const MEMORY_CORES_MAX: usize = 256;
/// Largest number of copies of memory.
const REPLICAS_MAX: usize = 8;

/// Treatment of a pool that exists or is missing when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// Opens the pool; it must exist.
    Never,
    /// Opens the pool, or creates it if it is missing.
    IfMissing,
    /// Creates the pool; it must not exist.
    New,
    /// Creates the pool. An existing one is discarded, unless a living process is attached to it.
    Replace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Embedded,
    At(PathBuf),
    /// `host:port` of memory servers: some of a pool's, or all of them.
    Tcp(Vec<String>),
    /// As `Tcp`, for memory that is reached by RDMA.
    Verbs(Vec<String>),
}

/// Admission and eviction of a compute server's cache. The defaults are those of the DEX paper (§5, §8.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheOptions {
    /// Probability with which a leaf is admitted once no frame is free, 0 to 1; 0.1.
    pub leaf_admission: f64,
    /// Choice of victims; [`Eviction::PathAware`].
    pub eviction: Eviction,
    /// Uses one FIFO queue in place of the cooling map; `false`.
    pub fifo: bool,
    /// Swizzles pointers to cached children; `true`.
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
    /// Checks the bounds of all options.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a value out of its bounds.
    pub fn check(&self) -> Result<()> {
        let (admission, cooling) = (self.leaf_admission, self.cooling_share);
        for (what, share, max) in [("leaf admission", admission, 1.0), ("cooling share", cooling, 0.9)] {
            if !(0.0..=max).contains(&share) {
                return Err(Error::InvalidOption(format!("a {what} of {share} is not between 0 and {max}")));
            }
        }
        Ok(())
    }

    /// Configuration of a cache of `bytes` for nodes of `node_size` bytes.
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

/// What is kept when a process ends without closing its pool (`docs/durability.md`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// What was written back; the pool is refused. Operations cost the least.
    #[default]
    Off,
    /// Everything that was answered or read: each index has a log, and opening the pool recovers it; or opening the
    /// index, while other processes are attached to the pool. Holds for the end of the process by any means,
    /// `kill -9` too, but not for the end of a memory server or a loss of power.
    Process,
    /// As [`Durability::Process`], for a pool in files; and after a loss of power the pool is as it was at some moment, at most this
    /// long before, and the time of one synced write: the log is persisted once in an interval. With several compute
    /// servers, the keys of each are.
    Group(Duration),
    /// Everything that was answered or read, after a loss of power too: the log is persisted before an
    /// operation answers. Operations that wait at the same time share a synced write.
    Immediate,
}

/// As `pando --durability` takes it.
impl std::fmt::Display for Durability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Process => f.write_str("process"),
            Self::Group(interval) => write!(f, "group:{interval:?}"),
            Self::Immediate => f.write_str("immediate"),
        }
    }
}

/// How far a recovery is ([`Config::on_recovery`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecoveryProgress {
    /// Of `total` pages of an index that its log is about, `done` have been brought to the log's end.
    Pages { done: u64, total: u64 },
    /// Of all `total` indexes, `done` have been walked to find their blocks.
    Indexes { done: u64, total: u64 },
}

/// Options for opening a [`crate::Cluster`].
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
    pub(crate) replicas: usize,
    pub(crate) memory: u64,
    pub(crate) create: Create,
    pub(crate) compute_servers: Option<usize>,
    pub(crate) cache: u64,
    pub(crate) cache_options: CacheOptions,
    pub(crate) huge_pages: bool,
    pub(crate) read_ahead: usize,
    pub(crate) whole_leaves: bool,
    pub(crate) offload: OffloadPolicy,
    pub(crate) memory_cores: usize,
    pub(crate) seed: Option<u64>,
    pub(crate) read_only: bool,
    pub(crate) read_only_unclean: bool,
    pub(crate) access: Access,
    pub(crate) durability: Durability,
    on_recovery: Option<OnRecovery>,
}

/// Is told how far a recovery is.
#[derive(Clone)]
struct OnRecovery(Arc<dyn Fn(RecoveryProgress) + Send + Sync>);

impl std::fmt::Debug for OnRecovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnRecovery")
    }
}

impl Config {
    fn new(place: Place) -> Self {
        Self {
            place,
            memory_servers: 1,
            replicas: 1,
            memory: 1 << 30,
            create: Create::Never,
            compute_servers: None,
            cache: 64 << 20,
            cache_options: CacheOptions::default(),
            huge_pages: true,
            read_ahead: READ_AHEAD,
            whole_leaves: false,
            offload: OffloadPolicy::Never,
            memory_cores: 1,
            seed: None,
            read_only: false,
            read_only_unclean: false,
            access: Access::default(),
            durability: Durability::Off,
            on_recovery: None,
        }
    }

    /// A pool in the memory of this process; it ends with the process.
    pub fn embedded() -> Self {
        Self::new(Place::Embedded)
    }

    /// A pool in a file or a directory. It outlives the process, and several processes may use it at once.
    pub fn at(path: impl AsRef<Path>) -> Self {
        Self::new(Place::At(path.as_ref().to_owned()))
    }

    /// A pool in the memory of memory servers that run elsewhere, at `host:port` each.
    ///
    /// To open an existing pool, naming any of its memory servers suffices: each stores the address of the
    /// next one, as of the last time when the pool was opened with all of them named. A new pool consists of
    /// the memory servers named, numbered in this order.
    pub fn tcp(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::new(Place::Tcp(addresses.into_iter().map(Into::into).collect()))
    }

    /// As [`Config::tcp`], for memory servers whose memory is reached by RDMA. Opening such a pool is an
    /// error unless this crate was built with the feature `verbs`.
    pub fn verbs(addresses: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::new(Place::Verbs(addresses.into_iter().map(Into::into).collect()))
    }

    /// Secrets, deadline and devices for reaching memory servers elsewhere. A verb that is not answered in
    /// time fails.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Memory servers of a new pool, 1 to 32768; 1. A pool with more than one is a directory.
    pub fn memory_servers(mut self, servers: usize) -> Self {
        self.memory_servers = servers;
        self
    }

    /// Copies of all memory in a new pool on memory servers elsewhere ([`Config::tcp`]), each on another one; 1. With two, the
    /// loss of a memory server loses nothing; each has room for half as much then. `docs/replicas.md` says what is promised.
    pub fn replicas(mut self, copies: usize) -> Self {
        self.replicas = copies;
        self
    }

    /// Bytes of each memory server of a new pool; 1 GiB. Unused bytes take no memory.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Treatment of a pool that exists or is missing; [`Create::Never`]. An embedded pool is always created.
    pub fn create(mut self, create: Create) -> Self {
        self.create = create;
        self
    }

    /// Compute servers, and so partitions, of every index that is opened with all its keys, 1 to 4096.
    /// Without this option, an index keeps the partitions it had last, and a new one has 1. Each compute
    /// server has a cache of its own.
    pub fn compute_servers(mut self, servers: usize) -> Self {
        self.compute_servers = Some(servers);
        self
    }

    /// Bytes of the cache of each compute server of each index; 64 MiB.
    pub fn cache(mut self, bytes: u64) -> Self {
        self.cache = bytes;
        self
    }

    /// Admission and eviction of the caches.
    pub fn cache_options(mut self, options: CacheOptions) -> Self {
        self.cache_options = options;
        self
    }

    /// Asks for huge pages for a new pool, but never requires them; `true`.
    pub fn huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Longest time that an operation may take before it fails, 1 ms to 1 h; 10 s. This sets the deadline of
    /// [`Config::access`]. A scan may take this long from one leaf to the next, and each step of opening,
    /// moving or closing something may wait this long for other operations and processes.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.access = self.access.deadline(deadline);
        self
    }

    /// Largest number of leaves that a scan READs in parallel when they are not cached, 1 to 65536; 8. While
    /// the scan runs, they take memory in addition to the cache, at most a quarter of its size. A scan with a
    /// limit reads only leaves that it needs.
    pub fn read_ahead(mut self, leaves: usize) -> Self {
        self.read_ahead = leaves;
        self
    }

    /// Whether a changed leaf that is not cached is written as a whole, as in the paper of DEX, and not only the words that
    /// changed; `false`. For comparisons.
    pub fn whole_leaves(mut self, whole: bool) -> Self {
        self.whole_leaves = whole;
        self
    }

    /// Lets memory servers finish operations whose nodes are not cached (DEX §6), and search trees of Elf tables
    /// ([`elf`](crate::elf)); [`OffloadPolicy::Never`].
    /// Offloading saves round trips, so it seldom pays on the fabrics within one host. Changes of an index with a log are not offloaded.
    pub fn offload(mut self, policy: OffloadPolicy) -> Self {
        self.offload = policy;
        self
    }

    /// Threads with which this process acts as the processor of each memory server of an embedded pool or of
    /// files, if anything is offloaded, 1 to 256; 1.
    pub fn memory_cores(mut self, threads: usize) -> Self {
        self.memory_cores = threads;
        self
    }

    /// What survives the end of this process without [`crate::Cluster::close`]; [`Durability::Off`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Calls `report` again and again while [`crate::Cluster::open`] recovers the pool, which may take long.
    pub fn on_recovery(mut self, report: impl Fn(RecoveryProgress) + Send + Sync + 'static) -> Self {
        self.on_recovery = Some(OnRecovery(Arc::new(report)));
        self
    }

    pub(crate) fn report_recovery(&self, progress: RecoveryProgress) {
        if let Some(OnRecovery(report)) = &self.on_recovery {
            report(progress);
        }
    }

    /// Seed of the random choices of sessions (admission, eviction). Without one, the choices differ in each
    /// run.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Opens the pool for reading only; `false`. A reader does not attach and takes no lock, so any number of
    /// processes may read an index at once, and the pool stays intact however they end. Changes are refused
    /// with [`Error::ReadOnly`].
    ///
    /// An index can be read while no process owns any of its partitions, beside any number of other readers.
    /// All its keys are open; [`crate::OpenOptions::own`] has no effect. An index that a process has open for
    /// writing is refused with [`Error::OpenForWriting`]. If a process opens it for writing while it is being
    /// read, each operation waits until that process closes it, at most until the deadline, and then sees
    /// what was written. So every answer is current. A scan is as consistent as one scan per batch, each of
    /// which continues after the last key.
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

    /// Opens the pool for inspection only, even if it was not closed cleanly; `false`. The content may be
    /// incomplete, and reading it may fail.
    pub fn read_only_unclean(mut self, looking_only: bool) -> Self {
        self.read_only_unclean = looking_only;
        self
    }

    /// The same pool, opened for inspection only.
    pub(crate) fn for_looking(mut self) -> Self {
        (self.create, self.offload, self.read_only_unclean) = (Create::Never, OffloadPolicy::Never, true);
        self
    }

    /// Mode in which the process attaches to the pool.
    pub(crate) fn mode(&self) -> AttachMode {
        match (self.read_only_unclean, self.read_only) {
            (true, _) => AttachMode::ReadOnlyUnclean,
            (false, true) => AttachMode::ReadOnly,
            (false, false) => AttachMode::ReadWrite,
        }
    }

    /// Checks the bounds of all options.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for a value out of its bounds.
    pub(crate) fn check(&self) -> Result<()> {
        check_count(self.memory_servers, "memory servers", MAX_SERVERS)?;
        check_count(self.replicas, "copies", REPLICAS_MAX)?;
        if self.replicas > 1 && !matches!(self.place, Place::Tcp(_)) {
            let text = "only memory servers that are reached by TCP have copies of each other's memory";
            return Err(Error::InvalidOption(text.to_owned()));
        }
        if let Some(servers) = self.compute_servers {
            check_count(servers, "compute servers", MAX_COMPUTE_SERVERS)?;
        }
        check_count(self.read_ahead, "leaves read together", READ_AHEAD_MAX)?;
        check_count(self.memory_cores, "cores of a memory server", MEMORY_CORES_MAX)?;
        self.access.check()?;
        self.cache_options.check()?;
        self.check_durability()?;
        let changes = self.place == Place::Embedded || self.create != Create::Never;
        if changes && self.mode() != AttachMode::ReadWrite {
            let text = "a pool that is opened for reading only must be there already";
            return Err(Error::InvalidOption(text.to_owned()));
        }
        Ok(())
    }

    fn check_durability(&self) -> Result<()> {
        let wrong = match self.durability {
            Durability::Off => None,
            _ if self.place == Place::Embedded => Some("a log needs a pool that outlives the process"),
            Durability::Group(_) | Durability::Immediate if !matches!(self.place, Place::At(_)) => {
                Some("only a pool in a file or a directory survives a loss of power")
            }
            _ => None,
        };
        wrong.map_or(Ok(()), |text| Err(Error::InvalidOption(text.to_owned())))
    }

    /// Configuration of a compute server's cache for nodes of `node_size` bytes.
    pub(crate) fn cache_config(&self, node_size: usize) -> CacheConfig {
        self.cache_options.config(self.cache, node_size)
    }

    /// Longest wait for another operation or process.
    pub(crate) fn patience(&self) -> Duration {
        self.access.deadline
    }

    pub(crate) fn patience_ns(&self) -> u64 {
        self.patience().as_nanos() as u64
    }

    /// Adds this patience to `options`. Leftovers of a dropped future rest for as long as a verb may take,
    /// which is half of the patience: an operation has time to wait for them.
    pub(crate) fn waiting(&self, options: AttachOptions) -> AttachOptions {
        let verbs_take = self.access.of_verb().as_nanos() as u64;
        let keeps_bitmaps = self.durability != Durability::Off;
        options.wait_ns_max(self.patience_ns()).verbs_take_ns(verbs_take).keeps_bitmaps(keeps_bitmaps)
    }

    /// Nanoseconds after which an operation begins nothing that may take long. The remaining time is for what
    /// it has begun, and for releasing what it holds ([`pando_fabric::Endpoint::wait_until`]).
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
