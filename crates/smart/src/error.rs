//! Errors of operations on the index.
//!
//! [`SmartError`] goes to the caller; for corrupt bytes it names their address. `Retry` stays within the
//! crate: after a concurrent change, the operation restarts, within its time limit.

use pando_fabric::{FabricError, GlobalAddr, WaitedTooLong};
use pando_pool::PoolError;

pub type Result<T, E = SmartError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SmartError {
    #[error(
        "an entry of {key} bytes of key and {value} bytes of value is too long: together they may have {max} bytes, \
         the key at most 65535"
    )]
    EntryTooLong { key: usize, value: usize, max: usize },
    #[error("{0}")]
    Options(&'static str),
    #[error("memory server {server} is beyond what the slots of this index can lead to: {reason}")]
    TooFar { server: u16, reason: &'static str },
    #[error("the index at {addr} cannot be used: {reason}")]
    Anchor { addr: GlobalAddr, reason: &'static str },
    #[error("all {max} places for compute servers of this index are taken")]
    TooManyUsers { max: usize },
    #[error("the block at {addr} is corrupt: {reason}")]
    Corrupt { addr: GlobalAddr, reason: &'static str },
    #[error("the operation waited too long for {what}")]
    TimedOut { what: &'static str },
    #[error("bulk load needs an empty index")]
    NotEmpty,
    #[error("bulk load found key number {position} not above the one before")]
    NotSorted { position: u64 },
    #[error("the key belongs to another compute server")]
    NotOwned,
    #[error("{0}; the operation may or may not have been done")]
    Undecided(#[source] Box<SmartError>),
    #[error(
        "an operation of this compute server on the same key, which this one was combined with, failed; it may or may not \
         have been done"
    )]
    Combined,
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl From<WaitedTooLong> for SmartError {
    fn from(WaitedTooLong { what }: WaitedTooLong) -> Self {
        Self::TimedOut { what }
    }
}

impl SmartError {
    /// Whether there was no room for a block.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Pool(error) if error.is_full())
    }

    /// Whether the failed operation may have taken effect nevertheless.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::Fabric(error) | Self::Pool(PoolError::Fabric(error)) => error.may_have_taken_effect(),
            Self::Undecided(_) | Self::Combined => true,
            _ => false,
        }
    }

    /// Whether a memory server did not answer or is unreachable.
    pub(crate) fn is_unreachable(&self) -> bool {
        match self {
            Self::Fabric(error) | Self::Pool(PoolError::Fabric(error)) => error.is_unreachable(),
            _ => false,
        }
    }
}

/// Marks an error after which the operation may have taken effect: it did already, or will when a lock is
/// given back.
pub(crate) fn undecided(error: impl Into<SmartError>) -> SmartError {
    match error.into() {
        error if error.may_have_taken_effect() => error,
        error => SmartError::Undecided(Box::new(error)),
    }
}

/// Reason why an attempt failed.
#[derive(Debug)]
pub(crate) enum Retry {
    /// A concurrent change: restart from the root.
    Restart,
    Failed(SmartError),
}

impl Retry {
    /// Whether the attempted operation may have taken effect nevertheless.
    pub fn may_have_taken_effect(&self) -> bool {
        matches!(self, Self::Failed(error) if error.may_have_taken_effect())
    }

    /// Marks the error as one after which the operation may have taken effect.
    pub fn undecided(self) -> Self {
        match self {
            Self::Restart => Self::Restart,
            Self::Failed(error) => Self::Failed(undecided(error)),
        }
    }
}

impl From<SmartError> for Retry {
    fn from(error: SmartError) -> Self {
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

/// Result of one attempt.
pub(crate) type Attempt<T> = std::result::Result<T, Retry>;
