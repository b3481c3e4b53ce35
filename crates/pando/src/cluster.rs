//! A pool as this process uses it: opening, indexes by name, flushing, closing.
//!
//! A handle to a cluster refers to the attachment to the pool ([`Shared`]) and to the open indexes
//! ([`Registry`]). [`Cluster::close`] fails at once while sessions are open, because one of them may be the
//! caller's own. A program that has told its threads to end needs to wait for them instead
//! ([`Cluster::close_within`]).

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pando_fabric::{Endpoint, Nanos};
use pando_pool::{AttachMode, Pool, ProcessIdentity};
use pando_rt::block_on;

use crate::copies::Copies;
use crate::error::{Error, Result};
use crate::index::{Index, IndexInfo, OpenIndexes, Registry};
use crate::local::create::{self, Chosen};
use crate::local::redo::Recovery;
use crate::local::{IndexData, logs, lost, open};
use crate::options::{Config, IndexOptions, OpenOptions, Place};
use crate::place;
use crate::recovery::recover;
use crate::shared::{Partition, Process, Shared, lock};
use crate::stats::Stats;

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
    pub(crate) registry: Arc<Registry>,
    recovery: Option<Recovery>,
}

/// Pause between two attempts to get what another process owns.
const PAUSE: Duration = Duration::from_millis(50);

/// Opens a pool, after its recovery if it was not closed. Waits for another process that is at this, and may have died.
fn open_or_recover(config: Config, fresh: u64) -> Result<(Shared, Option<Recovery>)> {
    let until = Instant::now() + config.patience();
    let (mut recovery, mut tries) = (None, 0);
    loop {
        let refused = match Shared::open(config.clone(), fresh) {
            Err(refused) if config.mode() == AttachMode::ReadWrite => refused,
            opened => return Ok((opened?, recovery)),
        };
        // Once at least, however long the first attempt took.
        let may_try = tries == 0 || Instant::now() < until;
        match refused {
            Error::NotClosedCleanly { .. } if recovery.is_none() && may_try => {
                recovery = recover(&config, fresh, refused)?;
            }
            refused if refused.is_being_repaired() && may_try => {}
            refused => return Err(refused),
        }
        tries += 1;
        if recovery.is_none() {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Removes logs that nobody needs, unless this process only reads.
fn clear_logs(shared: &Shared) -> Result<()> {
    if shared.read_only() {
        return Ok(());
    }
    let cleared = shared.with_endpoint(|ep| logs::clear(shared, ep));
    if cleared.is_err() {
        shared.with_endpoint(|ep| Ok(block_on(ep, shared.pool.detach(ep))?))?;
    }
    cleared
}

impl Cluster {
    /// Opens the pool that `config` describes, or creates it.
    ///
    /// # Errors
    /// [`Error::InvalidOption`]; [`Error::NotClosedCleanly`]; [`Error::Fabric`] and [`Error::CannotOpen`]
    /// with the path for files that are missing, truncated or no pool, and for a lack of space.
    pub fn open(config: Config) -> Result<Self> {
        config.check()?;
        let fresh = RandomState::new().hash_one(std::process::id());
        let (shared, recovery) = open_or_recover(config, fresh)?;
        clear_logs(&shared)?;
        let shared = Arc::new(shared);
        Ok(Self { registry: Arc::new(Registry::new(Arc::clone(&shared))), shared, recovery })
    }

    /// What opening the pool had to recover, because its process was killed; `None` if it was closed.
    pub fn recovery(&self) -> Option<Recovery> {
        self.recovery
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
        let mut registry = lock(&self.registry.open);
        let chosen = self.shared.with_endpoint(|ep| create::create(&self.shared, ep, name, options))?;
        let open = OpenOptions { own: options.own.clone(), ..OpenOptions::default() };
        self.open_locked(&mut registry, name, &open, Some(chosen))
    }

    /// Opens an index with all its keys.
    ///
    /// # Errors
    /// As [`Cluster::open_index_with`].
    pub fn open_index(&self, name: &str) -> Result<Index> {
        self.open_index_with(name, &OpenOptions::default())
    }

    /// Opens an index. If this process has it open already, returns that one. Keys of a process that died, and kept a
    /// log, are taken over ([`Index::recovery`]).
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] with the names that exist; [`Error::WrongLayout`]; [`Error::PartitionOwned`]
    /// with the process that owns a requested partition; [`Error::OpenForWriting`] for a reader;
    /// [`Error::OpenOtherwise`]; [`Error::Cache`] with the minimum size for a cache that is too small.
    pub fn open_index_with(&self, name: &str, options: &OpenOptions) -> Result<Index> {
        self.shared.check_open()?;
        let until = Instant::now().checked_add(options.wait);
        loop {
            let opened = self.open_locked(&mut lock(&self.registry.open), name, options, None);
            let left = until.map_or(PAUSE, |until| until.saturating_duration_since(Instant::now()));
            match opened {
                Err(Error::PartitionOwned { .. }) if !left.is_zero() => std::thread::sleep(PAUSE.min(left)),
                opened => return opened,
            }
        }
    }

    /// Opens the index, or creates it if no index has this name, or the process that was creating it ended
    /// before it was complete.
    ///
    /// # Errors
    /// As [`Cluster::open_index_with`] with the layout of `options`, and [`Cluster::create_index`].
    pub fn open_or_create_index(&self, name: &str, options: &IndexOptions) -> Result<Index> {
        let open =
            OpenOptions { own: options.own.clone(), expect: Some(options.layout), ..OpenOptions::default() };
        match self.open_index_with(name, &open) {
            // Creating removes one that is incomplete, and leaves any other.
            Err(Error::UnknownIndex { .. } | Error::BadIndex { .. }) => {
                match self.create_index(name, options) {
                    Err(Error::IndexExists { .. }) => self.open_index_with(name, &open),
                    done => done,
                }
            }
            done => done,
        }
    }

    fn handle(&self, data: &Arc<IndexData>) -> Index {
        let (shared, registry) = (Arc::clone(&self.shared), Arc::clone(&self.registry));
        Index { shared, _registry: registry, data: Arc::clone(data) }
    }

    fn open_locked(
        &self,
        registry: &mut OpenIndexes,
        name: &str,
        options: &OpenOptions,
        chosen: Option<Chosen>,
    ) -> Result<Index> {
        // Nothing of an unsettled index is cached, so it can be opened again as the catalog has it.
        if registry.get(name).is_some_and(|data| data.is_unsettled()) {
            registry.remove(name);
        }
        if let Some(data) = registry.get(name) {
            let found = data.servers()?.descriptor.layout;
            open::check_layout(name, found, options.expect)?;
            if data.own != options.own {
                return Err(Error::OpenOtherwise { name: name.to_owned() });
            }
            return Ok(self.handle(data));
        }
        let servers =
            self.shared.with_endpoint(|ep| open::open(&self.shared, ep, name, options, chosen.is_some()))?;
        let recut_by_load = chosen == Some(Chosen::Equally);
        let data = Arc::new(IndexData::new(name, options.own.clone(), recut_by_load, servers));
        registry.insert(name.to_owned(), Arc::clone(&data));
        Ok(self.handle(&data))
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
        let mut registry = lock(&self.registry.open);
        if self.drop_unusable(&mut registry, name)? {
            return Ok(());
        }
        let index = match registry.get(name).filter(|data| !data.is_unsettled()) {
            Some(data) => self.handle(data),
            None => self.open_locked(&mut registry, name, &OpenOptions::default(), None)?,
        };
        let _guard = index.data.exclusive("dropping it")?;
        let servers = index.data.servers()?;
        servers.check_runs_all("dropping it")?;
        self.shared.losing_on_error(|| {
            self.shared.with_endpoint(|ep| create::drop_index(&self.shared, ep, &servers))
        })?;
        index.data.close();
        registry.remove(name);
        Ok(())
    }

    /// Removes from the catalog an index that can no longer be opened; returns whether it was one.
    fn drop_unusable(&self, registry: &mut OpenIndexes, name: &str) -> Result<bool> {
        self.shared.with_endpoint(|ep| {
            let record = self.shared.record(ep, name)?;
            if !lost::is_unusable(&self.shared, ep, &record)? {
                return Ok(false);
            }
            // This process may own a part of such an index.
            let data = registry.get(name).cloned();
            let _guard = data.as_ref().map(|data| data.exclusive("dropping it")).transpose()?;
            match lost::unlink(&self.shared, ep, &record) {
                Err(Error::Pool(pando_pool::PoolError::StaleRecord { .. })) => return Ok(false),
                unlinked => unlinked?,
            }
            if let Some(data) = &data {
                data.close();
            }
            registry.remove(name);
            Ok(true)
        })
    }

    /// Names of the indexes and Elf tables, in ascending order.
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
        IndexInfo::named(&self.shared, name)
    }

    /// Catalog entries of all indexes, in the order of their names. Elf tables are not among them
    /// ([`Cluster::elf_names`]).
    ///
    /// # Errors
    /// A damaged catalog.
    pub fn indexes(&self) -> Result<Vec<IndexInfo>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| {
            let records = self.shared.keyed_indexes(ep)?;
            records.into_iter().map(|record| IndexInfo::of(&self.shared, ep, record)).collect()
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

    /// Processes in the pool's attach table: this one, other living ones, and those that died while attached.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub fn processes(&self) -> Result<Vec<Process>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| {
            let processes = block_on(ep, self.shared.pool.processes(ep))?;
            Ok(processes.iter().map(|attached| self.shared.process(attached)).collect())
        })
    }

    /// Partitions of an index in the order of their keys, with their owners. Processes that come, go or move
    /// boundaries change them.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`]; errors of the fabric.
    pub fn partitions(&self, index: &str) -> Result<Vec<Partition>> {
        self.shared.check_open()?;
        self.shared.with_endpoint(|ep| self.shared.partitions(ep, index))
    }

    /// The memory servers as they have copies of each other's memory, as far as this process knows; `None` for a pool
    /// without copies.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn copies(&self) -> Result<Option<Copies>> {
        self.shared.check_open()?;
        Ok(self.shared.fabric.view().map(|view| Copies::of(&view)))
    }

    /// Current counts, and the usage of the memory servers.
    ///
    /// # Errors
    /// Errors of the fabric; [`Error::Closed`].
    pub fn stats(&self) -> Result<Stats> {
        self.shared.check_open()?;
        let pool = self.shared.with_endpoint(|ep| Ok(block_on(ep, self.shared.pool.usage(ep))?))?;
        let open = lock(&self.registry.open);
        let indexes = open.values().map(|data| data.stats()).collect::<Result<Vec<_>>>()?;
        drop(open);
        let counts = lock(&self.shared.counts);
        let (verbs, management) = (counts.sum(), counts.management);
        Ok(Stats { verbs, management, indexes, pool, copies: self.copies()? })
    }

    /// Writes all changes back to the memory servers, and from there to the files if there are any.
    /// Operations may continue meanwhile; their changes may or may not be included.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub fn flush(&self) -> Result<()> {
        self.registry.flush()
    }

    /// Writes everything back, gives up the partitions and leaves the pool. A second call does nothing.
    ///
    /// # Errors
    /// [`Error::SessionsOpen`], or [`Error::Busy`] while keys are being moved: the cluster stays open. After
    /// any other error the pool is not marked as closed cleanly; the call may be repeated.
    pub fn close(&self) -> Result<()> {
        self.registry.close()
    }

    /// As [`Cluster::close`], but first waits up to `wait` until all open sessions are dropped, and until
    /// moves of keys and exclusive work end. New sessions are refused with [`Error::Busy`] meanwhile. A
    /// session of the calling thread makes the wait futile.
    ///
    /// # Errors
    /// [`Error::SessionsOpen`] or [`Error::Busy`] if an index is still in use afterwards: the cluster stays
    /// open, and sessions can be opened again. Errors of [`Cluster::close`].
    pub fn close_within(&self, wait: Duration) -> Result<()> {
        // Clamp, so that the addition cannot overflow.
        let forever = Duration::from_secs(u32::MAX.into());
        let end = Instant::now() + wait.min(forever);
        loop {
            let indexes: Vec<_> = lock(&self.registry.open).values().map(Arc::clone).collect();
            let waiting: Vec<_> = indexes.iter().map(|data| data.await_rest(end)).collect();
            let closed = self.close();
            drop(waiting);
            let may_wait = Instant::now() < end;
            match closed {
                // An index was opened meanwhile, or exclusive work has begun.
                Err(Error::SessionsOpen { .. } | Error::Busy { .. }) if may_wait => {}
                done => return done,
            }
        }
    }
}

/// For other index structures on the same pool. The catalog does not know such an index, which must free its
/// blocks itself.
impl Cluster {
    /// One thread's endpoint. It must not be used once the cluster is closed.
    ///
    /// # Errors
    /// [`Error::Closed`]; errors of the fabric.
    pub fn endpoint(&self) -> Result<impl Endpoint + use<>> {
        self.shared.check_open()?;
        self.shared.endpoint()
    }

    /// The pool: the allocator of the memory servers, and all metadata.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// Nanoseconds after which an operation should begin nothing that may take long, so that it ends before
    /// the deadline ([`limited`](pando_fabric::limited)).
    pub fn operation_ns(&self) -> Nanos {
        self.shared.config.operation_ns()
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("place", &self.shared.config.place).finish_non_exhaustive()
    }
}
