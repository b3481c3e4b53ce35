//! Allocation and freeing of blocks for nodes and values.
//!
//! In a chunk that this process leases, both only change a bitmap in DRAM under a latch. Leasing another
//! chunk, or freeing a block in a chunk that another process leases, takes verbs.

use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};

use crate::arena::Freed;
use crate::chunks::{take_empty, take_surplus};
use crate::classes::size_of_class;
use crate::error::{PoolError, Result};
use crate::io::until_answered;
use crate::layout::Descriptor;
use crate::pool::{Pool, Server};

/// Choice of the memory server for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placement {
    /// This server only. No block goes to a server that is not [active](crate::ServerState).
    Server(MemoryServerId),
    /// This server or, if it is full, the least loaded other one with room.
    Prefer(MemoryServerId),
    /// The least loaded server with room.
    LeastLoaded,
}

/// Consecutive blocks handed out at once, so that a thread that needs many does not take a latch for each.
/// All of them count as allocated; [`Pool::return_run`] frees the remaining ones.
#[derive(Debug)]
#[must_use = "blocks that are not taken leak unless the run is returned"]
pub struct Run {
    next: GlobalAddr,
    left: u32,
    block_size: u64,
}

impl Run {
    /// Number of blocks not taken yet.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Distance between blocks in bytes: the requested size rounded up to its size class.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }
}

impl Iterator for Run {
    type Item = GlobalAddr;

    #[inline]
    fn next(&mut self) -> Option<GlobalAddr> {
        self.left = self.left.checked_sub(1)?;
        let block = self.next;
        if self.left > 0 {
            self.next = block.add(self.block_size);
        }
        Some(block)
    }
}

/// A block to be freed.
struct Block<'a> {
    server: &'a Server,
    class: u8,
    chunk: u32,
    block: u32,
    addr: GlobalAddr,
    size: u64,
}

impl Pool {
    /// Allocates a block of at least `size` bytes on `server` from a chunk that this process leases, without
    /// verbs. The block's contents are undefined. `None` if no leased chunk has room.
    #[inline]
    pub fn try_alloc(&self, server: MemoryServerId, size: u64) -> Option<GlobalAddr> {
        let server = self.server(server).ok().filter(|server| server.is_active())?;
        let class = server.class_of(size).ok()?;
        take_block(server, class)
    }

    /// Allocates a block of at least `size` bytes. Its contents are undefined.
    ///
    /// # Errors
    /// [`PoolError::PoolFull`], [`PoolError::NoSpace`] or [`PoolError::Draining`] if there is no room where
    /// `placement` allows; [`PoolError::BlockTooLarge`].
    pub async fn alloc<E: Endpoint>(&self, ep: &E, placement: Placement, size: u64) -> Result<GlobalAddr> {
        // This process may not know yet of a server that joined.
        if let Placement::Server(server) | Placement::Prefer(server) = placement
            && usize::from(server.0) >= self.servers()
        {
            self.learn(ep).await?;
        }
        let full = match placement {
            Placement::Server(server) => return self.alloc_on(ep, self.server(server)?, size).await,
            Placement::Prefer(server) => match self.alloc_on(ep, self.server(server)?, size).await {
                Err(error) if error.is_full() => Some((server, error)),
                done => return done,
            },
            Placement::LeastLoaded => None,
        };
        self.alloc_least_loaded(ep, size, full).await
    }

    /// The server of [`Placement::LeastLoaded`] by the last known loads. Without verbs.
    pub fn least_loaded(&self) -> MemoryServerId {
        let servers = self.inner.servers.iter().filter(|server| server.is_active());
        servers.min_by(|a, b| by_load(a, b)).map_or(MemoryServerId(0), Server::id)
    }

    /// Bytes in use on each active memory server, by the last known loads. Without verbs.
    pub fn loads(&self) -> Vec<(MemoryServerId, u64)> {
        let servers = self.inner.servers.iter().filter(|server| server.is_active());
        servers.map(|server| (server.id(), server.load())).collect()
    }

    async fn alloc_least_loaded<E: Endpoint>(
        &self,
        ep: &E,
        size: u64,
        tried: Option<(MemoryServerId, PoolError)>,
    ) -> Result<GlobalAddr> {
        let (mut full, mut error) = (Vec::new(), None);
        if let Some((server, why)) = tried {
            full.push(server);
            error = Some(why);
        }
        // Compare the loads anew each time: a failed attempt has refreshed those of its server.
        loop {
            let servers = self.inner.servers.iter();
            let servers = servers.filter(|server| server.is_active() && !full.contains(&server.id()));
            let Some(server) = servers.min_by(|a, b| by_load(a, b)) else {
                let none = PoolError::UnknownServer { server: MemoryServerId(0), servers: self.servers() };
                return Err(error.unwrap_or(none));
            };
            match self.alloc_on(ep, server, size).await {
                Err(why) if why.is_full() => {
                    full.push(server.id());
                    error = Some(why);
                }
                done => return done,
            }
        }
    }

    async fn alloc_on<E: Endpoint>(&self, ep: &E, server: &Server, size: u64) -> Result<GlobalAddr> {
        let class = server.class_of(size)?;
        self.writer_slot()?;
        loop {
            server.check_active()?;
            if let Some(addr) = take_block(server, class) {
                return Ok(addr);
            }
            self.grow(ep, server, class).await.map_err(|error| asked(error, size))?;
        }
    }

    /// Allocates between one and `want` consecutive blocks of at least `size` bytes on `server`, as many as
    /// one chunk offers.
    ///
    /// # Errors
    /// As [`Pool::alloc`].
    pub async fn lease_run<E: Endpoint>(
        &self,
        ep: &E,
        server: MemoryServerId,
        size: u64,
        want: u32,
    ) -> Result<Run> {
        let server = self.server(server)?;
        let class = server.class_of(size)?;
        self.writer_slot()?;
        loop {
            server.check_active()?;
            let taken = server.arena(class).alloc_run(want.max(1));
            if let Some((chunk, first, left)) = taken {
                let block_size = size_of_class(class);
                server.own_bytes.fetch_add((u64::from(left) * block_size) as i64, Relaxed);
                return Ok(Run { next: server.geometry.block_addr(chunk, class, first), left, block_size });
            }
            self.grow(ep, server, class).await.map_err(|error| asked(error, size))?;
        }
    }

    /// Frees the remaining blocks of `run`.
    ///
    /// # Errors
    /// As [`Pool::free`].
    pub async fn return_run<E: Endpoint>(&self, ep: &E, run: Run) -> Result<()> {
        let size = run.block_size;
        for addr in run {
            self.free(ep, addr, size).await?;
        }
        Ok(())
    }

    /// Frees the block of `size` bytes at `addr` if this process leases its chunk, without verbs. Returns
    /// false if it does not, or if the block is not allocated; [`Pool::free`] tells these apart.
    #[inline]
    pub fn try_free_local(&self, addr: GlobalAddr, size: u64) -> bool {
        let Ok(block) = self.locate(addr, size) else { return false };
        matches!(free_held(&block), Some(Freed::Done { .. }))
    }

    /// Frees the block of `size` bytes at `addr`. It may be reused at once, so the caller must ensure that no
    /// reader fails to notice.
    ///
    /// # Errors
    /// [`PoolError::InvalidFree`] if there can be no such block; [`PoolError::DoubleFree`] if it is not
    /// allocated, as far as that can be seen while another process leases its chunk. After an error that [may
    /// have taken effect](PoolError::may_have_taken_effect) in a chunk of another process, the block must not
    /// be freed again: it may have been reused.
    pub async fn free<E: Endpoint>(&self, ep: &E, addr: GlobalAddr, size: u64) -> Result<()> {
        self.writer_slot()?;
        // The block may be on a server whose joining this process has not learned of.
        if usize::from(addr.server().0) >= self.servers() {
            self.learn(ep).await?;
        }
        if self.has_drained(addr.server()) {
            return Ok(());
        }
        let block = self.locate(addr, size)?;
        match free_held(&block) {
            Some(Freed::Done { surplus }) => {
                self.after_free(ep, &block, surplus).await;
                Ok(())
            }
            Some(Freed::NotAllocated) => Err(PoolError::DoubleFree { addr }),
            None => self.free_elsewhere(ep, &block).await,
        }
    }

    /// Gives back a chunk that became empty if another one has room or the server is inactive. The block is
    /// free in any case; if giving back fails, the chunk stays leased for now.
    async fn after_free<E: Endpoint>(&self, ep: &E, block: &Block<'_>, surplus: bool) {
        let (server, class, is_active) = (block.server, block.class, block.server.is_active());
        if is_active && !surplus {
            return;
        }
        // Only who may lease knows that the bitmap of the chunk is not being stored.
        let leasing = self.inner.keeps_bitmaps.then(|| self.try_leasing(ep, server));
        if matches!(leasing, Some(None)) {
            return;
        }
        let chunk = if is_active { take_surplus(server, class) } else { take_empty(server, class) };
        if let Some(chunk) = chunk {
            let _ = self.give_back(ep, server, class, chunk).await;
        }
    }

    #[inline]
    fn locate(&self, addr: GlobalAddr, size: u64) -> Result<Block<'_>> {
        let invalid = |reason| PoolError::InvalidFree { addr, size, reason };
        let server = self.server(addr.server()).map_err(|_| invalid("there is no such memory server"))?;
        let class = server.class_of(size).map_err(|_| invalid("blocks are never that large"))?;
        let (chunk, block) = server.geometry.locate(addr, class).map_err(invalid)?;
        if server.held(chunk).is_some_and(|(of, _)| of != class) {
            return Err(invalid("the blocks there have another size"));
        }
        Ok(Block { server, class, chunk, block, addr, size })
    }

    /// Frees a block in a chunk that this process does not lease, or did not lease a moment ago.
    async fn free_elsewhere<E: Endpoint>(&self, ep: &E, block: &Block<'_>) -> Result<()> {
        let &Block { server, class, chunk, addr, size, .. } = block;
        let (slot, deadline) = (self.writer_slot()?, self.deadline(ep));
        loop {
            match free_held(block) {
                Some(Freed::Done { surplus }) => {
                    self.after_free(ep, block, surplus).await;
                    return Ok(());
                }
                Some(Freed::NotAllocated) => return Err(PoolError::DoubleFree { addr }),
                None => {}
            }
            let word = ep.read_word(server.geometry.descriptor(chunk)).await?;
            match server.geometry.decode(chunk, word)? {
                Descriptor::Free => return Err(PoolError::DoubleFree { addr }),
                Descriptor::Leased { class: of, .. } | Descriptor::Released { class: of, .. }
                    if of != class =>
                {
                    let reason = "the blocks there have another size";
                    return Err(PoolError::InvalidFree { addr, size, reason });
                }
                // Another worker of this process is adopting the chunk, is giving it back as empty, or failed
                // to.
                Descriptor::Leased { slot: of, .. } if of == slot.0 => {
                    if ep.now() >= deadline {
                        return Err(PoolError::DoubleFree { addr });
                    }
                    drop(self.begin_leasing(ep, server).await?);
                    ep.yield_now().await;
                }
                Descriptor::Leased { .. } => return self.free_at_owner(ep, block).await,
                Descriptor::Released { .. } => {
                    let _leasing = self.begin_leasing(ep, server).await?;
                    self.adopt(ep, server, chunk, word, slot).await?;
                }
            }
        }
    }

    /// Sets the block's bit in the bitmap *freed by others*.
    async fn free_at_owner<E: Endpoint>(&self, ep: &E, block: &Block<'_>) -> Result<()> {
        let &Block { server, chunk, addr, .. } = block;
        let at = server.geometry.freed_bits(chunk).add(u64::from(block.block / 64) * 8);
        let bit = 1 << (block.block % 64);
        let mut seen = ep.read_word(at).await?;
        loop {
            if seen & bit != 0 {
                return Err(PoolError::DoubleFree { addr });
            }
            match ep.compare_swap(at, seen, seen | bit).await {
                Ok(before) if before == seen => break,
                Ok(before) => seen = before,
                Err(error) if error.may_have_taken_effect() => {
                    let read = async || Ok(ep.read_word(at).await?);
                    if until_answered(ep, self.deadline(ep), read).await? & bit == 0 {
                        // Either the bit was never set, or the owner has harvested it already and may have
                        // reused the block.
                        return Err(error.into());
                    }
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        // The block is free now. The announcement only makes other processes notice it soon, at the latest
        // when the chunk is released, so its failure is not reported.
        let _ = self.announce_free(ep, server, chunk).await;
        Ok(())
    }

    async fn announce_free<E: Endpoint>(&self, ep: &E, server: &Server, chunk: u32) -> Result<()> {
        ep.fetch_add(server.geometry.frees_by_others(), 1).await?;
        let word = ep.read_word(server.geometry.descriptor(chunk)).await?;
        if let Descriptor::Released { .. } = server.geometry.decode(chunk, word)? {
            let _leasing = self.begin_leasing(ep, server).await?;
            self.adopt(ep, server, chunk, word, self.writer_slot()?).await?;
        }
        Ok(())
    }

    /// Number of blocks that other processes freed twice, and the last such block. A nonzero count shows a
    /// defect in a program that uses the pool.
    pub fn stray_frees(&self) -> (u64, Option<GlobalAddr>) {
        let stray = &self.inner.stray_frees;
        let last = GlobalAddr::from_raw(stray.last.load(Relaxed)).filter(|addr| !addr.is_null());
        (stray.count.load(Relaxed), last)
    }
}

/// Compares the loads of two servers. Exact in integers, so that equal loads compare equal.
fn by_load(a: &Server, b: &Server) -> std::cmp::Ordering {
    let weigh =
        |load: &Server, other: &Server| u128::from(load.load()) * u128::from(other.geometry.region_size);
    weigh(a, b).cmp(&weigh(b, a)).then(a.id().cmp(&b.id()))
}

/// Puts the size that the caller asked for into `error`.
fn asked(error: PoolError, size: u64) -> PoolError {
    match error {
        PoolError::PoolFull { server, .. } => PoolError::PoolFull { server, size },
        PoolError::NoSpace { server, reason, .. } => PoolError::NoSpace { server, size, reason },
        other => other,
    }
}

#[inline]
fn take_block(server: &Server, class: u8) -> Option<GlobalAddr> {
    let (chunk, block) = server.arena(class).alloc()?;
    server.own_bytes.fetch_add(size_of_class(class) as i64, Relaxed);
    Some(server.geometry.block_addr(chunk, class, block))
}

/// Frees `block` if this process leases its chunk.
#[inline]
fn free_held(block: &Block<'_>) -> Option<Freed> {
    let server = block.server;
    server.held(block.chunk)?;
    let mut arena = server.arena(block.class);
    // Look the chunk up again: its place is stable only under the latch.
    let (_, place) = server.held(block.chunk).filter(|&(class, _)| class == block.class)?;
    let freed = arena.free(place, block.block);
    drop(arena);
    if let Freed::Done { .. } = freed {
        server.own_bytes.fetch_sub(size_of_class(block.class) as i64, Relaxed);
    }
    Some(freed)
}

#[cfg(test)]
mod tests {
    use pando_fabric::Fabric;
    use pando_fabric_local::{LocalConfig, LocalFabric};
    use pando_rt::block_on;

    use super::*;
    use crate::PoolOptions;

    /// An empty chunk may be leased for blocks of another size between the lookup and the latch.
    #[test]
    fn nothing_is_freed_in_a_chunk_that_has_blocks_of_another_size_by_now() {
        let config = LocalConfig { server_sizes: vec![1 << 20], huge_pages: false };
        let ep = LocalFabric::new(config).expect("memory").endpoint(1).expect("an endpoint");
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("created");
        let [addr, other] = [1024, 2048].map(|size| {
            let allocated = block_on(&ep, pool.alloc(&ep, Placement::LeastLoaded, size));
            allocated.expect("room")
        });
        let class = pool.locate(other, 2048).expect("a block").class;
        let block = Block { class, ..pool.locate(addr, 1024).expect("a block") };
        assert!(free_held(&block).is_none());
        assert!(pool.try_free_local(addr, 1024) && pool.try_free_local(other, 2048));
    }
}
