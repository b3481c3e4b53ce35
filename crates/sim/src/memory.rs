//! A model of DRAM and of persistent memory behind the caches of a processor, in virtual time.
//!
//! A [`Core`] reads ranges of bytes on a [`Machine`]. Each line of 64 bytes is looked for in the caches; a miss goes
//! to a [`Medium`], whose answer takes longer if the block is in none of its buffers, and waits if the channel is
//! busy. Prefetchers run ahead of sequential reads; reads that do not depend on each other overlap. Nothing of
//! the host has any influence, so a run repeats exactly. All parameters are in [`MemoryModel`], with their sources.
//!
//! ```
//! use pando_sim::memory::{Core, Kind, Machine, MemoryModel, Order};
//!
//! let model = MemoryModel::default();
//! let (mut machine, mut core) = (Machine::new(&model, 1), Core::new(&model, 1));
//! core.read(&mut machine, Kind::Persistent, 0..4, Order::Chained, 0.0);
//! let first = core.now_ns();
//! core.read(&mut machine, Kind::Persistent, 4..8, Order::Chained, 0.0);
//! assert!(first > 300.0 && core.now_ns() - first < 2.0);
//! ```

mod cache;
mod core;
mod medium;
mod parameters;
#[cfg(test)]
mod tests;

pub use core::{Core, Counters, Order};
pub use medium::Kind;
pub use parameters::{CacheSize, Medium, MemoryModel, Processor};

use cache::Cache;
use medium::Media;

/// Bytes that a processor cache reads at a time.
pub const LINE_BYTES: u64 = 64;

/// What the cores of a socket share: the last cache and the memory.
#[derive(Clone, Debug)]
pub struct Machine {
    l3: Cache,
    media: Media,
}

impl Machine {
    /// A machine on which `threads` cores work, with cold caches.
    pub fn new(model: &MemoryModel, threads: usize) -> Self {
        let l3 = &model.processor.l3;
        let bytes = if threads > 1 { l3.bytes } else { l3.bytes.min(model.processor.l3_alone_bytes) };
        Self { l3: Cache::new(bytes / LINE_BYTES, l3.ways), media: Media::new(model) }
    }

    /// Forgets what channels did before `ns`; no core's clock may be earlier.
    pub fn forget_before(&mut self, ns: f64) {
        self.media.forget_before(ns);
    }

    /// Bytes that the channels of a medium have moved.
    pub fn moved_bytes(&self, kind: Kind) -> u64 {
        self.media.moved_bytes(kind)
    }
}
