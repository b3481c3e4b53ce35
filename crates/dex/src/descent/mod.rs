//! The way down (DEX §7, Algorithm 1): from the root to the node that a key belongs to.
//!
//! [`optimistic`] runs over cached nodes as plain code. [`walk`] goes on where that got stuck, and can do everything: it finds
//! what the mapping table knows ([`walk::locate`]), proves that a missing child is still in the tree ([`prove`]), and READs it
//! or leaves it to its memory server ([`miss`]). [`refresh`] reads stale copies of shared nodes again. [`fetch_many`] READs
//! leaves side by side.

pub(crate) mod fetch_many;
pub(crate) mod forget;
pub(crate) mod miss;
pub(crate) mod optimistic;
pub(crate) mod prove;
pub(crate) mod read;
pub(crate) mod refresh;
pub(crate) mod walk;
