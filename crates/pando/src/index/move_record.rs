//! How a move of keys is entered in the catalog: boundaries, owners, and which partition has which log.
//!
//! Other processes may change the boundaries between their own partitions at the same time, so a move writes only its own
//! difference. A partition is named with its log before anything is written to that, and a log is left before it is no
//! longer named.

use pando_dex::{DexError, RoutingTable};
use pando_pool::{IndexRecord, LogChange, LogPlace, PoolError};

use crate::local::Servers;
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Attempts at an update of the catalog record, which fail if another process changes it meanwhile.
const CATALOG_TRIES: usize = 100;

/// Changes the catalog record by the difference of `table` to `other`.
pub(super) async fn enter(
    shared: &Shared,
    ep: &AnyEndpoint,
    servers: &Servers,
    table: &RoutingTable,
    other: &RoutingTable,
) -> Result<(), DexError> {
    let (name, id) = (&servers.record.name, servers.record.id);
    let left = logs_only_in(servers, other, table, LogChange::Leave);
    shared.pool.change_logs(ep, id, &left).await?;
    let log_of = |low: &[u8]| servers.log_number(table.owner_of(low));
    let change = async |record: &mut IndexRecord| {
        adapt(record, &shared.pool.logs(ep).await?, table.boundaries(), other.boundaries())?;
        for partition in 0..record.logs.len() {
            let low = partition.checked_sub(1).map_or(&[][..], |below| &record.boundaries[below]);
            record.logs[partition] = log_of(low).unwrap_or(record.logs[partition]);
        }
        Ok(())
    };
    change_record(shared, ep, name, change).await?;
    let begun = logs_only_in(servers, table, other, LogChange::Write);
    shared.pool.change_logs(ep, id, &begun).await?;
    Ok(())
}

/// Changes the catalog record of an index, again if another process has changed it meanwhile.
pub(super) async fn change_record(
    shared: &Shared,
    ep: &AnyEndpoint,
    name: &str,
    change: impl AsyncFn(&mut IndexRecord) -> Result<(), DexError>,
) -> Result<(), DexError> {
    for _ in 0..CATALOG_TRIES {
        let mut record = shared.pool.open_index(ep, name).await?;
        change(&mut record).await?;
        match shared.pool.update_index(ep, &record).await {
            Err(PoolError::StaleRecord { .. }) => {}
            done => return done.map(drop).map_err(DexError::from),
        }
    }
    Err(PoolError::StaleRecord { name: name.to_owned() }.into())
}

/// A change of the logs of the compute servers that have keys in `table` only.
fn logs_only_in(
    servers: &Servers,
    table: &RoutingTable,
    other: &RoutingTable,
    change: LogChange,
) -> Vec<(u16, LogChange)> {
    let only = table.owners().iter().filter(|server| !other.owners().contains(server));
    only.filter_map(|&server| Some((servers.log_number(server)?, change))).collect()
}

/// Replaces the boundaries of `record` that are only in `old` by those that are only in `new`. The owners of
/// the keys between them stay the same.
fn adapt(
    record: &mut IndexRecord,
    logs: &[LogPlace],
    new: &[Vec<u8>],
    old: &[Vec<u8>],
) -> Result<(), DexError> {
    // Insert new boundaries first, so that the partitions on both sides of a removed one have the same owner.
    for boundary in new.iter().filter(|boundary| !old.contains(boundary)) {
        if let Err(at) = record.boundaries.binary_search(boundary) {
            let log = record.unused_log(logs)?;
            record.boundaries.insert(at, boundary.clone());
            record.owners.insert(at, record.owners[at]);
            record.logs.insert(at + 1, log);
        }
    }
    for boundary in old.iter().filter(|boundary| !new.contains(boundary)) {
        if let Ok(at) = record.boundaries.binary_search(boundary) {
            if record.owners[at] != record.owners[at + 1] {
                return Err(DexError::Routes(
                    "the catalog has another process own some of the keys that move",
                ));
            }
            record.boundaries.remove(at);
            record.owners.remove(at + 1);
            record.logs.remove(at + 1);
        }
    }
    Ok(())
}
