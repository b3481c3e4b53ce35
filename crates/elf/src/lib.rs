//! Elf: selections on several columns of a table, in memory (Broneske et al., ICDE 2017; Jibril et al., DAPD 2022).
//!
//! An Elf is a prefix tree over the codes of a table's columns, one level per column. It answers conjunctions
//! of conditions on any of its columns: exact match, range, and partial match. The life of one:
//! 1. Values become codes that keep their order (`schema`, `dictionary`, `table`).
//! 2. Rows are sorted in a column order and written as an image (`sort`, `build`, `layout`).
//! 3. A predicate is encoded and searched for (`predicate`, `search`), or scanned for where that costs less.

// Only `kernel`, `memory` and `store::mapping` allow it.
#![deny(unsafe_code)]

mod build;
mod caching;
mod changes;
mod codes;
mod decode;
pub mod defect;
mod dictionary;
mod elf;
mod encoder;
mod error;
mod external;
mod gate;
mod kernel;
mod layout;
mod memory;
mod order;
mod parallel;
mod predicate;
mod scan;
mod schema;
mod search;
mod selection;
mod sink;
mod sort;
mod spans;
mod sql;
mod store;
mod stored;
mod table;

pub use build::{BuildOptions, Width, build_columnar, build_linear};
pub use caching::{
    Cache, CacheCounters, CacheOptions, Lfu, ListId, Lla, Lru, Naive, Newcomer, Original, Policy, Slot,
    TwoQueue, Weights,
};
pub use changes::{
    LiveElf, LiveOptions, LiveSelection, MergeOptions, Merged, Portion, RunSize, Snapshot, Tombstones, Trees,
    merge_portions, next_merge,
};
pub use codes::{CodeSlice, NumberSlice, code_bytes};
pub use decode::decode_forest;
pub use dictionary::Dictionary;
pub use elf::{Elf, Selection};
pub use encoder::{ColumnEncoder, EncodedTable, TableEncoder};
pub use error::{Error, Result};
pub use external::{ExternalBuild, ExternalOptions};
pub use gate::{Gate, Method, Output};
pub use kernel::{BLOCK_ROWS, Combine, Compared, Kernel};
pub use layout::{
    Access, Array, Columnar, ElfLayout, Found, Header, LayoutKind, LevelSections, Linear, Region, Sections,
    Step, Work,
};
pub use order::{Advice, by_cardinality, cardinality, for_workload};
pub use predicate::{Filter, Interval, Predicate};
pub use scan::scan;
pub use schema::{Column, ColumnType, Schema, Value};
pub use search::{Walk, exact, exact_many, range};
pub use selection::{Bitmap, Ids, RowId};
pub use sink::{Count, Sink, bits};
pub use spans::IdSpans;
pub use sql::{SqlOptions, parse_condition};
pub use store::{
    Cached, CachedPlace, CachedWords, DualAccess, Hybrid, Levels, ListCache, Mapped, MappedFile, Medium,
    Meter, Metered, NoCache, NoMeter, Part, PersistentFile, Space, Touch,
};
pub use table::CodeTable;

/// Reading of arbitrary bytes as a run of an external build.
#[cfg(fuzzing)]
pub use external::exercise::read_run;

/// Marks in the words of a linear image, and its column order.
pub mod linear {
    pub use crate::layout::{ABSENT, END, MONO_NARROW, MONO_WIDE, linear_order as order};
}
