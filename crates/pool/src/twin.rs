//! Metadata that is replaced, not overwritten: a block with two copies, and one word that selects the current
//! one.
//!
//! ```text
//! [current version] [checksum][version][content] [checksum][version][content]
//!                    copy 0                       copy 1
//! ```
//! Version `v` lies in copy `v % 2`. A change writes the next version into the other copy and then stores the
//! first word, which makes the change take effect. A writer that stops anywhere, even within a WRITE, leaves
//! the old version or the new one. A change allocates nothing, so it also works in a full pool.
//!
//! Both steps are persisted, the copy before the word, so that this also holds after a loss of power.
//!
//! The checksum is seeded with the pool's number and the block's address, so that another block's bytes are
//! not accepted. Writers hold the catalog lock; readers check it before and after.

use pando_fabric::{Endpoint, GlobalAddr, Nanos, WORD};

use crate::error::{PoolError, Result};
use crate::io::{checksum, persist, read_words, until_answered, write_word_surely, write_words};

/// Words of a copy before its content.
const HEADER: usize = 2;

/// Size of a block with two copies of `content` words, in bytes.
pub(crate) const fn twin_bytes(content: usize) -> u64 {
    ((1 + 2 * (HEADER + content)) * WORD) as u64
}

/// Address and size of two copies.
#[derive(Clone, Copy)]
pub(crate) struct Twin {
    pub at: GlobalAddr,
    /// Words of the content.
    pub content: usize,
    pub pool_id: u64,
}

impl Twin {
    fn copy_words(self) -> usize {
        HEADER + self.content
    }

    fn encode_copy(self, version: u64, content: &[u64]) -> Vec<u64> {
        assert_eq!(content.len(), self.content, "both copies have the same length");
        let mut words = vec![0, version];
        words.extend(content);
        words[0] = checksum(&words[1..], self.pool_id ^ self.at.raw());
        words
    }

    /// Writes and persists a whole block to which nothing leads yet.
    pub async fn write_first<E: Endpoint>(self, ep: &E, version: u64, content: &[u64]) -> Result<()> {
        let copy = self.encode_copy(version, content);
        let mut words = vec![version];
        words.resize(1 + 2 * self.copy_words(), 0);
        let start = 1 + (version % 2) as usize * self.copy_words();
        words[start..start + copy.len()].copy_from_slice(&copy);
        write_words(ep, self.at, &words).await?;
        Ok(ep.persist(self.at, twin_bytes(self.content)).await?)
    }

    /// Reads the current version and its content; `None` if they are damaged. Version 0, which is never
    /// stored, is all zeros.
    pub async fn read<E: Endpoint>(self, ep: &E) -> Result<Option<(u64, Vec<u64>)>> {
        let words = read_words(ep, self.at, 1 + 2 * self.copy_words()).await?;
        let version = words[0];
        if version == 0 {
            return Ok(Some((0, vec![0; self.content])));
        }
        let copy = &words[1 + (version % 2) as usize * self.copy_words()..][..self.copy_words()];
        let is_whole = copy[1] == version && copy[0] == checksum(&copy[1..], self.pool_id ^ self.at.raw());
        Ok(is_whole.then(|| (version, copy[HEADER..].to_vec())))
    }

    /// Replaces version `before`, the current one, by `content`.
    ///
    /// # Errors
    /// [`PoolError::CatalogUnknown`] if it is not known which version is current. After any other error it is
    /// the old one.
    pub async fn replace<E: Endpoint>(
        self,
        ep: &E,
        before: u64,
        content: &[u64],
        deadline: Nanos,
    ) -> Result<()> {
        let version = before + 1;
        let copy = self.encode_copy(version, content);
        let to = self.at.add(((1 + (version % 2) as usize * self.copy_words()) * WORD) as u64);
        until_answered(ep, deadline, async || write_words(ep, to, &copy).await).await?;
        persist(ep, to, (copy.len() * WORD) as u64, deadline).await?;
        write_word_surely(ep, self.at, version, deadline).await
    }

    pub fn corrupt(self, reason: &'static str) -> PoolError {
        PoolError::Corrupt { addr: self.at, reason }
    }
}
