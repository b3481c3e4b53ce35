//! Placement of nodes on memory servers (DEX §3).
//!
//! [`relocate`] moves one node to another memory server while operations run. [`spread`] chooses the nodes to
//! move, so that all memory servers hold about the same amount.

pub(crate) mod relocate;
pub(crate) mod spread;
