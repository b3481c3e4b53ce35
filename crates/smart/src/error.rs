//! How an operation on the index fails.
//!
//! [`SmartError`] goes to the caller; corrupt bytes are an error that names their address. `Retry` stays within the crate: it also
//! says that something changed under the operation, which then starts again, within its patience.

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
    #[error("the key belongs to the key range of another compute server")]
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

    /// Whether the operation that failed with this may have been done all the same.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::Fabric(error) | Self::Pool(PoolError::Fabric(error)) => error.may_have_taken_effect(),
            Self::Undecided(_) | Self::Combined => true,
            _ => false,
        }
    }

    /// Whether a memory server did not answer, or cannot be asked.
    pub(crate) fn is_unreachable(&self) -> bool {
        match self {
            Self::Fabric(error) | Self::Pool(PoolError::Fabric(error)) => error.is_unreachable(),
            _ => false,
        }
    }
}

/// The error of something after which the operation may have been done: it was already, or will be when a lock is given back.
pub(crate) fn undecided(error: impl Into<SmartError>) -> SmartError {
    match error.into() {
        error if error.may_have_taken_effect() => error,
        error => SmartError::Undecided(Box::new(error)),
    }
}

/// Why an attempt did not come through.
#[derive(Debug)]
pub(crate) enum Retry {
    /// Something changed under the operation: start again, from the root.
    Restart,
    Failed(SmartError),
}

impl Retry {
    /// Whether what was attempted may have been done all the same.
    pub fn may_have_taken_effect(&self) -> bool {
        matches!(self, Self::Failed(error) if error.may_have_taken_effect())
    }

    /// The same, of something after which the operation may have been done.
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
