//! How the cache fails.
//!
//! Two kinds that never mix: [`Conflict`] says that an optimistic step met a change and must start again; index
//! crates catch it and callers never see it. [`CacheError`] is for the caller: a sentence that names the size which
//! would do.

use pando_fabric::FabricError;

pub type Result<T, E = CacheError> = std::result::Result<T, E>;

/// An optimistic read saw a change, or a latch was taken: start again. Never leaves the index crates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Other operations kept every frame for too long.
    #[error(
        "none of the {frames} frames of the cache came free for too long: give it more, or use it less at once"
    )]
    Exhausted { frames: usize },
    #[error(
        "a cache of {bytes} bytes holds {frames} nodes of {node_size} bytes; it needs at least {minimum_bytes} bytes"
    )]
    TooSmall { bytes: u64, frames: u64, node_size: usize, minimum_bytes: u64 },
    #[error("a cache of {bytes} bytes has more frames than 32 bits can count")]
    TooLarge { bytes: u64 },
    #[error("no memory for a cache of {bytes} bytes: {reason}")]
    NoMemory { bytes: u64, reason: String },
}

/// Why there is no free frame for an operation. Never leaves the index crates.
#[derive(Debug)]
pub enum NoFrame {
    /// Another operation has the turn: let go of every pin, ticket and frame, wait for the end of the turn, and start
    /// again.
    GiveWay,
    /// Nothing could be evicted: let go of everything, take the turn, and start again.
    Crowded,
    /// A write-back failed.
    Failed(CacheError),
}

impl From<CacheError> for NoFrame {
    fn from(error: CacheError) -> Self {
        Self::Failed(error)
    }
}
