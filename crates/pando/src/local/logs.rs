//! The logs of the indexes that this process has open for writing, and the redo of those of a process that was
//! killed (`docs/durability.md`).
//!
//! A log stays with its index while the pool is closed, empty. An index that is opened without a log loses
//! the one that it had: what is changed from then on is in no log, and recovery must not rely on one.

use std::sync::Arc;
use std::thread;

use pando_dex::{LOG_PER_CACHE_BYTE, LOG_SEGMENTS_MIN, Redone};
use pando_fabric::GlobalAddr;
use pando_log::{Blocks, Contents, Log, LogError, Options, Persistence, Report, Shape, Space};
use pando_pool::{IndexRecord, LogPlace, Placement, PoolError};
use pando_rt::block_on;

use super::open::node_layout_of;
use super::persister::Persister;
use crate::error::{Error, Result};
use crate::layout::with_layout;
use crate::options::Durability;
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Gives an index a log, or takes it away, before this process claims and changes any of the index.
///
/// # Errors
/// A full pool.
pub(super) fn prepare(shared: &Shared, ep: &AnyEndpoint, record: &IndexRecord) -> Result<()> {
    if shared.config.durability == Durability::Off {
        return drop_log(shared, ep, record.id);
    }
    let bytes = bytes_of_log(shared)?;
    if find(shared, ep, record.id)?.is_some_and(|space| space.bytes() == bytes) {
        return Ok(());
    }
    drop_log(shared, ep, record.id)?;
    create(shared, ep, record.id, bytes)
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
    if shared.read_only() || shared.config.durability == Durability::Off {
        return Ok(None);
    }
    let bad = |reason: &str| Error::BadIndex { name: record.name.clone(), reason: reason.to_owned() };
    let space = find(shared, ep, record.id)?.ok_or_else(|| bad("its log is gone"))?;
    let contents = block_on(ep, Contents::read(ep, space)).map_err(of_log)?;
    if !contents.is_empty() {
        return Err(bad("its log holds changes that are not in its nodes"));
    }
    let (persistence, interval) = match shared.config.durability {
        Durability::Immediate => (Persistence::BeforeAnswer, None),
        Durability::Group(interval) => (Persistence::Later, Some(interval)),
        Durability::Off | Durability::Process => (Persistence::Never, None),
    };
    let options = Options { persistence, patience_ns: shared.config.patience_ns() };
    let log = Arc::new(block_on(ep, Log::resume(ep, contents, options)).map_err(of_log)?);
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

fn find(shared: &Shared, ep: &AnyEndpoint, index_id: u32) -> Result<Option<Space>> {
    let logs = block_on(ep, shared.pool.logs(ep))?;
    let place = logs.iter().find(|log| log.index_id == index_id);
    place.map(|place| read_space(ep, place)).transpose()
}

fn read_space(ep: &AnyEndpoint, place: &LogPlace) -> Result<Space> {
    block_on(ep, Space::read(ep, place.root)).map_err(of_log)
}

fn create(shared: &Shared, ep: &AnyEndpoint, index_id: u32, bytes: u64) -> Result<()> {
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
        let root = Log::create(ep, index_id, blocks).await.map_err(of_log)?.root();
        let mut logs = pool.logs(ep).await?;
        logs.push(LogPlace { index_id, root });
        Ok(pool.set_logs(ep, &logs).await?)
    });
    if made.as_ref().is_err_and(|error: &Error| !error.may_have_taken_effect()) {
        for (at, bytes) in allocated {
            block_on(ep, pool.free(ep, at, bytes))?;
        }
    }
    made
}

/// Removes the log of an index, if it has one. It is empty, or the index is gone.
pub(crate) fn drop_log(shared: &Shared, ep: &AnyEndpoint, index_id: u32) -> Result<()> {
    let pool = &shared.pool;
    let mut logs = block_on(ep, pool.logs(ep))?;
    let Some(at) = logs.iter().position(|log| log.index_id == index_id) else { return Ok(()) };
    let space = read_space(ep, &logs.swap_remove(at))?;
    block_on(ep, pool.set_logs(ep, &logs))?;
    for (addr, bytes) in space.blocks() {
        block_on(ep, pool.free(ep, addr, bytes))?;
    }
    Ok(())
}

/// Removes the logs of indexes that are gone: a process that dropped them was killed.
pub(crate) fn drop_stray(shared: &Shared, ep: &AnyEndpoint) -> Result<()> {
    let records = block_on(ep, shared.pool.list_indexes(ep))?;
    let logs = block_on(ep, shared.pool.logs(ep))?;
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

/// What recovery did with one log.
pub(crate) struct RedoneLog {
    pub redone: Redone,
    pub report: Report,
    contents: Contents,
}

impl RedoneLog {
    /// Empties the log, after the allocation was rebuilt.
    pub fn finish(self, ep: &AnyEndpoint) -> Result<()> {
        let options = Options { persistence: Persistence::BeforeAnswer, ..Options::default() };
        block_on(ep, Log::resume(ep, self.contents, options)).map(drop).map_err(of_log)
    }
}

/// Brings the pages of an index to the end of its log.
pub(crate) fn redo(
    ep: &AnyEndpoint,
    place: &LogPlace,
    record: &IndexRecord,
    progress: impl Fn(u64, u64),
) -> Result<RedoneLog> {
    let contents = block_on(ep, Contents::read(ep, read_space(ep, place)?)).map_err(of_log)?;
    let redone = with_layout!(node_layout_of(record)?, |layout| {
        block_on(ep, pando_dex::redo(ep, layout, &contents, progress))?
    });
    Ok(RedoneLog { redone, report: contents.report(), contents })
}
