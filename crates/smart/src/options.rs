//! Options: one switch for each technique of the paper, and presets in the order of its ablation (SMART
//! §6.3).
//!
//! The first three techniques determine the layout of remote memory and its changes, so they belong to the
//! index and are stored with it. Each compute server chooses the others for itself.

use std::ops::Bound;

use pando_fabric::{GlobalAddr, Nanos};

use crate::error::{Result, SmartError};

/// The techniques of SMART (§4) as switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Techniques {
    /// Inner nodes are changed by compare-and-swap of a slot and grow in place. Otherwise a slot is changed
    /// under the lock of its node, and a full node is replaced by one of ART's next size (4, 16, 48, 256).
    pub lock_free_nodes: bool,
    /// An update overwrites the value in its leaf, which has a checksum. Otherwise it makes a new leaf.
    pub in_place_leaves: bool,
    /// The lock of a leaf is its last word, and the WRITE of the value releases it. Otherwise it is a word of
    /// a lock table, found by hash and released by a second WRITE. Only effective with `in_place_leaves`.
    pub rear_locks: bool,
    /// Concurrent lookups of one key on one compute server become one remote lookup.
    pub read_delegation: bool,
    /// Concurrent updates of one key on one compute server become one remote update.
    pub write_combining: bool,
}

impl Techniques {
    /// The baseline: ART with locked nodes and immutable leaves.
    pub const ART: Self = Self {
        lock_free_nodes: false,
        in_place_leaves: false,
        rear_locks: false,
        read_delegation: false,
        write_combining: false,
    };
    /// All techniques.
    pub const SMART: Self = Self {
        lock_free_nodes: true,
        in_place_leaves: true,
        rear_locks: true,
        read_delegation: true,
        write_combining: true,
    };
    /// From ART to SMART in steps of one technique, with the names used by the ablation.
    pub const STEPS: [(&'static str, Self); 6] = {
        let nodes = Self { lock_free_nodes: true, ..Self::ART };
        let leaves = Self { in_place_leaves: true, ..nodes };
        let locks = Self { rear_locks: true, ..leaves };
        let reads = Self { read_delegation: true, ..locks };
        [
            ("art", Self::ART),
            ("+lock-free nodes", nodes),
            ("+in-place leaves", leaves),
            ("+rear locks", locks),
            ("+read delegation", reads),
            ("+write combining", Self::SMART),
        ]
    };

    pub(crate) fn has_lock_table(self) -> bool {
        self.in_place_leaves && !self.rear_locks
    }
}

impl Default for Techniques {
    fn default() -> Self {
        Self::SMART
    }
}

/// Memory of inner nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeRoom {
    /// Every node has room for 256 slots from the start, as published: growing copies nothing. Only effective
    /// with lock-free nodes.
    #[default]
    Full,
    /// A node has room for the slots of its class, and is replaced when it is full: saves much memory for
    /// sparse string keys.
    Exact,
}

/// Options for creating an index.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    pub techniques: Techniques,
    pub node_room: NodeRoom,
    /// Distinguishes the nodes of the indexes of a pool; its low 24 bits count.
    pub index_id: u32,
    /// Maximum number of compute servers that use the index at the same time; 8 bytes each.
    pub users_max: usize,
    /// Locks per memory server in the lock table, if there is one; 8 bytes each.
    pub table_locks: usize,
}

impl CreateOptions {
    pub fn new(index_id: u32, techniques: Techniques) -> Self {
        Self { techniques, node_room: NodeRoom::Full, index_id, users_max: 64, table_locks: 8192 }
    }
}

/// Eviction policy of the cache of inner nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CachePolicy {
    /// One FIFO queue, as published.
    #[default]
    Fifo,
    /// Many queues, each for a share of the nodes, and a second chance for nodes that were used.
    Scalable,
}

/// The keys of one compute server in a partitioned index (P-SMART in DEX §8): no other compute server changes
/// nodes that lead only to such keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    pub low: Bound<Vec<u8>>,
    pub high: Bound<Vec<u8>>,
}

impl Partition {
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        use std::ops::RangeBounds;
        (self.low.as_ref().map(Vec::as_slice), self.high.as_ref().map(Vec::as_slice)).contains(key)
    }

    /// Whether the partition may contain a key that begins with `prefix`.
    pub(crate) fn meets_prefix(&self, prefix: &[u8]) -> bool {
        let is_above = match &self.low {
            Bound::Unbounded => true,
            Bound::Included(low) | Bound::Excluded(low) => {
                low.as_slice() <= prefix || low.starts_with(prefix)
            }
        };
        let is_below = match &self.high {
            Bound::Unbounded => true,
            Bound::Included(high) => prefix <= high.as_slice(),
            Bound::Excluded(high) => prefix < high.as_slice(),
        };
        is_above && is_below
    }

    /// Whether the partition contains all keys that begin with `prefix`.
    pub(crate) fn contains_prefix(&self, prefix: &[u8]) -> bool {
        let is_above = match &self.low {
            Bound::Unbounded => true,
            Bound::Included(low) => low.as_slice() <= prefix,
            Bound::Excluded(low) => low.as_slice() < prefix,
        };
        let is_below = match &self.high {
            Bound::Unbounded => true,
            // The bound must not begin with the prefix either.
            Bound::Included(high) | Bound::Excluded(high) => {
                prefix < high.as_slice() && !high.starts_with(prefix)
            }
        };
        is_above && is_below
    }
}

/// Settings of one compute server for an index.
#[derive(Clone, Debug)]
pub struct SmartConfig {
    /// Address returned by [`Smart::create`](crate::Smart::create).
    pub anchor: GlobalAddr,
    /// As in the index; read delegation and write combining are this compute server's own choice.
    pub techniques: Techniques,
    /// Size of the cache of inner nodes in bytes; 0 for none.
    pub cache_bytes: u64,
    pub cache_policy: CachePolicy,
    /// If set, this compute server serves only these keys, and changes nodes that lead only to them without
    /// remote synchronisation. All compute servers of the index must then have disjoint partitions.
    pub partition: Option<Partition>,
    /// Total time that an operation may wait for others, in ns.
    pub patience_ns: Nanos,
    /// Maximum number of outstanding READs of a scan.
    pub scan_width: usize,
    /// Bytes of unlinked blocks above which compute servers check more often whether readers have finished,
    /// so that the blocks can be freed.
    pub limbo_bytes: u64,
    /// Operations between two checks of the epoch, each of which costs a READ of 8 bytes.
    pub look_every: u64,
    /// Unsound, as published: lookups share the result of one that began before them, so they may miss writes
    /// of their own compute server.
    pub late_followers_unsound: bool,
    /// Unsound: the leaf of another key behind a cached slot counts as proof of absence, although the slot
    /// may have changed since.
    pub cached_absence_unsound: bool,
}

impl SmartConfig {
    /// As published, with 64 MiB of cache.
    pub fn new(anchor: GlobalAddr, techniques: Techniques) -> Self {
        Self {
            anchor,
            techniques,
            cache_bytes: 64 << 20,
            cache_policy: CachePolicy::Fifo,
            partition: None,
            patience_ns: 10_000_000_000,
            scan_width: 64,
            limbo_bytes: 16 << 20,
            look_every: 1024,
            late_followers_unsound: false,
            cached_absence_unsound: false,
        }
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self { scan_width: 0, .. } => Err(SmartError::Options("a scan needs at least one READ")),
            Self { look_every: 0, .. } => Err(SmartError::Options(
                "there must be at least one operation between two checks of the epoch",
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_knows_the_prefixes_that_are_wholly_in_it() {
        let part = Partition { low: Bound::Included(b"bc".to_vec()), high: Bound::Excluded(b"dc".to_vec()) };
        for inside in [&b"bc"[..], b"c", b"da", b"dbz"] {
            assert!(part.contains_prefix(inside) && part.meets_prefix(inside), "{inside:?}");
        }
        for outside in [&b""[..], b"b", b"bb", b"d", b"dc", b"e"] {
            assert!(!part.contains_prefix(outside), "{outside:?}");
        }
        assert!([&b""[..], b"b", b"d"].into_iter().all(|shared| part.meets_prefix(shared)));
        assert!([&b"a"[..], b"bb", b"dc", b"e"].into_iter().all(|strange| !part.meets_prefix(strange)));
        assert!(part.contains(b"d") && !part.contains(b"b"));
        let all = Partition { low: Bound::Unbounded, high: Bound::Unbounded };
        assert!(all.contains_prefix(b"") && all.contains(b""));
    }
}
