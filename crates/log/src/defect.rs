//! Defects that can be seeded into the protocols of the log, to test that the checks find them.
//!
//! [`pando_fabric::defect`] activates a defect; builds without the feature pay nothing. The tests of this
//! crate find each of them (`tests/it/defects.rs`).

use pando_fabric::defect;

/// A protocol step that is skipped or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A change counts as durable before it is in the log.
    AckBeforeLog,
    /// A change counts as durable once its own lane has it, whatever other lanes lack.
    OneLaneDurable,
    /// Recovery goes on behind a missing record.
    GapIgnored,
    /// Recovery uses the horizon of each lane for that lane alone.
    TruncationByOneLane,
    /// The space of truncated batches is used again before the control block says so.
    EarlyReuse,
}

impl Defect {
    pub const ALL: [Self; 5] = [
        Self::AckBeforeLog,
        Self::OneLaneDurable,
        Self::GapIgnored,
        Self::TruncationByOneLane,
        Self::EarlyReuse,
    ];
}

/// A rule for a log of which there are copies, and is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfCopies {
    /// An heir redoes what one copy has, and leaves the ends of the others as they are.
    EndsUnequal,
    /// Nor does it make the control blocks equal, by which it found these ends.
    ControlsUnequal,
}

/// A rule that an index breaks in its use of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfIndex {
    /// A page is written before its records are in the log.
    PageBeforeLog,
    /// A lookup answers before what it has read is in the log.
    GetBeforeLog,
}

impl OfIndex {
    pub const ALL: [Self; 2] = [Self::PageBeforeLog, Self::GetBeforeLog];
}

/// A rule of several processes with logs that use one index, and is broken. Simulated runs of these find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfShared {
    /// A node of several compute servers is written before the record of its change is in the log.
    SharedBeforeLog,
    /// What a dead process had locked is repaired before its heir has redone the log.
    RepairBeforeHeir,
}

/// A rule for several compute servers with logs, between which keys move, and is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfMoves {
    /// The log does not say that keys went to another compute server.
    LeftUnlogged,
    /// A node that becomes shared is in no record when it counts as clean.
    ShareUnlogged,
    /// A node moves to another memory server, and no record says so.
    RelocationUnlogged,
    /// A checkpoint drops the records of a node before the one with its image, which stays, is in the log.
    TruncatedBeforeLog,
    /// The pages of keys that left are not persisted when the log says so.
    PagesUnpersisted,
    /// A lock is not persisted before a record relies on it.
    LockUnpersisted,
    /// A shared page is not persisted before its lock is given back.
    UnlockedBeforePersist,
    /// The new half of a shared node is not persisted before a record leads to it.
    HalfUnpersisted,
}

impl OfMoves {
    /// Those that a killed process suffices to find, and those that power must fail for.
    pub const OF_PROCESS: [Self; 2] = [Self::LeftUnlogged, Self::ShareUnlogged];
    pub const OF_POWER: [Self; 4] =
        [Self::PagesUnpersisted, Self::LockUnpersisted, Self::UnlockedBeforePersist, Self::HalfUnpersisted];
}

impl defect::Defect for OfMoves {
    fn number(self) -> u8 {
        self as u8
    }
}

/// A step of the move of a log to other blocks that is skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfLogMoves {
    /// Batches are written while others are copied.
    Unfrozen,
    /// The copy is not persisted before it is the log.
    CopyUnpersisted,
}

impl defect::Defect for OfLogMoves {
    fn number(self) -> u8 {
        self as u8
    }
}

/// A step that makes the log survive a loss of power, and is skipped. Tests of an index find these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfPower {
    /// An operation answers once its records are in the log, persisted or not.
    AnswerBeforePersist,
    /// A page is written once its records are in the log, persisted or not.
    PageBeforePersist,
    /// The control blocks are written before the pages of a checkpoint are persisted.
    ControlBeforePages,
    /// The space of truncated batches is used again before the control blocks are persisted.
    ReuseBeforePersist,
    /// A record is made although the value that it refers to is not persisted.
    ValueUnpersisted,
}

impl OfPower {
    pub const ALL: [Self; 5] = [
        Self::AnswerBeforePersist,
        Self::PageBeforePersist,
        Self::ControlBeforePages,
        Self::ReuseBeforePersist,
        Self::ValueUnpersisted,
    ];
}

/// A rule that a backup during operations breaks. Tests of the facade find these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfBackup {
    /// The taps are opened after the indexes were read.
    TapsOpenedLate,
    /// The taps are closed one after the other.
    TapsClosedInTurn,
    /// Changes of leaves without a frame are not given to the tap.
    LeafUntapped,
    /// The first change of a key is taken, not the last.
    FirstChange,
}

impl OfBackup {
    pub const ALL: [Self; 4] =
        [Self::TapsOpenedLate, Self::TapsClosedInTurn, Self::LeafUntapped, Self::FirstChange];
}

impl defect::Defect for OfBackup {
    fn number(self) -> u8 {
        self as u8
    }
}

impl defect::Defect for OfPower {
    fn number(self) -> u8 {
        self as u8
    }
}

impl defect::Defect for OfShared {
    fn number(self) -> u8 {
        self as u8
    }
}

impl defect::Defect for OfIndex {
    fn number(self) -> u8 {
        self as u8
    }
}

impl defect::Defect for Defect {
    fn number(self) -> u8 {
        self as u8
    }
}

impl defect::Defect for OfCopies {
    fn number(self) -> u8 {
        self as u8
    }
}
