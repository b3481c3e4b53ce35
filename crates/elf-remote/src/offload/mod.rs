//! Offloading: the memory server that has all of an image searches it.
//!
//! A search is begun with what a reader has cached, which tells how much the rest would READ ([`crate::costs`]). If a
//! call is expected to take less time, the memory server runs the same search on its own memory
//! ([`MemorySide`]) and returns what was asked for: a number, row ids, or rows with codes. It verifies each piece
//! that it looks at, so an image that was replaced meanwhile is found out as by a READ. It may refuse any call;
//! the reader then goes on by READs. The version of the catalog is confirmed as by a query without calls.

mod client;
mod server;
mod wire;

pub use server::MemorySide;

#[cfg(fuzzing)]
pub(crate) use wire::Call;

/// What a memory server found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Number of rows.
    pub count: u64,
    /// None if only the number was wanted.
    pub ids: Vec<u64>,
    /// By wanted level; the rows are in the order of their ids.
    pub codes: Vec<Vec<u32>>,
    pub rows_compared: u64,
    pub rows_taken: u64,
}

/// What a query wants to know of the rows that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want<'l> {
    Count,
    Ids,
    /// Ids and the codes of these levels.
    Rows(&'l [usize]),
}
