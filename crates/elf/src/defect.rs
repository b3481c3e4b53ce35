//! Defects that can be seeded into Elf, to test that the checks find them.
//!
//! With the feature `defects`, `pando_fabric::defect` activates one of them on a thread; builds without it pay nothing
//! and do not depend on that crate. `tests/it/defects.rs` requires that the checks find each.

/// A step of a search, a build, a change or a publication that is skipped or done wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A search in a columnar list ends before the upper bound of an interval.
    ExclusiveBound,
    /// A linear list is left behind the first interval, although there are others.
    FirstInterval,
    /// The leaf that a walk still holds at its end is not taken.
    LostLeaf,
    /// Of equal rows in a linear Elf, only the first one is found, as by the published code.
    FirstDuplicate,
    /// Of a bucket's strips, the second and further ones are those of the rows before.
    ShiftedStrip,
    /// A scan adds to the rows of the walk that it replaces.
    KeptResult,
    /// Parts that threads have found are joined in the order of the threads.
    ThreadOrder,
    /// The rest of a leaf that is divided among threads is dropped.
    DroppedPiece,
    /// Neighbours that differ only in the last column of a key count as equal.
    SharedTooMuch,
    /// A merge of runs does not compare row ids.
    UnorderedIds,
    /// Deleted rows come back in results that are slices of row ids.
    RevivedRows,
    /// Rows that were deleted during a merge come back with its result.
    ForgottenDeletes,
    /// A merge keeps the codes of the older part of two, whose dictionary has changed.
    StaleCodes,
    /// The root is stored before the image is durable.
    EarlyRoot,
    /// An image is written over the current one.
    OverwrittenImage,
    /// The root is stored without a look at what the medium holds.
    UncheckedImage,
}

impl Defect {
    pub const ALL: [Self; 16] = [
        Self::ExclusiveBound,
        Self::FirstInterval,
        Self::LostLeaf,
        Self::FirstDuplicate,
        Self::ShiftedStrip,
        Self::KeptResult,
        Self::ThreadOrder,
        Self::DroppedPiece,
        Self::SharedTooMuch,
        Self::UnorderedIds,
        Self::RevivedRows,
        Self::ForgottenDeletes,
        Self::StaleCodes,
        Self::EarlyRoot,
        Self::OverwrittenImage,
        Self::UncheckedImage,
    ];
}

#[cfg(feature = "defects")]
impl pando_fabric::defect::Defect for Defect {
    fn number(self) -> u8 {
        self as u8
    }
}

/// Whether `defect` is active.
#[cfg(feature = "defects")]
#[inline]
pub(crate) fn defect(defect: Defect) -> bool {
    pando_fabric::defect::defect(defect)
}

/// Whether `defect` is active.
#[cfg(not(feature = "defects"))]
#[inline(always)]
pub(crate) const fn defect(_: Defect) -> bool {
    false
}
