//! What a dead process leased, while others go on.
//!
//! While a chunk is leased, its bitmap is in the DRAM of the owner, and lost if that dies. A process that
//! [keeps bitmaps](crate::AttachOptions::keeps_bitmaps) therefore *stores* those that changed now and then: before it drops
//! records of its logs, and before the catalog changes, which may lead to what no log has then. A block that it allocated after that is
//! in its logs, if anything leads to it. Who redoes such a log [marks](Pool::mark_allocated) these blocks in the stored bitmap.
//! Then each block that is in use is marked, and a few that were freed, or never linked, which stay allocated until
//! one process that is alone [frees](Pool::free_left) them, or rebuilds the allocation.
//!
//! Once nobody waits for an heir of the dead process, another process [reclaims](Pool::reclaim) its chunks and its place in
//! the attach table. The place gets the next *generation*, and with it another slot: locks that still name the old one are
//! abandoned, whoever attaches there.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, Nanos, join_all};

use crate::arena::{LocalChunk, Unstored};
use crate::attach::{self, EntryState};
use crate::chunks::insert;
use crate::classes::CLASSES;
use crate::defect::OfReclaim;
use crate::error::Result;
use crate::io::{read_words, write_words};
use crate::layout::{Descriptor, RECLAIMED_AT};
use crate::pool::{Pool, Server};
use crate::process::AttachSlot;

/// Bitmaps that are stored at a time.
const AT_ONCE: usize = 16;

impl Pool {
    /// Whether this process stores its bitmaps.
    pub fn keeps_bitmaps(&self) -> bool {
        self.inner.keeps_bitmaps && self.writer_slot().is_ok()
    }

    /// Stores the bitmaps of leased chunks that changed since they were stored, if this process keeps them.
    ///
    /// # Errors
    /// Errors of verbs and of waits; it must be called again then.
    pub async fn store_bitmaps<E: Endpoint>(&self, ep: &E) -> Result<()> {
        if !self.keeps_bitmaps() || defect(OfReclaim::Unstored) {
            return Ok(());
        }
        for server in self.servers_in_use() {
            let has_changed = |class| server.arena(class).iter().any(LocalChunk::is_unstored);
            if !(0..CLASSES as u8).any(has_changed) {
                continue;
            }
            // The chunks stay leased meanwhile.
            let _leasing = self.begin_leasing(ep, server).await?;
            for class in 0..CLASSES as u8 {
                let unstored: Vec<_> = server.arena(class).iter().filter_map(LocalChunk::unstored).collect();
                for some in unstored.chunks(AT_ONCE) {
                    self.store(ep, server, class, some).await?;
                }
            }
        }
        Ok(())
    }

    async fn store<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        class: u8,
        unstored: &[Unstored],
    ) -> Result<()> {
        let rest = Rest { ep, server, verbs_take: self.inner.verbs_take };
        let write =
            async |of: &Unstored| write_words(ep, server.geometry.allocated_bits(of.chunk), &of.bits).await;
        join_all(unstored.iter().map(write)).await.into_iter().collect::<Result<()>>()?;
        std::mem::forget(rest);
        let mut arena = server.arena(class);
        for of in unstored {
            if let Some((_, place)) = server.held(of.chunk) {
                arena.note_stored(place, of.change);
            }
        }
        Ok(())
    }

    /// Marks blocks as allocated in the stored bitmaps of the dead process `of`, as far as they are in chunks that it
    /// leased: address and size of each. There may be others among them.
    ///
    /// # Errors
    /// Errors of verbs, after which it may be called again.
    pub async fn mark_allocated<E: Endpoint>(
        &self,
        ep: &E,
        of: AttachSlot,
        blocks: impl IntoIterator<Item = (GlobalAddr, u64)>,
    ) -> Result<()> {
        let mut marks: BTreeMap<(u16, u32, u8), BTreeMap<usize, u64>> = BTreeMap::new();
        for (addr, size) in blocks {
            let Some(server) = self.server(addr.server()).ok().filter(|server| !server.is_drained()) else {
                continue;
            };
            let Ok(class) = server.class_of(size) else { continue };
            let Ok((chunk, block)) = server.geometry.locate(addr, class) else { continue };
            let words = marks.entry((addr.server().0, chunk, class)).or_default();
            *words.entry(block as usize / 64).or_default() |= 1 << (block % 64);
        }
        let mut seen = None;
        for ((number, chunk, class), words) in marks {
            let server = &self.inner.servers[usize::from(number)];
            if seen != Some(number) {
                self.look(ep, server).await?;
                seen = Some(number);
            }
            let word = server.seen[chunk as usize].load(Relaxed);
            if server.geometry.decode(chunk, word)? != (Descriptor::Leased { class, slot: of.0 }) {
                continue;
            }
            for (word, bits) in words {
                set_bits(ep, server.geometry.allocated_bits(chunk).add(word as u64 * 8), bits).await?;
            }
        }
        Ok(())
    }

    /// Takes over the chunks that the dead process in `slot` leased, and frees its place in the attach table, if it kept
    /// bitmaps, no partition and no log is its own any more, and this process keeps bitmaps, too. Returns whether that was done.
    ///
    /// # Errors
    /// Errors of verbs and of the catalog lock, after which it may be called again.
    pub async fn reclaim<E: Endpoint>(&self, ep: &E, slot: AttachSlot) -> Result<bool> {
        let entry = attach::read_entry(ep, self.inner.max_attached, slot).await?;
        let is_due = |entry: &attach::AttachEntry| {
            entry.keeps_bitmaps
                && entry.state == EntryState::Attached
                && Some(entry.slot) != self.slot()
                && !entry.is_alive(&self.inner.is_alive)
        };
        let Some(entry) = entry.filter(|entry| self.keeps_bitmaps() && is_due(entry)) else {
            return Ok(false);
        };
        // Before the catalog is locked, and in vain for as long as no heir comes.
        if self.look_at_catalog(ep, async || self.awaits_heir(ep, slot).await).await? {
            return Ok(false);
        }
        self.change_catalog(ep, async || {
            if self.awaits_heir(ep, slot).await? {
                return Ok(false);
            }
            let (at, logs) = self.list_of_logs(ep).await?;
            let mut used = self.catalog_blocks(ep).await?;
            used.extend(self.block_of_logs(at, &logs));
            if !defect(OfReclaim::CatalogUnmarked) {
                self.mark_allocated(ep, slot, used).await?;
            }
            ep.write_word(reclaimed_word(), 1).await?;
            for server in self.servers_in_use() {
                self.take_chunks(ep, server, slot).await?;
            }
            let notice = self.notice_ref(ep, slot).await?;
            attach::retire_entry(ep, self.inner.max_attached, &entry, self.deadline(ep)).await?;
            if let Some(notice) = notice {
                // It stays allocated if that fails.
                let _ = self.free_value(ep, notice).await;
            }
            Ok(true)
        })
        .await
    }

    /// Whether a partition or a log is still that of the dead process in `slot`.
    async fn awaits_heir<E: Endpoint>(&self, ep: &E, slot: AttachSlot) -> Result<bool> {
        let (_, logs) = self.list_of_logs(ep).await?;
        let records = self.records(ep).await?;
        let mut owners = records.iter().flat_map(|record| &record.owners);
        Ok(owners.any(|owner| *owner == Some(slot)) || logs.iter().any(|log| log.writer == Some(slot)))
    }

    /// Whether blocks may be allocated that belong to nothing, since chunks were reclaimed.
    ///
    /// # Errors
    /// Errors of verbs.
    pub async fn has_reclaimed<E: Endpoint>(&self, ep: &E) -> Result<bool> {
        Ok(ep.read_word(reclaimed_word()).await? != 0)
    }

    /// Frees the blocks that belong to nothing, all of them. The caller is alone.
    ///
    /// # Errors
    /// Errors of [`Pool::free`]; it can be done again.
    pub async fn free_left<E: Endpoint>(&self, ep: &E, left: &[(GlobalAddr, u64)]) -> Result<()> {
        for &(addr, size) in left {
            self.free(ep, addr, size).await?;
        }
        Ok(ep.write_word(reclaimed_word(), 0).await?)
    }

    /// Leased by `from` → Leased by this process, for all such chunks of a memory server.
    async fn take_chunks<E: Endpoint>(&self, ep: &E, server: &Server, from: AttachSlot) -> Result<()> {
        let _leasing = self.begin_leasing(ep, server).await?;
        self.look(ep, server).await?;
        let mine = self.writer_slot()?;
        for chunk in 0..server.geometry.chunks {
            let word = server.seen[chunk as usize].load(Relaxed);
            let class = match server.geometry.decode(chunk, word)? {
                Descriptor::Leased { class, slot } if slot == from.0 => class,
                _ => continue,
            };
            let geometry = &server.geometry;
            let words = geometry.bitmap_words(class);
            let mut bits = read_words(ep, geometry.allocated_bits(chunk), words).await?;
            // A block that others freed was allocated.
            let freed = read_words(ep, geometry.freed_bits(chunk), words).await?;
            bits.iter_mut().zip(freed).for_each(|(bits, freed)| *bits |= freed);
            write_words(ep, geometry.allocated_bits(chunk), &bits).await?;
            let local = LocalChunk::new(chunk, geometry.blocks(class), bits);
            let released = Descriptor::Released { class, free: local.free_blocks() }.encode();
            let leased = Descriptor::Leased { class, slot: mine.0 }.encode();
            match self.swap(ep, server, chunk, word, leased).await {
                Ok(true) => insert(server, class, local),
                Ok(false) => {}
                Err(error) => return Err(crate::chunks::leave_unsettled(server, chunk, released, error)),
            }
            self.harvest_chunk(ep, server, class, chunk).await?;
        }
        if !server.is_active() {
            self.release_chunks_of(ep, server).await?;
        }
        Ok(())
    }
}

pub(crate) fn reclaimed_word() -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(0), RECLAIMED_AT)
}

/// Sets bits of the word at `at`, which others may do as well.
async fn set_bits<E: Endpoint>(ep: &E, at: GlobalAddr, bits: u64) -> Result<()> {
    let mut seen = ep.read_word(at).await?;
    while seen & bits != bits {
        match ep.compare_swap(at, seen, seen | bits).await? {
            before if before == seen => break,
            before => seen = before,
        }
    }
    Ok(())
}

/// WRITEs of bitmaps are in flight. Dropped before they have ended, they may arrive for a while, and the chunks must stay
/// leased.
struct Rest<'p, E: Endpoint> {
    ep: &'p E,
    server: &'p Server,
    verbs_take: Nanos,
}

impl<E: Endpoint> Drop for Rest<'_, E> {
    fn drop(&mut self) {
        self.server.rests_until.fetch_max(self.ep.now().saturating_add(self.verbs_take), Relaxed);
    }
}
