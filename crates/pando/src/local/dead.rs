//! What processes with logs that died had leased, while others go on (`pool/reclaim.rs`).
//!
//! Heirs redo the logs. Once none of them is awaited, any process with logs takes the chunks over and frees the place in the
//! attach table. Roots and logs, which are neither in a log nor stored beforehand, it finds from the catalog. In a pool with Elf
//! tables nothing is reclaimed.

use std::collections::BTreeSet;

use pando_elf_remote::is_elf;
use pando_fabric::GlobalAddr;
use pando_pool::{Attached, IndexRecord};
use pando_rt::block_on;

use super::logs;
use crate::error::Result;
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Reclaims what the dead among `attached` had leased, as far as it is time.
///
/// # Errors
/// Errors of the fabric and of the catalog. It can be done again.
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
    // Others may still free what they replaced in a table, and what the dead had written there is in no log.
    if dead.is_empty() || records.iter().any(is_elf) {
        return Ok(());
    }
    let blocks = unlogged_blocks(shared, ep, &records)?;
    for slot in dead {
        block_on(ep, shared.pool.reclaim(ep, slot, &blocks))?;
    }
    Ok(())
}

/// Blocks of logs, and the roots.
fn unlogged_blocks(
    shared: &Shared,
    ep: &AnyEndpoint,
    records: &[IndexRecord],
) -> Result<Vec<(GlobalAddr, u64)>> {
    let mut blocks = logs::blocks(shared, ep)?;
    let roots = records.iter().filter(|record| !record.root.is_null());
    blocks.extend(roots.map(|record| (record.root, u64::from(record.node_size))));
    Ok(blocks)
}
