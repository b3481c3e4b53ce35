//! Errors of backups ([`crate::backup`]): files that cannot be read or written, backups that are none, not whole or
//! damaged.
//!
//! Each names its file; damage names the byte, too.

use std::io;
use std::path::PathBuf;

use super::Error;

/// Failure of a backup, of its verification or of a restore.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    #[error("cannot {action} {}: {error}", .path.display())]
    File { action: &'static str, path: PathBuf, error: io::Error },
    #[error("{url} is no place for backups: it must be a directory{}", other_places(.scheme))]
    Scheme { url: String, scheme: String },
    #[error("there is no backup in {}", .path.display())]
    NoBackup { path: PathBuf },
    #[error("there is no backup {id:?} in {}", .path.display())]
    Unknown { id: String, path: PathBuf },
    #[error(
        "the backup {} is incomplete, since the process that made it ended early or is still at it",
        .path.display()
    )]
    Incomplete { path: PathBuf },
    #[error("{} is of version {found}, and this program reads version {known}", .path.display())]
    OtherVersion { path: PathBuf, found: u32, known: u32 },
    /// Offset in bytes.
    #[error("{} is damaged at byte {offset}: {what}", .path.display())]
    Damaged { path: PathBuf, offset: u64, what: &'static str },
    #[error("the backup {} has no index {name:?}; it has {}", .path.display(), .existing.join(", "))]
    UnknownIndex { name: String, path: PathBuf, existing: Vec<String> },
    #[error(
        "a backup cannot hold Elf tables, and the pool has {}; ask for a backup without tables, and keep what they \
         were built from",
        .names.join(", ")
    )]
    Tables { names: Vec<String> },
    #[error("the backup was stopped")]
    Stopped,
    #[error("another backup of index {index:?} is under way")]
    UnderWay { index: String },
    #[error("index {index:?} was opened for writing while it was backed up; try again")]
    Changed { index: String },
}

/// What a place may be besides a directory, if it is not one for the `scheme` of its URL.
fn other_places(scheme: &str) -> &'static str {
    match scheme {
        _ if cfg!(feature = "object-store") => " or s3://BUCKET/PREFIX",
        "s3" => "; for object stores this program must be built with the feature `object-store`",
        _ => "",
    }
}

impl BackupError {
    /// Whether the request or its files are at fault, rather than the execution.
    pub(super) fn is_bad_input(&self) -> bool {
        !matches!(self, Self::File { .. } | Self::Stopped | Self::UnderWay { .. } | Self::Changed { .. })
    }
}

impl From<BackupError> for Error {
    fn from(error: BackupError) -> Self {
        Self::Backup(Box::new(error))
    }
}
