//! Errors of publishing and of queries.
//!
//! [`RemoteError`] goes to the caller. `Retry` stays within the crate: an attempt that met a replaced image
//! begins anew, as often as the options allow.

use pando_fabric::{FabricError, GlobalAddr, MemoryServerId};
use pando_pool::PoolError;

pub type Result<T, E = RemoteError> = std::result::Result<T, E>;

/// Failure of a publication or a query. A failed publication left the image that was there, unless
/// [`RemoteError::may_have_taken_effect`] says otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    #[error("{0}")]
    Options(&'static str),
    #[error("index {name:?} is no Elf, or one of another version of this program")]
    NotAnElf { name: String },
    #[error("index {name:?} has no image yet")]
    NoImage { name: String },
    #[error("index {name:?} was replaced {times} times while a query of it ran")]
    KeptChanging { name: String, times: u32 },
    #[error(
        "index {name:?} was replaced by others each of the {times} times that an image was to be published"
    )]
    KeptLosing { name: String, times: u32 },
    #[error("the image of index {name:?} is damaged at {addr}: its checksum is wrong")]
    BadPiece { name: String, addr: GlobalAddr },
    #[error("the manifest of the image at {addr} is damaged: {reason}")]
    BadManifest { addr: GlobalAddr, reason: &'static str },
    #[error("the description of the table at {addr} is damaged: {reason}")]
    BadTable { addr: GlobalAddr, reason: &'static str },
    #[error("the rows have other columns than the table {name:?}")]
    OtherColumns { name: String },
    #[error("the rows that were to be merged were merged by others meanwhile")]
    MergedByOthers,
    #[error("the image to be published cannot be read: {reason}")]
    UnreadableImage { reason: String },
    #[error(transparent)]
    Elf(#[from] pando_elf::Error),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

impl RemoteError {
    /// Whether a failed publication may have taken effect nevertheless.
    pub fn may_have_taken_effect(&self) -> bool {
        matches!(self, Self::Pool(PoolError::CatalogUnknown { .. }))
    }

    /// Whether a memory server did not answer or is unreachable.
    pub fn is_unreachable(&self) -> bool {
        self.unreached().is_some()
    }

    /// The memory server that did not answer, if that is the failure.
    pub(crate) fn unreached(&self) -> Option<MemoryServerId> {
        match self {
            Self::Fabric(error)
            | Self::Pool(
                PoolError::Fabric(error)
                | PoolError::CatalogUnknown { error }
                | PoolError::CatalogUnchanged { error },
            ) => error.unreached(),
            _ => None,
        }
    }
}

/// Reason why an attempt of a query failed.
#[derive(Debug)]
pub(crate) enum Retry {
    /// The catalog changed since the image was found in it.
    Moved,
    /// Bytes of the image are other ones now.
    Changed(GlobalAddr),
    Failed(RemoteError),
}

/// Result of one attempt.
pub(crate) type Attempt<T> = std::result::Result<T, Retry>;

impl<T: Into<RemoteError>> From<T> for Retry {
    fn from(error: T) -> Self {
        Self::Failed(error.into())
    }
}

/// The image leads to `what`, which cannot be: its writer was broken, since the checksums are right.
pub(crate) fn damaged(at: u64, what: &'static str) -> Retry {
    pando_elf::Error::Damaged { at, what }.into()
}
