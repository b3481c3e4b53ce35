//! The list of the logs in a pool: the root of the log of each index that has one.
//!
//! ```text
//! superblock of server 0 --> [checksum][number of logs] [index id][root of its log]...
//! ```
//! A change, under the catalog lock, writes a new block and then stores the word that leads to it, and persists each, so
//! a writer that stops anywhere, or a loss of power, leaves the old list or the new one. What a log holds is no concern
//! of the pool.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};

use crate::alloc::Placement;
use crate::error::{PoolError, Result};
use crate::io::{checksum, persist, read_words, until_answered, write_word_surely, write_words};
use crate::layout::LOGS_AT;
use crate::pool::Pool;

/// The log of one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPlace {
    pub index_id: u32,
    /// Address of the root of the log.
    pub root: GlobalAddr,
}

/// What happens to the log of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogChange {
    Keep,
    /// It has the log with this root from now on.
    Set(GlobalAddr),
    /// It has none from now on.
    Remove,
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
    async fn list_of_logs<E: Endpoint>(&self, ep: &E) -> Result<(GlobalAddr, Vec<LogPlace>)> {
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
        let log = |pair: &[u64; 2]| {
            Some(LogPlace { index_id: u32::try_from(pair[0]).ok()?, root: GlobalAddr::from_raw(pair[1])? })
        };
        let logs = words[HEADER..].as_chunks().0.iter().map(log).collect::<Option<_>>();
        Ok((at, logs.ok_or_else(|| corrupt(at))?))
    }

    /// Changes the log of an index; returns the root of the log that it had.
    ///
    /// # Errors
    /// A full pool; [`PoolError::CatalogUnknown`] if it is not known which list the pool has; errors of the catalog
    /// lock and of verbs.
    pub async fn change_log<E: Endpoint>(
        &self,
        ep: &E,
        index_id: u32,
        change: LogChange,
    ) -> Result<Option<GlobalAddr>> {
        self.change_catalog(ep, async || self.change_log_locked(ep, index_id, change).await).await
    }

    /// [`Pool::change_log`] for a caller that holds the catalog lock.
    pub(crate) async fn change_log_locked<E: Endpoint>(
        &self,
        ep: &E,
        index_id: u32,
        change: LogChange,
    ) -> Result<Option<GlobalAddr>> {
        let (old, before) = self.list_of_logs(ep).await?;
        let had = before.iter().find(|log| log.index_id == index_id).map(|log| log.root);
        let others = before.iter().copied().filter(|log| log.index_id != index_id);
        let logs: Vec<LogPlace> = match change {
            LogChange::Keep => return Ok(had),
            LogChange::Remove if had.is_none() => return Ok(None),
            LogChange::Remove => others.collect(),
            LogChange::Set(root) => others.chain([LogPlace { index_id, root }]).collect(),
        };
        self.replace_logs(ep, (!old.is_null()).then(|| (old, bytes_of_list(before.len()))), &logs).await?;
        Ok(had)
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
            logs.iter().for_each(|log| words.extend([u64::from(log.index_id), log.root.raw()]));
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
        Ok((!at.is_null()).then(|| (at, bytes_of_list(logs.len()))))
    }
}
