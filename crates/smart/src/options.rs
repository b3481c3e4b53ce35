//! What the index does: one switch for each technique of the paper, and presets in the order of its ablation (SMART §6.3).
//!
//! The first three say what lies in remote memory and how it is changed, so they belong to the index and are kept with it. The others
//! are each compute server's own choice.

use std::ops::Bound;

use pando_fabric::{GlobalAddr, Nanos};

use crate::error::{Result, SmartError};

/// The techniques of SMART (§4) as switches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Techniques {
    /// Inner nodes are changed by compare-and-swap of a slot and grow in place. Otherwise a slot is changed under the lock of its
    /// node, and a node that is full is replaced by one of ART's next size (4, 16, 48, 256).
    pub lock_free_nodes: bool,
    /// An update overwrites the value in its leaf, which has a checksum. Otherwise it makes a new leaf.
    pub in_place_leaves: bool,
    /// The lock of a leaf is its last word, and given back by the WRITE of the value. Otherwise it is a word of a table of locks,
    /// found by hash and given back by a second WRITE. Counts with `in_place_leaves` only.
    pub rear_locks: bool,
    /// Lookups of one key at the same time on one compute server are one remote lookup.
    pub read_delegation: bool,
    /// Updates of one key at the same time on one compute server are one remote update.
    pub write_combining: bool,
}

impl Techniques {
    /// The baseline: ART with locked nodes and leaves that are never changed.
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
    /// From ART to SMART, one technique more each, with the names that the ablation gives them.
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

/// How inner nodes get their memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeRoom {
    /// Every node has room for 256 slots from the start, as published: growing copies nothing. Counts with lock-free nodes only.
    #[default]
    Full,
    /// A node has room for the slots of its class, and is replaced when it is full: sparse string keys need much less memory.
    Exact,
}

/// How an index is made.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    pub techniques: Techniques,
    pub node_room: NodeRoom,
    /// Told apart from what other indexes of the pool have in their nodes; 24 bits of it count.
    pub index_id: u32,
    /// How many compute servers may use the index at the same time; 8 bytes each.
    pub users_max: usize,
    /// Locks on each memory server in the table of locks, if there is one; 8 bytes each.
    pub table_locks: usize,
}

impl CreateOptions {
    pub fn new(index_id: u32, techniques: Techniques) -> Self {
        Self { techniques, node_room: NodeRoom::Full, index_id, users_max: 64, table_locks: 8192 }
    }
}

/// What the cache of inner nodes evicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CachePolicy {
    /// One queue for all, first in first out, as published.
    #[default]
    Fifo,
    /// Many queues, each for a share of the nodes, and a second chance for nodes that were used.
    Scalable,
}

/// The keys that one compute server is asked for, if the index is partitioned (P-SMART in DEX §8): nobody else changes what only such
/// keys lead to.
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

    /// Whether a key that begins with `prefix` is in it.
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

    /// Whether all keys that begin with `prefix` are in it.
    pub(crate) fn contains_prefix(&self, prefix: &[u8]) -> bool {
        let is_above = match &self.low {
            Bound::Unbounded => true,
            Bound::Included(low) => low.as_slice() <= prefix,
            Bound::Excluded(low) => low.as_slice() < prefix,
        };
        let is_below = match &self.high {
            Bound::Unbounded => true,
            // Not even the prefix itself may begin the bound.
            Bound::Included(high) | Bound::Excluded(high) => {
                prefix < high.as_slice() && !high.starts_with(prefix)
            }
        };
        is_above && is_below
    }
}

/// How one compute server uses an index.
#[derive(Clone, Debug)]
pub struct SmartConfig {
    /// What [`Smart::create`](crate::Smart::create) gave.
    pub anchor: GlobalAddr,
    /// As the index was made; read delegation and write combining are this compute server's own choice.
    pub techniques: Techniques,
    /// Bytes for the cache of inner nodes; 0 for none.
    pub cache_bytes: u64,
    pub cache_policy: CachePolicy,
    /// If set, this compute server is asked for these keys only, and changes what they alone lead to without remote
    /// synchronisation. All compute servers of the index must have partitions then, which do not overlap.
    pub partition: Option<Partition>,
    /// How long an operation waits for others in all, in ns.
    pub patience_ns: Nanos,
    /// READs that a scan has outstanding at most.
    pub scan_width: usize,
    /// Bytes that were unlinked and wait for the last reader before they are freed; more make compute servers look for who might
    /// still be reading.
    pub limbo_bytes: u64,
    /// Operations between two looks at the epoch of the index, which cost a READ of 8 bytes.
    pub look_every: u64,
    /// Unsound, as published: lookups share the result of one that was under way before they began, so that they may miss what
    /// their own compute server wrote.
    pub late_followers_unsound: bool,
    /// Unsound: another key in a leaf that a cached slot led to counts as an answer, although the slot may have changed since.
    pub cached_absence_unsound: bool,
}

impl SmartConfig {
    /// Everything published, with 64 MiB of cache.
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
            Self { scan_width: 0, .. } => Err(SmartError::Options("a scan needs one READ at least")),
            Self { look_every: 0, .. } => {
                Err(SmartError::Options("there is one operation at least between two looks at the epoch"))
            }
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
