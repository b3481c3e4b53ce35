//! Repair after a process died while attached: its allocation bitmaps are lost, so the allocation is rebuilt
//! from the reachable blocks.
//!
//! The caller attaches with [`crate::AttachMode::Repair`], which excludes live processes, walks its indexes
//! from the catalog, and reports every block that it reaches. All other blocks become free. Everything is
//! checked before anything is written.

use std::collections::BTreeMap;

use pando_fabric::{Endpoint, GlobalAddr};

use crate::attach;
use crate::classes::size_of_class;
use crate::error::{PoolError, Result};
use crate::io::{write_words, write_zeros};
use crate::layout::Descriptor;
use crate::pool::{Pool, Server};
use crate::reclaim::reclaimed_word;

/// Contents of a rebuilt pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildReport {
    /// Number of allocated blocks, including those of the catalog.
    pub blocks: u64,
    /// Size of these blocks in bytes, rounded up to their size classes.
    pub bytes: u64,
    /// Number of chunks that became free.
    pub chunks_freed: u64,
    /// Number of cleared entries of dead processes.
    pub processes_cleared: u64,
}

/// Reachable blocks of one chunk.
struct Reached {
    class: u8,
    bits: Vec<u64>,
    blocks: u32,
}

/// By memory server, then by chunk.
type ReachedChunks = Vec<BTreeMap<u32, Reached>>;

impl Pool {
    /// Allocates exactly the blocks `reachable` (address and size of each) and those of the pool itself, frees
    /// all leases, unlocks the catalog, clears all partition owners, and forgets the dead processes. After
    /// [`Pool::detach`] the pool counts as closed cleanly. Changes that a dead process had not written back
    /// are lost.
    ///
    /// # Errors
    /// [`PoolError::NotInRepair`]; [`PoolError::Corrupt`] if two blocks overlap, an address cannot be a
    /// block, or the catalog is damaged; nothing was changed then. Errors of verbs, after which it may be
    /// called again.
    pub async fn rebuild_allocation<E: Endpoint>(
        &self,
        ep: &E,
        reachable: impl IntoIterator<Item = (GlobalAddr, u64)>,
    ) -> Result<RebuildReport> {
        let mine = self.repair_slot()?;
        let mut catalog = self.catalog_blocks(ep).await?;
        catalog.extend(self.logs_block(ep).await?);
        let mut reached: ReachedChunks = self.inner.servers.iter().map(|_| BTreeMap::new()).collect();
        for (addr, size) in reachable.into_iter().chain(catalog) {
            self.reach(&mut reached, addr, size)?;
        }
        let mut report = RebuildReport::default();
        for server in self.servers_in_use() {
            let chunks = &reached[usize::from(server.id().0)];
            self.store_reached(ep, server, chunks, &mut report).await?;
        }
        self.reset_catalog(ep).await?;
        ep.write_word(reclaimed_word(), 0).await?;
        for entry in attach::read_table(ep, self.inner.max_attached).await? {
            if entry.slot != mine {
                attach::clear_entry(ep, &entry, self.deadline(ep)).await?;
                report.processes_cleared += 1;
            }
        }
        Ok(report)
    }

    fn reach(&self, reached: &mut ReachedChunks, addr: GlobalAddr, size: u64) -> Result<()> {
        let corrupt = |reason| PoolError::Corrupt { addr, reason };
        let server = self.server(addr.server()).map_err(|_| corrupt("there is no such memory server"))?;
        if server.is_drained() {
            return Err(corrupt("its memory server was drained"));
        }
        let class = server.class_of(size).map_err(|_| corrupt("blocks are never that large"))?;
        let (chunk, block) = server.geometry.locate(addr, class).map_err(corrupt)?;
        let chunk = reached[addr.server().0 as usize].entry(chunk).or_insert_with(|| Reached {
            class,
            bits: vec![0; server.geometry.bitmap_words(class)],
            blocks: 0,
        });
        if chunk.class != class {
            return Err(corrupt("its chunk also holds blocks of another size"));
        }
        let (word, bit) = (&mut chunk.bits[(block / 64) as usize], 1 << (block % 64));
        if *word & bit != 0 {
            return Err(corrupt("the block is reached twice"));
        }
        *word |= bit;
        chunk.blocks += 1;
        Ok(())
    }

    async fn store_reached<E: Endpoint>(
        &self,
        ep: &E,
        server: &Server,
        chunks: &BTreeMap<u32, Reached>,
        report: &mut RebuildReport,
    ) -> Result<()> {
        let geometry = &server.geometry;
        for chunk in 0..geometry.chunks {
            let before = ep.read_word(geometry.descriptor(chunk)).await?;
            let descriptor = match chunks.get(&chunk) {
                None => Descriptor::Free,
                Some(Reached { class, bits, blocks }) => {
                    write_words(ep, geometry.allocated_bits(chunk), bits).await?;
                    write_zeros(ep, geometry.freed_bits(chunk), bits.len()).await?;
                    report.blocks += u64::from(*blocks);
                    report.bytes += u64::from(*blocks) * size_of_class(*class);
                    Descriptor::Released { class: *class, free: geometry.blocks(*class) - blocks }
                }
            };
            let after = descriptor.encode();
            report.chunks_freed += u64::from(before != 0 && after == 0);
            if before != after {
                ep.compare_swap(geometry.descriptor(chunk), before, after).await?;
            }
        }
        Ok(())
    }
}
