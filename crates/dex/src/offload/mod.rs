//! Opportunistic offloading (DEX §6): what is below a missing node, its memory server does.
//!
//! A miss at level L of a subtree that stands on one memory server (L at most M) can be met in two ways: READ the nodes of
//! the way down, one after the other, or have the memory server go down and answer in one round trip. Memory servers have
//! few cores, so the second is chosen only while it is expected to take less time ([`Offloading`](crate::Offloading)).
//!
//! Why the memory server sees the truth, and nobody else changes it meanwhile (§6.2):
//! - The missing node N belongs to this compute server alone, and was never shared: the memory server refuses otherwise.
//! - Whoever offloads has a share of the ticket of N, and N's parent is pinned. Who comes for N offloads too, or descends anew
//!   until all shares are back. (The paper lets one do so at a time; under skew all threads would wait for a few nodes.)
//!   The memory server looks at and changes each leaf under a latch of its own.
//! - Nothing below N is hot, nor in anybody's hands ([`Cache::paths_are_whole`](pando_cache::Cache::paths_are_whole)), so
//!   memory is up to date. Cooling copies are clean; nobody reaches them but through N; that of the leaf that the memory
//!   server changed is forgotten before that share is given back.
//! - What would change the structure, or leads to another memory server, is refused, and done here.

pub(crate) mod client;
mod server;
mod wire;

pub use server::MemorySide;
