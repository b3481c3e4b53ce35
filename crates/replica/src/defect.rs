//! Defects that can be seeded into the copying, to test that the checks find them.
//!
//! [`pando_fabric::defect`] activates a defect; builds without the feature pay nothing. The tests of this crate find
//! each of them (`tests/it/simulated.rs`).

use pando_fabric::defect;

/// A protocol step that is skipped or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The primary is written before the backups.
    PrimaryFirst,
    /// A WRITE is answered before all copies have it.
    OneCopySuffices,
    /// Atomics change the primary only.
    AtomicsUncopied,
    /// The copies of a word are not compared again after a change of a backup.
    WordNotCompared,
    /// An atomic whose primary was lost counts as done.
    AtomicForgotten,
    /// A verb counts as done although the view changed meanwhile.
    ViewNotCompared,
    /// The WRITE of a word is sent again although a copy may have executed it.
    ReleaseRepeated,
    /// An atomic without an answer leaves the backups as they are.
    UnknownUncopied,
    /// What the last copy that was asked says of a verb counts, although another one has executed it.
    LastAnswerCounts,
    /// A READ that is sent again leaves any bytes beside its window.
    RestForgotten,
}

impl Defect {
    pub const ALL: [Self; 10] = [
        Self::PrimaryFirst,
        Self::OneCopySuffices,
        Self::AtomicsUncopied,
        Self::WordNotCompared,
        Self::AtomicForgotten,
        Self::ViewNotCompared,
        Self::ReleaseRepeated,
        Self::UnknownUncopied,
        Self::LastAnswerCounts,
        Self::RestForgotten,
    ];
}

impl defect::Defect for Defect {
    fn number(self) -> u8 {
        self as u8
    }
}
