//! Defects that can be seeded into the protocols of SMART, to test that the checks find them.
//!
//! [`pando_fabric::defect`] activates a defect; builds without the feature pay nothing. Two more defects are
//! options, since they are as published: the ones of [`SmartConfig`](crate::SmartConfig) that are named
//! unsound.

use pando_fabric::defect;

/// A protocol step that is skipped or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A key is reported absent by the child of a cached slot, although the slot may have changed.
    UnconfirmedAbsence,
    /// A leaf is accepted as it was READ, whole or not.
    SkipChecksum,
    /// Members that join after the value of a combined write was sampled are told that their value was
    /// written.
    LateCombining,
    /// An insert puts its leaf into a slot that belonged to another byte.
    TombstoneForAnyByte,
    /// Unlinked blocks are freed at once, even if operations may still reach them.
    FreeAtOnce,
    /// A leaf locked by a word of the table is not read again under the lock.
    SkipLookUnderLock,
    /// A slot beyond the class of its node is filled without raising the class.
    UnnoticedGrowth,
    /// A node is replaced while entries are put into it.
    SkipFreeze,
    /// The old leaf of an updated key does not lead to the new one.
    NoForwarding,
    /// An unanswered compare-and-swap of a slot counts as done.
    UnansweredIsDone,
}

impl Defect {
    pub const ALL: [Self; 10] = [
        Self::UnconfirmedAbsence,
        Self::SkipChecksum,
        Self::LateCombining,
        Self::TombstoneForAnyByte,
        Self::FreeAtOnce,
        Self::SkipLookUnderLock,
        Self::UnnoticedGrowth,
        Self::SkipFreeze,
        Self::NoForwarding,
        Self::UnansweredIsDone,
    ];
}

impl defect::Defect for Defect {
    fn number(self) -> u8 {
        self as u8
    }
}
