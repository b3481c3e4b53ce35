//! The compute servers that run an index in this process (DEX §4): their trees, and who may use them.
//!
//! [`IndexData`] is the state of an open index. Its [`Servers`] are replaced as a whole, and a session has
//! [`Members`] of its own for them. All of this knows the pool through [`crate::shared::Shared`], but neither
//! sessions nor the handles that callers have.

pub(crate) mod create;
mod data;
pub(crate) mod logs;
pub(crate) mod lost;
mod members;
pub(crate) mod open;
pub(crate) mod partitions;
mod persister;
mod placing;
pub(crate) mod redo;
pub(crate) mod servers;

pub(crate) use data::{CLOSING, IndexData};
pub(crate) use members::{Found, Members};
pub(crate) use servers::Servers;
