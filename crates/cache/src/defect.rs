//! Defects that can be seeded into the protocols of the cache and of DEX, to test that the checks find them.
//!
//! [`pando_fabric::defect`] activates a defect; builds without the feature pay nothing. The list is in this
//! crate because the cache is the lower of the two.

use pando_fabric::defect;

/// A protocol step that is skipped or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The node that a stale copy of a shared node leads to is accepted without a fence check.
    SkipFenceCheck,
    /// A dirty node that starts cooling is marked clean without a WRITE.
    LostWriteBack,
    /// A miss does not stop other operations from reading and admitting the same node.
    NoIoMark,
    /// A shared node is unlocked before it is written.
    EarlyUnlock,
    /// A compute server executes operations on keys that it does not own.
    StaleRoute,
    /// A parent that was read optimistically is not validated after its child was found.
    SkipVersionCheck,
    /// A scan steps to a sibling without checking that the node above is unchanged.
    SkipStepCheck,
    /// A miss below a shared node proves only that the cached copy of that node is unchanged, not that the
    /// child is still in the tree.
    StaleParentBelieved,
    /// The same for leaves that are READ together.
    StaleBatchBelieved,
    /// A completed removal fails with the error of the merge after it.
    WrongNothingHappened,
}

impl Defect {
    pub const ALL: [Self; 10] = [
        Self::SkipFenceCheck,
        Self::LostWriteBack,
        Self::NoIoMark,
        Self::EarlyUnlock,
        Self::StaleRoute,
        Self::SkipVersionCheck,
        Self::SkipStepCheck,
        Self::StaleParentBelieved,
        Self::StaleBatchBelieved,
        Self::WrongNothingHappened,
    ];
}

impl defect::Defect for Defect {
    fn number(self) -> u8 {
        self as u8
    }
}
