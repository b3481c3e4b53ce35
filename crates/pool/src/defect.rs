//! Defects that can be put into the protocols of the pool, to show that they would be found.
//!
//! How one is made active, and that it costs nothing otherwise, is in [`pando_fabric::defect`]. `crates/lab/tests/pool_defects.rs`
//! demands that each is found by simulation; `tests/defects.rs`, that those of the pool alone are by losing each answer in turn.

use pando_fabric::defect;

/// A step of a protocol that is left out or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A change of the catalog that may have taken effect frees the blocks that the catalog may lead to.
    FreeLinked,
    /// A server that joined by a try that failed is formatted again by the next one.
    FormatJoined,
    /// A process leaves with locks that it has not given back and pages that it has not written.
    DetachOwing,
    /// A bulk load of which nobody knows whether its root was written frees the nodes below.
    FreeLoaded,
}

impl Defect {
    /// Those that show in the pool alone.
    pub const ALL: [Self; 3] = [Self::FreeLinked, Self::FormatJoined, Self::DetachOwing];
}

impl defect::Defect for Defect {
    fn number(self) -> u8 {
        self as u8
    }
}
