//! Recovery of a pool whose processes were killed, when it is opened again (`docs/durability.md`).
//!
//! Every index that the process had open has a log, or the pool is refused as before. Each log is read, and the
//! pages are brought to its end. Then all indexes are walked, and exactly their blocks are allocated. A
//! recovery that is killed as well is begun anew.

use std::collections::BTreeSet;
use std::time::Instant;

use pando_dex::audit::Report;
use pando_elf_remote::{is_elf, table_blocks};
use pando_fabric::GlobalAddr;
use pando_pool::IndexRecord;
use pando_rt::block_on;

use crate::error::{Error, Result};
use crate::layout::with_layout;
use crate::local::logs;
use crate::local::open::node_layout_of;
use crate::local::redo::{self, Recovery, RedoneLog};
use crate::local::servers::audit_whole;
use crate::options::{Config, Durability, RecoveryProgress};
use crate::place::{self, AnyEndpoint};
use crate::shared::Shared;

/// Recovers the pool that `config` describes after `refused`, the error of opening it.
///
/// # Errors
/// `refused`, if not every index that was open has a log; damage; errors of the fabric. The pool is still unclean
/// then, and the next attempt begins anew. `None` if another process has recovered it meanwhile.
pub(crate) fn recover(config: &Config, seed: u64, refused: Error) -> Result<Option<Recovery>> {
    let started = Instant::now();
    let Some((fabric, pool, _lock)) = place::open_for_repair(config, seed)? else { return Ok(None) };
    let shared = Shared::around(config.clone(), fabric, pool, seed);
    let ep = &shared.endpoint()?;
    let recovered = match has_all_logs(&shared, ep) {
        Ok(true) => redo_all(&shared, ep),
        Ok(false) => Err(refused),
        Err(error) => Err(error),
    };
    // After an error, the entry of the dead process stays.
    block_on(ep, shared.pool.detach(ep))?;
    Ok(Some(Recovery { took: started.elapsed(), ..recovered? }))
}

/// Whether this process or the last one keeps logs, and each index that a process had open has one.
fn has_all_logs(shared: &Shared, ep: &AnyEndpoint) -> Result<bool> {
    let logs = block_on(ep, shared.pool.logs(ep))?;
    let records = block_on(ep, shared.pool.list_indexes(ep))?;
    let was_open = |record: &IndexRecord| !record.root.is_null() && record.owners.iter().any(Option::is_some);
    let has_log = |record: &IndexRecord| {
        let is_logged = |partition: usize| {
            record.owners[partition].is_none()
                || logs.iter().any(|log| log.is_of(record.id, record.logs[partition]))
        };
        (0..record.owners.len()).all(is_logged)
    };
    // A process that was killed early has none yet.
    let keeps_logs = shared.config.durability != Durability::Off || !logs.is_empty();
    Ok(keeps_logs && records.iter().all(|record| !was_open(record) || has_log(record)))
}

fn redo_all(shared: &Shared, ep: &AnyEndpoint) -> Result<Recovery> {
    let records = block_on(ep, shared.pool.list_indexes(ep))?;
    let (mut recovery, mut redone) = (Recovery::default(), Vec::<RedoneLog>::new());
    // 1. Bring the pages of each index to the end of its logs.
    let mut indexes = BTreeSet::new();
    for place in block_on(ep, shared.pool.logs(ep))? {
        let names_it =
            |record: &&IndexRecord| record.logs.iter().any(|&number| place.is_of(record.id, number));
        let Some(record) = records.iter().find(names_it) else { continue };
        let pages = |done, total| shared.config.report_recovery(RecoveryProgress::Pages { done, total });
        let contents = logs::read_to_redo(ep, logs::read_space(ep, &place)?)?;
        let log = redo::redo(shared, ep, contents, record, pages)?;
        recovery.add(&log);
        redone.push(log);
        indexes.insert(record.id);
    }
    recovery.indexes = indexes.len();
    for record in
        records.iter().filter(|record| indexes.contains(&record.id) && !record.boundaries.is_empty())
    {
        with_layout!(node_layout_of(record)?, |layout| {
            block_on(ep, pando_dex::give_back_locks(ep, layout, record.root))?
        });
    }
    // 2. Allocate exactly what is in use, and forget the dead process.
    let blocks = blocks_in_use(shared, ep, &records)?;
    block_on(ep, shared.pool.rebuild_allocation(ep, blocks))?;
    // 3. Empty the logs.
    redone.into_iter().try_for_each(|log| log.finish(ep))?;
    Ok(recovery)
}

/// Blocks of all indexes, Elf tables and logs.
fn blocks_in_use(
    shared: &Shared,
    ep: &AnyEndpoint,
    records: &[IndexRecord],
) -> Result<Vec<(GlobalAddr, u64)>> {
    let mut blocks = logs::blocks(shared, ep)?;
    for (done, record) in records.iter().enumerate() {
        let (done, total) = (done as u64, records.len() as u64);
        shared.config.report_recovery(RecoveryProgress::Indexes { done, total });
        if is_elf(record) {
            let of_table = block_on(ep, table_blocks(ep, &shared.pool, record));
            blocks.extend(of_table.map_err(|error| Error::of_elf(&record.name, error))?);
        } else if !record.root.is_null() {
            let report: Report =
                with_layout!(node_layout_of(record)?, |layout| { audit_whole(shared, ep, layout, record)? });
            if let Some(reason) = report.violations.into_iter().next() {
                return Err(Error::BadIndex { name: record.name.clone(), reason });
            }
            blocks.extend(report.blocks.iter());
        }
    }
    Ok(blocks)
}
