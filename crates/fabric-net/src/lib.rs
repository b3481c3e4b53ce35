//! Fabrics between hosts. So far one: `tcp`, for any network.
//!
//! A [`TcpServer`] offers one region to clients; a [`TcpFabric`] reaches several of them, over one connection for each worker
//! and server. Verbs of all slots of a worker go out together, and a server executes what came together and answers it
//! together, so a system call is paid per batch. `docs/fabric.md` has the protocol, `docs/security.md` what its secret is worth.
//!
//! What is the same for every protocol that a server of Pando speaks is in [`serve`] and [`connect()`]: operations on indexes
//! travel like verbs do.
#![forbid(unsafe_code)]

mod client;
mod connect;
mod handshake;
mod pending;
mod secret;
pub mod serve;
mod server;
mod socket;
#[cfg(test)]
mod tests;
pub mod wire;

pub use client::{TcpConfig, TcpEndpoint, TcpFabric, TcpLock, end_call, random_nonzero, wait_for};
pub use connect::{ConnectError, Destination, connect};
pub use handshake::{LinkId, Protocol, Rejection, Welcomed};
pub use pending::{Ending, Pending};
pub use secret::{SECRET_MIN, Secret, SecretError};
pub use server::{Calls, OtherWay, ServerConfig, ServerCounts, TcpServer};
