//! What processes with logs that died had leased, while others go on (`pool/reclaim.rs`).
//!
//! Heirs redo the logs. Once none of them is awaited, any process with logs takes the chunks over and frees the place in the
//! attach table. What is neither in a log nor stored beforehand, it finds from the catalog: roots, logs, and Elf tables.

use std::collections::BTreeSet;

use pando_elf_remote::{audit_table, is_elf};
use pando_fabric::GlobalAddr;
use pando_pool::{Attached, IndexRecord};
use pando_rt::block_on;

use super::logs;
use crate::error::{Error, Result};
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Reclaims what the dead among `attached` had leased, as far as it is time.
///
/// # Errors
/// Errors of the fabric and of the catalog; an Elf table that changes meanwhile. It can be done again.
pub(crate) fn reclaim(shared: &Shared, ep: &AnyEndpoint, attached: &[Attached]) -> Result<()> {
    let may_be = |other: &&Attached| !other.is_alive && other.keeps_bitmaps;
    let mut dead: Vec<_> = attached.iter().filter(may_be).map(|other| other.slot).collect();
    if dead.is_empty() || !shared.pool.keeps_bitmaps() {
        return Ok(());
    }
    let records = block_on(ep, shared.pool.list_indexes(ep))?;
    let logs = block_on(ep, shared.pool.logs(ep))?;
    let owners = records.iter().flat_map(|record| &record.owners).chain(logs.iter().map(|log| &log.writer));
    let awaited: BTreeSet<_> = owners.flatten().collect();
    dead.retain(|slot| !awaited.contains(slot));
    if dead.is_empty() {
        return Ok(());
    }
    let blocks = unlogged_blocks(shared, ep, &records)?;
    for slot in dead {
        block_on(ep, shared.pool.reclaim(ep, slot, &blocks))?;
    }
    Ok(())
}

fn unlogged_blocks(
    shared: &Shared,
    ep: &AnyEndpoint,
    records: &[IndexRecord],
) -> Result<Vec<(GlobalAddr, u64)>> {
    let mut blocks = logs::blocks(shared, ep)?;
    for record in records {
        if is_elf(record) {
            let audit = block_on(ep, audit_table(ep, &shared.pool, record));
            blocks.extend(audit.map_err(|error| Error::of_elf(&record.name, error))?.blocks);
        } else if !record.root.is_null() {
            blocks.push((record.root, u64::from(record.node_size)));
        }
    }
    Ok(blocks)
}
