//! sled: a Bw-tree on a log-structured page cache.
//!
//! Several updates together are an atomic batch. The documentation says that `flush` calls fsync, but on Linux version
//! 0.34 calls `sync_file_range`, after which the disk may still have the bytes in its cache only. So with
//! [`Promise::Immediate`] the file is synced after that.

use std::fs::File;
use std::path::Path;

use sled::{Batch, Config, Db};

use super::{Map, number};
use crate::durable::feed::Feed;
use crate::durable::{INTERVAL, Promise};

struct Sled {
    map: Db,
    /// The map's file, if each update is to be on the disk.
    synced: Option<File>,
}

pub(super) fn load(home: &Path, promise: Promise, pairs: &[(u64, u64)]) -> anyhow::Result<Box<dyn Map>> {
    let every = (promise == Promise::Group).then_some(INTERVAL.as_millis() as u64);
    let home = home.join("sled");
    let map = Config::default().path(&home).flush_every_ms(every).open()?;
    for (key, value) in pairs {
        map.insert(key.to_be_bytes(), &value.to_be_bytes())?;
    }
    map.flush()?;
    let synced = (promise == Promise::Immediate).then(|| File::open(home.join("db"))).transpose()?;
    Ok(Box::new(Sled { map, synced }))
}

impl Sled {
    fn commit(&self, updates: &[(u64, u64)]) -> anyhow::Result<()> {
        if let &[(key, value)] = updates {
            self.map.insert(key.to_be_bytes(), &value.to_be_bytes())?;
        } else {
            let mut batch = Batch::default();
            for (key, value) in updates {
                batch.insert(&key.to_be_bytes(), &value.to_be_bytes());
            }
            self.map.apply_batch(batch)?;
        }
        if let Some(file) = &self.synced {
            self.map.flush()?;
            file.sync_data()?;
        }
        Ok(())
    }
}

impl Map for Sled {
    fn run(&self, feed: &Feed<'_>, together: usize) -> anyhow::Result<()> {
        feed.in_batches(together, |updates| self.commit(updates))
    }

    fn get(&self, key: u64) -> anyhow::Result<Option<u64>> {
        self.map.get(key.to_be_bytes())?.map(|value| number(&value)).transpose()
    }
}
