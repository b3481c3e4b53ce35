//! Which of the published techniques a tree uses.
//!
//! The ladder is that of Sherman's ablation (§5.2): FG, FG+, command combination, on-chip locks, hierarchical locks, two-level
//! versions. Each step is a switch of its own, so that any mixture can be measured.

/// How a reader knows that what it READ is of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadCheck {
    /// A checksum of the node, and one of each entry where entries are written by themselves. Sound on every fabric.
    Checksum,
    /// A READ of the lock word before and one after: the variant that DEX's authors measure (DEX §8.1). Sound.
    VersionReads,
    /// Versions at both ends of the node and of each entry, as published (Sherman §4.4). It believes that a READ fetches lines
    /// in the order of their addresses. Unsound: for the simulator to catch.
    UnsoundEnds,
}

/// How a remote lock is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// By fetch-and-add, as in FG.
    FetchAdd,
    /// By a WRITE of the word.
    Write,
}

/// Where remote locks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockPlace {
    /// In the first word of the node.
    Node,
    /// In a table on each memory server, found by the hash of the node's address (§4.3).
    Table {
        /// In the memory of the NIC, where atomics need not cross the bus. A fabric that has none keeps it in DRAM.
        on_chip: bool,
        /// Locks on each memory server, a power of two; 131,072 as published, where one has 16 bits. Here it has 64.
        locks: u32,
    },
}

/// How leaves are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeafFormat {
    /// Entries in order; a change writes the whole leaf.
    Sorted,
    /// Entries in any order, each with a version of its own, so that a change writes one entry (§4.4).
    Unsorted,
}

/// The techniques of one tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub check: ReadCheck,
    pub release: Release,
    /// Bytes of each compute server's index cache; without one every operation descends from the root.
    pub index_cache: Option<u64>,
    /// Whether a write and the release of its lock go in one round trip (§4.2).
    pub combine: bool,
    pub locks: LockPlace,
    /// How many times in succession threads of one compute server hand a lock to each other; without, each takes it from the
    /// memory server (§4.3).
    pub hand_over: Option<u32>,
    pub leaf: LeafFormat,
}

/// Locks of a table by default: the 256 KiB of memory that a ConnectX-5 has on its chip.
pub const TABLE_LOCKS: u32 = 1 << 15;
/// How often a lock is handed over in succession (§4.3).
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

    /// FG+: FG with an index cache of so many bytes, and locks released by a WRITE.
    pub fn fg_plus(index_cache: u64) -> Self {
        Self { release: Release::Write, index_cache: Some(index_cache), ..Self::fg() }
    }

    /// FG+ with command combination.
    pub fn combined(index_cache: u64) -> Self {
        Self { combine: true, ..Self::fg_plus(index_cache) }
    }

    /// And with locks on the chip.
    pub fn on_chip(index_cache: u64) -> Self {
        let locks = LockPlace::Table { on_chip: true, locks: TABLE_LOCKS };
        Self { locks, ..Self::combined(index_cache) }
    }

    /// And with hierarchical locks.
    pub fn hierarchical(index_cache: u64) -> Self {
        Self { hand_over: Some(HAND_OVER), ..Self::on_chip(index_cache) }
    }

    /// Sherman, with all of its techniques: two-level versions, here checks, come last.
    pub fn sherman(index_cache: u64) -> Self {
        Self { leaf: LeafFormat::Unsorted, ..Self::hierarchical(index_cache) }
    }

    /// The steps of the published ablation with their names, FG+ first.
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

    /// With so many locks in the tables, if there are tables.
    pub fn with_locks(self, count: u32) -> Self {
        let locks = match self.locks {
            LockPlace::Table { on_chip, .. } => LockPlace::Table { on_chip, locks: count },
            LockPlace::Node => LockPlace::Node,
        };
        Self { locks, ..self }
    }
}
