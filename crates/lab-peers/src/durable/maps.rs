//! The maps in files, an adapter for each, and the table of what each promises.
//!
//! A map is listed with a promise only if its documentation says that it keeps it; the note says how. The adapters set
//! what a promise needs and leave everything else as it is by default. All keys and values fit into the memory that the
//! maps use then.

mod fjall;
mod pando;
mod redb;
mod sled;

use std::path::Path;

use anyhow::Context;

use super::Promise;
use super::feed::Feed;

/// A loaded map in a file.
pub(super) trait Map: Sync {
    /// Makes all updates of a thread, so many together; each counts once the map keeps its promise.
    ///
    /// # Errors
    /// Those of the map.
    fn run(&self, feed: &Feed<'_>, together: usize) -> anyhow::Result<()>;

    /// The value of a key.
    ///
    /// # Errors
    /// Those of the map.
    fn get(&self, key: u64) -> anyhow::Result<Option<u64>>;
}

/// Makes a map with this promise in an empty directory, and loads the pairs.
type Load = fn(&Path, Promise, &[(u64, u64)]) -> anyhow::Result<Box<dyn Map>>;

/// A map with one promise.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub promise: Promise,
    pub name: &'static str,
    /// How it keeps the promise.
    pub how: &'static str,
    pub load: Load,
}

impl Entry {
    /// Whether it is a map of this project.
    pub fn is_ours(&self) -> bool {
        self.name == pando::NAME
    }
}

/// The number in the bytes of a value.
fn number(value: &[u8]) -> anyhow::Result<u64> {
    Ok(u64::from_be_bytes(*value.first_chunk().context("a value is too short")?))
}

/// All maps, by promise.
pub(super) fn all() -> Vec<Entry> {
    use Promise::{Group, Immediate, Off, Process};
    let mut entries = Vec::new();
    for (promise, how) in [
        (Off, "`Durability::Off`"),
        (Process, "`Durability::Process`"),
        (Group, "`Durability::Group`"),
        (Immediate, "`Durability::Immediate`"),
    ] {
        entries.push(Entry { promise, name: pando::NAME, how, load: pando::load });
    }
    for (promise, how) in [
        (Off, "`Durability::None`: not on the disk before a commit with `Immediate`"),
        (Group, "`Durability::None`, but `Immediate` 50 ms after the last such commit; keeps less if killed"),
        (Immediate, "`Durability::Immediate`"),
    ] {
        entries.push(Entry { promise, name: "redb", how, load: redb::load });
    }
    for (promise, how) in [
        (Off, "`manual_journal_persist`: its own buffer"),
        (Process, "`PersistMode::Buffer`: buffers of the operating system, before an update returns"),
        (Group, "the same, and a thread calls `persist(PersistMode::SyncData)` each 50 ms"),
        (Immediate, "`PersistMode::SyncData` of each batch"),
    ] {
        entries.push(Entry { promise, name: "fjall", how, load: fjall::load });
    }
    for (promise, how) in [
        (Off, "`flush_every_ms(None)`: its own buffers"),
        (Group, "`flush_every_ms(Some(50))`; keeps less if killed"),
        (Immediate, "`flush` after each update or batch, then fdatasync of its file"),
    ] {
        entries.push(Entry { promise, name: "sled", how, load: sled::load });
    }
    entries.sort_by_key(|entry| entry.promise as u8);
    entries
}
