//! Defects that can be put into the protocols of SMART, to show that they would be found.
//!
//! How one is made active, and that it costs nothing otherwise, is in [`pando_fabric::defect`]. Two more are options, since they are
//! as published: [`SmartConfig`](crate::SmartConfig) has those that are named unsound.

use pando_fabric::defect;

/// A step of a protocol that is left out or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A key is absent if what a cached slot leads to says so, although the slot may have changed.
    UnconfirmedAbsence,
    /// A leaf is taken as it was READ, whole or not.
    SkipChecksum,
    /// Who comes after the value of a combined write was sampled is told that its value was written.
    LateCombining,
    /// An insert puts its leaf into the slot that another byte had.
    TombstoneForAnyByte,
    /// What was unlinked is free at once, whoever may be on the way there.
    FreeAtOnce,
    /// Under a lock of the table a leaf is not looked at again.
    SkipLookUnderLock,
    /// A slot beyond the class of its node is filled, and the class stays as it was.
    UnnoticedGrowth,
    /// A node is replaced while entries are put into it.
    SkipFreeze,
    /// The old leaf of an updated key does not say where the new one is.
    NoForwarding,
    /// A compare-and-swap of a slot that gets no answer counts as done.
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
