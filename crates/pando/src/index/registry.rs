//! The indexes that this process has open, and closing the pool.
//!
//! Closing frees what writers of Elf tables have replaced, writes back the contents of the caches, gives up partitions and chunk leases, and then marks the
//! pool as closed, in this order; a failure before the last step leaves the pool unclean. After a failure
//! that may have lost data, dropping the last handle does not mark the pool as closed cleanly.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pando_rt::block_on;

use crate::error::Result;
use crate::local::{CLOSING, IndexData};
use crate::options::Place;
use crate::place::AnyEndpoint;
use crate::shared::{Shared, lock};
use crate::table::OpenTables;

/// Open indexes by name.
pub(crate) type OpenIndexes = BTreeMap<String, Arc<IndexData>>;

/// The open indexes. Each handle (cluster, index or session) refers to it; the last one closes the pool.
pub(crate) struct Registry {
    shared: Arc<Shared>,
    /// Locked while an index is opened, and during work on the whole cluster.
    pub open: Mutex<OpenIndexes>,
    pub tables: OpenTables,
}

impl Registry {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, open: Mutex::default(), tables: OpenTables::default() }
    }

    /// Writes all changes back to the memory servers, and from there to the files if there are any.
    pub fn flush(&self) -> Result<()> {
        let shared = &self.shared;
        shared.check_open()?;
        let open = lock(&self.open);
        if shared.read_only() {
            return Ok(());
        }
        shared.losing_on_error(|| {
            shared.with_endpoint(|ep| write_back(ep, &open))?;
            shared.fabric.flush()
        })
    }

    pub fn close(&self) -> Result<()> {
        let shared = &self.shared;
        let mut open = lock(&self.open);
        if shared.check_open().is_err() {
            return Ok(());
        }
        let guards = open.values().map(|data| data.exclusive(CLOSING));
        let guards = guards.collect::<Result<Vec<_>>>()?;
        shared.losing_on_error(|| {
            if !shared.read_only() {
                shared.with_endpoint(|ep| {
                    self.tables.settle(ep, shared.config.patience_ns());
                    write_back(ep, &open)
                })?;
            }
            // Makes all changes durable before it marks the pool as closed.
            shared.with_endpoint(|ep| Ok(block_on(ep, shared.pool.detach(ep))?))
        })?;
        shared.set_closed();
        self.tables.close();
        open.values().for_each(|data| data.close());
        drop(guards);
        open.clear();
        Ok(())
    }
}

/// Writes dirty nodes of all caches back to the memory servers.
pub(crate) fn write_back(ep: &AnyEndpoint, open: &OpenIndexes) -> Result<()> {
    let mut settled = open.values().filter(|data| !data.is_unsettled());
    settled.try_for_each(|data| data.servers()?.flush(ep))
}

impl Drop for Registry {
    fn drop(&mut self) {
        // The memory of an embedded pool ends with it, so there is nothing to save.
        let embedded = self.shared.config.place == Place::Embedded;
        if !embedded && !self.shared.has_failed() && !std::thread::panicking() {
            // The documentation of `Cluster` says so: a failure goes unreported, and the pool stays marked as
            // not closed cleanly.
            let _ = self.close();
        }
    }
}
