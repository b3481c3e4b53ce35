//! What an attached process tells the others about itself: a few bytes that the pool keeps and does not read, such as where it
//! can be asked.
//!
//! A notice is a value, and the second half of the process's attach entry refers to it: three words and a checksum over them
//! and the random number of the entry, so that what an earlier process left there, or a WRITE that is seen halfway, is no
//! notice. It goes with its process at a clean detach. That of a process that died stays as long as its entry does, so its
//! blocks are accounted for.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};

use crate::alloc::Placement;
use crate::attach::{self, AttachSlot, ProcessIdentity, entry_addr};
use crate::error::{PoolError, Result};
use crate::io::{checksum, read_words, write_words};
use crate::layout::ATTACH_ENTRY_BYTES;
use crate::pool::Pool;
use crate::value::ValueRef;

/// On the server that is never drained, and where the attach table is.
const PLACEMENT: Placement = Placement::Server(MemoryServerId(0));
/// Bytes of an entry before the notice.
const NOTICE_AT: u64 = 32;
/// Looks at a notice that is being replaced.
const READS_MAX: usize = 3;

/// A process in the attach table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    pub slot: AttachSlot,
    pub process: ProcessIdentity,
    /// `false` for one that ended without detaching.
    pub is_alive: bool,
    /// What it tells the others; empty if nothing.
    pub notice: Vec<u8>,
}

impl Pool {
    /// Tells the others `notice`, in place of what this process told them before. One call at a time.
    ///
    /// # Errors
    /// [`PoolError::PoolFull`] and those of verbs. The notice is the old one then, unless the error may have taken effect.
    pub async fn set_notice<E: Endpoint>(&self, ep: &E, notice: &[u8]) -> Result<()> {
        let slot = self.writer_slot()?;
        let old = self.notice_ref(ep, slot).await?.unwrap_or(NOTHING);
        if old.len == 0 && notice.is_empty() {
            return Ok(());
        }
        let new = self.put_value(ep, PLACEMENT, notice).await?;
        let salt = ep.read_word(entry_addr(slot)).await? >> 8;
        let mut words = new.to_words().to_vec();
        words.push(self.notice_checksum(salt, &words));
        let written = write_words(ep, entry_addr(slot).add(NOTICE_AT), &words).await;
        if let Err(error) = written {
            // What the entry refers to by now is not freed. If that cannot be told, both stay allocated.
            return match self.notice_ref(ep, slot).await {
                Ok(Some(now)) if now == new => self.free_value(ep, old).await,
                Ok(now) if now.unwrap_or(NOTHING) == old => {
                    self.free_value(ep, new).await?;
                    Err(error)
                }
                _ => Err(error),
            };
        }
        self.free_value(ep, old).await
    }

    /// The processes in the attach table, those too that ended without detaching, by their places.
    ///
    /// # Errors
    /// Those of verbs.
    pub async fn processes<E: Endpoint>(&self, ep: &E) -> Result<Vec<Attached>> {
        let mut processes = Vec::new();
        for entry in attach::read_table(ep, self.inner.max_attached, self.deadline(ep)).await? {
            let (slot, process) = (entry.slot, entry.process);
            let is_alive = Some(slot) == self.slot() || entry.is_alive(&self.inner.is_alive);
            let notice = self.notice_of(ep, slot).await?;
            processes.push(Attached { slot, process, is_alive, notice });
        }
        Ok(processes)
    }

    /// Calls `visit` with address and bytes of each block that holds a notice.
    ///
    /// # Errors
    /// Those of verbs.
    pub async fn visit_notice_blocks<E: Endpoint>(
        &self,
        ep: &E,
        mut visit: impl FnMut(GlobalAddr, u64),
    ) -> Result<()> {
        for entry in attach::read_table(ep, self.inner.max_attached, self.deadline(ep)).await? {
            if let Some(value) = self.notice_ref(ep, entry.slot).await? {
                self.visit_value_blocks(ep, value, &mut visit).await?;
            }
        }
        Ok(())
    }

    async fn notice_of<E: Endpoint>(&self, ep: &E, slot: AttachSlot) -> Result<Vec<u8>> {
        let mut notice = Vec::new();
        for _ in 0..READS_MAX {
            let Some(value) = self.notice_ref(ep, slot).await? else { break };
            match self.get_value(ep, value, &mut notice).await {
                // It was replaced meanwhile.
                Err(PoolError::ValueChanged { .. } | PoolError::Corrupt { .. }) => notice.clear(),
                done => return done.map(|()| notice),
            }
        }
        Ok(notice)
    }

    /// What the entry refers to; `None` if it refers to nothing.
    async fn notice_ref<E: Endpoint>(&self, ep: &E, slot: AttachSlot) -> Result<Option<ValueRef>> {
        const WORDS: usize = (ATTACH_ENTRY_BYTES / 8) as usize;
        for _ in 0..READS_MAX {
            let words = read_words(ep, entry_addr(slot), WORDS).await?;
            let reference = &words[NOTICE_AT as usize / 8..WORDS - 1];
            if words[WORDS - 1] == self.notice_checksum(words[0] >> 8, reference) {
                return Ok(ValueRef::from_words([reference[0], reference[1], reference[2]]));
            }
        }
        Ok(None)
    }

    fn notice_checksum(&self, salt: u64, reference: &[u64]) -> u64 {
        checksum(reference, self.id() ^ salt)
    }
}

const NOTHING: ValueRef = ValueRef { addr: GlobalAddr::NULL, len: 0, hash: 0 };
