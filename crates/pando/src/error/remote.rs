//! Errors of operations over the network.
//!
//! An error names the compute server, and says whether the operation may have taken effect
//! ([`RemoteError::may_have_taken_effect`]): without an answer to a request that was sent completely, that is
//! unknown. An error answered by a compute server keeps its message.

use std::sync::Arc;

/// Kind of error that ended an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u16)]
pub enum ErrorCode {
    /// The request is at fault, for instance by a key or a value that the index cannot hold.
    BadInput = 1,
    /// Memory servers have no room.
    Full = 2,
    /// There is no such index at this port.
    UnknownIndex = 3,
    /// The index is busy with other work, or closed.
    Unavailable = 4,
    /// Everything else: memory servers that do not answer, damage.
    Other = 5,
}

impl ErrorCode {
    pub(crate) fn of(number: u16) -> Self {
        [Self::BadInput, Self::Full, Self::UnknownIndex, Self::Unavailable]
            .into_iter()
            .find(|code| *code as u16 == number)
            .unwrap_or(Self::Other)
    }
}

/// Failure of an operation at a compute server elsewhere.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The compute server answered with an error.
    #[error("compute server {server}: {text}")]
    Answered { server: Arc<str>, code: ErrorCode, may_have_taken_effect: bool, text: String },
    /// The operation was sent, but not answered.
    #[error("compute server {server}: {reason}; the operation may or may not have been executed")]
    NoAnswer { server: Arc<str>, reason: &'static str },
    /// There is no connection, and the operation was not sent.
    #[error("compute server {server} cannot be reached, and the operation was not sent: {reason}")]
    NotConnected { server: Arc<str>, reason: String },
    /// The server rejects this client, or is not a compute server of this protocol.
    #[error("{server}: {reason}")]
    Rejected { server: Arc<str>, reason: String },
    /// None of the reachable processes owns the key.
    #[error("none of the compute servers {servers} owns the key{reason}")]
    NoOwner { servers: String, reason: String },
    /// The request is longer than the compute server accepts.
    #[error("a request of {len} bytes is longer than the {max} bytes that compute server {server} takes")]
    TooLong { server: Arc<str>, len: usize, max: usize },
}

impl RemoteError {
    /// Whether the operation may have taken effect although it failed.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::Answered { may_have_taken_effect, .. } => *may_have_taken_effect,
            Self::NoAnswer { .. } => true,
            _ => false,
        }
    }

    /// Whether the compute server did not answer or cannot be reached.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::NoAnswer { .. } | Self::NotConnected { .. })
    }

    pub(super) fn is_bad_input(&self) -> bool {
        match self {
            Self::Answered { code, .. } => matches!(code, ErrorCode::BadInput | ErrorCode::UnknownIndex),
            Self::Rejected { .. } | Self::TooLong { .. } => true,
            _ => false,
        }
    }

    pub(super) fn is_full(&self) -> bool {
        matches!(self, Self::Answered { code: ErrorCode::Full, .. })
    }
}
