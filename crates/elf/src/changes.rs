//! Tables that change while they are searched: inserts, deletes and merges (fact sheet §5).
//!
//! Such a table is a list of parts in the order of row ids: Elf runs, the first of them the base, and behind
//! them the row buffer, which is scanned. Deleted rows are marked in a bitmap per part. A full buffer becomes
//! a run, and runs are merged without their deleted rows. All versions of the list are immutable, and a
//! [`Snapshot`] is one of them.

mod buffer;
mod live;
mod merge;
mod options;
mod part;
mod policy;
mod portions;
mod snapshot;
mod sync;
mod tombstones;

pub use live::LiveElf;
pub use options::LiveOptions;
pub use policy::{RunSize, next_merge};
pub use portions::{MergeOptions, Merged, Portion, Trees, merge_portions};
pub use snapshot::{LiveSelection, Snapshot};
pub use tombstones::Tombstones;
