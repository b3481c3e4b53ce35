//! Defects that can be seeded into Elf on disaggregated memory, to test that the checks find them.
//!
//! With the feature `defects`, `pando_fabric::defect` activates one of them on a thread; builds without it pay nothing.
//! `tests/it/defects.rs` requires that the checks find each.

use pando_fabric::defect;

/// A step of a query or a change that is skipped or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A piece is used whatever its checksum is.
    UnverifiedPiece,
    /// Nothing confirms that the version of a query was current.
    UnconfirmedVersion,
    /// The same for queries that memory servers answer.
    UnconfirmedCall,
    /// A tree of a part is not searched.
    LostTree,
    /// A reader keeps the set of deleted rows of a part that it knows.
    StaleDeletes,
    /// Rows that are deleted while parts are merged come back with the result.
    ForgottenDeletes,
    /// What was replaced is never freed.
    LostBlocks,
    /// What was to be published is freed though it may have been.
    EarlyFree,
}

impl Defect {
    pub const ALL: [Self; 8] = [
        Self::UnverifiedPiece,
        Self::UnconfirmedVersion,
        Self::UnconfirmedCall,
        Self::LostTree,
        Self::StaleDeletes,
        Self::ForgottenDeletes,
        Self::LostBlocks,
        Self::EarlyFree,
    ];
}

impl defect::Defect for Defect {
    fn number(self) -> u8 {
        self as u8
    }
}
