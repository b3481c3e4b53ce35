//! Elf tables that this process has open: their readers and writers.
//!
//! All handles to a table share one reader, which caches the upper levels of the table, and one writer, which knows
//! the blocks that it replaced. Blocks rest before they are freed, so the writers are settled when the pool is
//! closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pando_elf_remote::{Offloading, PublishOptions, ReadOptions, TableOptions, TableReader, TableWriter};
use pando_fabric::Endpoint;
use pando_rt::block_on;

use crate::error::{Error, Result};
use crate::place::AnyEndpoint;
use crate::shared::{Shared, lock};

/// How often a change is done while others change the same table.
const ATTEMPTS: u32 = 256;

/// An Elf table.
pub(crate) struct TableData {
    pub reader: TableReader,
    pub writer: TableWriter,
    /// Endpoints that no call uses: over a network, each has connections.
    idle: Mutex<Vec<AnyEndpoint>>,
}

impl TableData {
    /// Runs `work` on an endpoint of its own, and counts its verbs as management.
    pub fn with_endpoint<T>(
        &self,
        shared: &Shared,
        work: impl FnOnce(&AnyEndpoint) -> Result<T>,
    ) -> Result<T> {
        shared.check_open()?;
        let idle = lock(&self.idle).pop();
        let ep = idle.map_or_else(|| shared.endpoint(), Ok)?;
        let before = ep.counters().snapshot();
        let done = work(&ep);
        shared.count_management(ep.counters().snapshot() - before);
        lock(&self.idle).push(ep);
        done
    }
}

/// Elf tables by name.
#[derive(Default)]
pub(crate) struct OpenTables(Mutex<BTreeMap<String, Arc<TableData>>>);

impl OpenTables {
    /// The table `name`, whether or not the catalog knows it.
    pub fn get(&self, shared: &Shared, name: &str) -> Result<Arc<TableData>> {
        let mut tables = lock(&self.0);
        if let Some(table) = tables.get(name) {
            return Ok(Arc::clone(table));
        }
        let offloading = Offloading::with_policy(shared.config.offload);
        let reading = ReadOptions { cache_bytes: shared.config.cache, offloading, ..ReadOptions::default() };
        // A change that others overtake is done again, so that many writers only slow each other down.
        let publishing = PublishOptions { attempts_max: ATTEMPTS, ..PublishOptions::default() };
        let changing = TableOptions::default();
        let writer = TableWriter::new(shared.pool.clone(), name, publishing, changing);
        let table = Arc::new(TableData {
            reader: TableReader::new(shared.pool.clone(), name, reading),
            writer: writer.map_err(|error| Error::of_elf(name, error))?,
            idle: Mutex::default(),
        });
        tables.insert(name.to_owned(), Arc::clone(&table));
        Ok(table)
    }

    /// Closes connections that no call uses.
    pub fn close(&self) {
        lock(&self.0).values().for_each(|table| lock(&table.idle).clear());
    }

    /// Frees what all writers have replaced. What cannot be freed stays allocated.
    pub fn settle(&self, ep: &AnyEndpoint, patience_ns: u64) {
        for table in lock(&self.0).values() {
            // An unreachable memory server is reported by what follows.
            let _ = block_on(ep, table.writer.settle(ep, patience_ns));
        }
    }
}
