//! SMART: an adaptive radix tree for disaggregated memory (Luo et al., OSDI 2023), with its baseline, ART.
//!
//! All compute servers work on the whole tree by one-sided verbs. [`Techniques`] switches the paper's
//! additions to ART, in the order of its ablation. `docs/smart.md` explains the differences from the paper;
//! `layout` describes remote memory.
//!
//! - A descent begins at the deepest cached node, or at the root (`descend.rs`). A cached node only shortens
//!   the path.
//! - Every change takes effect by one compare-and-swap of a slot or of the last word of a leaf, or by one
//!   WRITE under a lock (`change.rs`, `insert.rs`, `leaves.rs`). Nodes are replaced by freezing them
//!   (`replace.rs`).
//! - Operations of one compute server on one key share one remote operation (`groups.rs`).
//! - A block is freed only when nothing can lead to it any more (`epoch.rs`).
//!
//! ```
//! use pando_fabric::Fabric;
//! use pando_fabric_local::{LocalConfig, LocalFabric};
//! use pando_pool::{Pool, PoolOptions};
//! use pando_rt::block_on;
//! use pando_smart::{CreateOptions, Smart, SmartConfig, Techniques};
//!
//! let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![4 << 20; 2], huge_pages: false })?;
//! let ep = &fabric.endpoint(1)?;
//! let found: Result<bool, pando_smart::SmartError> = block_on(ep, async {
//!     let pool = Pool::create(ep, PoolOptions::embedded()).await?;
//!     let anchor = Smart::create(ep, &pool, &CreateOptions::new(1, Techniques::SMART)).await?;
//!     let smart = Smart::open(ep, pool, SmartConfig::new(anchor, Techniques::SMART)).await?;
//!     smart.put(ep, b"aspen", b"Utah").await?;
//!     let mut value = Vec::new();
//!     let found = smart.get(ep, b"aspen", &mut value).await?;
//!     assert_eq!(value, b"Utah");
//!     smart.close(ep).await?;
//!     Ok(found)
//! });
//! assert!(found.expect("no error"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod anchor;
mod audit;
mod bulk;
mod cache;
mod change;
pub mod defect;
mod descend;
mod epoch;
mod error;
mod groups;
mod insert;
mod layout;
mod leaves;
mod local_locks;
mod options;
mod own_writes;
mod replace;
mod scan;
mod tree;

pub use audit::Audit;
pub use cache::CacheCounts;
pub use error::{Result, SmartError};
pub use options::{CachePolicy, CreateOptions, NodeRoom, Partition, SmartConfig, Techniques};
pub use tree::Smart;
