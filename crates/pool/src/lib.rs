//! The memory pool: the memory servers' regions as one space of blocks, with a catalog of indexes.
#![forbid(unsafe_code)]

mod alloc;
mod arena;
mod attach;
mod chunks;
mod classes;
mod error;
mod io;
mod layout;
pub mod lock;
mod pool;
mod usage;

pub use alloc::{Placement, Run};
pub use attach::{AttachMode, AttachOptions, AttachSlot, IsAlive, MAX_ATTACHED, ProcessIdentity};
pub use classes::MAX_BLOCK;
pub use error::{PoolError, Result};
pub use layout::MIN_CHUNK;
pub use pool::{Pool, PoolOptions};
pub use usage::ServerUsage;
