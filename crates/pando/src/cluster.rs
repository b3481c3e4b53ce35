//! A pool as this process uses it: opening, indexes by name, flushing, closing.
//!
//! Closing writes back the contents of the caches, gives up partitions and chunk leases, and then marks the
//! pool as closed, in this order; a failure before the last step leaves the pool unclean. A failure that may
//! have lost data is remembered, so that dropping the last handle does not mark the pool as closed cleanly.

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

/// A pool of memory that this process is attached to, and the indexes that it has open. Clones are the same
/// cluster; any number of threads may use them.
///
/// [`Cluster::close`] writes everything back and leaves a pool that can be opened again. Dropping the last
/// handle (cluster, index or session) attempts the same, but failures go unreported. A drop attempts nothing
/// if an earlier failure may have lost data, or while the thread panics: the pool then counts as not closed
/// cleanly.
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

/// Catalog entry of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexInfo {
    /// Number of the index; the pool never uses it again.
    pub id: u32,
    pub name: String,
    pub layout: IndexLayout,
    /// Bytes of a node.
    pub node_size: usize,
    /// M: the level whose subtrees each lie on one memory server.
    pub subtree_level: u8,
    /// First keys of all partitions but the first.
    pub boundaries: Vec<Vec<u8>>,
    /// Owner of each partition; `None` if no process owns it.
    pub owners: Vec<Option<ProcessIdentity>>,
    /// Description given when the index was created.
    pub description: Vec<u8>,
}

pub(crate) struct Shared {
    pub fabric: AnyFabric,
    pub pool: Pool,
    pub config: Config,
    pub counts: Mutex<SessionCounts>,
    /// Open indexes by name. Locked while one is opened, and during work on the whole cluster.
    pub registry: Mutex<BTreeMap<String, Arc<IndexData>>>,
    /// Operation ports that this process has announced, by index name.
    pub ports: Mutex<BTreeMap<String, String>>,
    seed: AtomicU64,
    closed: AtomicBool,
    /// A failure may have lost data.
    failed: AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cluster {
    /// Opens the pool that `config` describes, or creates it.
    ///
    /// # Errors
    /// [`Error::InvalidOption`]; [`Error::NotClosedCleanly`]; [`Error::Fabric`] and [`Error::CannotOpen`]
    /// with the path for files that are missing, truncated or no pool, and for a lack of space.
    pub fn open(config: Config) -> Result<Self> {
        config.check()?;
        // Identifiers that must differ between the processes of a pool are drawn from this seed, not from the
        // configured one.
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

    /// Opens the pool as [`Cluster::open`] does, if it exists; `None` if it would have to be created first.
    ///
    /// # Errors
    /// As [`Cluster::open`] for an existing pool.
    pub fn open_if_there(config: Config) -> Result<Option<Self>> {
        if !place::may_be_there(&config) {
            return Ok(None);
        }
        let elsewhere = matches!(config.place, Place::Tcp(_) | Place::Verbs(_));
        match Self::open(config) {
            // Memory servers without a pool can be made into one; a file without a pool is something else.
            Err(error) if elsewhere && error.is_no_pool() => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Creates an empty index and opens it.
    ///
    /// # Errors
    /// [`Error::IndexExists`]; sizes or boundaries that do not fit together; a full pool.
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

    /// Opens an index. If this process has it open already, returns that one.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] with the names that exist; [`Error::WrongLayout`]; [`Error::PartitionOwned`]
    /// with the process that owns a requested partition; [`Error::OpenForWriting`] for a reader;
    /// [`Error::OpenOtherwise`]; [`Error::Cache`] with the minimum size for a cache that is too small.
    pub fn open_index_with(&self, name: &str, options: &OpenOptions) -> Result<Index> {
        self.shared.check_open()?;
        self.open_locked(&mut lock(&self.shared.registry), name, options, None)
    }

    /// Opens the index, or creates it if no index has this name.
    ///
    /// # Errors
    /// As [`Cluster::open_index_with`] with the layout of `options`, and [`Cluster::create_index`].
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
        // Nothing of an unsettled index is cached, so it can be opened again as the catalog has it.
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

    /// Removes an index from the pool and frees all its blocks. Existing handles to it fail from then on.
    ///
    /// This also removes an index that can no longer be opened, because the process that created it ended
    /// before it was complete, or because the owner of a partition died. Its nodes stay allocated until the
    /// pool's allocation is rebuilt.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`]; [`Error::PartitionOwned`] and [`Error::NotAllOwned`];
    /// [`Error::SessionsOpen`]; [`Error::BadIndex`] for a damaged index.
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

    /// Removes from the catalog an index that can no longer be opened; returns whether it was one.
    fn drop_unusable(&self, registry: &mut BTreeMap<String, Arc<IndexData>>, name: &str) -> Result<bool> {
        self.shared.with_endpoint(|ep| {
            let record = self.shared.record(ep, name)?;
            if !lost::is_unusable(&self.shared, ep, &record)? {
                return Ok(false);
            }
            // This process may own a part of such an index.
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

    /// Names of the indexes, in ascending order.
    ///
    /// # Errors
    /// A damaged catalog.
    pub fn index_names(&self) -> Result<Vec<String>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| self.shared.names(ep))
    }

    /// Catalog entry of an index.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`].
    pub fn index_info(&self, name: &str) -> Result<IndexInfo> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| self.shared.info(ep, self.shared.record(ep, name)?))
    }

    /// Catalog entries of all indexes, in the order of their names.
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

    /// Processes that are attached to the pool, including this one.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub fn attached(&self) -> Result<Vec<ProcessIdentity>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| {
            Ok(block_on(ep, self.shared.pool.attached(ep))?.into_iter().map(|(_, process)| process).collect())
        })
    }

    /// Writes all changes back to the memory servers, and from there to the files if there are any.
    /// Operations may continue meanwhile; their changes may or may not be included.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub fn flush(&self) -> Result<()> {
        self.shared.check_open()?;
        let registry = lock(&self.shared.registry);
        self.shared.losing_on_error(|| self.shared.flush(&registry))
    }

    /// Writes everything back, gives up the partitions and leaves the pool. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::SessionsOpen`], or [`Error::Busy`] while keys are being moved: the cluster stays open. After
    /// any other error the pool is not marked as closed cleanly; the call may be repeated.
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
        // An odd step visits all 2^64 seeds before one recurs.
        self.fabric.endpoint(self.seed.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed))
    }

    /// Runs `work`, which belongs to no session, and counts its verbs as management.
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

    /// Whether this process may change nothing in the pool.
    pub fn read_only(&self) -> bool {
        self.config.mode() != AttachMode::ReadWrite
    }

    /// Whether this process inspects the pool in whatever state it is.
    pub fn looking(&self) -> bool {
        self.config.mode() == AttachMode::ReadOnlyUnclean
    }

    /// Whether this process reads beside others and must return current answers.
    pub fn reading(&self) -> bool {
        self.config.mode() == AttachMode::ReadOnly
    }

    pub fn writable(&self) -> Result<()> {
        self.check_open()?;
        if self.read_only() { Err(Error::ReadOnly) } else { Ok(()) }
    }

    /// Runs `work`. If it fails, dropping the cluster does not mark the pool as closed cleanly.
    pub fn losing_on_error<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = work();
        if done.is_err() {
            self.failed.store(true, Relaxed);
        }
        done
    }

    /// Refuses while another process is attached. A caller that holds the fabric's lock keeps new processes
    /// from attaching.
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

    /// Partition of an index that `partition_of` selects by the catalog's boundaries, and its owner.
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

    /// Writes dirty nodes of all caches back to the memory servers.
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
            // Makes all changes durable before it marks the pool as closed.
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
        // The memory of an embedded pool ends with it, so there is nothing to save.
        let embedded = self.config.place == Place::Embedded;
        if !embedded && !self.failed.load(Relaxed) && !std::thread::panicking() {
            // The documentation of `Cluster` says so: a failure goes unreported, and the pool stays marked as
            // not closed cleanly.
            let _ = self.close();
        }
    }
}
