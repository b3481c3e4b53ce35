//! Fabrics between hosts. So far there is one: `tcp`, for any network.
//!
//! A [`TcpServer`] offers one region to clients; a [`TcpFabric`] accesses several of them, over one
//! connection for each worker and server. The verbs of all slots of a worker are sent together, and a server
//! executes and answers together the requests that arrive together, so system calls are paid per batch.
//! `docs/fabric.md` has the protocol, `docs/security.md` the value of its secret.
//!
//! The parts common to all protocols of Pando's servers are in [`serve`] and [`connect()`]; operations on
//! indexes use them too.
#![forbid(unsafe_code)]

mod client;
mod connect;
mod group;
mod handshake;
mod pending;
mod secret;
pub mod serve;
mod server;
mod socket;
#[cfg(test)]
mod tests;
pub mod wire;

pub use client::{
    Finder, MemoryServerFound, TcpConfig, TcpEndpoint, TcpFabric, TcpLock, count_call, wait_for,
};
pub use connect::{ConnectError, Destination, connect};
pub use group::{BadRegister, Fill, MemberCondition, RegisterAddress, ServerCondition};
pub use handshake::{LinkId, Protocol, Rejection, Welcomed, random_nonzero};
/// Which memory server has which copies.
pub use pando_member::{HeldCopy, Role, Server as NamedServer, View, VolumeId};
pub use pending::{Ending, Pending};
pub use secret::{SECRET_MIN, Secret, SecretError};
pub use server::{Calls, OtherWay, OutsideRegister, ServerConfig, ServerCounts, TcpServer};
