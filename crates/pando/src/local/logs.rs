//! The logs of the indexes that this process has open for writing (`docs/durability.md`).
//!
//! A log stays with its index while the index is closed, empty. An index that is opened without a log loses
//! the one that it had: what is changed from then on is in no log, and recovery must not rely on one. The
//! list of logs and the owners in the catalog change together, so nobody owns an index without the log that
//! it is to have.

use std::sync::Arc;
use std::thread;

use pando_dex::{LOG_PER_CACHE_BYTE, LOG_SEGMENTS_MIN};
use pando_fabric::GlobalAddr;
use pando_log::{Blocks, Contents, Log, LogError, Options, Persistence, Shape, Space};
use pando_pool::{IndexRecord, LogChange, LogPlace, Placement, PoolError};
use pando_rt::block_on;

use super::persister::Persister;
use crate::error::{Error, Result};
use crate::options::Durability;
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Claims partitions of an index, which gets the log that the configuration asks for, or loses the one that it had.
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
    let old = find(shared, ep, record.id)?;
    let wanted = match shared.config.durability {
        Durability::Off => None,
        _ => Some(bytes_of_log(shared)?),
    };
    let (mut new, mut change) = (None, LogChange::Keep);
    if old.as_ref().map(Space::bytes) != wanted && is_empty(ep, old.as_ref())? {
        new = wanted.map(|bytes| make(shared, ep, record.id, bytes)).transpose()?;
        change = new.as_ref().map_or(LogChange::Remove, |space| LogChange::Set(space.root()));
    }
    match block_on(ep, shared.pool.claim_logged(ep, &record.name, partitions, change)) {
        Ok(record) => {
            if change != LogChange::Keep {
                free(shared, ep, old)?;
            }
            Ok(record)
        }
        Err(error) => {
            // Only these tell that nothing was changed.
            if matches!(error, PoolError::PartitionOwned { .. } | PoolError::PartitionLost { .. }) {
                free(shared, ep, new)?;
            }
            Err(error.into())
        }
    }
}

fn is_empty(ep: &AnyEndpoint, log: Option<&Space>) -> Result<bool> {
    log.map_or(Ok(true), |space| Ok(read_contents(ep, space.clone())?.is_empty()))
}

pub(crate) fn read_contents(ep: &AnyEndpoint, space: Space) -> Result<Contents> {
    block_on(ep, Contents::read(ep, space)).map_err(of_log)
}

/// Size of the log of an index, if it has one.
pub(crate) fn bytes_of(shared: &Shared, ep: &AnyEndpoint, index_id: u32) -> Result<Option<u64>> {
    Ok(find(shared, ep, index_id)?.map(|space| space.bytes()))
}

/// A log in use, and the thread that persists it, if that is wanted.
pub(crate) struct OpenLog {
    pub log: Arc<Log>,
    _persister: Option<Persister>,
}

impl OpenLog {
    /// Bytes that the index's cache may have.
    pub fn cache_max(&self) -> u64 {
        self.log.space().bytes() / LOG_PER_CACHE_BYTE
    }
}

/// Opens the log of an index, all of which this process owns. `None` if nothing is logged.
///
/// # Errors
/// [`Error::BadIndex`] for a log that holds changes; a damaged log.
pub(super) fn open_log(shared: &Shared, ep: &AnyEndpoint, record: &IndexRecord) -> Result<Option<OpenLog>> {
    let bad = |reason: &str| Error::BadIndex { name: record.name.clone(), reason: reason.to_owned() };
    if shared.read_only() {
        // An heir gave up midway. An inspection takes what there is.
        return match shared.looking() || is_empty(ep, find(shared, ep, record.id)?.as_ref())? {
            true => Ok(None),
            false => Err(bad("its log holds changes that are not in its nodes; open it for writing first")),
        };
    }
    if shared.config.durability == Durability::Off {
        return Ok(None);
    }
    let space = find(shared, ep, record.id)?.ok_or_else(|| bad("its log is gone"))?;
    let contents = read_contents(ep, space)?;
    if !contents.is_empty() {
        return Err(bad("its log holds changes that are not in its nodes"));
    }
    let (persistence, interval) = match shared.config.durability {
        Durability::Immediate => (Persistence::BeforeAnswer, None),
        Durability::Group(interval) => (Persistence::Later, Some(interval)),
        Durability::Off | Durability::Process => (Persistence::Never, None),
    };
    let (patience_ns, verbs_take_ns) = (shared.config.patience_ns(), shared.fabric.verbs_take_ns());
    let options = Options { persistence, patience_ns, verbs_take_ns };
    let log = Arc::new(block_on(ep, Log::resume(ep, contents, options)).map_err(of_log)?);
    if let Some(lease) = shared.fabric.lease() {
        log.lend(lease);
    }
    let persister = match persistence {
        Persistence::Never => None,
        _ => Some(Persister::start(Arc::clone(&log), shared.endpoint()?, interval)?),
    };
    Ok(Some(OpenLog { log, _persister: persister }))
}

/// Converts an error of a log.
pub(crate) fn of_log(error: LogError) -> Error {
    match error {
        LogError::Fabric(error) => error.into(),
        LogError::Damaged { addr, reason } => Error::Pool(PoolError::Corrupt { addr, reason }),
        error => Error::InvalidOption(error.to_string()),
    }
}

/// Size of a log by the cache, at most a quarter of the pool: whole segments in all lanes.
fn bytes_of_log(shared: &Shared) -> Result<u64> {
    let segment = shared.pool.max_block();
    let pool: u64 = shared.fabric.regions().iter().map(|region| region.len).sum();
    let wanted = shared.config.cache.saturating_mul(LOG_PER_CACHE_BYTE).min(pool / 4);
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

pub(super) fn find(shared: &Shared, ep: &AnyEndpoint, index_id: u32) -> Result<Option<Space>> {
    let logs = block_on(ep, shared.pool.logs(ep))?;
    let place = logs.iter().find(|log| log.index_id == index_id);
    place.map(|place| read_space(ep, place)).transpose()
}

pub(crate) fn read_space(ep: &AnyEndpoint, place: &LogPlace) -> Result<Space> {
    block_on(ep, Space::read(ep, place.root)).map_err(of_log)
}

/// An empty log that is in no list.
fn make(shared: &Shared, ep: &AnyEndpoint, index_id: u32, bytes: u64) -> Result<Space> {
    let (pool, segment_bytes) = (&shared.pool, shared.pool.max_block());
    let lanes = lanes_of(bytes / segment_bytes);
    let segments = (bytes / segment_bytes / lanes) as usize;
    let shape = Shape { lanes: lanes as usize, segments, segment_bytes };
    let mut allocated: Vec<(GlobalAddr, u64)> = Vec::new();
    let alloc = async |bytes| {
        let at = pool.alloc(ep, Placement::LeastLoaded, bytes).await?;
        allocated.push((at, bytes));
        Ok::<_, Error>(at)
    };
    let made = block_on(ep, async {
        let blocks = Blocks::gather(shape, alloc).await?;
        Log::create(ep, index_id, blocks).await.map_err(of_log)
    });
    if made.is_err() {
        for (at, bytes) in allocated {
            block_on(ep, pool.free(ep, at, bytes))?;
        }
    }
    made
}

/// Removes the log of an index, if it has one. It is empty, or the index is gone.
pub(crate) fn drop_log(shared: &Shared, ep: &AnyEndpoint, index_id: u32) -> Result<()> {
    let Some(space) = find(shared, ep, index_id)? else { return Ok(()) };
    let had = block_on(ep, shared.pool.change_log(ep, index_id, LogChange::Remove))?;
    // Another process may have been faster.
    free(shared, ep, had.map(|_| space))
}

fn free(shared: &Shared, ep: &AnyEndpoint, space: Option<Space>) -> Result<()> {
    for (addr, bytes) in space.iter().flat_map(Space::blocks) {
        block_on(ep, shared.pool.free(ep, addr, bytes))?;
    }
    Ok(())
}

/// Removes the logs of indexes that are gone: a process that dropped them was killed.
pub(crate) fn drop_stray(shared: &Shared, ep: &AnyEndpoint) -> Result<()> {
    // In this order: the index of a log is older than the log.
    let logs = block_on(ep, shared.pool.logs(ep))?;
    if logs.is_empty() {
        return Ok(());
    }
    let records = block_on(ep, shared.pool.list_indexes(ep))?;
    let is_stray = |log: &&LogPlace| !records.iter().any(|record| record.id == log.index_id);
    logs.iter().filter(is_stray).try_for_each(|log| drop_log(shared, ep, log.index_id))
}

/// Addresses and sizes of all blocks of logs.
pub(crate) fn blocks(shared: &Shared, ep: &AnyEndpoint) -> Result<Vec<(GlobalAddr, u64)>> {
    let mut blocks = Vec::new();
    for place in block_on(ep, shared.pool.logs(ep))? {
        blocks.extend(read_space(ep, &place)?.blocks());
    }
    Ok(blocks)
}
