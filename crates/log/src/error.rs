//! Errors of the log. Every message is one sentence for a person; if bytes of a log are wrong, it names their
//! address.
//!
//! A log without room is not an error: the caller makes room by a [checkpoint](crate::Checkpoint).

use pando_fabric::{FabricError, GlobalAddr, WaitedTooLong};

pub type Result<T, E = LogError> = std::result::Result<T, E>;

/// Failure of a log operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The records that were being written may or may not be in the log.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error("a record of {bytes} bytes exceeds the largest of this log, {max} bytes")]
    RecordTooLarge { bytes: usize, max: usize },
    #[error("a log of {lanes} lanes of {segments} segments of {segment_bytes} bytes cannot be: {reason}")]
    Geometry { lanes: usize, segments: usize, segment_bytes: u64, reason: &'static str },
    #[error("the log at {addr} is damaged: {reason}")]
    Damaged { addr: GlobalAddr, reason: &'static str },
    /// The kernel may have dropped what it could not write, so nothing that the log has counts any more.
    #[error("the log could not be persisted; close the pool and open it again, which recovers it")]
    NotPersisted,
    #[error("this process was silent for so long that others may have taken over what it had")]
    Expired,
    #[error("another operation did not finish writing to the log for too long")]
    TimedOut,
}

impl From<WaitedTooLong> for LogError {
    fn from(_: WaitedTooLong) -> Self {
        Self::TimedOut
    }
}
