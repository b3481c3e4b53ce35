//! Defects that can be put into the protocols of the tree, to show that they would be found.
//!
//! How one is made active, and that it costs nothing otherwise, is in [`pando_fabric::defect`]. `tests/defects.rs` and
//! `tests/left_locks.rs` demand that each is found.

use pando_fabric::defect;

/// A step of a protocol that is left out or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A lookup takes the node that a cached copy leads to for the right one, though it was split.
    SkipFenceCheck,
    /// A change does so with the node that it has locked.
    SkipLockedFenceCheck,
    /// A lock is given back before what was changed under it is written.
    EarlyUnlock,
    /// An entry whose check does not fit is taken for absent, as in the paper's code.
    TornIsAbsent,
    /// A lock is given back to the memory server, and handed over all the same.
    HandOverReleased,
    /// A reader does not look again whether the version is still the same (DEX §8.1).
    SkipSecondLook,
    /// A node that is split keeps its high fence.
    KeepHighFence,
    /// Two nodes are merged although somebody else has the lock of one.
    MergeLocked,
    /// A scan does not look whether the next leaf begins where the last one ended, as in the paper's code.
    SkipScanCheck,
    /// The new right neighbour is written after the node was cut off, which only shows if the process dies in between.
    SiblingLast,
    /// With version READs, who holds a lock waits for that of another node, whose holder may wait for the former.
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
