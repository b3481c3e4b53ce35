//! Pando: a range index for disaggregated memory.
//!
//! Keys and values live in a *pool*: the memory of one or several memory servers, here of this process or of files
//! that several processes map. Threads reach it through *compute servers*, each of which owns a range of the keys and
//! has a cache of its own. The index is DEX, a B+-tree made for that.
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
//! A [`Cluster`] is a pool as this process uses it, an [`Index`] one of the indexes in it, by name, and a [`Session`]
//! one thread's access to that. [`IntegerSession`] is the same for `u64`. [`Config::at`] keeps the pool in a file, which
//! is opened again after [`Cluster::close`]; [`Index::bulk_load`] fills an index quickly; [`Session::in_flight`] and
//! [`Session::multi_get`] keep many operations in flight on one thread. [`Cluster::stats`] counts everything, and
//! [`Cluster::check`] audits it. While sessions work, [`Index::add_compute_server`], [`Index::remove_compute_server`],
//! [`Index::move_boundary`] and [`Index::balance`] change who has which keys.
//!
//! Several processes may attach to the pool in a file. The keys of an index are divided into partitions, and each
//! process owns those that it opened the index with ([`OpenOptions::own`]); other keys are refused with the name of
//! their owner. A process that is not to have a cache of its own asks those that do over the network: [`remote`].
//!
//! This crate alone names concrete fabrics; everything below it works with any.
#![forbid(unsafe_code)]

mod access;
mod answers;
mod async_session;
mod bulk;
mod check;
mod cluster;
mod config;
mod endpoint;
mod error;
mod index;
mod integers;
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
pub mod remote;
mod repartition;
mod servers;
mod session;
mod shape;
mod stats;

pub use access::Access;
pub use answers::Answers;
pub use async_session::AsyncSession;
pub use bulk::{BulkOptions, Loaded};
pub use check::{CheckReport, IndexReport};
pub use cluster::{Cluster, IndexInfo};
pub use config::{CacheOptions, Config, Create, MAX_COMPUTE_SERVERS, READ_AHEAD};
pub use error::{Error, Owner, Result};
pub use index::{Index, OwnedKeys};
pub use integers::{IntegerRange, IntegerSession};
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
pub use pando_fabric_net::{Secret, ServerCounts};
pub use pando_fabric_verbs::VerbsOptions;
pub use pando_pool::{PoolError, ProcessIdentity, ServerState, ServerUsage};
pub use pando_rt::pin_to_core;
