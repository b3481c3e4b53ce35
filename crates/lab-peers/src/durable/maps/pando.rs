//! Pando: a pool in a file, with everything cached.
//!
//! Several updates together are in flight in slots of one session, each with an answer of its own: there is no commit
//! of several updates.

use std::path::Path;

use pando::{BulkOptions, Cluster, Config, Create, Durability, Index, IndexOptions};

use super::Map;
use crate::durable::feed::Feed;
use crate::durable::{INTERVAL, Promise};

pub(super) const NAME: &str = "Pando";

struct Pando(Index);

pub(super) fn load(home: &Path, promise: Promise, pairs: &[(u64, u64)]) -> anyhow::Result<Box<dyn Map>> {
    let durability = match promise {
        Promise::Off => Durability::Off,
        Promise::Process => Durability::Process,
        Promise::Group => Durability::Group(INTERVAL),
        Promise::Immediate => Durability::Immediate,
    };
    // A pool has room for the log, which has four times the bytes of the cache, three times more.
    let cache = pairs.len() as u64 * 32 + (8 << 20);
    let config = Config::at(home.join("pool")).memory(16 * cache).cache(cache);
    let cluster = Cluster::open(config.create(Create::Replace).durability(durability))?;
    let index = cluster.create_index("peers", &IndexOptions::integers())?;
    let entries: Vec<_> =
        pairs.iter().map(|&(key, value)| (key.to_be_bytes(), value.to_be_bytes())).collect();
    index.bulk_load(&entries[..], &BulkOptions::default())?;
    Ok(Box::new(Pando(index)))
}

impl Map for Pando {
    fn run(&self, feed: &Feed<'_>, together: usize) -> anyhow::Result<()> {
        let session = self.0.integers()?;
        if together == 1 {
            while let Some((key, value)) = feed.next() {
                session.put(key, value)?;
            }
            return Ok(());
        }
        let slots = session.in_flight(together, |_, session| async move {
            while let Some((key, value)) = feed.next() {
                session.put(key, value).await?;
            }
            Ok(())
        })?;
        slots.into_iter().collect()
    }

    fn get(&self, key: u64) -> anyhow::Result<Option<u64>> {
        Ok(self.0.integers()?.get(key)?)
    }
}
