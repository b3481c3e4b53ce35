//! Notices: a few bytes that an attached process publishes for the others, such as its network address. The
//! pool stores but does not interpret them.
//!
//! A notice is a value to which the second half of the process's attach entry refers: three words, and a
//! checksum over them and the entry's random number. So leftovers of an earlier process, or a torn WRITE, are
//! not taken for a notice. A clean detach frees the notice. That of a dead process stays as long as its
//! entry, so its blocks are accounted for.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};

use crate::alloc::Placement;
use crate::attach::{self, ENTRY_WORDS, EntryState};
use crate::error::{PoolError, Result};
use crate::io::{checksum, read_words, write_words};
use crate::pool::Pool;
use crate::process::{AttachSlot, ProcessIdentity};
use crate::value::ValueRef;

/// On the server that holds the attach table and is never drained.
const PLACEMENT: Placement = Placement::Server(MemoryServerId(0));
/// Offset of the notice in an entry.
const NOTICE_AT: u64 = 32;
/// Attempts to read a notice that is being replaced.
const READS_MAX: usize = 3;

/// A process in the attach table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    pub slot: AttachSlot,
    pub process: ProcessIdentity,
    /// `false` if the process ended without detaching.
    pub is_alive: bool,
    /// Whether others can [reclaim](Pool::reclaim) what it leased.
    pub keeps_bitmaps: bool,
    /// Its notice; empty if there is none.
    pub notice: Vec<u8>,
}

impl Pool {
    /// Publishes `notice` to the other processes, in place of the previous one. One call at a time.
    ///
    /// # Errors
    /// [`PoolError::PoolFull`] and errors of verbs. The old notice then stays, unless the error may have
    /// taken effect.
    pub async fn set_notice<E: Endpoint>(&self, ep: &E, notice: &[u8]) -> Result<()> {
        let slot = self.writer_slot()?;
        let old = self.notice_ref(ep, slot).await?.unwrap_or(NOTHING);
        if old.len == 0 && notice.is_empty() {
            return Ok(());
        }
        let new = self.put_value(ep, PLACEMENT, notice).await?;
        let salt = ep.read_word(self.entry_addr(slot)).await? >> 8;
        let mut words = new.to_words().to_vec();
        words.push(self.notice_checksum(salt, &words));
        let written = write_words(ep, self.entry_addr(slot).add(NOTICE_AT), &words).await;
        if let Err(error) = written {
            // Do not free the notice that the entry refers to now. If that is not known, both stay allocated.
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

    /// Processes in the attach table by slot, including those that ended without detaching, but not those that died
    /// before they could change anything.
    ///
    /// # Errors
    /// Errors of verbs.
    pub async fn processes<E: Endpoint>(&self, ep: &E) -> Result<Vec<Attached>> {
        let mut processes = Vec::new();
        for entry in attach::read_table(ep, self.inner.max_attached).await? {
            let (slot, process) = (entry.slot, entry.process);
            let is_alive = Some(slot) == self.slot() || entry.is_alive(&self.inner.is_alive);
            if !is_alive && entry.state == EntryState::Coming {
                continue;
            }
            let notice = self.notice_of(ep, slot).await?;
            let keeps_bitmaps = entry.keeps_bitmaps;
            processes.push(Attached { slot, process, is_alive, keeps_bitmaps, notice });
        }
        Ok(processes)
    }

    /// Calls `visit` with address and size of each block that holds a notice.
    ///
    /// # Errors
    /// Errors of verbs.
    pub async fn visit_notice_blocks<E: Endpoint>(
        &self,
        ep: &E,
        mut visit: impl FnMut(GlobalAddr, u64),
    ) -> Result<()> {
        for entry in attach::read_table(ep, self.inner.max_attached).await? {
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

    fn entry_addr(&self, slot: AttachSlot) -> GlobalAddr {
        attach::entry_addr(self.inner.max_attached, slot)
    }

    /// The value that the entry refers to; `None` if there is none.
    pub(crate) async fn notice_ref<E: Endpoint>(&self, ep: &E, slot: AttachSlot) -> Result<Option<ValueRef>> {
        for _ in 0..READS_MAX {
            let words = read_words(ep, self.entry_addr(slot), ENTRY_WORDS).await?;
            let reference = &words[NOTICE_AT as usize / 8..ENTRY_WORDS - 1];
            if words[ENTRY_WORDS - 1] == self.notice_checksum(words[0] >> 8, reference) {
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
