//! Chunk leases: how a process obtains and returns chunks by one-sided verbs.
//!
//! ```text
//!              lease_free                    release
//!      Free ───────────────▶ Leased(class, slot) ──────▶ Released(class, free)
//!        ▲                     │        ▲                      │
//!        └──── give_back ──────┘        └────── adopt ─────────┘
//! ```
//! Every arrow is one compare-and-swap on the descriptor. Invariants of the bitmaps:
//! - Only the owner of the lease writes *allocated*, and only between its two swaps.
//! - Any process sets bits of *freed by others*, by compare-and-swap, so each bit is set once. Only the owner
//!   of the lease harvests a bit: it clears the bit there and the block's bit in *allocated*.
//! - A process that sets a bit checks the descriptor afterwards, and one that releases a chunk checks the
//!   bits afterwards. So a released chunk never keeps an unnoticed bit.

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{MutexGuard, PoisonError};

use pando_fabric::{Endpoint, FabricError, GlobalAddr, Nanos};

use crate::arena::LocalChunk;
use crate::classes::{CLASSES, size_of_class};
use crate::error::{PoolError, Result};
use crate::io::{read_words, until_answered, write_words, write_zeros};
use crate::layout::Descriptor;
use crate::pool::{Pool, Server};
use crate::process::AttachSlot;

/// Number of leases after which the loads of all servers are read again.
const LEASES_PER_REFRESH: u32 = 32;

/// A worker's exclusive right to lease chunks of a server. Not a latch: waiters yield, and the right ends
/// even if the future is dropped.
pub(crate) struct Leasing<'a>(&'a AtomicBool);

impl Drop for Leasing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Pool {
    /// Makes room for blocks of `class` on `server`, or finds that another worker did. The caller then tries
    /// again.
    ///
    /// # Errors
    /// [`PoolError::PoolFull`], [`PoolError::NoSpace`].
    pub(crate) async fn grow<E: Endpoint>(&self, ep: &E, server: &Server, class: u8) -> Result<()> {
        self.lease_for(ep, server, class).await?;
        // The lease is now in the pool. A drain that starts later sees it, and one that started earlier is
        // seen here.
        if self.learn(ep).await? {
            // This worker no longer holds the right to lease on this server, so it can take it on others.
            // Chunks that cannot be given back now are given back when the drain is finished.
            let _ = self.leave_inactive(ep).await;
        }
        server.check_active()
    }

    /// Obtains a chunk with room for blocks of `class`.
    async fn lease_for<E: Endpoint>(&self, ep: &E, server: &Server, class: u8) -> Result<()> {
        let _leasing = self.begin_leasing(ep, server).await?;
        // Another worker may have made room meanwhile.
        if server.arena(class).has_room() {
            return Ok(());
        }
        if self.inner.leases.fetch_add(1, Relaxed) % LEASES_PER_REFRESH == LEASES_PER_REFRESH - 1 {
            self.refresh_loads(ep).await?;
        }
        let slot = self.writer_slot()?;
        if self.harvest(ep, server).await? && server.arena(class).has_room() {
            return Ok(());
        }
        if self.convert_own(ep, server, class, slot).await?
            || self.lease_seen(ep, server, class, slot).await?
        {
            return Ok(());
        }
        self.look(ep, server).await?;
        if self.lease_seen(ep, server, class, slot).await? {
            return Ok(());
        }
        Err(PoolError::PoolFull { server: server.id(), size: size_of_class(class) })
    }

    /// Waits for the right to lease chunks of `server`, and settles leases that failed earlier.
    pub(crate) async fn begin_leasing<'a, E: Endpoint>(
        &self,
        ep: &E,
        server: &'a Server,
    ) -> Result<Leasing<'a>> {
        let mut deadline = None;
        while server.leasing.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            if ep.now() >= *deadline.get_or_insert_with(|| self.deadline(ep)) {
                return Err(PoolError::WaitedTooLong { what: "another worker to lease a chunk" });
            }
            ep.yield_now().await;
        }
        let leasing = Leasing(&server.leasing);
        ep.sleep_until(server.rests_until.load(Relaxed)).await;
        self.settle(ep, server).await?;
        Ok(leasing)
    }

    /// [`Pool::begin_leasing`], if nobody is at it.
    pub(crate) fn try_leasing<'a, E: Endpoint>(&self, ep: &E, server: &'a Server) -> Option<Leasing<'a>> {
        let is_free = server.leasing.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        let leasing = is_free.then(|| Leasing(&server.leasing))?;
        (ep.now() >= server.rests_until.load(Relaxed)).then_some(leasing)
    }

    /// Undoes leases that a failed verb left in the pool. The caller has the right to lease on `server`.
    async fn settle<E: Endpoint>(&self, ep: &E, server: &Server) -> Result<()> {
        while let Some((chunk, wanted)) = last_unsettled(server) {
            if server.held(chunk).is_none() {
                let word = ep.read_word(server.geometry.descriptor(chunk)).await?;
                let mine = self.writer_or_leaving_slot()?.0;
                if matches!(server.geometry.decode(chunk, word)?, Descriptor::Leased { slot, .. } if slot == mine)
                {
                    self.swap(ep, server, chunk, word, wanted).await?;
                }
            }
            unsettled(server).retain(|entry| *entry != (chunk, wanted));
        }
        Ok(())
    }

    /// Reads all descriptors of `server`.
    pub(crate) async fn look<E: Endpoint>(&self, ep: &E, server: &Server) -> Result<()> {
        let geometry = &server.geometry;
        let words = read_words(ep, geometry.descriptors(), geometry.chunks as usize).await?;
        let mine = self.slot().map(|slot| slot.0);
        let mut other_bytes = 0;
        for (chunk, &word) in words.iter().enumerate() {
            other_bytes += match geometry.decode(chunk as u32, word)? {
                Descriptor::Leased { slot, .. } if Some(slot) != mine => geometry.chunk_size,
                Descriptor::Released { class, free } => {
                    u64::from(geometry.blocks(class) - free) * size_of_class(class)
                }
                _ => 0,
            };
            server.seen[chunk].store(word, Relaxed);
        }
        server.other_bytes.store(other_bytes, Relaxed);
        Ok(())
    }

    /// Reads the bytes in use on each memory server, for placement.
    ///
    /// # Errors
    /// Errors of verbs.
    pub async fn refresh_loads<E: Endpoint>(&self, ep: &E) -> Result<()> {
        for server in self.servers_in_use() {
            self.look(ep, server).await?;
        }
        Ok(())
    }

    /// Converts a wholly free chunk that this process leases for another class to `class`.
    async fn convert_own<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        class: u8,
        slot: AttachSlot,
    ) -> Result<bool> {
        let Some((from, chunk)) = (0..CLASSES as u8).find_map(|from| Some((from, take_empty(server, from)?)))
        else {
            return Ok(false);
        };
        let number = chunk.chunk;
        let leased = |class| Descriptor::Leased { class, slot: slot.0 }.encode();
        let converted = async {
            self.clear_bitmaps(ep, server, number, class).await?;
            self.swap(ep, server, number, leased(from), leased(class)).await
        };
        match converted.await {
            Ok(true) => {
                insert(server, class, LocalChunk::new(number, server.geometry.blocks(class), Vec::new()));
                Ok(true)
            }
            Ok(false) => Err(not_mine(server, number)),
            Err(error) => Err(leave_unsettled(server, number, Descriptor::Free.encode(), error)),
        }
    }

    /// Leases a chunk that looks released with room for `class`, or else one that looks free.
    async fn lease_seen<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        class: u8,
        slot: AttachSlot,
    ) -> Result<bool> {
        let geometry = &server.geometry;
        for chunk in 0..geometry.chunks {
            let word = server.seen[chunk as usize].load(Relaxed);
            let has_room = matches!(geometry.decode(chunk, word)?,
                Descriptor::Released { class: of, free } if of == class && free > 0);
            if has_room && self.adopt(ep, server, chunk, word, slot).await? && server.arena(class).has_room()
            {
                return Ok(true);
            }
        }
        for chunk in 0..geometry.chunks {
            let looks_free = server.seen[chunk as usize].load(Relaxed) == Descriptor::Free.encode();
            if looks_free && self.lease_free(ep, server, chunk, class, slot).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Free → Leased. Returns false if the chunk is not free.
    async fn lease_free<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        chunk: u32,
        class: u8,
        slot: AttachSlot,
    ) -> Result<bool> {
        let (free, leased) = (Descriptor::Free.encode(), Descriptor::Leased { class, slot: slot.0 }.encode());
        let prepared = async {
            let leased = self.swap(ep, server, chunk, free, leased).await?;
            if leased {
                self.prepare(ep, server, chunk, class).await?;
            }
            Ok(leased)
        };
        match prepared.await {
            Ok(leased) => {
                if leased {
                    insert(server, class, LocalChunk::new(chunk, server.geometry.blocks(class), Vec::new()));
                }
                Ok(leased)
            }
            Err(error) => {
                let error = leave_unsettled(server, chunk, free, error);
                // Settle now, so that others can have the chunk; otherwise it happens before the next lease.
                let _ = self.settle(ep, server).await;
                Err(error)
            }
        }
    }

    /// Ensures that a fresh chunk is backed by memory.
    async fn prepare<E: Endpoint>(&self, ep: &E, server: &Server, chunk: u32, class: u8) -> Result<()> {
        let geometry = &server.geometry;
        let reserved = async {
            ep.reserve(geometry.allocated_bits(chunk), geometry.bitmaps_len()).await?;
            ep.reserve(geometry.chunk_start(chunk), geometry.chunk_size).await
        };
        match reserved.await {
            Ok(()) => self.clear_bitmaps(ep, server, chunk, class).await,
            Err(FabricError::NoSpace { reason, .. }) => {
                Err(PoolError::NoSpace { server: server.id(), size: size_of_class(class), reason })
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn clear_bitmaps<E: Endpoint>(&self, ep: &E, server: &Server, chunk: u32, class: u8) -> Result<()> {
        let words = server.geometry.bitmap_words(class);
        write_zeros(ep, server.geometry.allocated_bits(chunk), words).await?;
        write_zeros(ep, server.geometry.freed_bits(chunk), words).await
    }

    /// Released → Leased, and harvests the blocks that others freed. Returns false if the descriptor is no
    /// longer `word`. The caller has the right to lease.
    pub(crate) async fn adopt<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        chunk: u32,
        word: u64,
        slot: AttachSlot,
    ) -> Result<bool> {
        let Descriptor::Released { class, free } = server.geometry.decode(chunk, word)? else {
            return Ok(false);
        };
        let leased = Descriptor::Leased { class, slot: slot.0 }.encode();
        let bits = async {
            if !self.swap(ep, server, chunk, word, leased).await? {
                return Ok(None);
            }
            let words = server.geometry.bitmap_words(class);
            read_words(ep, server.geometry.allocated_bits(chunk), words).await.map(Some)
        };
        match bits.await {
            Ok(None) => Ok(false),
            Ok(Some(bits)) => {
                // These blocks belong to this process now.
                let bytes = u64::from(server.geometry.blocks(class) - free) * size_of_class(class);
                let _ = server
                    .other_bytes
                    .fetch_update(Relaxed, Relaxed, |other| Some(other.saturating_sub(bytes)));
                insert(server, class, LocalChunk::new(chunk, server.geometry.blocks(class), bits));
                self.harvest_chunk(ep, server, class, chunk).await?;
                Ok(true)
            }
            Err(error) => Err(leave_unsettled(server, chunk, word, error)),
        }
    }

    /// Leased → Free, for an empty chunk that was removed from its arena.
    pub(crate) async fn give_back<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        class: u8,
        chunk: LocalChunk,
    ) -> Result<()> {
        let number = chunk.chunk;
        let leased = Descriptor::Leased { class, slot: self.writer_or_leaving_slot()?.0 }.encode();
        match self.swap(ep, server, number, leased, Descriptor::Free.encode()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(not_mine(server, number)),
            Err(error) => Err(leave_unsettled(server, number, Descriptor::Free.encode(), error)),
        }
    }

    /// Harvests the bitmaps *freed by others* of all chunks that this process leases on `server`. Returns
    /// false if nothing was freed since the last time.
    pub(crate) async fn harvest<E: Endpoint>(&self, ep: &E, server: &Server) -> Result<bool> {
        let frees = ep.read_word(server.geometry.frees_by_others()).await?;
        if frees == server.frees_seen.load(Relaxed) {
            return Ok(false);
        }
        for class in 0..CLASSES as u8 {
            let chunks: Vec<u32> = server.arena(class).iter().map(|chunk| chunk.chunk).collect();
            for chunk in chunks {
                self.harvest_chunk(ep, server, class, chunk).await?;
            }
        }
        server.frees_seen.store(frees, Relaxed);
        Ok(true)
    }

    /// The same for one chunk.
    pub(crate) async fn harvest_chunk<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        class: u8,
        chunk: u32,
    ) -> Result<()> {
        let at = server.geometry.freed_bits(chunk);
        let words = read_words(ep, at, server.geometry.bitmap_words(class)).await?;
        for (word, seen) in words.into_iter().enumerate().filter(|&(_, seen)| seen != 0) {
            let taken = take_bits(ep, at.add(word as u64 * 8), seen, self.deadline(ep)).await?;
            self.free_taken(server, class, chunk, word, taken);
        }
        Ok(())
    }

    fn free_taken(&self, server: &Server, class: u8, chunk: u32, word: usize, taken: u64) {
        let mut arena = server.arena(class);
        let stray = match server.held(chunk).filter(|&(of, _)| of == class) {
            Some((_, place)) => {
                let (freed, stray) = arena.free_word(place, word, taken);
                server.own_bytes.fetch_sub((u64::from(freed) * size_of_class(class)) as i64, Relaxed);
                stray
            }
            // The chunk was given back meanwhile, so it was empty and had no block to free.
            None => Some(word as u32 * 64 + taken.trailing_zeros()),
        };
        if let Some(block) = stray {
            let addr = server.geometry.block_addr(chunk, class, block);
            self.inner.stray_frees.count.fetch_add(1, Relaxed);
            self.inner.stray_frees.last.store(addr.raw(), Relaxed);
        }
    }

    /// Releases all chunks that this process leases.
    pub(crate) async fn release_all_chunks<E: Endpoint>(&self, ep: &E) -> Result<()> {
        for server in self.servers_in_use() {
            self.release_chunks_of(ep, server).await?;
            self.settle(ep, server).await?;
            self.expect_no_leases(ep, server).await?;
        }
        Ok(())
    }

    /// The same on one server. The caller has the right to lease there.
    pub(crate) async fn release_chunks_of<E: Endpoint>(&self, ep: &E, server: &Server) -> Result<()> {
        for class in 0..CLASSES as u8 {
            while let Some(chunk) = take_any(server, class) {
                self.release(ep, server, class, chunk).await?;
            }
        }
        Ok(())
    }

    /// Leased → Released, or → Free if the chunk is empty.
    async fn release<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        class: u8,
        mut chunk: LocalChunk,
    ) -> Result<()> {
        let number = chunk.chunk;
        let (geometry, slot) = (&server.geometry, self.writer_or_leaving_slot()?);
        loop {
            let stored = async {
                self.harvest_into(ep, server, class, &mut chunk).await?;
                if !chunk.is_empty() {
                    write_words(ep, geometry.allocated_bits(number), &chunk.stored_bits()).await?;
                }
                Ok(())
            };
            if let Err(error) = stored.await {
                insert(server, class, chunk);
                return Err(error);
            }
            if chunk.is_empty() {
                return self.give_back(ep, server, class, chunk).await;
            }
            let leased = Descriptor::Leased { class, slot: slot.0 }.encode();
            let released = Descriptor::Released { class, free: chunk.free_blocks() }.encode();
            match self.swap(ep, server, number, leased, released).await {
                Ok(true) => {}
                Ok(false) => return Err(not_mine(server, number)),
                Err(error) => {
                    // Once released, the chunk may belong to another process, so this one must not touch it.
                    let word = async || Ok(ep.read_word(geometry.descriptor(number)).await?);
                    match until_answered(ep, self.deadline(ep), word).await {
                        Ok(word) if word == leased => {
                            insert(server, class, chunk);
                            return Err(error);
                        }
                        Ok(_) => {}
                        Err(_) => return Err(leave_unsettled(server, number, released, error)),
                    }
                }
            }
            let words = geometry.bitmap_words(class);
            let again = async {
                let late = read_words(ep, geometry.freed_bits(number), words).await?;
                let is_late = late.iter().any(|&word| word != 0);
                if !is_late || !self.swap(ep, server, number, released, leased).await? {
                    return Ok(None);
                }
                // Another process may have leased it meanwhile.
                read_words(ep, geometry.allocated_bits(number), words).await.map(Some)
            };
            match again.await {
                Ok(Some(bits)) => chunk = LocalChunk::new(number, geometry.blocks(class), bits),
                Ok(None) => {
                    let bytes = u64::from(chunk.allocated_blocks()) * size_of_class(class);
                    server.other_bytes.fetch_add(bytes, Relaxed);
                    return Ok(());
                }
                Err(error) => return Err(leave_unsettled(server, number, released, error)),
            }
        }
    }

    async fn harvest_into<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        class: u8,
        chunk: &mut LocalChunk,
    ) -> Result<()> {
        let at = server.geometry.freed_bits(chunk.chunk);
        let words = read_words(ep, at, server.geometry.bitmap_words(class)).await?;
        for (word, seen) in words.into_iter().enumerate().filter(|&(_, seen)| seen != 0) {
            let taken = take_bits(ep, at.add(word as u64 * 8), seen, self.deadline(ep)).await?;
            chunk.free_word(word, taken);
        }
        Ok(())
    }

    /// Fails if the pool has leases that this process does not know of: a dropped future left them.
    async fn expect_no_leases<E: Endpoint>(&self, ep: &E, server: &Server) -> Result<()> {
        self.look(ep, server).await?;
        let slot = self.writer_or_leaving_slot()?.0;
        let mut chunks = 0;
        for (chunk, word) in server.seen.iter().enumerate() {
            let descriptor = server.geometry.decode(chunk as u32, word.load(Relaxed))?;
            chunks += usize::from(matches!(descriptor, Descriptor::Leased { slot: of, .. } if of == slot));
        }
        if chunks > 0 {
            return Err(PoolError::LeasesLeftBehind { process: self.process(), chunks });
        }
        Ok(())
    }

    /// One transition: swaps the descriptor of `chunk` from `from` to `to`.
    pub(crate) async fn swap<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        chunk: u32,
        from: u64,
        to: u64,
    ) -> Result<bool> {
        let before = ep.compare_swap(server.geometry.descriptor(chunk), from, to).await?;
        let done = before == from;
        server.seen[chunk as usize].store(if done { to } else { before }, Relaxed);
        Ok(done)
    }

    fn writer_or_leaving_slot(&self) -> Result<AttachSlot> {
        self.slot().ok_or(PoolError::ReadOnly)
    }
}

/// Clears the word at `at`, which was `seen` a moment ago and only gains bits; returns the bits it had.
async fn take_bits<E: Endpoint>(ep: &E, at: GlobalAddr, mut seen: u64, deadline: Nanos) -> Result<u64> {
    loop {
        let before = match ep.compare_swap(at, seen, 0).await {
            Ok(before) if before == seen => return Ok(seen),
            Ok(before) => before,
            Err(error) if error.may_have_taken_effect() => {
                let word = until_answered(ep, deadline, async || Ok(ep.read_word(at).await?)).await?;
                // Only this process clears bits, and a bit is set again only after its block was reused.
                if word & seen != seen {
                    return Ok(seen);
                }
                word
            }
            Err(error) => return Err(error.into()),
        };
        seen = before;
    }
}

fn not_mine(server: &Server, chunk: u32) -> PoolError {
    let addr = server.geometry.descriptor(chunk);
    PoolError::Corrupt {
        addr,
        reason: "the chunk was leased by this process, but its descriptor says otherwise",
    }
}

fn unsettled(server: &Server) -> MutexGuard<'_, Vec<(u32, u64)>> {
    server.unsettled.lock().unwrap_or_else(PoisonError::into_inner)
}

fn last_unsettled(server: &Server) -> Option<(u32, u64)> {
    unsettled(server).last().copied()
}

pub(crate) fn leave_unsettled(server: &Server, chunk: u32, wanted: u64, error: PoolError) -> PoolError {
    unsettled(server).push((chunk, wanted));
    error
}

pub(crate) fn insert(server: &Server, class: u8, chunk: LocalChunk) {
    let bytes = u64::from(chunk.allocated_blocks()) * size_of_class(class);
    server.own_bytes.fetch_add(bytes as i64, Relaxed);
    let number = chunk.chunk;
    let mut arena = server.arena(class);
    let place = arena.insert(chunk);
    server.set_held(number, Some((class, place)));
}

fn forget(server: &Server, class: u8, chunk: &LocalChunk) {
    let bytes = u64::from(chunk.allocated_blocks()) * size_of_class(class);
    server.own_bytes.fetch_sub(bytes as i64, Relaxed);
    server.set_held(chunk.chunk, None);
}

pub(crate) fn take_empty(server: &Server, class: u8) -> Option<LocalChunk> {
    let mut arena = server.arena(class);
    arena.take_empty().inspect(|chunk| forget(server, class, chunk))
}

fn take_any(server: &Server, class: u8) -> Option<LocalChunk> {
    let mut arena = server.arena(class);
    arena.take_any().inspect(|chunk| forget(server, class, chunk))
}

pub(crate) fn take_surplus(server: &Server, class: u8) -> Option<LocalChunk> {
    let mut arena = server.arena(class);
    arena.take_surplus().inspect(|chunk| forget(server, class, chunk))
}
