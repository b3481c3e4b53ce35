//! A pool as this process uses it: opening, indexes by name, flushing, closing.
//!
//! Closing writes back what caches hold, gives up partitions and chunk leases, and then marks the pool as closed,
//! in this order; whatever fails before leaves it unclean. A failure that may have lost data is remembered, so that
//! merely dropping the last handle does not call the pool clean.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::endpoint::AnyEndpoint;
use pando_fabric::{Endpoint, VerbCounts};
use pando_pool::{AttachMode, IndexRecord, Pool, PoolError, ProcessIdentity};
use pando_rt::block_on;

use crate::config::{Config, Place};
use crate::error::{Error, Owner, Result};
use crate::index::{CLOSING, Index, IndexData};
use crate::lost;
use crate::options::{Descriptor, IndexLayout, IndexOptions, OpenOptions};
use crate::place::{self, AnyFabric};
use crate::servers;
use crate::stats::SessionCounts;

/// A pool of memory that this process is attached to, and the indexes that it has open. Clones are the same cluster,
/// and may be used by any number of threads.
///
/// [`Cluster::close`] writes everything back and leaves the pool to be opened again. When the last handle (cluster,
/// index or session) is dropped without that, the same is tried, but nobody hears of a failure; and it is not tried
/// when something failed before that may have lost data, nor while the thread panics: the pool then counts as not
/// closed cleanly.
///
/// A pool in a file outlives its process:
/// ```
/// use pando::{Cluster, Config, Create, IndexOptions};
///
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("words.pando");
///
/// let cluster = Cluster::open(Config::at(&path).memory(64 << 20).create(Create::New))?;
/// cluster.create_index("words", &IndexOptions::bytes())?.session()?.put(b"aspen", b"a tree")?;
/// cluster.close()?;
///
/// let cluster = Cluster::open(Config::at(&path))?;
/// let session = cluster.open_index("words")?.session()?;
/// assert_eq!(session.get(b"aspen")?.as_deref(), Some(&b"a tree"[..]));
/// # drop(session);
/// cluster.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Cluster {
    pub(crate) shared: Arc<Shared>,
}

/// What the catalog says of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexInfo {
    /// Unique in the pool for ever.
    pub id: u32,
    pub name: String,
    pub layout: IndexLayout,
    /// Bytes of a node.
    pub node_size: usize,
    /// M: subtrees rooted at this level stand on one memory server.
    pub subtree_level: u8,
    /// Keys at which a new partition begins.
    pub boundaries: Vec<Vec<u8>>,
    /// The processes that own the partitions.
    pub owners: Vec<Option<ProcessIdentity>>,
    /// What the creator of the index said of it.
    pub description: Vec<u8>,
}

pub(crate) struct Shared {
    pub fabric: AnyFabric,
    pub pool: Pool,
    pub config: Config,
    pub counts: Mutex<SessionCounts>,
    /// Open indexes by name. Locked while one is opened or the cluster as a whole is worked on.
    pub registry: Mutex<BTreeMap<String, Arc<IndexData>>>,
    /// Operation ports that this process has announced, by index.
    pub ports: Mutex<BTreeMap<String, String>>,
    seed: AtomicU64,
    closed: AtomicBool,
    /// Something failed that may have lost data.
    failed: AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Opens the pool that `config` describes, or makes it.
    ///
    /// # Errors
    /// [`Error::InvalidOption`]; [`Error::NotClosedCleanly`]; [`Error::Fabric`] and [`Error::CannotOpen`] with the path for
    /// files that are missing, cut short or no pool, and for a lack of space.
    pub fn open(config: Config) -> Result<Self> {
        config.check()?;
        // Names in the pool that must differ from those of other processes come from here, not from the given seed.
        let fresh = RandomState::new().hash_one(std::process::id());
        let (fabric, pool) = place::open(&config, fresh)?;
        let shared = Shared {
            fabric,
            pool,
            seed: AtomicU64::new(config.seed.unwrap_or(fresh)),
            config,
            counts: Mutex::default(),
            registry: Mutex::default(),
            ports: Mutex::default(),
            closed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Opens the pool as [`Cluster::open`] does, if there is one: `None` if it would have to be made first.
    ///
    /// # Errors
    /// As [`Cluster::open`] for a pool that is there.
    pub fn open_if_there(config: Config) -> Result<Option<Self>> {
        if !place::may_be_there(&config) {
            return Ok(None);
        }
        let elsewhere = matches!(config.place, Place::Tcp(_) | Place::Verbs(_));
        match Self::open(config) {
            // Memory servers that hold no pool can be made one of; files that hold none are something else.
            Err(error) if elsewhere && error.is_no_pool() => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Makes an index, empty, and opens it.
    ///
    /// # Errors
    /// [`Error::IndexExists`]; sizes or boundaries that do not go together; a full pool.
    pub fn create_index(&self, name: &str, options: &IndexOptions) -> Result<Index> {
        self.shared.writable()?;
        let mut registry = lock(&self.shared.registry);
        let chosen = self.shared.with_endpoint(|ep| servers::create(&self.shared, ep, name, options))?;
        let open = OpenOptions { own: options.own.clone(), expect: None };
        self.open_locked(&mut registry, name, &open, Some(chosen))
    }

    /// Opens an index with all its keys.
    ///
    /// # Errors
    /// As [`Cluster::open_index_with`].
    pub fn open_index(&self, name: &str) -> Result<Index> {
        self.open_index_with(name, &OpenOptions::default())
    }

    /// Opens an index. If this process has it open already, that one is returned.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] with the names that exist, [`Error::WrongLayout`], [`Error::PartitionOwned`] with the
    /// process that owns a wanted partition, [`Error::OpenForWriting`] for a reader, [`Error::OpenOtherwise`]; a cache that is too
    /// small, with the minimum.
    pub fn open_index_with(&self, name: &str, options: &OpenOptions) -> Result<Index> {
        self.shared.check_open()?;
        self.open_locked(&mut lock(&self.shared.registry), name, options, None)
    }

    /// Opens the index, or makes it if there is none of this name.
    ///
    /// # Errors
    /// As [`Cluster::open_index_with`], which is given the layout of `options`, and [`Cluster::create_index`].
    pub fn open_or_create_index(&self, name: &str, options: &IndexOptions) -> Result<Index> {
        let open = OpenOptions { own: options.own.clone(), expect: Some(options.layout) };
        match self.open_index_with(name, &open) {
            Err(Error::UnknownIndex { .. }) => match self.create_index(name, options) {
                Err(Error::IndexExists { .. }) => self.open_index_with(name, &open),
                done => done,
            },
            done => done,
        }
    }

    fn open_locked(
        &self,
        registry: &mut BTreeMap<String, Arc<IndexData>>,
        name: &str,
        options: &OpenOptions,
        chosen: Option<servers::Chosen>,
    ) -> Result<Index> {
        // Of one that is unsettled nothing is cached: it is opened as the catalog has it.
        if registry.get(name).is_some_and(|data| data.is_unsettled()) {
            registry.remove(name);
        }
        if let Some(data) = registry.get(name) {
            let found = data.servers()?.descriptor.layout;
            servers::check_layout(name, found, options.expect)?;
            if data.own != options.own {
                return Err(Error::OpenOtherwise { name: name.to_owned() });
            }
            return Ok(Index { shared: Arc::clone(&self.shared), data: Arc::clone(data) });
        }
        let servers = self
            .shared
            .with_endpoint(|ep| servers::open(&self.shared, ep, name, options, chosen.is_some()))?;
        let recut_by_load = chosen == Some(servers::Chosen::Equally);
        let data = Arc::new(IndexData::new(name, options.own.clone(), recut_by_load, servers));
        registry.insert(name.to_owned(), Arc::clone(&data));
        Ok(Index { shared: Arc::clone(&self.shared), data })
    }

    /// Takes an index out of the pool and frees all that it occupies. Handles to it fail from then on.
    ///
    /// That also works for an index that nobody can open any more, because the process that was making it ended before it was
    /// done, or one died that owned a partition. Its nodes then stay allocated until the allocation of the pool is rebuilt.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`]; [`Error::PartitionOwned`] and [`Error::NotAllOwned`]; [`Error::SessionsOpen`];
    /// [`Error::BadIndex`] for a damaged one.
    pub fn drop_index(&self, name: &str) -> Result<()> {
        self.shared.writable()?;
        let mut registry = lock(&self.shared.registry);
        if self.drop_unusable(&mut registry, name)? {
            return Ok(());
        }
        let index = match registry.get(name).filter(|data| !data.is_unsettled()) {
            Some(data) => Index { shared: Arc::clone(&self.shared), data: Arc::clone(data) },
            None => self.open_locked(&mut registry, name, &OpenOptions::default(), None)?,
        };
        let guard = index.data.exclusive("dropping it")?;
        let servers = index.data.servers()?;
        servers.check_runs_all("dropping it")?;
        self.shared.losing_on_error(|| {
            self.shared.with_endpoint(|ep| servers::drop_index(&self.shared, ep, &servers))
        })?;
        index.data.close();
        registry.remove(name);
        drop(guard);
        Ok(())
    }

    /// Takes an index out of the catalog that nobody can use; whether it was one.
    fn drop_unusable(&self, registry: &mut BTreeMap<String, Arc<IndexData>>, name: &str) -> Result<bool> {
        self.shared.with_endpoint(|ep| {
            let record = self.shared.record(ep, name)?;
            if !lost::is_unusable(&self.shared, ep, &record)? {
                return Ok(false);
            }
            // Of such an index this process may have a part.
            let data = registry.get(name).cloned();
            let guard = data.as_ref().map(|data| data.exclusive("dropping it")).transpose()?;
            lost::unlink(&self.shared, ep, &record)?;
            if let Some(data) = &data {
                data.close();
            }
            registry.remove(name);
            drop(guard);
            Ok(true)
        })
    }

    /// Names of the indexes, in order.
    ///
    /// # Errors
    /// A damaged catalog.
    pub fn index_names(&self) -> Result<Vec<String>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| self.shared.names(ep))
    }

    /// What the catalog says of an index.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn index_info(&self, name: &str) -> Result<IndexInfo> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| self.shared.info(ep, self.shared.record(ep, name)?))
    }

    /// What the catalog says of all indexes, in the order of their names.
    ///
    /// # Errors
    /// A damaged catalog.
    pub fn indexes(&self) -> Result<Vec<IndexInfo>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| {
            let mut records = block_on(ep, self.shared.pool.list_indexes(ep))?;
            records.sort_by(|a, b| a.name.cmp(&b.name));
            records.into_iter().map(|record| self.shared.info(ep, record)).collect()
        })
    }

    /// The processes that are attached to the pool, this one included.
    ///
    /// # Errors
    /// Those of the fabric.
    pub fn attached(&self) -> Result<Vec<ProcessIdentity>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| {
            Ok(block_on(ep, self.shared.pool.attached(ep))?.into_iter().map(|(_, process)| process).collect())
        })
    }

    /// Writes everything that changed back to the memory servers, and from there to the files if there are any.
    /// Operations may go on meanwhile; what they change may or may not be in.
    ///
    /// # Errors
    /// Those of the fabric.
    pub fn flush(&self) -> Result<()> {
        self.shared.check_open()?;
        let registry = lock(&self.shared.registry);
        self.shared.losing_on_error(|| self.shared.flush(&registry))
    }

    /// Writes everything back, gives up the partitions and leaves the pool. Does nothing the second time.
    ///
    /// # Errors
    /// [`Error::SessionsOpen`], or [`Error::Busy`] while keys are being moved: the cluster stays open. If anything else fails
    /// the pool is not marked as closed cleanly; it may be tried again.
    pub fn close(&self) -> Result<()> {
        self.shared.close()
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("place", &self.shared.config.place).finish_non_exhaustive()
    }
}

impl Shared {
    /// An endpoint with a seed of its own.
    pub fn endpoint(&self) -> Result<AnyEndpoint> {
        // An odd step visits every seed before one comes again.
        self.fabric.endpoint(self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed))
    }

    /// Runs `work`, which is no operation of a session, and counts its verbs.
    pub fn with_endpoint<T>(&self, work: impl FnOnce(&AnyEndpoint) -> Result<T>) -> Result<T> {
        let ep = self.endpoint()?;
        let done = work(&ep);
        self.count_management(ep.counters().snapshot());
        done
    }

    pub fn count_management(&self, verbs: VerbCounts) {
        let mut counts = lock(&self.counts);
        counts.management = counts.management + verbs;
    }

    pub fn check_open(&self) -> Result<()> {
        if self.closed.load(Relaxed) { Err(Error::Closed) } else { Ok(()) }
    }

    /// Whether nothing of the pool may be changed.
    pub fn read_only(&self) -> bool {
        self.config.mode() != AttachMode::ReadWrite
    }

    /// Whether this process looks at the pool in whatever state it is.
    pub fn looking(&self) -> bool {
        self.config.mode() == AttachMode::ReadOnlyUnclean
    }

    /// Whether it reads beside others, and is to be right.
    pub fn reading(&self) -> bool {
        self.config.mode() == AttachMode::ReadOnly
    }

    pub fn writable(&self) -> Result<()> {
        self.check_open()?;
        if self.read_only() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// If `work` fails, the pool is not marked as closed cleanly by a mere drop.
    pub fn losing_on_error<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work();
        if done.is_err() {
            self.failed.store(true, Relaxed);
        }
        done
    }

    /// Refuses while another process is attached. Processes that come later wait for the fabric's lock, if the
    /// caller holds it.
    pub fn check_alone(&self, ep: &AnyEndpoint, what: &'static str) -> Result<()> {
        let attached = block_on(ep, self.pool.attached(ep))?;
        match attached.iter().find(|&&(slot, _)| Some(slot) != self.pool.slot()) {
            Some(&(_, process)) => Err(Error::NotAlone { what, process }),
            None => Ok(()),
        }
    }

    pub fn names(&self, ep: &AnyEndpoint) -> Result<Vec<String>> {
        let records = block_on(ep, self.pool.list_indexes(ep))?;
        let mut names: Vec<String> = records.into_iter().map(|record| record.name).collect();
        names.sort();
        Ok(names)
    }

    pub fn record(&self, ep: &AnyEndpoint, name: &str) -> Result<IndexRecord> {
        match block_on(ep, self.pool.open_index(ep, name)) {
            Err(PoolError::UnknownIndex { name }) => {
                Err(Error::UnknownIndex { name, existing: self.names(ep)? })
            }
            found => Ok(found?),
        }
    }

    /// A partition of an index, as the catalog has them, and its owner.
    pub async fn owner(
        &self,
        ep: &AnyEndpoint,
        index: &str,
        partition_of: impl FnOnce(&[Vec<u8>]) -> usize,
    ) -> Result<(usize, Option<Owner>)> {
        let record = self.pool.open_index(ep, index).await?;
        let partition = partition_of(&record.boundaries);
        let process = match record.owners.get(partition).copied().flatten() {
            Some(slot) => self.process_at(ep, slot).await?,
            None => None,
        };
        Ok((partition, process.map(|process| Owner::of(&process, index))))
    }

    fn info(&self, ep: &AnyEndpoint, record: IndexRecord) -> Result<IndexInfo> {
        let descriptor = Descriptor::decode(&record.layout)
            .map_err(|reason| Error::BadIndex { name: record.name.clone(), reason })?;
        let attached = block_on(ep, self.pool.attached(ep))?;
        let process = |slot| attached.iter().find(|(at, _)| *at == slot).map(|(_, process)| *process);
        Ok(IndexInfo {
            id: record.id,
            layout: descriptor.layout,
            node_size: record.node_size as usize,
            subtree_level: record.subtree_level,
            owners: record.owners.iter().map(|owner| owner.and_then(process)).collect(),
            boundaries: record.boundaries,
            name: record.name,
            description: Descriptor::description(&record.layout),
        })
    }

    fn flush(&self, registry: &BTreeMap<String, Arc<IndexData>>) -> Result<()> {
        if self.read_only() {
            return Ok(());
        }
        self.write_back(registry)?;
        self.fabric.flush()
    }

    /// Writes what changed in caches to the memory servers.
    fn write_back(&self, registry: &BTreeMap<String, Arc<IndexData>>) -> Result<()> {
        let mut settled = registry.values().filter(|data| !data.is_unsettled());
        self.with_endpoint(|ep| settled.try_for_each(|data| data.servers()?.flush(ep)))
    }

    fn close(&self) -> Result<()> {
        let mut registry = lock(&self.registry);
        if self.closed.load(Relaxed) {
            return Ok(());
        }
        let guards = registry.values().map(|data| data.exclusive(CLOSING));
        let guards = guards.collect::<Result<Vec<_>>>()?;
        self.losing_on_error(|| {
            if !self.read_only() {
                self.write_back(&registry)?;
            }
            // Makes everything last before it marks the pool as closed.
            self.with_endpoint(|ep| Ok(block_on(ep, self.pool.detach(ep))?))
        })?;
        self.closed.store(true, Relaxed);
        registry.values().for_each(|data| data.close());
        drop(guards);
        registry.clear();
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The memory of an embedded pool is about to go.
        let embedded = self.config.place == Place::Embedded;
        if !embedded && !self.failed.load(Relaxed) && !std::thread::panicking() {
            // Documented: nobody hears of a failure, and the pool then stays marked as not closed cleanly.
            let _ = self.close();
        }
    }
}
