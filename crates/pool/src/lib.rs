//! The memory pool: the memory servers' regions as one space of blocks, with a catalog of indexes.
#![forbid(unsafe_code)]

mod alloc;
mod arena;
mod attach;
mod catalog;
mod chunks;
mod classes;
mod error;
mod io;
mod layout;
pub mod lock;
mod pool;
mod rebuild;
mod record;
mod usage;
mod value;

pub use alloc::{Placement, Run};
pub use attach::{AttachMode, AttachOptions, AttachSlot, IsAlive, MAX_ATTACHED, ProcessIdentity};
pub use classes::MAX_BLOCK;
pub use error::{PoolError, Result};
pub use layout::MIN_CHUNK;
pub use pool::{Pool, PoolOptions};
pub use rebuild::RebuildReport;
pub use record::{IndexRecord, IndexSpec, MAX_BOUNDARIES, MAX_INDEX_NAME, MAX_LAYOUT};
pub use usage::ServerUsage;
pub use value::{MAX_VALUE, ValueRef};
