//! Opportunistic offloading (DEX §6): a memory server executes an operation below a missing node.
//!
//! A miss at level L of a subtree that lies on one memory server (L at most M) can be handled in two ways: by
//! READs of the nodes on the path, one after the other, or by a call that makes the memory server descend and
//! answer in one round trip. Memory servers have few cores, so a call is made only if it should take less
//! time ([`Offloading`](crate::Offloading)).
//!
//! The memory server works on current data that no other operation changes (§6.2):
//! - The missing node N is owned and was never shared; otherwise the memory server refuses the call.
//! - An offloaded operation has a share of N's ticket, and N's parent is pinned. Other operations that need N
//!   are offloaded too, or restart until all shares are returned. (The paper admits one at a time; under skew
//!   all threads would wait for a few nodes.) The memory server latches each leaf.
//! - No node below N is hot or in use ([`Cache::paths_are_whole`](pando_cache::Cache::paths_are_whole)), so
//!   memory is up to date. Cooling copies are clean and reached only through N; that of a changed leaf is
//!   forgotten before the share is returned.
//! - A structure change, or a path to another memory server, is refused and done by the compute server.

pub(crate) mod client;
mod server;
mod wire;

pub use server::MemorySide;
