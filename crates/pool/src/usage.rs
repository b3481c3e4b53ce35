//! Use of the pool: figures for people and for placement, and all allocated blocks for the auditor.
//!
//! It is computed from the chunk descriptors and from bitmaps: those in the region for released chunks, those
//! in DRAM for chunks that this process leases. Chunks that others lease count as full, since only the lease
//! is known.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};

use crate::classes::{CLASSES, size_of_class};
use crate::error::Result;
use crate::io::{read_words, write_words};
use crate::layout::Descriptor;
use crate::pool::{Pool, Server};
use crate::process::AttachSlot;
use crate::states::ServerState;

/// Use of one memory server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerUsage {
    pub server: MemoryServerId,
    /// Whether it takes new blocks.
    pub state: ServerState,
    /// Size of its region in bytes.
    pub bytes_total: u64,
    /// Bytes in chunks that hold blocks or are leased.
    pub bytes_in_chunks: u64,
    /// Bytes in allocated blocks, rounded up to their size classes. Chunks that other processes lease count
    /// as full.
    pub bytes_allocated: u64,
    /// Allocated blocks, without those in chunks that other processes lease.
    pub blocks_allocated: u64,
    pub chunks_total: u64,
    pub chunks_free: u64,
    /// Chunks that other processes lease.
    pub chunks_leased_by_others: u64,
    /// Size of a chunk in bytes.
    pub chunk_size: u64,
}

impl Pool {
    /// Use of each memory server. Exact at a quiescent point, except within chunks that other processes
    /// lease.
    ///
    /// # Errors
    /// Errors of verbs; [`crate::PoolError::Corrupt`] for an invalid descriptor.
    pub async fn usage<E: Endpoint>(&self, ep: &E) -> Result<Vec<ServerUsage>> {
        self.learn(ep).await?;
        let mut usage = Vec::with_capacity(self.servers());
        for server in self.inner.servers.iter() {
            if self.writer_slot().is_ok() && !server.is_drained() {
                drop(self.begin_leasing(ep, server).await?);
                self.harvest(ep, server).await?;
            }
            usage.push(self.usage_of(ep, server).await?);
        }
        Ok(usage)
    }

    pub(crate) async fn usage_of<E: Endpoint>(&self, ep: &E, server: &Server) -> Result<ServerUsage> {
        let geometry = &server.geometry;
        let mut usage = ServerUsage {
            server: server.id(),
            state: server.state(),
            bytes_total: geometry.region_size,
            bytes_in_chunks: 0,
            bytes_allocated: 0,
            blocks_allocated: 0,
            chunks_total: u64::from(geometry.chunks),
            chunks_free: 0,
            chunks_leased_by_others: 0,
            chunk_size: geometry.chunk_size,
        };
        if server.is_drained() {
            return Ok(ServerUsage { chunks_free: usage.chunks_total, ..usage });
        }
        for (chunk, descriptor) in self.descriptors(ep, server).await? {
            let (class, blocks) = match descriptor {
                Descriptor::Free => {
                    usage.chunks_free += 1;
                    continue;
                }
                Descriptor::Released { class, free } => (class, geometry.blocks(class) - free),
                Descriptor::Leased { class, .. } => match allocated_here(server, chunk, class) {
                    Some(blocks) => (class, blocks),
                    None => {
                        usage.chunks_leased_by_others += 1;
                        usage.bytes_allocated += geometry.chunk_size;
                        continue;
                    }
                },
            };
            usage.blocks_allocated += u64::from(blocks);
            usage.bytes_allocated += u64::from(blocks) * size_of_class(class);
        }
        usage.bytes_in_chunks = (usage.chunks_total - usage.chunks_free) * geometry.chunk_size;
        Ok(usage)
    }

    /// All chunks of `server` with their states.
    pub(crate) async fn descriptors<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
    ) -> Result<Vec<(u32, Descriptor)>> {
        let geometry = &server.geometry;
        let words = read_words(ep, geometry.descriptors(), geometry.chunks as usize).await?;
        let numbered = (0..geometry.chunks).zip(words);
        numbered.map(|(chunk, word)| Ok((chunk, geometry.decode(chunk, word)?))).collect()
    }

    /// Calls `visit` with address and size (that of the size class) of every allocated block of the pool.
    /// Complete at a quiescent point; for chunks that other processes lease, as of their last
    /// [`Pool::publish_bitmaps`].
    ///
    /// # Errors
    /// Errors of verbs; [`crate::PoolError::Corrupt`] for an invalid descriptor.
    pub async fn visit_allocated<E: Endpoint>(
        &self,
        ep: &E,
        mut visit: impl FnMut(GlobalAddr, u64),
    ) -> Result<()> {
        for server in self.servers_in_use() {
            for (chunk, descriptor) in self.descriptors(ep, server).await? {
                let class = match descriptor {
                    Descriptor::Free => continue,
                    Descriptor::Leased { class, .. } | Descriptor::Released { class, .. } => class,
                };
                let bits = self.allocated_bits(ep, server, chunk, class).await?;
                for block in set_bits(&bits).take_while(|&block| block < server.geometry.blocks(class)) {
                    visit(server.geometry.block_addr(chunk, class, block), size_of_class(class));
                }
            }
        }
        Ok(())
    }

    /// Whether the block of `size` bytes at `addr` is allocated; `None` if another process leases its chunk,
    /// since only that process knows. Also works under traffic.
    ///
    /// # Errors
    /// As for [`Pool::visit_allocated`].
    pub async fn is_allocated<E: Endpoint>(
        &self,
        ep: &E,
        addr: GlobalAddr,
        size: u64,
    ) -> Result<Option<bool>> {
        let Ok(server) = self.server(addr.server()) else { return Ok(None) };
        let place = server.class_of(size).ok();
        let place = place.and_then(|class| Some((class, server.geometry.locate(addr, class).ok()?)));
        let Some((class, (chunk, block))) = place.filter(|_| !server.is_drained()) else {
            return Ok(Some(false));
        };
        let word = ep.read_word(server.geometry.descriptor(chunk)).await?;
        match server.geometry.decode(chunk, word)? {
            Descriptor::Leased { slot, .. } if Some(AttachSlot(slot)) != self.slot() => Ok(None),
            Descriptor::Leased { class: of, .. } | Descriptor::Released { class: of, .. } if of == class => {
                let bits = self.allocated_bits(ep, server, chunk, class).await?;
                Ok(Some(set_bits(&bits).any(|set| set == block)))
            }
            _ => Ok(Some(false)),
        }
    }

    /// Allocated blocks of a chunk, without those that others freed.
    async fn allocated_bits<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        chunk: u32,
        class: u8,
    ) -> Result<Vec<u64>> {
        let words = server.geometry.bitmap_words(class);
        let here = stored_bits_here(server, chunk, class);
        let mut bits = match here {
            Some(bits) => bits,
            None => read_words(ep, server.geometry.allocated_bits(chunk), words).await?,
        };
        let freed = read_words(ep, server.geometry.freed_bits(chunk), words).await?;
        for (word, freed) in bits.iter_mut().zip(freed) {
            *word &= !freed;
        }
        Ok(bits)
    }

    /// Writes the allocation bitmaps of the chunks that this process leases, for [`Pool::visit_allocated`] of
    /// other processes.
    ///
    /// # Errors
    /// Errors of verbs.
    pub async fn publish_bitmaps<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.writer_slot()?;
        for server in self.inner.servers.iter() {
            for class in 0..CLASSES as u8 {
                let chunks: Vec<(u32, Vec<u64>)> =
                    server.arena(class).iter().map(|chunk| (chunk.chunk, chunk.stored_bits())).collect();
                for (chunk, bits) in chunks {
                    write_words(ep, server.geometry.allocated_bits(chunk), &bits).await?;
                }
            }
        }
        Ok(())
    }
}

fn allocated_here(server: &Server, chunk: u32, class: u8) -> Option<u32> {
    let arena = server.arena(class);
    let (_, place) = server.held(chunk).filter(|&(of, _)| of == class)?;
    arena.get(place).map(|chunk| chunk.allocated_blocks())
}

fn stored_bits_here(server: &Server, chunk: u32, class: u8) -> Option<Vec<u64>> {
    let arena = server.arena(class);
    let (_, place) = server.held(chunk).filter(|&(of, _)| of == class)?;
    arena.get(place).map(|chunk| chunk.stored_bits())
}

/// Numbers of the set bits, ascending.
fn set_bits(words: &[u64]) -> impl Iterator<Item = u32> + '_ {
    words.iter().enumerate().flat_map(|(at, &word)| {
        let mut left = word;
        std::iter::from_fn(move || {
            let bit = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(at as u32 * 64 + bit)
        })
    })
}
