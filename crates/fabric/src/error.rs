//! Errors of verbs and of opening a fabric.
//!
//! A refused verb took no effect. If a memory server did not answer, that is not known, and
//! [`FabricError::may_have_taken_effect`] says so. Errors of opening a fabric distinguish wrong requests from
//! failures of the system.

use crate::{GlobalAddr, MemoryServerId};

pub type Result<T, E = FabricError> = std::result::Result<T, E>;

/// Error of a verb. Unless its message says otherwise, the verb took no effect.
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
    /// The content of a memory server's memory is gone, for instance because its process ended.
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
    /// The request is at fault: the file does not exist or has another format, or a size is impossible.
    #[error("{path}: {reason}")]
    Open { path: String, reason: String },
    /// The system failed or refused: permissions, no space, a limit, a device error.
    #[error("{path}: {reason}")]
    System { path: String, reason: String },
}

impl FabricError {
    /// Whether the failed verb may have taken effect.
    pub fn may_have_taken_effect(&self) -> bool {
        matches!(self, Self::ServerUnreachable(_) | Self::TimedOut(_))
    }

    /// The error of a verb of which another attempt, or another copy, may have taken effect: it says so.
    #[must_use]
    pub fn as_unknown(self) -> Self {
        match self.unreached() {
            Some(server) => Self::ServerUnreachable(server),
            None => self,
        }
    }

    /// The memory server that did not answer or could not be asked.
    pub fn unreached(&self) -> Option<MemoryServerId> {
        match *self {
            Self::ServerUnreachable(server)
            | Self::TimedOut(server)
            | Self::Lost(server)
            | Self::NotConnected { server, .. } => Some(server),
            _ => None,
        }
    }

    /// Whether the memory server did not answer or could not be asked.
    pub fn is_unreachable(&self) -> bool {
        self.unreached().is_some()
    }
}
