//! How the cache fails.

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
    /// Every frame is pinned or has cached children, again and again.
    #[error(
        "the cache of {frames} frames is too small: no frame could be freed; give it at least {minimum} frames"
    )]
    Exhausted { frames: usize, minimum: usize },
    #[error(
        "a cache of {bytes} bytes holds {frames} nodes of {node_size} bytes; it needs at least {minimum_bytes} bytes"
    )]
    TooSmall { bytes: u64, frames: u64, node_size: usize, minimum_bytes: u64 },
    #[error("a cache of {bytes} bytes has more frames than 32 bits can count")]
    TooLarge { bytes: u64 },
    #[error("no memory for a cache of {bytes} bytes: {reason}")]
    NoMemory { bytes: u64, reason: String },
}
