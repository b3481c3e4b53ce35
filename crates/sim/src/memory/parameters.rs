//! Parameters of the memory model, each with its source or the word *estimate*.
//!
//! The defaults are one socket of the machine of Jibril et al. (DAPD 2022 §5.1): an Intel Xeon Gold 5215 with six
//! DIMMs each of DRAM and of Optane. Its latencies are not published; those here are of another processor of the
//! same generation (Izraelevitz et al., arXiv 1903.05714). `docs/sim.md` has the same table.

use serde::Serialize;

/// All parameters.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MemoryModel {
    pub processor: Processor,
    pub dram: Medium,
    pub persistent: Medium,
}

/// A set-associative cache that drops the least recently used line of a set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CacheSize {
    pub bytes: u64,
    pub ways: usize,
    /// Cycles from a load to its use.
    pub hit_cycles: f64,
}

/// One socket.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Processor {
    /// Length of a cycle: 3.4 GHz with one busy core (Intel ARK, Xeon Gold 5215).
    pub cycle_ns: f64,
    /// Cores; further threads share one with another thread: 10 (Intel ARK).
    pub cores: usize,
    /// Time of computation on a shared core, as a factor: an estimate.
    pub shared_core_factor: f64,
    /// 32 KiB, 8 ways, 4 cycles (AnandTech, Skylake-SP).
    pub l1: CacheSize,
    /// 1 MiB, 16 ways, 14 cycles with the miss of the level above (AnandTech, Skylake-SP: 11 to 13).
    pub l2: CacheSize,
    /// 1.375 MiB for each of 10 cores, 11 ways, 77 cycles (AnandTech, Skylake-SP); takes what leaves L2.
    pub l3: CacheSize,
    /// Part of the last cache that one thread can use: all of it.
    pub l3_alone_bytes: u64,
    /// Translations that are found without a walk: 1,536, 12 ways (AnandTech, Skylake-SP).
    pub tlb_entries: u64,
    pub tlb_ways: usize,
    /// A walk through upper levels of the page table that are cached: an estimate. The last level is read
    /// like other memory, 8 bytes for each page.
    pub walk_cycles: f64,
    /// Misses of L1 under way: 10 line fill buffers (Intel optimisation manual, Skylake).
    pub outstanding: usize,
    /// Lines of one sequential range that the core requests ahead of the one it compares: its buffer of 224
    /// micro-operations (Intel optimisation manual) has room for about this many lines. An estimate.
    pub run_ahead_lines: usize,
    /// Reads that do not depend on each other and overlap: as many as fit into the same buffer. An estimate.
    pub overlapping: usize,
    /// Lines that the streaming prefetcher runs ahead, within a page of 4 KiB: up to 20 (Intel optimisation
    /// manual); 0 turns it off.
    pub prefetch_lines: u64,
    /// Whether a miss of L2 also fetches the other line of its aligned pair (Intel optimisation manual).
    pub prefetch_pairs: bool,
}

/// DRAM or persistent memory of one socket.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Medium {
    /// A read of a block that no buffer holds.
    pub random_ns: f64,
    /// A read of a block that a buffer holds.
    pub buffered_ns: f64,
    /// A row of DRAM; the unit of access of the medium of Optane.
    pub block_bytes: u64,
    /// Blocks in the buffers of one channel.
    pub buffer_blocks: usize,
    /// Whether a channel reads whole blocks, or the wanted line only.
    pub reads_blocks: bool,
    pub channels: u64,
    /// Neighbouring bytes on one channel.
    pub interleave_bytes: u64,
    /// GB/s of one channel.
    pub read_gb_s: f64,
    pub write_gb_s: f64,
    /// GB/s that one thread writes at most, sequentially.
    pub thread_write_gb_s: f64,
    /// Bytes of a page of the mapping.
    pub page_bytes: u64,
}

impl Default for MemoryModel {
    fn default() -> Self {
        Self { processor: Processor::default(), dram: Medium::dram(), persistent: Medium::optane() }
    }
}

impl Default for Processor {
    fn default() -> Self {
        let l3_bytes = 10 * 1_441_792;
        Self {
            cycle_ns: 1.0 / 3.4,
            cores: 10,
            shared_core_factor: 1.6,
            l1: CacheSize { bytes: 32 << 10, ways: 8, hit_cycles: 4.0 },
            l2: CacheSize { bytes: 1 << 20, ways: 16, hit_cycles: 14.0 },
            l3: CacheSize { bytes: l3_bytes, ways: 11, hit_cycles: 77.0 },
            l3_alone_bytes: l3_bytes,
            tlb_entries: 1_536,
            tlb_ways: 12,
            walk_cycles: 20.0,
            outstanding: 10,
            run_ahead_lines: 4,
            overlapping: 4,
            prefetch_lines: 20,
            prefetch_pairs: true,
        }
    }
}

impl Medium {
    /// Six channels of DDR4-2666.
    pub fn dram() -> Self {
        Self {
            // Medians of 101 and 81 ns, random and sequential (arXiv 1903.05714).
            random_ns: 101.0,
            buffered_ns: 81.0,
            // A row of a rank, and its 16 banks (JEDEC DDR4).
            block_bytes: 8 << 10,
            buffer_blocks: 16,
            reads_blocks: false,
            channels: 6,
            interleave_bytes: 256,
            // 21.3 GB/s nominally, of which four fifths are used: an estimate.
            read_gb_s: 17.0,
            write_gb_s: 10.0,
            // An estimate.
            thread_write_gb_s: 8.0,
            // An estimate: transparent huge pages are off or not used.
            page_bytes: 4 << 10,
        }
    }

    /// Six interleaved DIMMs of Optane, first generation.
    pub fn optane() -> Self {
        Self {
            // A median of 305 ns (arXiv 1903.05714).
            random_ns: 305.0,
            // A median of 169 ns sequentially, by 64 bytes (arXiv 1903.05714): of four lines of a block one takes
            // 305 ns, so the others take 123.7.
            buffered_ns: (4.0 * 169.0 - 305.0) / 3.0,
            // Blocks of 256 bytes in a buffer of 16 KiB a DIMM (Yang et al., FAST 2020).
            block_bytes: 256,
            buffer_blocks: 64,
            reads_blocks: true,
            channels: 6,
            interleave_bytes: 4 << 10,
            // 39.4 and 13.9 GB/s for six DIMMs (arXiv 1903.05714).
            read_gb_s: 39.4 / 6.0,
            write_gb_s: 13.9 / 6.0,
            // An estimate: about one DIMM's share more than one, since a thread fills one stripe after the other.
            thread_write_gb_s: 2.3,
            // An estimate.
            page_bytes: 4 << 10,
        }
    }

    /// Seconds in which one thread writes `bytes` sequentially.
    pub fn write_seconds(&self, bytes: u64) -> f64 {
        bytes as f64 / (self.thread_write_gb_s.min(self.write_gb_s * self.channels as f64) * 1e9)
    }
}

impl MemoryModel {
    /// The same machine with all caches, translations and buffers of the processor smaller by `factor`, for data that
    /// are smaller by it. What caches hold of the data stays in proportion; lists and latencies do not shrink.
    pub fn scaled(mut self, factor: f64) -> Self {
        let processor = &mut self.processor;
        for cache in [&mut processor.l1, &mut processor.l2, &mut processor.l3] {
            let least = cache.ways as u64 * super::LINE_BYTES;
            cache.bytes = ((cache.bytes as f64 * factor) as u64).max(least);
        }
        processor.l3_alone_bytes = (processor.l3_alone_bytes as f64 * factor) as u64;
        let entries = (processor.tlb_entries as f64 * factor) as u64;
        processor.tlb_entries = entries.max(processor.tlb_ways as u64);
        self
    }
}
