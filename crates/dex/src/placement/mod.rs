//! On which memory server nodes stand (DEX §3).
//!
//! [`relocate`] moves one node to another memory server while operations run. [`spread`] chooses which nodes are to move, so
//! that the memory servers hold about as much each.

pub(crate) mod relocate;
pub(crate) mod spread;
