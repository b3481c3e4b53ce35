//! Errors of operations.
//!
//! [`ShermanError`] goes to the caller, and tells whether the operation may have taken effect nevertheless;
//! for corrupt bytes it names their address. `Retry` stays within the crate: after a concurrent change, the
//! operation restarts.

use pando_fabric::{FabricError, GlobalAddr, WaitedTooLong};
use pando_pool::PoolError;

pub type Result<T, E = ShermanError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShermanError {
    #[error("a key of {len} bytes in an index whose keys have {expected} bytes")]
    WrongKeySize { len: usize, expected: usize },
    #[error("a value of {len} bytes in an index whose values have {expected} bytes")]
    WrongValueSize { len: usize, expected: usize },
    #[error("{0}")]
    Shape(String),
    #[error("the node at {addr} is corrupt: {reason}")]
    Corrupt { addr: GlobalAddr, reason: &'static str },
    #[error("the index at {addr} cannot be opened: {reason}")]
    Anchor { addr: GlobalAddr, reason: &'static str },
    #[error("the key belongs to another compute server")]
    NotOwned,
    #[error("bulk load needs an empty index")]
    NotEmpty,
    #[error("the operation waited too long for {what}")]
    TimedOut { what: &'static str },
    #[error("bulk load found key number {position} not above the one before")]
    NotSorted { position: u64 },
    /// Others may have seen a part of the change; a later operation does the rest.
    #[error("the change is unfinished and will be finished by a later operation: {0}")]
    Unfinished(FabricError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl From<WaitedTooLong> for ShermanError {
    fn from(WaitedTooLong { what }: WaitedTooLong) -> Self {
        Self::TimedOut { what }
    }
}

impl ShermanError {
    /// Whether the failed operation may have taken effect nevertheless.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::Unfinished(_) => true,
            Self::Fabric(error) | Self::Pool(PoolError::Fabric(error)) => error.may_have_taken_effect(),
            _ => false,
        }
    }
}

/// Reason why a step of an operation failed.
#[derive(Debug)]
pub(crate) enum Retry {
    /// A concurrent change: the operation restarts.
    Restart,
    Failed(ShermanError),
}

/// Result of one attempt.
pub(crate) type Attempt<T> = std::result::Result<T, Retry>;

impl From<ShermanError> for Retry {
    fn from(error: ShermanError) -> Self {
        Self::Failed(error)
    }
}

impl From<WaitedTooLong> for Retry {
    fn from(waited: WaitedTooLong) -> Self {
        Self::Failed(waited.into())
    }
}

impl From<PoolError> for Retry {
    fn from(error: PoolError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<FabricError> for Retry {
    fn from(error: FabricError) -> Self {
        Self::Failed(error.into())
    }
}
