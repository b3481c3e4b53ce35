//! Structure changes (DEX §7, Insert and Delete): splits, merges, and redistribution between neighbours.
//!
//! A block of the pool and a frame of the cache are allocated before the first latch, since both may await.
//! Then the parent and the node, which stay pinned, are latched and checked again, and the change happens
//! without an await. [`split_shared`] changes shared nodes, under remote locks.

pub(crate) mod cut;
pub(crate) mod merge;
pub(crate) mod orphans;
pub(crate) mod redistribute;
pub(crate) mod split;
pub(crate) mod split_shared;
