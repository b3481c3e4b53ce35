//! The handle to an open index: what it is, who owns its keys, and work on the whole of it.
//!
//! Bulk loads (`bulk.rs`) need the index at rest. Keys move between compute servers (`repartition.rs`) while
//! sessions are open. Sessions and the cluster are above this module.

mod bulk;
mod follow;
mod move_record;
mod placing;
mod registry;
mod repartition;

use std::sync::Arc;

use pando_dex::KeyRange;
use pando_pool::{IndexRecord, ProcessIdentity};
use pando_rt::block_on;

use crate::error::Result;
use crate::layout::IndexLayout;
use crate::local::redo::Recovery;
use crate::local::{IndexData, logs};
use crate::options::Descriptor;
use crate::place::AnyEndpoint;
use crate::shared::Shared;
use crate::stats::LogStats;
pub use bulk::{BULK_THREADS_MAX, BulkOptions, Loaded};
pub use follow::Followed;
pub(crate) use registry::{OpenIndexes, Registry, write_back};
pub(crate) use repartition::place_of;

/// An open index. Clones are the same index; any number of threads may use them. Each thread opens a
/// [`crate::Session`] for its operations.
///
/// ```
/// use pando::{Cluster, Config, IndexOptions};
///
/// let cluster = Cluster::open(Config::embedded())?;
/// let index = cluster.create_index("squares", &IndexOptions::integers())?;
/// std::thread::scope(|scope| {
///     for thread in 0..4 {
///         let index = &index;
///         scope.spawn(move || {
///             let session = index.integers().expect("it is open");
///             for n in thread * 100..thread * 100 + 100 {
///                 session.put(n, n * n).expect("there is room");
///             }
///         });
///     }
/// });
/// assert_eq!(index.integers()?.get(399)?, Some(399 * 399));
/// # Ok::<(), pando::Error>(())
/// ```
#[derive(Clone)]
pub struct Index {
    pub(crate) shared: Arc<Shared>,
    /// Closes the pool with the last handle.
    pub(crate) _registry: Arc<Registry>,
    pub(crate) data: Arc<IndexData>,
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
    /// Bytes of its log, if it has one: then a process that opens it takes over what a dead owner had.
    pub log_bytes: Option<u64>,
}

impl IndexInfo {
    pub(crate) fn named(shared: &Shared, name: &str) -> Result<Self> {
        shared.check_open()?;
        shared.with_endpoint(|ep| Self::of(shared, ep, shared.record(ep, name)?))
    }

    pub(crate) fn of(shared: &Shared, ep: &AnyEndpoint, record: IndexRecord) -> Result<Self> {
        let descriptor = Descriptor::of_record(&record)?;
        let attached = block_on(ep, shared.pool.attached(ep))?;
        let log_bytes = logs::bytes_of(shared, ep, record.id)?;
        let process = |slot| attached.iter().find(|(at, _)| *at == slot).map(|(_, process)| *process);
        Ok(Self {
            id: record.id,
            layout: descriptor.layout,
            node_size: record.node_size as usize,
            subtree_level: record.subtree_level,
            owners: record.owners.iter().map(|owner| owner.and_then(process)).collect(),
            boundaries: record.boundaries,
            name: record.name,
            description: Descriptor::description(&record.layout),
            log_bytes,
        })
    }
}

/// The keys of an index that the compute servers of this process own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedKeys {
    /// Grows whenever a boundary moves, until the index is opened anew.
    pub epoch: u64,
    /// In ascending order; adjacent ranges are joined.
    pub ranges: Vec<KeyRange>,
}

impl Index {
    /// Name of the index.
    pub fn name(&self) -> &str {
        &self.data.name
    }

    /// Form of the keys and values. Once the index is closed: [`IndexLayout::Bytes`].
    pub fn layout(&self) -> IndexLayout {
        // No session can use a closed index, so any layout will do.
        self.data.servers().map_or(IndexLayout::Bytes, |servers| servers.descriptor.layout)
    }

    /// Catalog entry of this index.
    ///
    /// # Errors
    /// [`crate::Error::UnknownIndex`] if it was dropped.
    pub fn info(&self) -> Result<IndexInfo> {
        IndexInfo::named(&self.shared, self.name())
    }

    /// State of the logs of this process's compute servers; `None` if they have none, or the index is closed.
    pub fn log_stats(&self) -> Option<LogStats> {
        self.data.log_stats().ok().flatten()
    }

    /// What the last owner, which died, had left in the log when this process opened the index; `None` if the index
    /// was closed, or opening the pool recovered it ([`crate::Cluster::recovery`]).
    pub fn recovery(&self) -> Option<Recovery> {
        self.data.servers().ok()?.recovery
    }

    /// First keys of all partitions but the first. Boundaries between partitions of other processes may be
    /// outdated; [`Index::info`] has the current ones.
    ///
    /// # Errors
    /// [`crate::Error::Closed`].
    pub fn boundaries(&self) -> Result<Vec<Vec<u8>>> {
        Ok(self.data.servers()?.boundaries())
    }

    /// Number of compute servers, one per partition, in this and other processes.
    ///
    /// Opening an index numbers them from 0 in the order of their keys. A compute server keeps its number
    /// while others are [added](Index::add_compute_server), which get new numbers, and
    /// [removed](Index::remove_compute_server).
    ///
    /// # Errors
    /// [`crate::Error::Closed`].
    pub fn compute_servers(&self) -> Result<usize> {
        Ok(self.data.servers()?.boundaries().len() + 1)
    }

    /// Keys that a compute server owns.
    ///
    /// # Errors
    /// [`crate::Error::Closed`]; [`crate::Error::InvalidOption`] if there is no such compute server.
    pub fn range_of(&self, compute_server: usize) -> Result<KeyRange> {
        self.data.servers()?.range_of(compute_server)
    }

    /// Keys that this process owns.
    ///
    /// # Errors
    /// [`crate::Error::Closed`].
    pub fn owned_keys(&self) -> Result<OwnedKeys> {
        let servers = self.data.servers()?;
        let table = servers.routes.table();
        let mut ranges: Vec<KeyRange> = Vec::new();
        for (partition, &number) in table.owners().iter().enumerate() {
            if !servers.runs(number) {
                continue;
            }
            let range = table.range(partition);
            match ranges.last_mut() {
                Some(last) if last.high == range.low => last.high = range.high,
                _ => ranges.push(range),
            }
        }
        Ok(OwnedKeys { epoch: table.epoch(), ranges })
    }

    /// A number that grows whenever the result of [`Index::owned_keys`] may have changed.
    #[doc(hidden)]
    pub fn owned_keys_version(&self) -> (u64, u64) {
        let epoch = self.data.servers().map_or(u64::MAX, |servers| servers.routes.epoch());
        (self.data.generation(), epoch)
    }

    /// Announces to all processes of the pool that this process serves the index at `address`: `host:port` of
    /// an operation port, as other hosts reach it. Replaces an earlier announcement. Ends with
    /// [`Index::withdraw`] or when the cluster is closed.
    ///
    /// # Errors
    /// [`crate::Error::InvalidOption`] for an address that other hosts cannot connect to;
    /// [`crate::Error::ReadOnly`]; no room on the first memory server.
    pub fn announce(&self, address: &str) -> Result<()> {
        self.shared.set_port(self.name(), Some(address))
    }

    /// Withdraws the announcement of [`Index::announce`].
    ///
    /// # Errors
    /// [`crate::Error::ReadOnly`]; errors of the fabric.
    pub fn withdraw(&self) -> Result<()> {
        self.shared.set_port(self.name(), None)
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("name", &self.name()).finish_non_exhaustive()
    }
}
