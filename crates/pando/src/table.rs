//! Elf tables that this process has open: their readers and writers.
//!
//! All handles to a table share one reader, which caches the upper levels of the table, and one writer, which knows
//! the blocks that it replaced. Blocks rest before they are freed, so the writers are settled when the pool is
//! closed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pando_elf_remote::{PublishOptions, ReadOptions, TableOptions, TableReader, TableWriter};
use pando_rt::block_on;

use crate::error::{Error, Result};
use crate::place::AnyEndpoint;
use crate::shared::{Shared, lock};

/// An Elf table.
pub(crate) struct TableData {
    pub reader: TableReader,
    pub writer: TableWriter,
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
        let reading = ReadOptions { cache_bytes: shared.config.cache, ..ReadOptions::default() };
        let (publishing, changing) = (PublishOptions::default(), TableOptions::default());
        let writer = TableWriter::new(shared.pool.clone(), name, publishing, changing);
        let table = Arc::new(TableData {
            reader: TableReader::new(shared.pool.clone(), name, reading),
            writer: writer.map_err(|error| Error::of_elf(name, error))?,
        });
        tables.insert(name.to_owned(), Arc::clone(&table));
        Ok(table)
    }

    /// Frees what all writers have replaced. What cannot be freed stays allocated.
    pub fn settle(&self, ep: &AnyEndpoint, patience_ns: u64) {
        for table in lock(&self.0).values() {
            // An unreachable memory server is reported by what follows.
            let _ = block_on(ep, table.writer.settle(ep, patience_ns));
        }
    }
}
