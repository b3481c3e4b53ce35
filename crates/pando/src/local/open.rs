//! Opening an index: claims of partitions, and a tree for each.
//!
//! A process that writes claims the partitions that it owns. A reader claims nothing, but opens an index only
//! while no process owns any of it, so that remote memory is up to date.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use pando_dex::layout::Layout;
use pando_dex::{Routes, RoutingTable};
use pando_pool::{IndexRecord, PoolError};
use pando_rt::block_on;

use super::create::{SYSTEM, cut};
use super::servers::{Servers, open_tree};
use super::{logs, lost, partitions, redo};
use crate::error::{Error, Owner, Result};
use crate::layout::{IndexLayout, NodeLayout, map_layout, with_layout};
use crate::options::{Descriptor, OpenOptions, Ownership};
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Checks that an index has the expected layout.
///
/// # Errors
/// [`Error::WrongLayout`].
pub(crate) fn check_layout(name: &str, found: IndexLayout, expected: Option<IndexLayout>) -> Result<()> {
    match expected.filter(|&expected| expected != found) {
        Some(expected) => Err(Error::WrongLayout { name: name.to_owned(), found, expected }),
        None => Ok(()),
    }
}

/// Opens an index of the catalog: claims partitions and opens a tree for each. If the configuration asks for
/// another number of compute servers, cuts the index anew first, unless `keep`.
pub(crate) fn open(
    shared: &Shared,
    ep: &AnyEndpoint,
    name: &str,
    options: &OpenOptions,
    keep: bool,
) -> Result<Servers> {
    let mut record = match shared.reading() {
        true => record_at_rest(shared, ep, name)?,
        false => finished_record(shared, ep, name)?,
    };
    let (descriptor, layout) = described(&record)?;
    check_layout(name, descriptor.layout, options.expect)?;
    if shared.read_only() {
        logs::check_at_rest(shared, ep, &record)?;
        record.boundaries.clear();
        return open_trees(shared, ep, descriptor, record, |_| true);
    }
    let owned = match &options.own {
        Ownership::All => (0..record.owners.len()).collect(),
        Ownership::Partitions(list) => list.clone(),
    };
    record = claim(shared, ep, record, &owned)?;
    let opened = (|| {
        if owned.len() == record.owners.len() {
            logs::drop_others(shared, ep, record.id, &record.logs)?;
        }
        let recovery = redo::settle(shared, ep, &record, &owned)?;
        if let (Some(count), Ownership::All, false) = (shared.config.compute_servers, &options.own, keep)
            && count != record.boundaries.len() + 1
        {
            let boundaries = with_layout!(layout, |layout| {
                partitions::of_keys(ep, layout, descriptor.layout, &record, count)
            })?;
            record = recut(shared, ep, layout, record, boundaries)?;
        }
        let mine = shared.pool.slot();
        let owners = record.owners.clone();
        let servers = open_trees(shared, ep, descriptor, record, |partition| owners[partition] == mine)?;
        Ok(Servers { recovery, ..servers })
    })();
    if opened.is_err() {
        // Partitions that cannot be released stay owned by this process, which can open them again and
        // releases them when it closes the pool.
        let _ = shared.record(ep, name).and_then(|record| {
            let mine: Vec<usize> =
                (0..record.owners.len()).filter(|&at| record.owners[at] == shared.pool.slot()).collect();
            Ok(block_on(ep, shared.pool.release_partitions(ep, name, &mine))?)
        });
    }
    opened
}

/// Record of an index. If it has no root yet, waits while the process that creates the index lives.
fn finished_record(shared: &Shared, ep: &AnyEndpoint, name: &str) -> Result<IndexRecord> {
    const PAUSE: Duration = Duration::from_micros(200);
    let deadline = Instant::now() + shared.config.patience();
    loop {
        let record = shared.record(ep, name)?;
        // An inspection may see an index whose creation was abandoned.
        if !record.root.is_null() || shared.looking() || Instant::now() >= deadline {
            return Ok(record);
        }
        if lost::is_unmade(shared, ep, &record, false)? {
            let reason =
                "the process that was making it ended before it was done; drop it, or create it again";
            return Err(Error::BadIndex { name: name.to_owned(), reason: reason.to_owned() });
        }
        std::thread::sleep(PAUSE);
    }
}

/// Record of an index that no process has open for writing.
///
/// # Errors
/// [`Error::OpenForWriting`]; [`Error::NotServed`] if the owner of a partition died.
pub(crate) fn record_at_rest(shared: &Shared, ep: &AnyEndpoint, name: &str) -> Result<IndexRecord> {
    let mut looks_left = 2;
    loop {
        let record = finished_record(shared, ep, name)?;
        let processes = match record.owners.iter().any(Option::is_some) {
            true => block_on(ep, shared.pool.processes(ep))?,
            false => return Ok(record),
        };
        // Attach slots of processes that detached are free, and such processes own nothing any more.
        let owner = record.owners.iter().enumerate().find_map(|(partition, slot)| {
            let found = processes.iter().find(|found| Some(found.slot) == *slot)?;
            Some((partition, found))
        });
        let Some((partition, found)) = owner else { return Ok(record) };
        let (index, owner) = (name.to_owned(), shared.process(found).owner(name));
        if found.is_alive {
            return Err(Error::OpenForWriting { index, owner });
        }
        // A process that detached and ended between the two READs seems to have died.
        looks_left -= 1;
        if looks_left == 0 {
            return Err(Error::NotServed { index, partition, owner: Some(owner), is_lost: true });
        }
    }
}

/// Layout of the nodes of an index.
pub(crate) fn node_layout_of(record: &IndexRecord) -> Result<NodeLayout> {
    described(record).map(|(_, layout)| layout)
}

fn described(record: &IndexRecord) -> Result<(Descriptor, NodeLayout)> {
    let bad = |reason: String| Error::BadIndex { name: record.name.clone(), reason };
    if pando_elf_remote::is_elf(record) {
        return Err(Error::IsElf { name: record.name.clone() });
    }
    if record.system != SYSTEM {
        return Err(bad(format!("it is of an unknown kind {}", record.system)));
    }
    if record.root.is_null() {
        return Err(bad("another process is making it and has not finished; try again".to_owned()));
    }
    let descriptor = Descriptor::of_record(record)?;
    let layout = descriptor.node_layout(record.node_size as usize).map_err(|error| bad(error.to_string()))?;
    Ok((descriptor, layout))
}

/// Claims partitions. Of those whose owners died and which have logs, this process is the heir.
fn claim(
    shared: &Shared,
    ep: &AnyEndpoint,
    record: IndexRecord,
    partitions: &[usize],
) -> Result<IndexRecord> {
    let claimed = match logs::claim(shared, ep, &record, partitions) {
        Err(Error::Pool(PoolError::PartitionLost { partition, .. }))
            if logs::find(shared, ep, &record, partition)?.is_some() =>
        {
            let inherited = block_on(ep, shared.pool.inherit_partitions(ep, &record.name, &[partition]));
            return match inherited {
                Ok(record) => claim(shared, ep, record, partitions),
                Err(error) => Err(owned(shared, ep, error)?),
            };
        }
        done => done,
    };
    match claimed {
        Err(Error::Pool(error)) => Err(owned(shared, ep, error)?),
        done => done,
    }
}

/// Tells who owns a partition, if that is the error. Of several heirs, the first has it.
fn owned(shared: &Shared, ep: &AnyEndpoint, error: PoolError) -> Result<Error> {
    let PoolError::PartitionOwned { name, partition, owner: process } = error else {
        return Ok(error.into());
    };
    let what = "this process can work on it";
    let found = block_on(ep, shared.pool.processes(ep))?;
    let owner = found.iter().find(|found| found.process == process);
    let owner = owner.map(|found| shared.process(found).owner(&name));
    let owner = owner.unwrap_or(Owner { process, address: None });
    Ok(Error::PartitionOwned { index: name, partition, owner, what })
}

/// Changes the boundaries of an index. This process owns all of it and has no trees of it open.
pub(crate) fn recut(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: NodeLayout,
    mut record: IndexRecord,
    boundaries: Vec<Vec<u8>>,
) -> Result<IndexRecord> {
    with_layout!(layout, |layout| cut(shared, ep, layout, &record, &boundaries))?;
    shared.persist(ep)?;
    record.recut(boundaries, shared.pool.slot());
    // No partition is without the log that it is to have at any time.
    logs::make_all(shared, ep, &record)?;
    let record = block_on(ep, shared.pool.update_index(ep, &record))?;
    logs::drop_others(shared, ep, record.id, &record.logs)?;
    logs::begin_writing(shared, ep, &record, &(0..record.owners.len()).collect::<Vec<_>>())?;
    Ok(record)
}

/// The owners of all keys, and the operations of each compute server, by number.
struct Numbered {
    routes: Arc<Routes>,
    loads: Vec<Arc<AtomicU64>>,
}

/// Opens a tree for each partition that `is_mine`.
fn open_trees(
    shared: &Shared,
    ep: &AnyEndpoint,
    descriptor: Descriptor,
    record: IndexRecord,
    is_mine: impl Fn(usize) -> bool,
) -> Result<Servers> {
    let count = record.boundaries.len() + 1;
    let routes = Arc::new(Routes::new(RoutingTable::in_order(record.boundaries.clone())?));
    let loads = (0..count).map(|_| Arc::default()).collect();
    open_numbered(shared, ep, descriptor, record, Numbered { routes, loads }, is_mine)
}

/// Opens the trees of all partitions anew, all of which this process owns. The compute servers of `before`
/// keep their numbers, although the root or the boundaries may be others.
pub(crate) fn reopen_trees(
    shared: &Shared,
    ep: &AnyEndpoint,
    record: IndexRecord,
    before: &Servers,
) -> Result<Servers> {
    let numbers = before.routes.table().owners().to_vec();
    let table = RoutingTable::new(record.boundaries.clone(), numbers)?;
    let numbered = Numbered { routes: Arc::new(Routes::new(table)), loads: before.loads.clone() };
    let servers = open_numbered(shared, ep, before.descriptor, record, numbered, |_| true)?;
    Ok(Servers { recovery: before.recovery, ..servers })
}

fn open_numbered(
    shared: &Shared,
    ep: &AnyEndpoint,
    descriptor: Descriptor,
    record: IndexRecord,
    Numbered { routes, loads }: Numbered,
    is_mine: impl Fn(usize) -> bool,
) -> Result<Servers> {
    let table = routes.table();
    let layout = descriptor.node_layout(record.node_size as usize)?;
    let mut logs = vec![None; loads.len()];
    let trees = map_layout!(layout, |layout| {
        let mut trees = Vec::with_capacity(loads.len());
        for (number, log_of) in logs.iter_mut().enumerate() {
            let partition = table.partition_owned_by(number).filter(|&partition| is_mine(partition));
            let Some(partition) = partition else {
                trees.push(None);
                continue;
            };
            let mut cache = shared.config.cache_config(layout.node_size());
            let log = logs::open_log(shared, ep, &record, partition)?;
            let range = table.range(partition);
            let tree = open_tree(shared, ep, layout, &record, range, &mut cache, log.as_deref())?;
            trees.push(Some(Arc::new(tree)));
            *log_of = log;
        }
        trees
    });
    Ok(Servers { routes, record, descriptor, trees, loads, recovery: None, logs })
}
