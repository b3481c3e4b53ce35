//! The logs of the indexes that this process has open for writing (`docs/durability.md`).
//!
//! Each partition has a log of its own, whose number is in the catalog. It stays with the partition while that is closed,
//! empty. A log that the catalog does not name holds nothing; it goes when one process opens the whole index. A partition that is
//! opened without a log loses the one that it had: what is changed from then on is in no log, and recovery must not rely
//! on one. The list of logs and the owners in the catalog change together, so nobody owns a partition without the log
//! that it is to have.

use std::sync::Arc;
use std::thread;

use pando_dex::{LOG_PER_CACHE_BYTE, LOG_SEGMENTS_MIN};
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_log::{Blocks, Contents, Entered, Log, LogError, Options, Persistence, Shape, Space};
use pando_pool::{IndexRecord, LogChange, LogPlace, Placement, Pool, PoolError};
use pando_rt::block_on;

use super::persister::Persister;
use crate::error::{Error, Result};
use crate::options::Durability;
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Claims partitions of an index, which get the logs that the configuration asks for, or lose those that they had.
/// A log that holds changes stays as it is.
///
/// # Errors
/// A full pool; errors of [`pando_pool::Pool::claim_partitions`].
pub(super) fn claim(
    shared: &Shared,
    ep: &AnyEndpoint,
    record: &IndexRecord,
    partitions: &[usize],
) -> Result<IndexRecord> {
    // Before a log is made in vain.
    block_on(ep, shared.pool.check_owners(ep, record, partitions))?;
    let Remake { made, old, changes } = remake(shared, ep, record, partitions)?;
    match block_on(ep, shared.pool.claim_logged(ep, &record.name, partitions, &changes)) {
        Ok(record) => {
            free(shared, ep, &old)?;
            Ok(record)
        }
        Err(error) => {
            // Only these tell that nothing was changed.
            if matches!(error, PoolError::PartitionOwned { .. } | PoolError::PartitionLost { .. }) {
                free(shared, ep, &made)?;
            }
            Err(error.into())
        }
    }
}

/// Makes the logs that an index lacks which is about to have this record, and which this process owns.
pub(super) fn make_all(shared: &Shared, ep: &AnyEndpoint, record: &IndexRecord) -> Result<()> {
    let all: Vec<usize> = (0..record.owners.len()).collect();
    let Remake { old, changes, .. } = remake(shared, ep, record, &all)?;
    let changes: Vec<_> =
        changes.into_iter().map(|(partition, change)| (record.logs[partition], change)).collect();
    block_on(ep, shared.pool.change_logs(ep, record.id, &changes))?;
    free(shared, ep, &old)
}

/// New logs, the changes of the list that enter them, by partition, and the logs that they replace.
struct Remake {
    made: Vec<Space>,
    changes: Vec<(usize, LogChange)>,
    old: Vec<Space>,
}

/// Makes the logs that some partitions of an index are to have, unless theirs are right or hold changes.
fn remake(shared: &Shared, ep: &AnyEndpoint, record: &IndexRecord, partitions: &[usize]) -> Result<Remake> {
    let wanted = match shared.config.durability {
        Durability::Off => None,
        _ => Some(bytes_of_log(shared, record.owners.len())?),
    };
    let logs = block_on(ep, shared.pool.logs(ep))?;
    let (mut made, mut changes, mut old) = (Vec::new(), Vec::new(), Vec::new());
    for &partition in partitions {
        let had = space_among(ep, &logs, record, partition)?;
        if had.as_ref().map(Space::bytes) == wanted || !is_empty(ep, had.as_ref())? {
            continue;
        }
        let new = match wanted.map(|bytes| make(shared, ep, record.id, bytes)).transpose() {
            Ok(new) => new,
            Err(error) => {
                // All or none.
                free(shared, ep, &made)?;
                return Err(error);
            }
        };
        changes
            .push((partition, new.as_ref().map_or(LogChange::Remove, |space| LogChange::Set(space.root()))));
        made.extend(new);
        old.extend(had);
    }
    Ok(Remake { made, changes, old })
}

fn is_empty(ep: &AnyEndpoint, log: Option<&Space>) -> Result<bool> {
    log.map_or(Ok(true), |space| Ok(read_contents(ep, space.clone())?.is_empty()))
}

fn read_contents(ep: &AnyEndpoint, space: Space) -> Result<Contents> {
    block_on(ep, Contents::read(ep, space)).map_err(Error::from)
}

/// The contents of a log whose writer died, for who redoes it.
pub(crate) fn read_to_redo(ep: &AnyEndpoint, space: Space) -> Result<Contents> {
    block_on(ep, Contents::read_to_redo(ep, space)).map_err(Error::from)
}

/// Size of the logs of an index together, if it has any.
pub(crate) fn bytes_of(shared: &Shared, ep: &AnyEndpoint, index_id: u32) -> Result<Option<u64>> {
    let logs = block_on(ep, shared.pool.logs(ep))?;
    let logs = logs.iter().filter(|log| log.index_id == index_id).map(|log| read_space(ep, log));
    let logs = logs.collect::<Result<Vec<_>>>()?;
    Ok((!logs.is_empty()).then(|| logs.iter().map(Space::bytes).sum()))
}

/// A log in use, and the thread that persists it, if that is wanted.
pub(crate) struct OpenLog {
    pub log: Arc<Log>,
    /// Its number in the list of the pool.
    pub number: u16,
    _persister: Option<Persister>,
}

impl OpenLog {
    /// Moves the log away from a memory server that hands out no blocks. Operations may run.
    ///
    /// # Errors
    /// A full pool, after which the log is where it was; errors of the log and of the catalog.
    pub fn leave(&self, shared: &Shared, ep: &AnyEndpoint, server: MemoryServerId) -> Result<()> {
        let (pool, space) = (&shared.pool, self.log.space());
        let is_there = |at: GlobalAddr| at.server() == server;
        if !space.blocks().any(|(at, _)| is_there(at)) {
            return Ok(());
        }
        let enter = async |root| {
            let changes = [LogChange::Set(root), LogChange::Write].map(|change| (self.number, change));
            match pool.change_logs(ep, space.index_id, &changes).await {
                Ok(_) => Entered::Yes,
                // The list may have changed nevertheless.
                Err(error) => match pool.logs(ep).await {
                    Ok(logs) if logs.iter().any(|log| log.root == root) => Entered::Yes,
                    Ok(_) => Entered::No(Error::from(error)),
                    Err(_) => Entered::Unknown(Error::from(error)),
                },
            }
        };
        let mut fresh = Vec::new();
        let moved = block_on(ep, async {
            let blocks = space.without(is_there, alloc_from(pool, ep, &mut fresh)).await?;
            self.log.move_to(ep, blocks, enter).await
        });
        let unused = match moved {
            Ok(left) => left,
            // Either root may be entered, so all blocks stay.
            Err(error) if self.log.is_frozen() => return Err(error),
            Err(error) => {
                free_blocks(pool, ep, fresh)?;
                return Err(error);
            }
        };
        free_blocks(pool, ep, unused)
    }

    /// Bytes that the index's cache may have.
    pub fn cache_max(&self) -> u64 {
        self.log.space().bytes() / LOG_PER_CACHE_BYTE
    }
}

/// Checks that the logs of an index hold nothing, for a process that only reads.
///
/// # Errors
/// [`Error::BadIndex`]: an heir gave up midway. An inspection takes what there is.
pub(super) fn check_at_rest(shared: &Shared, ep: &AnyEndpoint, record: &IndexRecord) -> Result<()> {
    let logs = block_on(ep, shared.pool.logs(ep))?;
    for partition in 0..record.owners.len() {
        let space = space_among(ep, &logs, record, partition)?;
        if !shared.looking() && !is_empty(ep, space.as_ref())? {
            let reason = "its log holds changes that are not in its nodes; open it for writing first";
            return Err(bad(record, reason));
        }
    }
    Ok(())
}

fn bad(record: &IndexRecord, reason: &str) -> Error {
    Error::BadIndex { name: record.name.clone(), reason: reason.to_owned() }
}

/// Opens the log of a partition, which this process owns. `None` if nothing is logged.
///
/// # Errors
/// [`Error::BadIndex`] for a log that holds changes; a damaged log.
pub(super) fn open_log(
    shared: &Shared,
    ep: &AnyEndpoint,
    record: &IndexRecord,
    partition: usize,
) -> Result<Option<Arc<OpenLog>>> {
    if shared.read_only() || shared.config.durability == Durability::Off {
        return Ok(None);
    }
    let place = find(shared, ep, record, partition)?.ok_or_else(|| bad(record, "one of its logs is gone"))?;
    let contents = read_contents(ep, read_space(ep, &place)?)?;
    if !contents.is_empty() {
        return Err(bad(record, "its log holds changes that are not in its nodes"));
    }
    resume(shared, ep, contents, record.logs[partition]).map(Some)
}

/// Makes and opens a log for a partition that is still to be made. `None` if nothing is logged.
///
/// # Errors
/// A full pool; too many logs.
pub(super) fn add_log(shared: &Shared, ep: &AnyEndpoint, name: &str) -> Result<Option<Arc<OpenLog>>> {
    if shared.config.durability == Durability::Off {
        return Ok(None);
    }
    let record = shared.record(ep, name)?;
    let space = make(shared, ep, record.id, bytes_of_log(shared, record.owners.len() + 1)?)?;
    let number = block_on(ep, shared.pool.add_log(ep, name, space.root()))?;
    resume(shared, ep, read_contents(ep, space)?, number).map(Some)
}

fn resume(shared: &Shared, ep: &AnyEndpoint, contents: Contents, number: u16) -> Result<Arc<OpenLog>> {
    let (persistence, interval) = match shared.config.durability {
        Durability::Immediate => (Persistence::BeforeAnswer, None),
        Durability::Group(interval) => (Persistence::Later, Some(interval)),
        Durability::Off | Durability::Process => (Persistence::Never, None),
    };
    let (patience_ns, verbs_take_ns) = (shared.config.patience_ns(), shared.fabric.verbs_take_ns());
    let options = Options { persistence, patience_ns, verbs_take_ns };
    let log = Arc::new(block_on(ep, Log::resume(ep, contents, options)).map_err(Error::from)?);
    if let Some(lease) = shared.fabric.lease() {
        log.lend(lease);
    }
    let persister = match persistence {
        Persistence::Never => None,
        _ => Some(Persister::start(Arc::clone(&log), shared.endpoint()?, interval)?),
    };
    Ok(Arc::new(OpenLog { log, number, _persister: persister }))
}

impl From<LogError> for Error {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Fabric(error) => error.into(),
            LogError::Damaged { addr, reason } => Self::Pool(PoolError::Corrupt { addr, reason }),
            error => Self::InvalidOption(error.to_string()),
        }
    }
}

/// Size of each of `count` logs by the cache, at most a quarter of the pool together: whole segments in all lanes.
fn bytes_of_log(shared: &Shared, count: usize) -> Result<u64> {
    let segment = shared.pool.max_block();
    let pool: u64 = shared.with_endpoint(|ep| Ok(ep.regions().iter().map(|region| region.len).sum()))?;
    let wanted = shared.config.cache.saturating_mul(LOG_PER_CACHE_BYTE).min(pool / 4 / count.max(1) as u64);
    let segments = wanted / segment;
    let lanes = lanes_of(segments);
    if segments < LOG_SEGMENTS_MIN {
        let text = format!("a log of {wanted} bytes is too small; give the pool or the cache more memory");
        return Err(Error::InvalidOption(text));
    }
    Ok(segments / lanes * lanes * segment)
}

/// A lane for each processor, if the log is large enough for that. Workers share lanes.
fn lanes_of(segments: u64) -> u64 {
    let processors = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    (segments / LOG_SEGMENTS_MIN).clamp(1, processors)
}

/// Where the log of a partition is.
pub(super) fn find(
    shared: &Shared,
    ep: &AnyEndpoint,
    record: &IndexRecord,
    partition: usize,
) -> Result<Option<LogPlace>> {
    Ok(find_among(&block_on(ep, shared.pool.logs(ep))?, record, partition).copied())
}

fn find_among<'l>(logs: &'l [LogPlace], record: &IndexRecord, partition: usize) -> Option<&'l LogPlace> {
    logs.iter().find(|log| log.is_of(record.id, record.logs[partition]))
}

fn space_among(
    ep: &AnyEndpoint,
    logs: &[LogPlace],
    record: &IndexRecord,
    partition: usize,
) -> Result<Option<Space>> {
    find_among(logs, record, partition).map(|place| read_space(ep, place)).transpose()
}

pub(crate) fn read_space(ep: &AnyEndpoint, place: &LogPlace) -> Result<Space> {
    block_on(ep, Space::read(ep, place.root)).map_err(Error::from)
}

/// An empty log that is in no list.
fn make(shared: &Shared, ep: &AnyEndpoint, index_id: u32, bytes: u64) -> Result<Space> {
    let (pool, segment_bytes) = (&shared.pool, shared.pool.max_block());
    let lanes = lanes_of(bytes / segment_bytes);
    let segments = (bytes / segment_bytes / lanes) as usize;
    let shape = Shape { lanes: lanes as usize, segments, segment_bytes };
    let mut allocated = Vec::new();
    let made = block_on(ep, async {
        let blocks = Blocks::gather(shape, alloc_from(pool, ep, &mut allocated)).await?;
        Log::create(ep, index_id, blocks).await.map_err(Error::from)
    });
    if made.is_err() {
        free_blocks(pool, ep, allocated)?;
    }
    made
}

/// Allocates blocks for a log, and notes them.
fn alloc_from<'p>(
    pool: &'p Pool,
    ep: &'p AnyEndpoint,
    allocated: &'p mut Vec<(GlobalAddr, u64)>,
) -> impl AsyncFnMut(u64) -> Result<GlobalAddr> + 'p {
    async |bytes| {
        let at = pool.alloc(ep, Placement::LeastLoaded, bytes).await?;
        allocated.push((at, bytes));
        Ok(at)
    }
}

fn free_blocks(
    pool: &Pool,
    ep: &AnyEndpoint,
    blocks: impl IntoIterator<Item = (GlobalAddr, u64)>,
) -> Result<()> {
    for (at, bytes) in blocks {
        block_on(ep, pool.free(ep, at, bytes))?;
    }
    Ok(())
}

/// Removes the logs of an index whose numbers are not among `kept`. This process owns the whole index: another may be about
/// to name one.
pub(crate) fn drop_others(shared: &Shared, ep: &AnyEndpoint, index_id: u32, kept: &[u16]) -> Result<()> {
    let logs = block_on(ep, shared.pool.logs(ep))?;
    let goes = |log: &&LogPlace| log.index_id == index_id && !kept.contains(&log.number);
    let changes = logs.iter().filter(goes).map(|log| (log.number, LogChange::Remove));
    remove(shared, ep, index_id, &changes.collect::<Vec<_>>())
}

/// Removes a log, if there is one of this number. It is empty.
pub(super) fn drop_log(shared: &Shared, ep: &AnyEndpoint, index_id: u32, number: u16) -> Result<()> {
    remove(shared, ep, index_id, &[(number, LogChange::Remove)])
}

fn remove(shared: &Shared, ep: &AnyEndpoint, index_id: u32, changes: &[(u16, LogChange)]) -> Result<()> {
    // Another process may have been faster, so only those are freed that were still in the list.
    let removed = block_on(ep, shared.pool.change_logs(ep, index_id, changes))?;
    let spaces = removed.iter().map(|place| read_space(ep, place)).collect::<Result<Vec<_>>>()?;
    free(shared, ep, &spaces)
}

/// From now on this process writes to the logs of these partitions, which are empty, if it keeps logs.
pub(super) fn begin_writing(
    shared: &Shared,
    ep: &AnyEndpoint,
    record: &IndexRecord,
    partitions: &[usize],
) -> Result<()> {
    if shared.config.durability == Durability::Off {
        return Ok(());
    }
    let write: Vec<_> =
        partitions.iter().map(|&partition| (record.logs[partition], LogChange::Write)).collect();
    block_on(ep, shared.pool.change_logs(ep, record.id, &write))?;
    Ok(())
}

fn free(shared: &Shared, ep: &AnyEndpoint, spaces: &[Space]) -> Result<()> {
    free_blocks(&shared.pool, ep, spaces.iter().flat_map(Space::blocks))
}

/// Removes the logs of indexes that are gone: a process that dropped them was killed. An earlier process with the attach
/// slot of this one may still count as the writer of logs, which were redone since.
pub(crate) fn clear(shared: &Shared, ep: &AnyEndpoint) -> Result<()> {
    // In this order: the index of a log is older than the log.
    let logs = block_on(ep, shared.pool.logs(ep))?;
    if logs.is_empty() {
        return Ok(());
    }
    let records = block_on(ep, shared.pool.list_indexes(ep))?;
    for log in &logs {
        if !records.iter().any(|record| record.id == log.index_id) {
            drop_log(shared, ep, log.index_id, log.number)?;
        } else if log.writer.is_some() && log.writer == shared.pool.slot() {
            let leave = [(log.number, LogChange::Leave)];
            block_on(ep, shared.pool.change_logs(ep, log.index_id, &leave))?;
        }
    }
    Ok(())
}

/// Addresses and sizes of all blocks of logs.
pub(crate) fn blocks(shared: &Shared, ep: &AnyEndpoint) -> Result<Vec<(GlobalAddr, u64)>> {
    let mut blocks = Vec::new();
    for place in block_on(ep, shared.pool.logs(ep))? {
        blocks.extend(read_space(ep, &place)?.blocks());
    }
    Ok(blocks)
}
