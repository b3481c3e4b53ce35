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

mod access;
mod answers;
mod async_session;
mod batch;
mod bulk;
mod check;
mod closing;
mod cluster;
mod config;
mod endpoint;
mod error;
mod find_servers;
mod index;
mod integers;
mod integers_async;
mod lost;
mod members;
mod memory;
mod memory_server;
mod options;
mod owners;
mod partitions;
mod place;
mod range;
mod raw;
mod reading;
pub mod remote;
mod repartition;
mod servers;
mod session;
mod shape;
mod stats;
mod wrong_servers;

pub use access::Access;
pub use answers::Answers;
pub use async_session::AsyncSession;
pub use batch::{Answer, Batch, Batched};
pub use bulk::{BULK_THREADS_MAX, BulkOptions, Loaded};
pub use check::{CheckReport, IndexReport};
pub use cluster::{Cluster, IndexInfo};
pub use config::{CacheOptions, Config, Create, MAX_COMPUTE_SERVERS, READ_AHEAD};
pub use error::{Error, Owner, Result};
pub use index::{Index, OwnedKeys};
pub use integers::{IntegerAnswer, IntegerBatch, IntegerRange, IntegerSession, IntegerSwapped};
pub use integers_async::AsyncIntegerSession;
pub use memory::DrainProgress;
pub use memory_server::{Backing, MemoryServer, MemoryServerConfig, memory_server_size};
pub use options::{IndexLayout, IndexOptions, OpenOptions, Ownership};
pub use owners::{Partition, PartitionOwner, Process};
pub use range::{Range, Scan};
pub use session::{Session, block_on};
pub use stats::{ComputeServerStats, FormerStats, IndexStats, SmoCounts, Stats};

pub use pando_cache::{CacheConfig, CacheCounts, Eviction};
pub use pando_dex::balancer::{Balancer, BalancerConfig};
pub use pando_dex::{DexError as IndexError, KeyRange, OffloadPolicy, ScanRange, SortedSource, Swapped};
pub use pando_fabric::{FabricError, GlobalAddr, MemoryServerId, VerbCounts};
pub use pando_fabric_net::wire::printable;
pub use pando_fabric_net::{Secret, SecretError, ServerCounts};
pub use pando_fabric_verbs::VerbsOptions;
pub use pando_pool::{PoolError, ProcessIdentity, ServerState, ServerUsage};
pub use pando_rt::pin_to_core;
