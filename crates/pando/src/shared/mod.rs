//! What the indexes and sessions of this process share: its attachment to a pool.
//!
//! The attachment consists of the fabric, the pool and the configuration. It knows the catalog and the other
//! processes, but not the indexes that are open here ([`crate::index::Registry`]). It remembers a failure
//! that may have lost data, so that the pool is not marked as closed cleanly.

mod owners;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_elf_remote::is_elf;
use pando_fabric::{Endpoint, VerbCounts};
use pando_pool::{AttachMode, IndexRecord, Pool, PoolError};
use pando_rt::block_on;

use crate::error::{Error, Owner, Result};
use crate::options::{Config, Durability};
use crate::place::{self, AnyEndpoint, AnyFabric};
pub(crate) use owners::{OwnedKeys, Spread, Wish};
pub use owners::{Partition, PartitionOwner, Process};

pub(crate) struct Shared {
    pub fabric: AnyFabric,
    pub pool: Pool,
    pub config: Config,
    pub counts: Mutex<SessionCounts>,
    /// What this process has announced: operation ports by index name, and a wish.
    notice: Mutex<BTreeMap<String, String>>,
    seed: AtomicU64,
    closed: AtomicBool,
    /// A failure may have lost data.
    failed: AtomicBool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Verb counts of sessions, as published to the cluster.
#[derive(Default)]
pub(crate) struct SessionCounts {
    finished: VerbCounts,
    /// Counts that each open session published last.
    open: Vec<Arc<Mutex<VerbCounts>>>,
    pub management: VerbCounts,
}

impl SessionCounts {
    pub fn begin(&mut self) -> Arc<Mutex<VerbCounts>> {
        let counts = Arc::default();
        self.open.push(Arc::clone(&counts));
        counts
    }

    pub fn end(&mut self, counts: &Arc<Mutex<VerbCounts>>) {
        self.finished = self.finished + *lock(counts);
        self.open.retain(|open| !Arc::ptr_eq(open, counts));
    }

    pub fn sum(&self) -> VerbCounts {
        self.open.iter().fold(self.finished, |sum, open| sum + *lock(open))
    }
}

impl Shared {
    /// Opens or creates the pool that `config`, which was checked, describes. Identifiers that must differ
    /// between the processes of a pool are drawn from `fresh`, not from the configured seed.
    pub fn open(config: Config, fresh: u64) -> Result<Self> {
        let (fabric, pool) = place::open(&config, fresh)?;
        Ok(Self::around(config, fabric, pool, fresh))
    }

    /// This process's attachment to `pool`.
    pub fn around(config: Config, fabric: AnyFabric, pool: Pool, fresh: u64) -> Self {
        Self {
            fabric,
            pool,
            seed: AtomicU64::new(config.seed.unwrap_or(fresh)),
            config,
            counts: Mutex::default(),
            notice: Mutex::default(),
            closed: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        }
    }

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

    /// Persists all memory if this process keeps logs: what is in no log is about to be entered into the catalog.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub fn persist(&self, ep: &AnyEndpoint) -> Result<()> {
        match self.config.durability {
            Durability::Off => Ok(()),
            _ => Ok(block_on(ep, pando_log::persist_all(ep))?),
        }
    }

    /// Adds verbs that belong to no session.
    pub fn count_management(&self, verbs: VerbCounts) {
        let mut counts = lock(&self.counts);
        counts.management = counts.management + verbs;
    }

    pub fn check_open(&self) -> Result<()> {
        if self.closed.load(Relaxed) { Err(Error::Closed) } else { Ok(()) }
    }

    pub fn set_closed(&self) {
        self.closed.store(true, Relaxed);
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

    /// Whether a failure may have lost data.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
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

    /// The records of all indexes that are no Elf, by name.
    pub fn keyed_indexes(&self, ep: &AnyEndpoint) -> Result<Vec<IndexRecord>> {
        let mut records = block_on(ep, self.pool.list_indexes(ep))?;
        records.retain(|record| !is_elf(record));
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
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
        let Some(slot) = record.owners.get(partition).copied().flatten() else {
            return Ok((partition, None));
        };
        let attached = self.pool.processes(ep).await?;
        let owner = attached.iter().find(|attached| attached.slot == slot);
        Ok((partition, owner.map(|attached| self.process(attached).owner(index))))
    }
}
