//! The fabric of RDMA: one-sided verbs that a NIC executes, without the processor of the memory server.
//!
//! A `VerbsOffer` lets a memory server's clients reach its region by their NICs, a `VerbsFabric` is the clients'
//! side. Calls go by SEND and RECV over the same queue pairs. The rest goes over the connections of
//! `pando-fabric-net`, which stay: the handshake and its secret, pairing of queue pairs, fences, the lock. libibverbs
//! is loaded when it is first used. `docs/verbs.md` has the protocol and the choices.
//!
//! Without the feature `verbs` there are only the options, so that a program is the same with and without it.

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
