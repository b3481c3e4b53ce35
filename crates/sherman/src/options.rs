//! Switches for the published techniques.
//!
//! The ladder is that of Sherman's ablation (§5.2): FG, FG+, command combination, on-chip locks, hierarchical
//! locks, two-level versions. Each step is a separate switch, so that any mixture can be measured.

/// Method by which a reader knows that a READ is consistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadCheck {
    /// A checksum of the node, and of each entry where entries are written individually. Sound on every
    /// fabric.
    Checksum,
    /// A READ of the lock word before and after: the variant measured by DEX's authors (DEX §8.1). Sound.
    VersionReads,
    /// Versions at both ends of the node and of each entry, as published (Sherman §4.4). Relies on READs that
    /// fetch cache lines in the order of their addresses. Unsound: for the simulator to catch.
    UnsoundEnds,
}

/// Method of releasing a remote lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// By fetch-and-add, as in FG.
    FetchAdd,
    /// By a WRITE of the word.
    Write,
}

/// Place of remote locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockPlace {
    /// In the first word of the node.
    Node,
    /// In a table on each memory server, indexed by the hash of the node's address (§4.3).
    Table {
        /// In the memory of the NIC, where atomics need not cross the bus. A fabric without such memory uses
        /// DRAM.
        on_chip: bool,
        /// Locks on each memory server, a power of two. Published: 131,072 locks of 16 bits; here a lock has
        /// 64 bits.
        locks: u32,
    },
}

/// Format of leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafFormat {
    /// Entries in order; a change writes the whole leaf.
    Sorted,
    /// Entries in any order, each with its own version, so that a change writes one entry (§4.4).
    Unsorted,
}

/// The techniques of one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub check: ReadCheck,
    pub release: Release,
    /// Size of each compute server's index cache in bytes; without one every operation descends from the
    /// root.
    pub index_cache: Option<u64>,
    /// Whether a write and the release of its lock take one round trip (§4.5).
    pub combine: bool,
    pub locks: LockPlace,
    /// Maximum number of times in succession that threads of one compute server hand a lock to each other;
    /// `None`: each thread takes it from the memory server (§4.3).
    pub hand_over: Option<u32>,
    pub leaf: LeafFormat,
}

/// Default number of locks in a table: they fill the 256 KiB of on-chip memory of a ConnectX-5.
pub const TABLE_LOCKS: u32 = 1 << 15;
/// Published number of hand-overs in succession (§4.3).
pub const HAND_OVER: u32 = 4;

impl Options {
    /// FG: locks in nodes, released by fetch-and-add; no cache.
    pub fn fg() -> Self {
        Self {
            check: ReadCheck::Checksum,
            release: Release::FetchAdd,
            index_cache: None,
            combine: false,
            locks: LockPlace::Node,
            hand_over: None,
            leaf: LeafFormat::Sorted,
        }
    }

    /// FG+: FG with an index cache of `index_cache` bytes, and locks released by a WRITE.
    pub fn fg_plus(index_cache: u64) -> Self {
        Self { release: Release::Write, index_cache: Some(index_cache), ..Self::fg() }
    }

    /// FG+ with command combination.
    pub fn combined(index_cache: u64) -> Self {
        Self { combine: true, ..Self::fg_plus(index_cache) }
    }

    /// The same with on-chip locks.
    pub fn on_chip(index_cache: u64) -> Self {
        let locks = LockPlace::Table { on_chip: true, locks: TABLE_LOCKS };
        Self { locks, ..Self::combined(index_cache) }
    }

    /// The same with hierarchical locks.
    pub fn hierarchical(index_cache: u64) -> Self {
        Self { hand_over: Some(HAND_OVER), ..Self::on_chip(index_cache) }
    }

    /// Sherman with all techniques; two-level versions (checks in this crate) come last.
    pub fn sherman(index_cache: u64) -> Self {
        Self { leaf: LeafFormat::Unsorted, ..Self::hierarchical(index_cache) }
    }

    /// Steps of the published ablation with their names, FG+ first.
    pub fn ladder(index_cache: u64) -> [(&'static str, Self); 5] {
        [
            ("FG+", Self::fg_plus(index_cache)),
            ("+Combine", Self::combined(index_cache)),
            ("+On-Chip", Self::on_chip(index_cache)),
            ("+Hierarchical", Self::hierarchical(index_cache)),
            ("+2-Level Ver", Self::sherman(index_cache)),
        ]
    }

    pub fn with_check(self, check: ReadCheck) -> Self {
        Self { check, ..self }
    }

    /// Sets the number of locks in the tables, if there are tables.
    pub fn with_locks(self, count: u32) -> Self {
        let locks = match self.locks {
            LockPlace::Table { on_chip, .. } => LockPlace::Table { on_chip, locks: count },
            LockPlace::Node => LockPlace::Node,
        };
        Self { locks, ..self }
    }
}
