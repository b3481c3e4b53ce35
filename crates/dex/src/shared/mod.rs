//! Nodes that several compute servers use (DEX §4, §7): they are changed under a remote lock.
//!
//! A shared node is an inner node whose fences cross a partition boundary. Its remote copy is always up to
//! date. Cached copies may be stale and hold no swizzled pointers; the fences of their children reveal stale
//! copies. A cached copy is only replaced by a newer one, by the version of the remote lock word. So a child
//! that this compute server merged away does not come back into it.
//!
//! Remote locks are taken from the top down. No shared node is freed while several compute servers run. A
//! node may become shared or owned when boundaries move, so the lock holder checks again
//! ([`locked::LockedNode::is_shared`]).

pub(crate) mod locked;
pub(crate) mod parent;
pub(crate) mod record;
