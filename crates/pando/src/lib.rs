//! Pando: a range index for disaggregated memory.
//!
//! Keys and values live in a *pool*: the memory of one or several memory servers. That memory belongs to this
//! process, to files that several processes map, or to processes on other hosts. Threads reach it through
//! *compute servers*, each of which owns a range of the keys and has a cache of its own. The index is DEX, a
//! B+-tree for disaggregated memory.
//!
//! ```
//! use pando::{Cluster, Config, IndexOptions};
//!
//! let cluster = Cluster::open(Config::embedded())?;
//! let index = cluster.create_index("trees", &IndexOptions::bytes())?;
//! let session = index.session()?;
//! session.put(b"aspen", b"Populus tremuloides")?;
//! session.put(b"oak", b"Quercus robur")?;
//! assert_eq!(session.get(b"aspen")?.as_deref(), Some(&b"Populus tremuloides"[..]));
//! for entry in session.range("a".."b") {
//!     let (key, _value) = entry?;
//!     assert_eq!(key, b"aspen");
//! }
//! # Ok::<(), pando::Error>(())
//! ```
//!
//! The crates below this one are generic over the fabric; this one names the concrete fabrics.
#![doc = include_str!("map.md")]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

mod admin;
pub mod backup;
mod cluster;
mod copies;
pub mod elf;
mod error;
mod index;
mod layout;
mod local;
mod memory_server;
mod options;
mod place;
mod recovery;
pub mod remote;
mod session;
mod shared;
mod stats;
mod table;

pub use admin::{CheckReport, DrainProgress, IndexReport};
pub use cluster::Cluster;
pub use copies::{Copies, CopyProgress, ServerCopies};
pub use error::{Error, Owner, Result};
pub use index::{BULK_THREADS_MAX, BulkOptions, Followed, Index, IndexInfo, Loaded, OwnedKeys};
pub use layout::IndexLayout;
pub use local::redo::Recovery;
pub use memory_server::{Backing, MemoryServer, MemoryServerConfig, memory_server_at};
pub use options::{
    Access, CacheOptions, Config, Create, Durability, IndexOptions, MAX_COMPUTE_SERVERS, OpenOptions,
    Ownership, READ_AHEAD, RecoveryProgress,
};
pub use session::{
    Answer, Answers, AsyncIntegerSession, AsyncSession, Batch, Batched, IntegerAnswer, IntegerBatch,
    IntegerRange, IntegerSession, IntegerSwapped, Range, Scan, Session, block_on,
};
pub use shared::{Partition, PartitionOwner, Process};
pub use stats::{ComputeServerStats, FormerStats, IndexStats, LogStats, SmoCounts, Stats};

pub use pando_cache::{CacheConfig, CacheCounts, Eviction};
pub use pando_dex::balancer::{Balancer, BalancerConfig};
pub use pando_dex::{DexError as IndexError, KeyRange, OffloadPolicy, ScanRange, SortedSource, Swapped};
pub use pando_fabric::{FabricError, GlobalAddr, MemoryServerId, VerbCounts};
pub use pando_fabric_net::serve::HeardProcess;
pub use pando_fabric_net::wire::printable;
pub use pando_fabric_net::{
    BadRegister, Fill, MemberCondition, MemoryServerFound, RegisterAddress, Secret, SecretError,
    ServerCondition, ServerCounts, VolumeId,
};
pub use pando_fabric_verbs::VerbsOptions;
pub use pando_pool::{PoolError, ProcessIdentity, ServerState, ServerUsage};
pub use pando_rt::pin_to_core;
