//! The memory pool: the memory servers' regions as one space of blocks, with a catalog of indexes (DEX §3).
//!
//! A [`Pool`] allocates blocks for nodes ([`Pool::alloc`], [`Pool::free`]), stores long values out of line
//! ([`Pool::put_value`]) and finds indexes by name ([`Pool::create_index`], [`Pool::open_index`]). All its
//! metadata lies in the regions and is changed by one-sided verbs. So it works alike within a process, on
//! files that several processes map, and over a network with memory servers whose processors are idle.
//! `layout.rs` draws the layout; `chunks.rs` describes how chunks move between processes, `membership.rs` how
//! memory servers join and leave.
//!
//! ```
//! use pando_fabric::{Fabric, MemoryServerId};
//! use pando_fabric_local::{LocalConfig, LocalFabric};
//! use pando_pool::{Placement, Pool, PoolOptions};
//! use pando_rt::block_on;
//!
//! let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![1 << 20; 2], huge_pages: false })?;
//! let ep = &fabric.endpoint(1)?;
//! let pool = block_on(ep, Pool::create(ep, PoolOptions::embedded()))?;
//!
//! let node = block_on(ep, pool.alloc(ep, Placement::Server(MemoryServerId(1)), 1024))?;
//! assert_eq!((node.server(), node.offset() % 1024), (MemoryServerId(1), 0));
//! block_on(ep, pool.free(ep, node, 1024))?;
//!
//! let value = block_on(ep, pool.put_value(ep, Placement::LeastLoaded, b"a long value"))?;
//! let mut bytes = Vec::new();
//! block_on(ep, pool.get_value(ep, value, &mut bytes))?;
//! assert_eq!(bytes, b"a long value");
//! block_on(ep, pool.detach(ep))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod alloc;
mod arena;
mod attach;
mod catalog;
mod chunks;
mod classes;
pub mod defect;
mod directory;
mod error;
mod held;
mod io;
mod layout;
mod leftovers;
pub mod lock;
mod logs;
mod membership;
mod notice;
mod pool;
mod process;
mod rebuild;
mod reclaim;
mod record;
mod ring;
mod states;
mod twin;
mod usage;
mod value;

pub use alloc::{Placement, Run};
pub use attach::{AttachMode, AttachOptions, IsAlive};
pub use classes::MAX_BLOCK;
pub use error::{PoolError, Result};
pub use held::{LOOKS_AT_HOLDER, RemoteLock};
pub use layout::MIN_CHUNK;
pub use leftovers::{Due, Finishing, Leftovers, Order};
pub use lock::Awaited;
pub use logs::{LogChange, LogPlace};
pub use membership::drained_servers;
pub use notice::Attached;
pub use pool::{Pool, PoolOptions, RegionPlace, place_of_region};
pub use process::{AttachSlot, MAX_ATTACHED, ProcessIdentity};
pub use rebuild::RebuildReport;
pub use record::{IndexRecord, IndexSpec, MAX_BOUNDARIES, MAX_INDEX_NAME, MAX_LAYOUT};
pub use ring::next_of_region;
pub use states::ServerState;
pub use usage::ServerUsage;
pub use value::{FailedReads, MAX_VALUE, ValueRef};
