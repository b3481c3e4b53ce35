//! Layout of a memory server's region.
//!
//! ```text
//! 0          superblock, 4 KiB: one constant part under a checksum, words of its own lines that change
//! 4096       attach table, 64 B per process that may be attached      (server 0 only)
//!            chunk descriptors, one word per chunk
//!            bitmaps, two per chunk: [allocated][freed by others], a bit per 64 B of chunk each
//! aligned    chunks, each a power of two long, full of blocks of one size class
//!
//! superblock  bytes 0..128    magic, format version, region size, chunk size, chunks, servers, server number,
//!                             pool id, places for processes, zeros, checksum (last word)
//!             byte  128       state: 1 once the region is formatted
//!             byte  192       frees by others, counted
//!             byte  256       catalog lock                                (server 0)
//!             byte  320       catalog head, two copies: see `directory.rs` (server 0)
//!             byte  448       membership epoch, servers that joined since, whether blocks were reclaimed,
//!                             largest block                               (server 0)
//!             byte  512..3520 state of each server, two bits              (server 0)
//!             byte 3520..4096 address of the next server, two copies: see `ring.rs`
//!
//! descriptor  [blocks free:32][attach slot:16][size class:8][state:8]     state: 0 free, 1 leased, 2 released
//! ```
//! All words are little-endian. The bitmaps lie outside the chunks, so that a chunk holds only blocks, each
//! aligned to its size. Bitmap *allocated* is current while a chunk is released; while it is leased, the
//! owner has the current one in DRAM. Bitmap *freed by others* is subtracted from either.

use pando_fabric::{GlobalAddr, MAX_SERVERS, MemoryServerId, RegionInfo};

use crate::classes::{MAX_BLOCK, MIN_BLOCK, size_of_class};
use crate::error::{PoolError, Result};
use crate::io::checksum;
use crate::twin::twin_bytes;

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"PANDO\0PL");
pub(crate) const FORMAT_VERSION: u64 = 2;

/// Words of the constant part of the superblock, including the checksum.
pub(crate) const SUPERBLOCK_WORDS: usize = 16;
pub(crate) const STATE_AT: u64 = 128;
pub(crate) const FREES_BY_OTHERS_AT: u64 = 192;
pub(crate) const CATALOG_LOCK_AT: u64 = 256;
pub(crate) const CATALOG_HEAD_AT: u64 = 320;
/// Words of the catalog head, which has two copies.
pub(crate) const CATALOG_HEAD_WORDS: usize = 2;
pub(crate) const EPOCH_AT: u64 = 448;
pub(crate) const JOINED_AT: u64 = 456;
/// 1 if blocks may be allocated that belong to nothing, since processes died that had leased their chunks.
pub(crate) const RECLAIMED_AT: u64 = 464;
/// Size of the largest block that every server has, once one was drained; 0 before.
pub(crate) const LARGEST_AT: u64 = 472;
pub(crate) const STATES_AT: u64 = 512;
const _: () = assert!(CATALOG_HEAD_AT + twin_bytes(CATALOG_HEAD_WORDS) <= EPOCH_AT);
/// Number of servers whose states fit, at two bits each.
pub(crate) const STATES_MAX: usize = (NEXT_AT - STATES_AT) as usize * 4;
/// Address of the next server. Zeros in a pool written before this field existed.
pub(crate) const NEXT_AT: u64 = 3520;
/// Words of an address and its length, which has two copies.
pub(crate) const NEXT_WORDS: usize = 32;
const _: () = assert!(NEXT_AT + twin_bytes(NEXT_WORDS) <= LOGS_AT);
/// Address of the list of logs; 0 if there are none.
pub(crate) const LOGS_AT: u64 = ATTACH_TABLE_AT - 8;
pub(crate) const ATTACH_TABLE_AT: u64 = 4096;
pub(crate) const ATTACH_ENTRY_BYTES: u64 = 64;

/// Size of the smallest chunk in bytes.
pub const MIN_CHUNK: u64 = 16 << 10;
/// Size of the largest chunk in bytes: offsets within a chunk fit 32 bits.
const MAX_CHUNK: u64 = 1 << 31;
const CHUNK_DEFAULT_MIN: u64 = 256 << 10;
const CHUNK_DEFAULT_MAX: u64 = 32 << 20;

/// Positions of the parts of one region. Everything follows from four numbers of its superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub server: MemoryServerId,
    pub region_size: u64,
    pub chunk_size: u64,
    pub chunks: u32,
    descriptors_at: u64,
    bitmaps_at: u64,
    chunks_at: u64,
}

impl Geometry {
    /// Plans a region with as many chunks of `chunk_size` bytes as fit.
    ///
    /// # Errors
    /// [`PoolError::RegionTooSmall`] if no chunk fits; [`PoolError::InvalidOptions`] for a bad chunk size.
    pub fn plan(region: RegionInfo, chunk_size: Option<u64>, max_attached: usize) -> Result<Self> {
        let chunk_size = chunk_size.unwrap_or_else(|| default_chunk_size(region.len));
        if !chunk_size.is_power_of_two() || !(MIN_CHUNK..=MAX_CHUNK).contains(&chunk_size) {
            let reason = format!(
                "a chunk of {chunk_size} bytes is not a power of two from {MIN_CHUNK} to {MAX_CHUNK} bytes"
            );
            return Err(PoolError::InvalidOptions { reason });
        }
        let per_chunk = chunk_size + 8 + 2 * bitmap_bytes(chunk_size);
        let mut chunks = (region.len / per_chunk).min(u64::from(u32::MAX)) as u32;
        loop {
            let plan = Self::new(region.server, region.len, chunk_size, chunks, max_attached);
            if chunks > 0 && plan.end() <= region.len {
                return Ok(plan);
            }
            if chunks <= 1 {
                let min = Self::new(region.server, region.len, chunk_size, 1, max_attached).end();
                return Err(PoolError::RegionTooSmall { server: region.server, len: region.len, min });
            }
            chunks -= 1;
        }
    }

    /// Of a drained server that is not there: no chunk. The largest block of the pool stays what it is, `largest`.
    pub fn absent(server: MemoryServerId, largest: u64) -> Self {
        Self::new(server, 0, largest, 0, 0)
    }

    fn new(
        server: MemoryServerId,
        region_size: u64,
        chunk_size: u64,
        chunks: u32,
        max_attached: usize,
    ) -> Self {
        let table = if server.0 == 0 { max_attached as u64 * ATTACH_ENTRY_BYTES } else { 0 };
        let descriptors_at = ATTACH_TABLE_AT + table;
        let bitmaps_at = (descriptors_at + u64::from(chunks) * 8).next_multiple_of(64);
        let bitmaps_end = bitmaps_at + u64::from(chunks) * 2 * bitmap_bytes(chunk_size);
        let chunks_at = bitmaps_end.next_multiple_of(chunk_size.min(MAX_BLOCK));
        Self { server, region_size, chunk_size, chunks, descriptors_at, bitmaps_at, chunks_at }
    }

    /// First byte behind the last chunk.
    fn end(&self) -> u64 {
        self.chunks_at + u64::from(self.chunks) * self.chunk_size
    }

    pub fn at(&self, offset: u64) -> GlobalAddr {
        GlobalAddr::new(self.server, offset)
    }

    /// Size of the parts before the bitmaps in bytes.
    pub fn tables_len(&self) -> u64 {
        self.bitmaps_at
    }

    pub fn descriptors(&self) -> GlobalAddr {
        self.at(self.descriptors_at)
    }

    pub fn descriptor(&self, chunk: u32) -> GlobalAddr {
        self.at(self.descriptors_at + u64::from(chunk) * 8)
    }

    pub fn allocated_bits(&self, chunk: u32) -> GlobalAddr {
        self.at(self.bitmaps_at + u64::from(chunk) * 2 * bitmap_bytes(self.chunk_size))
    }

    pub fn freed_bits(&self, chunk: u32) -> GlobalAddr {
        self.allocated_bits(chunk).add(bitmap_bytes(self.chunk_size))
    }

    /// Size of both bitmaps of a chunk in bytes.
    pub fn bitmaps_len(&self) -> u64 {
        2 * bitmap_bytes(self.chunk_size)
    }

    pub fn chunk_start(&self, chunk: u32) -> GlobalAddr {
        self.at(self.chunks_at + u64::from(chunk) * self.chunk_size)
    }

    /// Blocks of class `class` in a chunk.
    #[inline]
    pub fn blocks(&self, class: u8) -> u32 {
        (self.chunk_size / size_of_class(class)) as u32
    }

    /// Words of a bitmap that class `class` uses.
    pub fn bitmap_words(&self, class: u8) -> usize {
        self.blocks(class).div_ceil(64) as usize
    }

    #[inline]
    pub fn block_addr(&self, chunk: u32, class: u8, block: u32) -> GlobalAddr {
        let offset =
            self.chunks_at + u64::from(chunk) * self.chunk_size + u64::from(block) * size_of_class(class);
        self.at(offset)
    }

    /// Chunk and number of the block of class `class` at `addr`.
    ///
    /// # Errors
    /// The reason why there can be no such block.
    #[inline]
    pub fn locate(&self, addr: GlobalAddr, class: u8) -> Result<(u32, u32), &'static str> {
        let offset = addr.offset();
        if offset < self.chunks_at || offset >= self.end() {
            return Err("the address is outside of the chunks");
        }
        let in_chunks = offset - self.chunks_at;
        let chunk = in_chunks >> self.chunk_size.trailing_zeros();
        let in_chunk = (in_chunks & (self.chunk_size - 1)) as u32;
        let size = size_of_class(class) as u32;
        let block = in_chunk / size;
        if block * size != in_chunk || block >= self.blocks(class) {
            return Err("no block of this size starts there");
        }
        Ok((chunk as u32, block))
    }

    /// Size of the largest block in bytes.
    pub fn max_block(&self) -> u64 {
        self.chunk_size.min(MAX_BLOCK)
    }
}

fn bitmap_bytes(chunk_size: u64) -> u64 {
    chunk_size / MIN_BLOCK / 8
}

/// About a thousandth of the region, but small enough that small regions have chunks for several size
/// classes.
fn default_chunk_size(region_len: u64) -> u64 {
    let power_below = |bytes: u64| 1 << bytes.max(1).ilog2();
    let usual: u64 = power_below(region_len / 1024);
    let usual = usual.clamp(CHUNK_DEFAULT_MIN, CHUNK_DEFAULT_MAX);
    if region_len / usual >= 64 { usual } else { power_below(region_len / 64).clamp(MIN_CHUNK, usual) }
}

/// Constant part of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub geometry: Geometry,
    pub servers: usize,
    pub pool_id: u64,
    pub max_attached: usize,
}

impl Superblock {
    pub fn encode(&self) -> [u64; SUPERBLOCK_WORDS] {
        let mut words = [0; SUPERBLOCK_WORDS];
        words[..9].copy_from_slice(&[
            MAGIC,
            FORMAT_VERSION,
            self.geometry.region_size,
            self.geometry.chunk_size,
            u64::from(self.geometry.chunks),
            self.servers as u64,
            u64::from(self.geometry.server.0),
            self.pool_id,
            self.max_attached as u64,
        ]);
        words[SUPERBLOCK_WORDS - 1] = checksum(&words[..SUPERBLOCK_WORDS - 1], MAGIC);
        words
    }

    /// Pool id in the superblock `words`, for any server and region; `None` if `words` is not a superblock.
    pub fn pool_id_of(words: &[u64]) -> Option<u64> {
        let is_whole = words[SUPERBLOCK_WORDS - 1] == checksum(&words[..SUPERBLOCK_WORDS - 1], MAGIC);
        (words[0] == MAGIC && is_whole).then_some(words[7])
    }

    /// Memory server number in the valid superblock `words`.
    pub fn server_of(words: &[u64]) -> usize {
        words[6] as usize
    }

    /// # Errors
    /// One for each way in which `words` is not the superblock of a pool in `region`.
    pub fn decode(words: &[u64], region: RegionInfo) -> Result<Self> {
        let server = region.server;
        if words[0] != MAGIC {
            return Err(PoolError::NotAPool { server });
        }
        if words[1] != FORMAT_VERSION {
            return Err(PoolError::VersionMismatch { server, found: words[1], expected: FORMAT_VERSION });
        }
        if words[SUPERBLOCK_WORDS - 1] != checksum(&words[..SUPERBLOCK_WORDS - 1], MAGIC) {
            return Err(PoolError::DamagedSuperblock { server, reason: "its checksum does not match" });
        }
        if words[2] > region.len {
            return Err(PoolError::CutShort { server, expected: words[2], actual: region.len });
        }
        if words[6] != u64::from(server.0) {
            return Err(PoolError::ForeignRegion { server, reason: "it carries another server number" });
        }
        let max_attached = words[8] as usize;
        let was = RegionInfo { server, len: words[2] };
        let geometry = Geometry::plan(was, Some(words[3]), max_attached)
            .ok()
            .filter(|plan| u64::from(plan.chunks) == words[4])
            .ok_or(PoolError::DamagedSuperblock { server, reason: "its sizes contradict each other" })?;
        let servers = words[5] as usize;
        if !(1..=MAX_SERVERS).contains(&servers) {
            let reason = "its number of memory servers is not between 1 and the maximum";
            return Err(PoolError::DamagedSuperblock { server, reason });
        }
        Ok(Self { geometry, servers, pool_id: words[7], max_attached })
    }
}

/// State of a chunk, in one word that only compare-and-swap changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptor {
    /// Empty; may be leased for any size class.
    Free,
    /// Leased: only the process in attach slot `slot` allocates and frees blocks.
    Leased { class: u8, slot: u16 },
    /// Holds blocks, but no process allocates in it; `free` of its blocks are free.
    Released { class: u8, free: u32 },
}

impl Descriptor {
    pub fn encode(self) -> u64 {
        match self {
            Self::Free => 0,
            Self::Leased { class, slot } => 1 | u64::from(class) << 8 | u64::from(slot) << 16,
            Self::Released { class, free } => 2 | u64::from(class) << 8 | u64::from(free) << 32,
        }
    }

    /// # Errors
    /// [`PoolError::Corrupt`] if `word`, read at `at`, is not a chunk state of `geometry`.
    pub fn decode(word: u64, at: GlobalAddr, geometry: &Geometry) -> Result<Self> {
        let class = (word >> 8) as u8;
        let class_fits = (class as usize) < crate::classes::CLASSES && geometry.blocks(class) > 0;
        let (slot, free) = ((word >> 16) as u16, (word >> 32) as u32);
        match word as u8 {
            0 if word == 0 => Ok(Self::Free),
            1 if class_fits && free == 0 => Ok(Self::Leased { class, slot }),
            2 if class_fits && slot == 0 && free <= geometry.blocks(class) => {
                Ok(Self::Released { class, free })
            }
            _ => Err(PoolError::Corrupt { addr: at, reason: "this is no chunk descriptor" }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(len: u64) -> RegionInfo {
        RegionInfo { server: MemoryServerId(0), len }
    }

    #[test]
    fn chunks_suit_the_region() {
        let chunk = |len| Geometry::plan(region(len), None, 64).expect("fits").chunk_size;
        assert_eq!((chunk(1 << 20), chunk(8 << 20), chunk(1 << 30)), (16 << 10, 128 << 10, 1 << 20));
        assert_eq!((chunk(64 << 20), chunk(200 << 30)), (256 << 10, 32 << 20));
        assert!(matches!(Geometry::plan(region(8192), None, 64), Err(PoolError::RegionTooSmall { .. })));
        assert!(Geometry::plan(region(1 << 30), Some(100_000), 64).is_err());
    }

    #[test]
    fn parts_do_not_overlap_and_blocks_are_aligned() {
        for len in [1 << 20, (8 << 20) + 4096, 3 << 30] {
            let plan = Geometry::plan(region(len), None, 64).expect("fits");
            let last = plan.chunks - 1;
            assert!(plan.descriptor(last).offset() < plan.bitmaps_at);
            assert!(plan.freed_bits(last).offset() + plan.bitmaps_len() / 2 <= plan.chunks_at);
            assert!(plan.end() <= len && plan.end() + 2 * plan.chunk_size + MAX_BLOCK > len);
            assert_eq!(plan.chunk_start(last).offset() % plan.max_block(), 0);
        }
    }

    #[test]
    fn a_superblock_comes_back_and_damage_is_seen() {
        let geometry = Geometry::plan(region(1 << 20), None, 64).expect("fits");
        let superblock = Superblock { geometry, servers: 1, pool_id: 7, max_attached: 64 };
        let words = superblock.encode();
        assert_eq!(Superblock::decode(&words, region(1 << 20)).expect("whole"), superblock);
        for word in 0..SUPERBLOCK_WORDS {
            let mut damaged = words;
            damaged[word] ^= 1 << 20;
            assert!(Superblock::decode(&damaged, region(1 << 20)).is_err(), "damage in word {word}");
        }
        assert!(matches!(Superblock::decode(&words, region(1 << 19)), Err(PoolError::CutShort { .. })));
    }

    #[test]
    fn descriptors_come_back_and_garbage_is_refused() {
        let geometry = Geometry::plan(region(1 << 20), None, 64).expect("fits");
        let decode = |word| Descriptor::decode(word, geometry.descriptor(0), &geometry);
        for descriptor in [
            Descriptor::Free,
            Descriptor::Leased { class: 3, slot: 0x7fff },
            Descriptor::Released { class: 16, free: 16 },
        ] {
            assert_eq!(decode(descriptor.encode()).expect("valid"), descriptor);
        }
        for word in [3, 1 << 40, 2 | 200 << 8, 2 | 16 << 8 | 17 << 32, 1 | 40 << 8] {
            assert!(decode(word).is_err(), "{word:#x}");
        }
    }
}
