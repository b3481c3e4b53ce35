//! The descent from the root to the node that covers a key (DEX §7, Algorithm 1).
//!
//! [`optimistic`] passes over cached nodes without waiting. [`walk`] goes on where that stopped, and handles
//! every case: it looks up a child in the mapping table ([`walk::locate`]), proves that a missing child is
//! still in the tree ([`prove`]), and READs it or offloads the operation below it ([`miss`]). [`refresh`]
//! READs stale copies of shared nodes again. [`fetch_many`] READs several leaves in parallel.

pub(crate) mod fetch_many;
pub(crate) mod forget;
pub(crate) mod miss;
pub(crate) mod optimistic;
pub(crate) mod prove;
pub(crate) mod read;
pub(crate) mod refresh;
pub(crate) mod walk;
