//! Errors of the cache.
//!
//! Two kinds that never mix. [`Conflict`]: an optimistic step met a change and must restart; index crates
//! catch it and callers never see it. [`CacheError`]: for the caller, with a message that names the size that
//! would be enough.

use pando_fabric::FabricError;

pub type Result<T, E = CacheError> = std::result::Result<T, E>;

/// An optimistic read met a change, or a latch was taken: restart. Never leaves the index crates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error("a node cannot be written, because its changes are not in the log: {reason}")]
    Unlogged { reason: String },
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

/// Reason why an operation got no free frame. Never leaves the index crates.
#[derive(Debug)]
pub enum NoFrame {
    /// Another operation has the turn: release every pin, ticket and frame, wait for the end of the turn, and
    /// restart.
    GiveWay,
    /// Nothing could be evicted: release everything, take the turn, and restart.
    Crowded,
    /// A write-back failed.
    Failed(CacheError),
}

impl From<CacheError> for NoFrame {
    fn from(error: CacheError) -> Self {
        Self::Failed(error)
    }
}
