//! The RDMA fabric: one-sided verbs that a NIC executes, without the processor of the memory server.
//!
//! A `VerbsOffer` opens a memory server's region to the NICs of its clients; a `VerbsFabric` is the clients'
//! side. Calls use SEND and RECV on the same queue pairs. The connections of `pando-fabric-net` remain for
//! the rest: the handshake and its secret, pairing of queue pairs, fences, the lock. libibverbs is loaded
//! when it is first used. `docs/verbs.md` has the protocol and the design choices.
//!
//! Without the feature `verbs` only the options exist, so that programs are the same with and without it.

mod options;
pub use options::VerbsOptions;

#[cfg(feature = "verbs")]
mod client;
#[cfg(feature = "verbs")]
mod completions;
#[cfg(feature = "verbs")]
mod device;
#[cfg(feature = "verbs")]
mod hello;
#[cfg(feature = "verbs")]
mod message;
#[cfg(feature = "verbs")]
mod offer;
#[cfg(feature = "verbs")]
mod queue;
#[cfg(feature = "verbs")]
mod receives;

#[cfg(feature = "verbs")]
pub use client::{VerbsEndpoint, VerbsFabric};
#[cfg(feature = "verbs")]
pub use offer::VerbsOffer;
