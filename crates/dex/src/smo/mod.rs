//! Structure changes (DEX §7, Insert and Delete): splits, merges, and redistribution between neighbours.
//!
//! What is needed of others, an address from the pool and a frame of the cache, is taken before the first latch, since both
//! may await; then parent and node, pinned meanwhile, are latched and looked at again, and the change happens at once. Nodes
//! that other compute servers use too are changed in [`split_shared`], under remote locks.

pub(crate) mod cut;
pub(crate) mod merge;
pub(crate) mod orphans;
pub(crate) mod redistribute;
pub(crate) mod split;
pub(crate) mod split_shared;
