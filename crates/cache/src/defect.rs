//! Defects that can be put into the protocols of the cache and of DEX, to show that they would be found.
//!
//! How one is made active, and that it costs nothing otherwise, is in [`pando_fabric::defect`]; the list is here because the
//! cache is the lower of the two.

use pando_fabric::defect;

/// A step of a protocol that is left out or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// What a stale copy of a shared node leads to is taken for the right node.
    SkipFenceCheck,
    /// A dirty node that cools is called clean without a WRITE.
    LostWriteBack,
    /// A miss does not keep others from reading and admitting the same node.
    NoIoMark,
    /// A shared node is unlocked before it is written.
    EarlyUnlock,
    /// A compute server executes operations on keys of others.
    StaleRoute,
    /// A parent that was read optimistically is not looked at again after its child was found.
    SkipVersionCheck,
    /// A scan steps to a sibling without looking whether the node above is the same.
    SkipStepCheck,
    /// A miss below a shared node proves only that the cached copy of that node is unchanged, not that the child still is in
    /// the tree.
    StaleParentBelieved,
    /// The same for leaves that are READ together.
    StaleBatchBelieved,
    /// A removal that was done fails with the error of the merge after it.
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
