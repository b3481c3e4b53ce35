//! What daemons offer to other processes besides memory.
//!
//! - An [`OperationServer`], the port at which clients have operations executed on one index of a compute server
//!   (`pando::remote` is the client). It is a server like that of a memory server, with the same handshake, limits and manners
//!   (`pando_fabric_net::serve`); `docs/operations.md` has its protocol and what is promised.
//! - An [`HttpPort`] with a page of [`Metrics`] in the text format that Prometheus reads, made anew for each request from the
//!   counters of a memory server or of a compute server. Nothing is computed while nobody asks.
#![forbid(unsafe_code)]

mod counts;
mod execute;
mod flight;
mod histogram;
mod http;
mod metrics;
mod operations;
mod part;
mod round;

pub use counts::{OperationCounts, OperationKind};
pub use histogram::Latencies;
pub use http::{HttpError, HttpPort};
pub use metrics::{Metrics, compute_server_metrics, memory_server_metrics};
pub use operations::{OperationConfig, OperationServer, StartError};
