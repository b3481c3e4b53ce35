//! Errors of operations on the tree.
//!
//! [`DexError`] goes to the caller; for corrupt bytes it names their address. `Retry` stays within the crate.
//! It also covers conflicts, after which the operation restarts within its patience.

use pando_cache::{CacheError, Conflict, NoFrame};
use pando_fabric::{FabricError, GlobalAddr, MemoryServerId, WaitedTooLong};
use pando_log::LogError;
use pando_pool::PoolError;

/// Reason why an operation got no frame: it must give way to another one, or nothing could be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowding {
    GiveWay,
    Crowded,
}

impl From<NoFrame> for Retry {
    fn from(no_frame: NoFrame) -> Self {
        match no_frame {
            NoFrame::GiveWay => Self::Crowded(Crowding::GiveWay),
            NoFrame::Crowded => Self::Crowded(Crowding::Crowded),
            NoFrame::Failed(error) => Self::Failed(error.into()),
        }
    }
}

pub type Result<T, E = DexError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DexError {
    #[error("a key of {len} bytes is longer than the {max} bytes that a node of this index can hold")]
    KeyTooLong { len: usize, max: usize },
    #[error("a key of {len} bytes in an index whose keys have {expected} bytes")]
    WrongKeySize { len: usize, expected: usize },
    #[error("a value of {len} bytes in an index whose values have {expected} bytes")]
    WrongValueSize { len: usize, expected: usize },
    #[error("a value of {len} bytes is longer than the {max} bytes that a value can have")]
    ValueTooLong { len: usize, max: usize },
    #[error("{0}")]
    Layout(String),
    #[error("the key belongs to the key range of another compute server")]
    NotOwned,
    #[error("{0}")]
    Routes(&'static str),
    #[error("the keys of this compute server are being moved already")]
    Moving,
    #[error("a range of keys that {0}")]
    WrongRange(&'static str),
    #[error("the node at {addr} is corrupt: {reason}")]
    Corrupt { addr: GlobalAddr, reason: &'static str },
    #[error("the operation waited too long for {what}")]
    TimedOut { what: &'static str },
    /// The requested change was made, but the work after it (freeing a value, merging nodes) failed.
    #[error("the entry was changed, but what was to follow failed: {0}")]
    Settling(Box<DexError>),
    #[error("bulk load needs an empty index")]
    NotEmpty,
    #[error("bulk load found key number {position} not above the one before")]
    NotSorted { position: u64 },
    /// A change may have been made.
    #[error(transparent)]
    Log(LogError),
    #[error(transparent)]
    Cache(#[from] CacheError),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl From<WaitedTooLong> for DexError {
    fn from(WaitedTooLong { what }: WaitedTooLong) -> Self {
        Self::TimedOut { what }
    }
}

impl DexError {
    /// Whether a repetition of the call may succeed: a resource was busy, or a server did not answer.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self, Self::Fabric(_) | Self::Pool(_) | Self::Cache(_) | Self::Moving)
    }

    /// The memory server that did not answer, if that is the failure.
    pub(crate) fn unreached(&self) -> Option<MemoryServerId> {
        match self {
            Self::Fabric(error)
            | Self::Pool(PoolError::Fabric(error))
            | Self::Cache(CacheError::Fabric(error)) => error.unreached(),
            _ => None,
        }
    }

    /// Whether the failed operation may have taken effect nevertheless.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::Fabric(error) => error.may_have_taken_effect(),
            Self::Pool(error) => error.may_have_taken_effect(),
            Self::Cache(CacheError::Fabric(error)) => error.may_have_taken_effect(),
            Self::Settling(_) | Self::Log(_) => true,
            _ => false,
        }
    }
}

/// Reason why a step of an operation did not succeed.
#[derive(Debug)]
pub(crate) enum Retry {
    /// A conflict: restart the descent.
    Restart,
    /// No frame for the operation: restart the descent when
    /// [`RestartPolicy`](crate::recovery::restart::RestartPolicy) admits it.
    Crowded(Crowding),
    Failed(DexError),
}

impl From<Conflict> for Retry {
    fn from(_: Conflict) -> Self {
        Self::Restart
    }
}

impl From<DexError> for Retry {
    fn from(error: DexError) -> Self {
        Self::Failed(error)
    }
}

impl From<CacheError> for Retry {
    fn from(error: CacheError) -> Self {
        Self::Failed(error.into())
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
