//! redb: a B+-tree whose transactions copy the pages that they change.
//!
//! One transaction writes at a time, others wait. With [`Promise::Group`] the first commit that begins an interval
//! after the last one with `Durability::Immediate` is one, too, and makes those in between durable.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use redb::{Database, Durability, ReadableDatabase, TableDefinition};

use super::Map;
use crate::durable::feed::Feed;
use crate::durable::{INTERVAL, Promise};

const TABLE: TableDefinition<'_, u64, u64> = TableDefinition::new("peers");

struct Redb {
    database: Database,
    promise: Promise,
    /// Time of the last commit with `Durability::Immediate`.
    synced: Mutex<Instant>,
}

pub(super) fn load(home: &Path, promise: Promise, pairs: &[(u64, u64)]) -> anyhow::Result<Box<dyn Map>> {
    let database = Database::create(home.join("redb"))?;
    let map = Redb { database, promise, synced: Mutex::new(Instant::now()) };
    map.commit(pairs, Durability::Immediate)?;
    Ok(Box::new(map))
}

impl Redb {
    fn commit(&self, updates: &[(u64, u64)], durability: Durability) -> anyhow::Result<()> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_durability(durability)?;
        let mut table = transaction.open_table(TABLE)?;
        for (key, value) in updates {
            table.insert(key, value)?;
        }
        drop(table);
        Ok(transaction.commit()?)
    }

    fn durability(&self) -> Durability {
        match self.promise {
            Promise::Immediate => return Durability::Immediate,
            Promise::Group => {}
            Promise::Off | Promise::Process => return Durability::None,
        }
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if synced.elapsed() < INTERVAL {
            return Durability::None;
        }
        *synced = Instant::now();
        Durability::Immediate
    }
}

impl Map for Redb {
    fn run(&self, feed: &Feed<'_>, together: usize) -> anyhow::Result<()> {
        feed.in_batches(together, |updates| self.commit(updates, self.durability()))
    }

    fn get(&self, key: u64) -> anyhow::Result<Option<u64>> {
        let table = self.database.begin_read()?.open_table(TABLE)?;
        Ok(table.get_owned(key)?.map(|value| value.value()))
    }
}
