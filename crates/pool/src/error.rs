//! Errors of the pool. Every message is one sentence for a person; if bytes in the pool are wrong, it names
//! their address.
//!
//! A full memory server is an ordinary error ([`PoolError::is_full`]), after which everything still works. A
//! value that was replaced while it was read is not an error for the user: callers look up its reference
//! again.

use pando_fabric::{FabricError, GlobalAddr, MemoryServerId};

use crate::process::{AttachSlot, ProcessIdentity};

pub type Result<T, E = PoolError> = std::result::Result<T, E>;

/// Failure of a pool operation. Unless the message says otherwise, nothing was changed, nothing leaked, and
/// the pool is still usable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    #[error(transparent)]
    Fabric(#[from] FabricError),
    #[error("memory server {server} has no room for a block of {size} bytes")]
    PoolFull { server: MemoryServerId, size: u64 },
    #[error("memory server {server} got no memory for a block of {size} bytes: {reason}")]
    NoSpace { server: MemoryServerId, size: u64, reason: String },
    #[error("memory server {server} got no memory for {size} bytes of tables: {reason}")]
    NoSpaceForTables { server: MemoryServerId, size: u64, reason: String },
    #[error("a block of {size} bytes exceeds the largest of this pool, {max} bytes")]
    BlockTooLarge { size: u64, max: u64 },
    #[error("memory server {server} is being drained and takes no new blocks")]
    Draining { server: MemoryServerId },
    #[error(
        "memory server 0 cannot be drained: it holds the tables of the pool and the roots of its indexes"
    )]
    HomeServer,
    #[error("memory server {server} is not being drained")]
    NotDraining { server: MemoryServerId },
    #[error(
        "memory server {server} still holds {bytes} bytes, in blocks and in {leased} chunks that other processes lease; \
         it takes no new blocks, and can be drained again"
    )]
    NotEmpty { server: MemoryServerId, bytes: u64, leased: u64 },
    #[error(
        "memory server {server} was drained and is not there: start it, and name its address with those of the others"
    )]
    NotThere { server: MemoryServerId },
    #[error("there is no region for memory server {server}")]
    NoRegion { server: MemoryServerId },
    #[error("there is no memory server {server}: the pool has {servers}")]
    UnknownServer { server: MemoryServerId, servers: usize },

    #[error("the region of memory server {server} holds no pool")]
    NotAPool { server: MemoryServerId },
    #[error("the region of memory server {server} was cut short: {actual} bytes of {expected} are there")]
    CutShort { server: MemoryServerId, expected: u64, actual: u64 },
    #[error(
        "the pool on memory server {server} has format version {found}; this program reads version {expected}"
    )]
    VersionMismatch { server: MemoryServerId, found: u64, expected: u64 },
    #[error("the superblock of memory server {server} is damaged: {reason}")]
    DamagedSuperblock { server: MemoryServerId, reason: &'static str },
    #[error(
        "the region of memory server {server} belongs to another pool or to another place in this one: {reason}"
    )]
    ForeignRegion { server: MemoryServerId, reason: &'static str },
    #[error("the pool has {pool} memory servers, {named} were named")]
    WrongServers { pool: usize, named: usize },
    #[error("the regions already hold a pool; set the option to overwrite it")]
    PoolExists,
    #[error(
        "the region of memory server {server} is too small for a pool: {len} bytes, at least {min} are needed"
    )]
    RegionTooSmall { server: MemoryServerId, len: u64, min: u64 },
    #[error("invalid pool options: {reason}")]
    InvalidOptions { reason: String },

    #[error(
        "the pool was not closed cleanly: {process} ended while it was attached; open the pool read-only and save \
         what is needed, then repair it or create it anew"
    )]
    NotClosedCleanly { process: ProcessIdentity },
    #[error("the pool is in use by {process}, but a repair needs it alone")]
    InUse { process: ProcessIdentity },
    #[error("the pool is being repaired by {process}; try again after the repair")]
    BeingRepaired { process: ProcessIdentity },
    #[error("all {max} attach slots are taken")]
    AttachTableFull { max: usize },
    #[error("the pool was opened for reading only")]
    ReadOnly,
    #[error("the pool was not opened for repair")]
    NotInRepair,
    #[error("this handle was detached from the pool")]
    Detached,
    #[error(
        "{chunks} chunk leases of {process} were left behind by cancelled operations; the pool stays unclean"
    )]
    LeasesLeftBehind { process: ProcessIdentity, chunks: usize },

    #[error("an index named {name:?} already exists")]
    IndexExists { name: String },
    #[error("there is no index named {name:?}")]
    UnknownIndex { name: String },
    #[error("invalid index description: {reason}")]
    InvalidIndex { reason: String },
    #[error("the record of index {name:?} has changed since it was read")]
    StaleRecord { name: String },
    #[error("partition {partition} of index {name:?} is owned by {owner}")]
    PartitionOwned { name: String, partition: usize, owner: ProcessIdentity },
    #[error(
        "partition {partition} of index {name:?} is lost: {owner} owned it and ended without writing back what it had cached"
    )]
    PartitionLost { name: String, partition: usize, owner: ProcessIdentity },

    #[error("the block at {addr} is not allocated: it was freed twice or never allocated")]
    DoubleFree { addr: GlobalAddr },
    #[error("{size} bytes at {addr} are not a block of the pool: {reason}")]
    InvalidFree { addr: GlobalAddr, size: u64, reason: &'static str },
    #[error("corrupt bytes at {addr}: {reason}")]
    Corrupt { addr: GlobalAddr, reason: &'static str },

    #[error(
        "{error}; it is not known whether the catalog was changed, and blocks that the change allocated stay allocated"
    )]
    CatalogUnknown { error: FabricError },
    #[error("{error}; the catalog was not changed")]
    CatalogUnchanged { error: FabricError },
    #[error("{locks} locks of {process} could not be given back in time; the pool stays unclean")]
    LocksLeftBehind { process: ProcessIdentity, locks: usize },
    #[error("the operation waited too long for {what}")]
    WaitedTooLong { what: &'static str },
    #[error("the catalog of indexes kept changing while it was read")]
    CatalogBusy,

    #[error("a value of {len} bytes exceeds the longest possible, {max} bytes")]
    ValueTooLong { len: u64, max: u64 },
    #[error("the value at {addr} was freed or replaced, or its bytes are corrupt")]
    ValueChanged { addr: GlobalAddr },

    #[error("the lock at {at} was not free in time: the process in attach slot {holder} holds it")]
    LockTimedOut { at: GlobalAddr, holder: AttachSlot },
}

impl PoolError {
    /// Whether the requested memory server has no room or takes no new blocks, so that another one may be
    /// tried.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::PoolFull { .. } | Self::NoSpace { .. } | Self::Draining { .. })
    }

    /// Whether the failed operation may have taken effect nevertheless. If so, its inputs and results must
    /// not be freed or reused before their state has been read again.
    pub fn may_have_taken_effect(&self) -> bool {
        match self {
            Self::Fabric(error) => error.may_have_taken_effect(),
            Self::CatalogUnknown { .. } => true,
            _ => false,
        }
    }
}
