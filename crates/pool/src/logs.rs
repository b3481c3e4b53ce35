//! The list of the logs in a pool: the root of the log of each index that has one.
//!
//! ```text
//! superblock of server 0 --> [checksum][number of logs] [index id][root of its log]...
//! ```
//! A change writes a new block and then stores the word that leads to it, and persists each, so a writer that
//! stops anywhere, or a loss of power, leaves the old list or the new one. Only a process that is alone in the
//! pool keeps logs, so there is one writer. What a log holds is no concern of the pool.

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
        Ok(self.list_of_logs(ep).await?.1)
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

    /// Replaces the list of logs. This process is alone in the pool.
    ///
    /// # Errors
    /// A full pool; [`PoolError::CatalogUnknown`] if it is not known which list the pool has; errors of
    /// verbs.
    pub async fn set_logs<E: Endpoint>(&self, ep: &E, logs: &[LogPlace]) -> Result<()> {
        let deadline = self.deadline(ep);
        let (old, before) = self.list_of_logs(ep).await?;
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
        if !old.is_null() {
            self.free(ep, old, bytes_of_list(before.len())).await?;
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
