//! How operations over the network fail.
//!
//! A failure says which compute server it was, and whether the operation may have been executed all the same
//! ([`RemoteError::may_have_taken_effect`]): who gets no answer to what was sent whole cannot know. Errors that a compute
//! server answered with keep its sentence.

use std::sync::Arc;

use super::wire::ErrorCode;

/// Failure of an operation at a compute server elsewhere.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// It was answered with an error.
    #[error("compute server {server}: {text}")]
    Answered { server: Arc<str>, code: ErrorCode, may_have_taken_effect: bool, text: String },
    /// The operation was sent, and nothing came back.
    #[error("compute server {server}: {reason}; the operation may or may not have been executed")]
    NoAnswer { server: Arc<str>, reason: &'static str },
    /// There is no connection, and the operation was not sent.
    #[error("compute server {server} cannot be reached, and the operation was not sent: {reason}")]
    NotConnected { server: Arc<str>, reason: String },
    /// What listens there does not let this client in, or is something else.
    #[error("{server}: {reason}")]
    Rejected { server: Arc<str>, reason: String },
    /// The processes that can be reached do not own the key.
    #[error("none of the compute servers {servers} owns the key{reason}")]
    NoOwner { servers: String, reason: String },
    /// What was to be sent is longer than the compute server takes.
    #[error("a request of {len} bytes is longer than the {max} bytes that compute server {server} takes")]
    TooLong { server: Arc<str>, len: usize, max: usize },
}

impl RemoteError {
    /// Whether the operation may have been executed although it failed.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::Answered { may_have_taken_effect, .. } => *may_have_taken_effect,
            Self::NoAnswer { .. } => true,
            _ => false,
        }
    }

    /// Whether a compute server did not answer, or cannot be asked.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::NoAnswer { .. } | Self::NotConnected { .. })
    }

    pub(crate) fn is_bad_input(&self) -> bool {
        match self {
            Self::Answered { code, .. } => matches!(code, ErrorCode::BadInput | ErrorCode::UnknownIndex),
            Self::Rejected { .. } | Self::TooLong { .. } => true,
            _ => false,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Answered { code: ErrorCode::Full, .. })
    }
}
