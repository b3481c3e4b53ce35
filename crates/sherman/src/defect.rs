//! Defects that can be seeded into the protocols of the tree, to test that the checks find them.
//!
//! [`pando_fabric::defect`] activates a defect; builds without the feature pay nothing. `tests/it/defects.rs`
//! and `tests/it/left_locks.rs` require that each is found.

use pando_fabric::defect;

/// A protocol step that is skipped or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A lookup accepts the node that a cached copy leads to, although it was split.
    SkipFenceCheck,
    /// A change accepts the node that it locked, although it was split.
    SkipLockedFenceCheck,
    /// A lock is released before the changes under it are written.
    EarlyUnlock,
    /// An entry whose check fails is treated as absent, as in the paper's code.
    TornIsAbsent,
    /// A lock is released to the memory server and handed over as well.
    HandOverReleased,
    /// A reader does not check again that the version is unchanged (DEX §8.1).
    SkipSecondLook,
    /// A node that is split keeps its high fence.
    KeepHighFence,
    /// Two nodes are merged although another operation holds the lock of one.
    MergeLocked,
    /// A scan does not check that the next leaf begins where the last one ended, as in the paper's code.
    SkipScanCheck,
    /// The new right neighbour is written after the node is cut off, which shows only if the process dies in
    /// between.
    SiblingLast,
    /// With version READs, the holder of a lock waits for another node's lock, whose holder may wait for the
    /// first one.
    WaitHolding,
}

impl Defect {
    pub const ALL: [Self; 11] = [
        Self::SkipFenceCheck,
        Self::SkipLockedFenceCheck,
        Self::EarlyUnlock,
        Self::TornIsAbsent,
        Self::HandOverReleased,
        Self::SkipSecondLook,
        Self::KeepHighFence,
        Self::MergeLocked,
        Self::SkipScanCheck,
        Self::SiblingLast,
        Self::WaitHolding,
    ];
}

impl defect::Defect for Defect {
    fn number(self) -> u8 {
        self as u8
    }
}
