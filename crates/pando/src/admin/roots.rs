//! Moves of roots to another memory server, with the index at rest.
//!
//! Roots stand on the first memory server, which cannot be drained. That of an index of an older pool may be elsewhere, or of one
//! that was made when the first one was full.

use pando_dex::layout::header;
use pando_fabric::{Endpoint, FabricError, MemoryServerId};
use pando_pool::lock::unlock_word;
use pando_pool::{Placement, PoolError};
use pando_rt::block_on;

use crate::error::{Error, Result};
use crate::local::create::{Written, write_root};
use crate::local::open::reopen_trees;
use crate::local::{IndexData, Servers};
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Moves the root of an index that is open but at rest.
pub(super) fn move_open_root(shared: &Shared, ep: &AnyEndpoint, data: &IndexData) -> Result<()> {
    const WHAT: &str = "moving its root to another memory server";
    let _alone = data.exclusive(WHAT)?;
    let servers = data.servers()?;
    servers.check_runs_all(WHAT)?;
    match move_root(shared, ep, &servers) {
        Ok(moved) => data.replace(moved),
        Err(Unmoved::AsBefore(error)) => return Err(error),
        // The old compute servers must not write to the old root any more.
        Err(Unmoved::Unsettled(error)) => {
            data.unsettle(WHAT, &error);
            return Err(error.perhaps(WHAT));
        }
    }
    Ok(())
}

/// Failure to move a root.
pub(super) enum Unmoved {
    AsBefore(Error),
    /// The root may be at either address.
    Unsettled(Error),
}

impl From<Error> for Unmoved {
    fn from(error: Error) -> Self {
        Self::AsBefore(error)
    }
}

impl From<PoolError> for Unmoved {
    fn from(error: PoolError) -> Self {
        Self::AsBefore(error.into())
    }
}

/// Moves the root of an index that this process owns entirely and that is at rest; returns its compute
/// servers with the new root.
pub(super) fn move_root(shared: &Shared, ep: &AnyEndpoint, servers: &Servers) -> Result<Servers, Unmoved> {
    servers.flush(ep)?;
    let node_size = u64::from(servers.record.node_size);
    let mut record = shared.record(ep, &servers.record.name)?;
    let old = record.root;
    // 1. Allocate a block on another server, preferably the first one.
    let home = Placement::Prefer(MemoryServerId(0));
    let new = match block_on(ep, shared.pool.alloc(ep, home, node_size))? {
        // The block must not be on the server of the old root.
        full if full.server() == old.server() => {
            block_on(ep, shared.pool.free(ep, full, node_size))?;
            return Err(PoolError::PoolFull { server: MemoryServerId(0), size: node_size }.into());
        }
        new => new,
    };
    // 2. Copy the root, with its new address and an unlocked lock word.
    let moved = block_on(ep, async {
        let page = ep.read(old, ep.buffer(node_size as usize)).await?;
        // The version continues from the old root's.
        header::set(page.words(), header::LOCK, unlock_word(header::get(page.words(), header::LOCK)));
        header::set(page.words(), header::ADDR, new.raw());
        ep.recycle(ep.write(new, page).await?);
        Ok::<_, FabricError>(())
    });
    // 3. Enter the new root into the catalog.
    record.root = new;
    let written = match moved {
        Ok(()) => write_root(shared, ep, &record),
        Err(error) => Written::No(error.into()),
    };
    let record = match written {
        Written::Yes(record) => record,
        Written::No(error) => {
            // No record refers to the block. If it cannot be freed now, an audit finds it.
            let _ = block_on(ep, shared.pool.free(ep, new, node_size));
            return Err(Unmoved::AsBefore(error));
        }
        Written::Perhaps(error) => return Err(Unmoved::Unsettled(error)),
    };
    // 4. Open the trees at the new root, and free the old one.
    let reopened = reopen_trees(shared, ep, record, servers).map_err(Unmoved::Unsettled)?;
    let freed = block_on(ep, shared.pool.free(ep, old, node_size));
    freed.map_err(|error| Unmoved::Unsettled(error.into()))?;
    Ok(reopened)
}
