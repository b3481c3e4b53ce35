//! The list of the logs in a pool: the root of the log of each partition that has one, and who writes to it. The record
//! of an index has the number of the log of each partition. A log that no record names holds nothing.
//!
//! ```text
//! superblock of server 0 --> [checksum][number of logs] ([index id:32][number:16][writer + 1:16][root of the log])...
//! ```
//! A change, under the catalog lock, writes a new block and then stores the word that leads to it, and persists each, so
//! a writer that stops anywhere, or a loss of power, leaves the old list or the new one. What a log holds is no concern
//! of the pool.
//!
//! A process becomes the *writer* of a log once the pages have all that the log held. So if the writer died, others
//! leave alone what it had locked until an heir has redone its log.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};

use crate::alloc::Placement;
use crate::error::{PoolError, Result};
use crate::io::{checksum, persist, read_words, until_answered, write_word_surely, write_words};
use crate::layout::LOGS_AT;
use crate::pool::Pool;
use crate::process::AttachSlot;

/// A log of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlace {
    pub index_id: u32,
    /// The partition that has this number in the record of the index has this log ([`crate::IndexRecord::logs`]).
    pub number: u16,
    /// The process whose changes it holds, if it holds any.
    pub writer: Option<AttachSlot>,
    /// Address of the root of the log.
    pub root: GlobalAddr,
}

/// What happens to a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogChange {
    /// The log of this number has this root from now on.
    Set(GlobalAddr),
    /// There is none of this number from now on.
    Remove,
    /// This process writes to it from now on, if there is one.
    Write,
    /// This process no longer writes to it, if it did.
    Leave,
}

impl LogPlace {
    /// Whether it is the log of this number of the index.
    pub fn is_of(&self, index_id: u32, number: u16) -> bool {
        self.index_id == index_id && self.number == number
    }

    fn to_words(self) -> [u64; 2] {
        let writer = self.writer.map_or(0, |slot| u64::from(slot.0) + 1);
        [u64::from(self.index_id) | u64::from(self.number) << 32 | writer << 48, self.root.raw()]
    }

    fn from_words([of, root]: [u64; 2]) -> Option<Self> {
        let writer = ((of >> 48) as u16).checked_sub(1).map(AttachSlot);
        let (index_id, number) = (of as u32, (of >> 32) as u16);
        Some(Self { index_id, number, writer, root: GlobalAddr::from_raw(root)? })
    }
}

/// Words before the logs.
const HEADER: usize = 2;

fn bytes_of_list(logs: usize) -> u64 {
    ((HEADER + 2 * logs) * 8) as u64
}

impl Pool {
    fn logs_word(&self) -> GlobalAddr {
        GlobalAddr::new(MemoryServerId(0), LOGS_AT)
    }

    /// The logs of the pool.
    ///
    /// # Errors
    /// [`PoolError::Corrupt`]; errors of verbs.
    pub async fn logs<E: Endpoint>(&self, ep: &E) -> Result<Vec<LogPlace>> {
        Ok(self.look_at_catalog(ep, async || self.list_of_logs(ep).await).await?.1)
    }

    /// Address of the block that lists the logs, null if there are none, and the logs.
    pub(crate) async fn list_of_logs<E: Endpoint>(&self, ep: &E) -> Result<(GlobalAddr, Vec<LogPlace>)> {
        let raw = ep.read_word(self.logs_word()).await?;
        let corrupt = |addr| PoolError::Corrupt { addr, reason: "it is no list of logs" };
        let at = GlobalAddr::from_raw(raw).ok_or_else(|| corrupt(self.logs_word()))?;
        if at.is_null() {
            return Ok((at, Vec::new()));
        }
        let count = read_words(ep, at, HEADER).await?[1];
        if count > self.max_block() / 16 {
            return Err(corrupt(at));
        }
        let words = read_words(ep, at, HEADER + 2 * count as usize).await?;
        if checksum(&words[1..], self.id() ^ at.raw()) != words[0] {
            return Err(corrupt(at));
        }
        let log = |words: &[u64; 2]| LogPlace::from_words(*words);
        let logs = words[HEADER..].as_chunks().0.iter().map(log).collect::<Option<_>>();
        Ok((at, logs.ok_or_else(|| corrupt(at))?))
    }

    /// Changes logs of an index, by number; returns those that it has no longer.
    ///
    /// # Errors
    /// A full pool; [`PoolError::CatalogUnknown`] if it is not known which list the pool has; errors of the catalog
    /// lock and of verbs.
    pub async fn change_logs<E: Endpoint>(
        &self,
        ep: &E,
        index_id: u32,
        changes: &[(u16, LogChange)],
    ) -> Result<Vec<LogPlace>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        self.change_catalog(ep, async || self.change_logs_locked(ep, index_id, changes).await).await
    }

    /// Enters a log for a partition that is still to be made. Returns its number, which no log and no partition of the
    /// index has.
    ///
    /// # Errors
    /// As [`Pool::change_logs`]; [`PoolError::InvalidIndex`] if there are too many.
    pub async fn add_log<E: Endpoint>(&self, ep: &E, name: &str, root: GlobalAddr) -> Result<u16> {
        self.change_catalog(ep, async || {
            let record = self.record_locked(ep, name).await?;
            let (_, logs) = self.list_of_logs(ep).await?;
            let number = record.unused_log(&logs)?;
            self.change_logs_locked(ep, record.id, &[(number, LogChange::Set(root))]).await?;
            Ok(number)
        })
        .await
    }

    /// [`Pool::change_logs`] for a caller that holds the catalog lock.
    pub(crate) async fn change_logs_locked<E: Endpoint>(
        &self,
        ep: &E,
        index_id: u32,
        changes: &[(u16, LogChange)],
    ) -> Result<Vec<LogPlace>> {
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let mine = self.writer_slot()?;
        let (old, before) = self.list_of_logs(ep).await?;
        let (mut logs, mut removed) = (before.clone(), Vec::new());
        for &(number, change) in changes {
            let at = logs.iter().position(|log| log.is_of(index_id, number));
            if let (LogChange::Set(_) | LogChange::Remove, Some(at)) = (change, at) {
                removed.push(logs.remove(at));
            }
            match (change, at) {
                (LogChange::Set(root), _) => logs.push(LogPlace { index_id, number, writer: None, root }),
                (LogChange::Write, Some(at)) => logs[at].writer = Some(mine),
                (LogChange::Leave, Some(at)) if logs[at].writer == Some(mine) => logs[at].writer = None,
                _ => {}
            }
        }
        if logs != before {
            self.replace_logs(ep, (!old.is_null()).then(|| (old, bytes_of_list(before.len()))), &logs)
                .await?;
        }
        Ok(removed)
    }

    /// Stores a new list in place of the one in block `old`.
    async fn replace_logs<E: Endpoint>(
        &self,
        ep: &E,
        old: Option<(GlobalAddr, u64)>,
        logs: &[LogPlace],
    ) -> Result<()> {
        let deadline = self.deadline(ep);
        let mut new = GlobalAddr::NULL;
        if !logs.is_empty() {
            new = self.alloc(ep, Placement::Prefer(MemoryServerId(0)), bytes_of_list(logs.len())).await?;
            let mut words = vec![0, logs.len() as u64];
            logs.iter().for_each(|log| words.extend(log.to_words()));
            words[0] = checksum(&words[1..], self.id() ^ new.raw());
            until_answered(ep, deadline, async || write_words(ep, new, &words).await).await?;
            persist(ep, new, bytes_of_list(logs.len()), deadline).await?;
        }
        write_word_surely(ep, self.logs_word(), new.raw(), deadline).await?;
        if let Some((old, bytes)) = old {
            self.free(ep, old, bytes).await?;
        }
        Ok(())
    }

    /// Address and size of the block that lists the logs, if there is one.
    ///
    /// # Errors
    /// As for [`Pool::logs`].
    pub async fn logs_block<E: Endpoint>(&self, ep: &E) -> Result<Option<(GlobalAddr, u64)>> {
        let (at, logs) = self.list_of_logs(ep).await?;
        Ok(self.block_of_logs(at, &logs))
    }

    /// [`Pool::logs_block`] of a list.
    pub(crate) fn block_of_logs(&self, at: GlobalAddr, logs: &[LogPlace]) -> Option<(GlobalAddr, u64)> {
        (!at.is_null()).then(|| (at, bytes_of_list(logs.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_comes_back_and_lists_from_before_partitions_had_logs_are_understood() {
        let root = GlobalAddr::new(MemoryServerId(3), 4096);
        for writer in [None, Some(AttachSlot(0)), Some(AttachSlot(0x7fff))] {
            let place = LogPlace { index_id: u32::MAX, number: u16::MAX, writer, root };
            assert_eq!(LogPlace::from_words(place.to_words()), Some(place));
        }
        let old = LogPlace { index_id: 7, number: 0, writer: None, root };
        assert_eq!(LogPlace::from_words([7, root.raw()]), Some(old));
    }
}
