//! Head of the catalog in the superblock, and the list of directories that lead to its records.
//!
//! ```text
//! head            two copies of [first directory][next index id]
//! directory       two copies of [next directory][entries], then pairs [hash of the name][record]
//! ```
//! Both are replaced as `twin.rs` describes. A full directory stays where it is, and a new one goes before
//! the first. The place of a removed entry is reused.

use pando_fabric::{Endpoint, GlobalAddr};

use crate::error::Result;
use crate::layout::CATALOG_HEAD_WORDS;
use crate::pool::Pool;
use crate::twin::{Twin, twin_bytes};

/// Words of a directory's content before its entries.
const HEADER: usize = 2;
/// Entries of one directory block.
pub(crate) const ENTRIES: usize = 29;
const CONTENT: usize = HEADER + 2 * ENTRIES;
pub(crate) const DIRECTORY_BYTES: u64 = twin_bytes(CONTENT);

const _: () = assert!(DIRECTORY_BYTES <= 1024, "a directory fits into a block of 1 KiB");

/// One block of the list.
pub(crate) struct Directory {
    pub at: GlobalAddr,
    version: u64,
    pub next: GlobalAddr,
    pub entries: Vec<(u64, GlobalAddr)>,
}

impl Directory {
    /// A directory that is not written to its block yet.
    pub fn new(at: GlobalAddr, next: GlobalAddr, entries: Vec<(u64, GlobalAddr)>) -> Self {
        Self { at, version: 0, next, entries }
    }

    fn encode(&self) -> Vec<u64> {
        let mut words = vec![self.next.raw(), self.entries.len() as u64];
        words.extend(self.entries.iter().flat_map(|&(hash, record)| [hash, record.raw()]));
        words.resize(CONTENT, 0);
        words
    }

    fn decode(at: GlobalAddr, version: u64, words: &[u64]) -> Option<Self> {
        let entries = words[1] as usize;
        if version == 0 || entries > ENTRIES {
            return None;
        }
        let pairs = words[HEADER..].chunks_exact(2).take(entries);
        let entries = pairs.map(|pair| Some((pair[0], GlobalAddr::from_raw(pair[1])?)));
        let next = GlobalAddr::from_raw(words[0])?;
        Some(Self { at, version, next, entries: entries.collect::<Option<_>>()? })
    }
}

/// Head of the catalog.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    version: u64,
    pub first: GlobalAddr,
    pub next_id: u32,
}

impl Pool {
    fn head_twin(&self) -> Twin {
        Twin { at: self.catalog_head(), content: CATALOG_HEAD_WORDS, pool_id: self.id() }
    }

    fn directory_twin(&self, at: GlobalAddr) -> Twin {
        Twin { at, content: CONTENT, pool_id: self.id() }
    }

    pub(crate) async fn directories<E: Endpoint>(&self, ep: &E) -> Result<Vec<Directory>> {
        let mut at = self.read_head(ep).await?.first;
        let mut directories: Vec<Directory> = Vec::new();
        while !at.is_null() {
            let twin = self.directory_twin(at);
            let corrupt = || twin.corrupt("this is no directory of indexes");
            if !self.can_be_block(at, DIRECTORY_BYTES) || directories.iter().any(|seen| seen.at == at) {
                return Err(corrupt());
            }
            let (version, words) = twin.read(ep).await?.ok_or_else(corrupt)?;
            let directory = Directory::decode(at, version, &words).ok_or_else(corrupt)?;
            at = directory.next;
            directories.push(directory);
        }
        Ok(directories)
    }

    /// Replaces the contents of the block of `directory`. After an error the directory is unchanged, or its
    /// state is not known ([`crate::PoolError::CatalogUnknown`]).
    pub(crate) async fn replace_directory<E: Endpoint>(
        &self,
        ep: &E,
        directory: &mut Directory,
    ) -> Result<()> {
        let twin = self.directory_twin(directory.at);
        twin.replace(ep, directory.version, &directory.encode(), self.deadline(ep)).await?;
        directory.version += 1;
        Ok(())
    }

    /// Writes `directory` to its block, to which nothing leads yet.
    pub(crate) async fn write_new_directory<E: Endpoint>(
        &self,
        ep: &E,
        directory: &mut Directory,
    ) -> Result<()> {
        directory.version = 1;
        self.directory_twin(directory.at).write_first(ep, 1, &directory.encode()).await
    }

    pub(crate) async fn read_head<E: Endpoint>(&self, ep: &E) -> Result<Head> {
        let twin = self.head_twin();
        let corrupt = || twin.corrupt("this is no head of the catalog");
        let (version, words) = twin.read(ep).await?.ok_or_else(corrupt)?;
        let first = GlobalAddr::from_raw(words[0]).ok_or_else(corrupt)?;
        Ok(Head { version, first, next_id: if version == 0 { 1 } else { words[1] as u32 } })
    }

    /// Replaces the head that `head` was read from.
    pub(crate) async fn replace_head<E: Endpoint>(&self, ep: &E, head: &mut Head) -> Result<()> {
        let words = [head.first.raw(), u64::from(head.next_id)];
        self.head_twin().replace(ep, head.version, &words, self.deadline(ep)).await?;
        head.version += 1;
        Ok(())
    }
}
