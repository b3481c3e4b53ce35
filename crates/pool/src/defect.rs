//! Defects that can be seeded into the protocols of the pool, to test that the checks find them.
//!
//! [`pando_fabric::defect`] activates a defect; builds without the feature pay nothing.
//! `crates/lab/tests/it/pool_defects.rs` requires that simulation finds each of them; `tests/defects.rs`, that
//! losing each answer in turn finds those that show in the pool alone.

use pando_fabric::defect;

/// A protocol step that is skipped or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A change of the catalog that may have taken effect frees blocks to which the catalog may lead.
    FreeLinked,
    /// A server that joined in a failed attempt is formatted again by the next attempt.
    FormatJoined,
    /// A process detaches while it holds locks and has unwritten pages.
    DetachOwing,
    /// A bulk load whose root may or may not have been written frees the nodes below.
    FreeLoaded,
}

impl Defect {
    /// The defects that show in the pool alone.
    pub const ALL: [Self; 3] = [Self::FreeLinked, Self::FormatJoined, Self::DetachOwing];
}

/// A step that is skipped on the way to what a dead process leased (`reclaim.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfReclaim {
    /// Bitmaps are not stored when records of the log are dropped.
    Unstored,
    /// Blocks to which the log leads are not marked.
    LogUnmarked,
    /// The blocks of the catalog are not marked.
    CatalogUnmarked,
    /// The next process in the place gets the slot of the dead one.
    SameGeneration,
}

impl defect::Defect for OfReclaim {
    fn number(self) -> u8 {
        self as u8
    }
}

impl defect::Defect for Defect {
    fn number(self) -> u8 {
        self as u8
    }
}
