//! Nodes that several compute servers use (DEX §4, §7): changed under a remote lock.
//!
//! A shared node is an inner node whose fences cross a partition boundary. Its remote copy is always up to date;
//! cached copies may be stale, hold no swizzled pointers, and are found out by the fences of what they lead to. A
//! cached copy only ever gets newer, by the version of the remote lock word, so that a child that this compute server
//! merged away does not come back into it.
//!
//! Remote locks are taken from the top down. No shared node is freed while several compute servers run. Whether a node is
//! shared changes when boundaries move, so whoever has locked one looks again ([`locked::LockedNode::is_shared`]).

pub(crate) mod locked;
pub(crate) mod parent;
