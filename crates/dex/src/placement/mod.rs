//! On which memory server nodes stand (DEX §3).
//!
//! [`relocate`] moves one node; [`spread`] chooses which are to move, so that the memory servers hold about as much each.

pub(crate) mod relocate;
pub(crate) mod spread;
