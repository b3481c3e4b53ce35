//! Options of publishing and of queries.
//!
//! The defaults of [`ReadOptions`] follow from the figures of a 100 Gb/s network (the sources are in the model
//! of `pando-sim`): 11.0 GB/s, 35 million messages a second, and 2 µs for the round trip of a small READ.

use pando_fabric::{MemoryServerId, Nanos};

use crate::costs::Offloading;
use crate::lists::ListCacheOptions;

/// How images are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishOptions {
    /// Bytes of a piece, of which 8 are its checksum: what is READ at least. A power of two from 64 to 65,536.
    /// Default: 256.
    pub piece_bytes: u32,
    /// Bytes that go to one memory server before the next one is used. Default: 1 MiB.
    pub stripe_bytes: u64,
    /// The memory server that gets a single image as a whole, as long as it has room. Default: none, so that images
    /// are striped. Trees of a forest get a server each.
    pub home: Option<MemoryServerId>,
    /// How long a replaced image stays readable. A query that takes longer begins anew. Default: 100 ms.
    pub grace_ns: Nanos,
    /// How often a publication is tried while others publish. Default: 16.
    pub attempts_max: u32,
}

impl Default for PublishOptions {
    fn default() -> Self {
        Self { piece_bytes: 256, stripe_bytes: 1 << 20, home: None, grace_ns: 100_000_000, attempts_max: 16 }
    }
}

/// How an Elf is read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadOptions {
    /// Bytes of the upper levels that a reader keeps in DRAM. Default: 64 MiB.
    pub cache_bytes: u64,
    /// Most levels that are kept, however small they are. Default: all.
    pub cache_levels: usize,
    /// Lists below these levels that are kept as well, by a policy. Default: none.
    pub list_cache: Option<ListCacheOptions>,
    /// Gap between two parts up to which one READ gets both. Default: 314, since a message costs as much as that
    /// many bytes.
    pub gap_bytes: u64,
    /// Bytes that may be READ in vain to save a round trip. Default: 22,000, since a round trip takes as long as
    /// that many bytes.
    pub round_trip_bytes: u64,
    /// Bytes of results and strips that are READ at once, which bounds the memory of a query. Default: 16 MiB.
    pub batch_bytes: u64,
    /// How often a query begins anew because the image was replaced. Default: 16.
    pub restarts_max: u32,
    /// For how long an image counts as current once that was seen. Default: 0, so that each query looks at the
    /// catalog, with an 8-byte READ posted together with its first ones.
    /// Beyond the grace of the publishers it costs restarts.
    pub check_age_ns: Nanos,
    /// When memory servers search. Default: never.
    pub offloading: Offloading,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            cache_levels: usize::MAX,
            list_cache: None,
            gap_bytes: 314,
            round_trip_bytes: 22_000,
            batch_bytes: 16 << 20,
            restarts_max: 16,
            check_age_ns: 0,
            offloading: Offloading::default(),
        }
    }
}

/// How a table is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// Most rows of a part that an insert joins with older ones. Default: 65,536.
    pub join_rows: u64,
    /// Parts of a tier that are merged together, at least 2; also the ratio of the sizes of two tiers. The smallest
    /// parts have up to `join_rows` rows. Default: 4.
    pub fan_in: u64,
    /// Most trees of a part. Default: 0, one for each memory server that is active.
    pub trees: usize,
    /// Rows for each of which a part has a tree. Default: 65,536.
    pub tree_rows: u64,
    /// Threads that build parts. Default: 1.
    pub threads: usize,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self { join_rows: 1 << 16, fan_in: 4, trees: 0, tree_rows: 1 << 16, threads: 1 }
    }
}
