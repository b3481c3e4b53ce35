//! How a verb fails.
//!
//! A refused verb took no effect. Where that is not known, when a memory server did not answer, the error says so
//! ([`FabricError::may_have_taken_effect`]). Opening a fabric tells apart what was asked for from what the system did.

use crate::{GlobalAddr, MemoryServerId};

pub type Result<T, E = FabricError> = std::result::Result<T, E>;

/// Failure of a verb. Unless the text says otherwise, the verb took no effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    #[error("there is no memory server {0}")]
    UnknownServer(MemoryServerId),
    #[error("memory server {0} cannot be reached; the verb may or may not have taken effect")]
    ServerUnreachable(MemoryServerId),
    #[error("memory server {0} did not answer in time; the verb may or may not have taken effect")]
    TimedOut(MemoryServerId),
    #[error("memory server {server} cannot be reached, and the verb was not sent: {reason}")]
    NotConnected { server: MemoryServerId, reason: String },
    /// What was in the memory of a memory server is gone, for instance because its process ended.
    #[error("memory server {0} was started anew, and what was in its memory is lost")]
    Lost(MemoryServerId),
    #[error("{len} bytes at {at} leave the region of {region_len} bytes")]
    OutOfRegion { at: GlobalAddr, len: usize, region_len: u64 },
    #[error("{len} bytes at {at} are not aligned to 8 bytes")]
    Misaligned { at: GlobalAddr, len: usize },
    #[error("{len} bytes at {at} cannot be changed: the pool is open for reading only")]
    ReadOnly { at: GlobalAddr, len: usize },
    #[error("no space left for {len} bytes at {at}: {reason}")]
    NoSpace { at: GlobalAddr, len: u64, reason: String },
    #[error("memory server {server} refused request {op}: {reason}")]
    Refused { server: MemoryServerId, op: u16, reason: String },
    /// What was asked for is at fault: there is no such file, or it is something else, or the sizes are impossible.
    #[error("{path}: {reason}")]
    Open { path: String, reason: String },
    /// The system did not do what was asked: permissions, no space left, a limit, a device that fails.
    #[error("{path}: {reason}")]
    System { path: String, reason: String },
}

impl FabricError {
    /// Whether the verb may have taken effect although it failed.
    pub fn may_have_taken_effect(&self) -> bool {
        matches!(self, Self::ServerUnreachable(_) | Self::TimedOut(_))
    }

    /// Whether the memory server did not answer, or cannot be asked.
    pub fn is_unreachable(&self) -> bool {
        self.may_have_taken_effect() || matches!(self, Self::NotConnected { .. } | Self::Lost(_))
    }
}
