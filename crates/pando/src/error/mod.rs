//! Errors of the library. Each message is one sentence that says what happened and, if possible, what to do.
//!
//! Errors of lower layers are passed on as they are, wrapped at most once to name a path or an index. A
//! caller that must choose an exit status or an answer uses [`Error::is_bad_input`] and [`Error::is_full`]
//! and need not know the variants.

mod backup;
mod elf;
mod remote;

use std::fmt;
use std::path::PathBuf;

use pando_cache::CacheError;
use pando_dex::DexError;
use pando_fabric::FabricError;
use pando_pool::{PoolError, ProcessIdentity};

use crate::layout::IndexLayout;
pub use backup::BackupError;
pub use remote::{ErrorCode, RemoteError};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure of an operation. Unless the message says otherwise, nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value of [`crate::Config`], [`crate::IndexOptions`] or similar options that is out of its bounds.
    #[error("{0}")]
    InvalidOption(String),
    /// A list of memory servers that are not exactly those of one pool.
    #[error("{0}")]
    WrongServers(String),
    #[error("{}: {error}", .path.display())]
    CannotOpen { path: PathBuf, error: Box<Error> },
    #[error(
        "the pool {} was not closed cleanly: {process} ended while it was attached; if its indexes have logs, \
         opening it for writing recovers it; else open it for looking only, save what can still be read, and \
         create it anew",
        .path.display()
    )]
    NotClosedCleanly { path: PathBuf, process: ProcessIdentity },

    #[error("there is no index {name:?}; {}", existing_names(.existing))]
    UnknownIndex { name: String, existing: Vec<String> },
    #[error("there is an index {name:?} already")]
    IndexExists { name: String },
    #[error("index {name:?} holds {found}, but {expected} were expected")]
    WrongLayout { name: String, found: IndexLayout, expected: IndexLayout },
    #[error("index {name:?} cannot be used: {reason}")]
    BadIndex { name: String, reason: String },
    #[error("index {name:?} is an Elf, a table for conditions on several columns, and has no keys")]
    IsElf { name: String },
    #[error("index {name:?} is no Elf: it has keys and values")]
    NotAnElf { name: String },
    /// Values, conditions or options that do not fit an Elf table.
    #[error(transparent)]
    Elf(Box<pando_elf::Error>),
    /// Failure of a query or a change of an Elf table.
    #[error(transparent)]
    ElfTable(Box<pando_elf_remote::RemoteError>),
    #[error("index {name:?} has entries, but only an empty index can be loaded in bulk")]
    NotEmpty { name: String },
    #[error("index {name:?} is open in this process already, with other partitions")]
    OpenOtherwise { name: String },

    #[error("the key belongs to partition {partition} of index {index:?}, which {}", owned_by(.owner, "nobody owns at the moment"))]
    NotOwned { index: String, partition: usize, owner: Option<Owner> },
    #[error("partition {partition} of index {index:?} {}", served_by(.owner, *.is_lost))]
    NotServed { index: String, partition: usize, owner: Option<Owner>, is_lost: bool },
    #[error(
        "the key belongs to compute server {belongs_to}, but this session works for compute server {session_of} only"
    )]
    OtherComputeServer { belongs_to: usize, session_of: usize },
    #[error(
        "partition {partition} of index {index:?} is owned by {owner}, which must close it before {what}"
    )]
    PartitionOwned { index: String, partition: usize, owner: Owner, what: &'static str },
    #[error("{what} needs all of index {index:?}, but this process does not own partition {partition}")]
    NotAllOwned { what: &'static str, index: String, partition: usize },
    #[error(
        "{what} needs the compute servers on both sides in this process, but {} partition {partition} of index \
         {index:?}",
        owned_by(.owner, "nobody owns")
    )]
    OnOtherSide { what: &'static str, index: String, partition: usize, owner: Option<Owner> },
    #[error("boundary {boundary} of index {index:?} does not move: {reason}")]
    NotMoved { index: String, boundary: usize, reason: Box<str> },
    #[error("{what} needs the pool alone, but {process} is attached to it too")]
    NotAlone { what: &'static str, process: ProcessIdentity },
    #[error("{what} needs index {index:?} at rest, but {count} sessions of it are open")]
    SessionsOpen { what: &'static str, index: String, count: usize },
    #[error("{what} needs all indexes closed, but index {index:?} is open")]
    IndexesOpen { what: &'static str, index: String },
    #[error("index {index:?} cannot be used during {what}")]
    Busy { index: String, what: &'static str },
    #[error(
        "a blocking call within a slot would never end: use the asynchronous session that the slot was given"
    )]
    InsideSlot,
    /// A change failed midway, and reading its outcome failed as well.
    #[error("{what} failed and may have taken effect: {error}")]
    Perhaps { what: &'static str, error: Box<Error> },
    #[error("index {index:?} must be opened again, since {what} failed midway: {reason}")]
    Unsettled { index: String, what: &'static str, reason: Box<str> },
    /// Its caller had it stop, see for example [`crate::Cluster::drain_memory_server`].
    #[error("{what} was stopped before its end, and goes on when it is asked for again")]
    Stopped { what: &'static str },
    #[error("the cluster was closed")]
    Closed,
    #[error("the pool was opened for reading only")]
    ReadOnly,
    /// For readers, see [`crate::Config::read_only`].
    #[error("index {index:?} is open for writing by {owner}, and can be read here when that has closed it")]
    OpenForWriting { index: String, owner: Owner },

    #[error(transparent)]
    Index(DexError),
    #[error(transparent)]
    Pool(PoolError),
    #[error(transparent)]
    Cache(CacheError),
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Failure of a backup or of a restore ([`crate::backup`]).
    #[error(transparent)]
    Backup(Box<BackupError>),
    /// Failure at a compute server elsewhere ([`crate::remote`]).
    #[error(transparent)]
    Remote(#[from] RemoteError),
}

impl Error {
    /// The error for a request that needs the feature `verbs`.
    #[cfg(not(feature = "verbs"))]
    pub(crate) fn without_verbs() -> Self {
        Self::InvalidOption("this was built without RDMA; build it with the feature `verbs`".to_owned())
    }

    /// Whether the request is at fault (a wrong name, size, path or key), rather than its execution.
    pub fn is_bad_input(&self) -> bool {
        match self {
            Self::InvalidOption(_)
            | Self::WrongServers(_)
            | Self::UnknownIndex { .. }
            | Self::IndexExists { .. }
            | Self::WrongLayout { .. }
            | Self::NotEmpty { .. }
            | Self::IsElf { .. }
            | Self::NotAnElf { .. }
            | Self::ReadOnly => true,
            Self::Elf(error) => elf::is_bad_input(error),
            Self::ElfTable(error) => elf::is_bad_table_input(error),
            Self::CannotOpen { error, .. } => error.is_bad_input(),
            Self::Index(error) => matches!(
                error,
                DexError::KeyTooLong { .. }
                    | DexError::WrongKeySize { .. }
                    | DexError::WrongValueSize { .. }
                    | DexError::ValueTooLong { .. }
                    | DexError::Layout(_)
                    | DexError::NotSorted { .. }
            ),
            Self::Pool(error) => matches!(
                error,
                PoolError::NotAPool { .. }
                    | PoolError::PoolExists
                    | PoolError::RegionTooSmall { .. }
                    | PoolError::InvalidOptions { .. }
                    | PoolError::InvalidIndex { .. }
                    | PoolError::HomeServer
                    | PoolError::UnknownServer { .. }
                    | PoolError::ValueTooLong { .. }
            ),
            Self::Cache(error) => matches!(error, CacheError::TooSmall { .. } | CacheError::TooLarge { .. }),
            Self::Fabric(error) => matches!(error, FabricError::Open { .. }),
            Self::Backup(error) => error.is_bad_input(),
            Self::Remote(error) => error.is_bad_input(),
            _ => false,
        }
    }

    /// Whether the operation may have taken effect although it failed, because a server was asked and did not
    /// answer.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::Perhaps { .. } => true,
            Self::Index(error) => error.may_have_taken_effect(),
            Self::Pool(error) => error.may_have_taken_effect(),
            Self::Cache(CacheError::Fabric(error)) => error.may_have_taken_effect(),
            Self::Fabric(error) => error.may_have_taken_effect(),
            Self::Remote(error) => error.may_have_taken_effect(),
            Self::ElfTable(error) => error.may_have_taken_effect(),
            _ => false,
        }
    }

    /// Turns the error of a change that may have taken effect into one that says so.
    pub(crate) fn perhaps(self, what: &'static str) -> Self {
        match self.may_have_taken_effect() {
            true => self,
            false => Self::Perhaps { what, error: Box::new(self) },
        }
    }

    /// Whether the first memory server holds no pool.
    pub(crate) fn is_no_pool(&self) -> bool {
        match self {
            Self::CannotOpen { error, .. } => error.is_no_pool(),
            Self::Pool(PoolError::NotAPool { server }) => server.0 == 0,
            _ => false,
        }
    }

    /// Whether a living process is attached to a pool that was to be repaired.
    pub(crate) fn is_in_use(&self) -> bool {
        match self {
            Self::CannotOpen { error, .. } => error.is_in_use(),
            Self::Pool(PoolError::InUse { .. }) => true,
            _ => false,
        }
    }

    /// Whether another process repairs the pool.
    pub(crate) fn is_being_repaired(&self) -> bool {
        match self {
            Self::CannotOpen { error, .. } => error.is_being_repaired(),
            Self::Pool(PoolError::BeingRepaired { .. }) => true,
            _ => false,
        }
    }

    /// Whether the memory servers have no room. With freed blocks or larger servers the operation would
    /// succeed.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Pool(error) => error.is_full(),
            Self::Remote(error) => error.is_full(),
            _ => false,
        }
    }
}

fn existing_names(names: &[String]) -> String {
    const LISTED: usize = 10;
    if names.is_empty() {
        return "the pool has none".to_owned();
    }
    let listed: Vec<String> = names.iter().take(LISTED).map(|name| format!("{name:?}")).collect();
    let more = names.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("the pool has {}{more}", listed.join(", "))
}

/// A process that owns keys, and the address at which it serves them, if announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub process: ProcessIdentity,
    /// `host:port` of its operation port.
    pub address: Option<Box<str>>,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => write!(f, "{} at {address}", self.process),
            None => self.process.fmt(f),
        }
    }
}

fn served_by(owner: &Option<Owner>, is_lost: bool) -> String {
    match owner {
        Some(owner) if is_lost => {
            format!(
                "is lost: {owner} owned it and ended without writing back what it had cached; if the index has a log, the \
                 next process that opens it for writing takes it over"
            )
        }
        Some(owner) => format!("is owned by {owner}, which has no operation port for it"),
        None => "is nobody's at the moment".to_owned(),
    }
}

fn owned_by(owner: &Option<Owner>, nobody: &str) -> String {
    owner.as_ref().map_or(nobody.to_owned(), |owner| format!("{owner} owns"))
}

impl From<DexError> for Error {
    fn from(error: DexError) -> Self {
        match error {
            DexError::Cache(error) => error.into(),
            DexError::Pool(error) => error.into(),
            DexError::Fabric(error) => error.into(),
            other => Self::Index(other),
        }
    }
}

impl From<CacheError> for Error {
    fn from(error: CacheError) -> Self {
        match error {
            CacheError::Fabric(error) => error.into(),
            other => Self::Cache(other),
        }
    }
}

impl From<PoolError> for Error {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Fabric(error) => error.into(),
            PoolError::IndexExists { name } => Self::IndexExists { name },
            PoolError::Detached => Self::Closed,
            PoolError::ReadOnly => Self::ReadOnly,
            other => Self::Pool(other),
        }
    }
}

// Errors are part of the result of every operation, so their size is bounded.
const _: () = assert!(size_of::<Error>() <= 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let unknown = |existing: &[&str]| {
            let existing = existing.iter().map(|&name| name.to_owned()).collect();
            Error::UnknownIndex { name: "x".into(), existing }.to_string()
        };
        assert_eq!(unknown(&[]), "there is no index \"x\"; the pool has none");
        assert_eq!(unknown(&["a", "b"]), "there is no index \"x\"; the pool has \"a\", \"b\"");
        assert!(unknown(&["n"; 12]).ends_with("\"n\" and 2 more"));
    }

    #[test]
    fn errors_of_lower_layers_are_not_wrapped_twice() {
        let full = || PoolError::PoolFull { server: pando_fabric::MemoryServerId(0), size: 64 };
        assert!(Error::from(DexError::Pool(full())).is_full());
        assert!(matches!(Error::from(DexError::Pool(PoolError::Detached)), Error::Closed));
        let gone = FabricError::UnknownServer(pando_fabric::MemoryServerId(3));
        assert!(matches!(Error::from(DexError::Cache(CacheError::Fabric(gone))), Error::Fabric(_)));
    }
}
