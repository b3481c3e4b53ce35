//! Services of daemons for other processes, besides memory.
//!
//! - An [`OperationServer`]: the port at which clients request operations on one index of a compute server
//!   (`pando::remote` is the client). It shares handshake, limits and conduct with memory servers
//!   (`pando_fabric_net::serve`); `docs/operations.md` has its protocol and guarantees.
//! - An [`HttpPort`]: a page of [`Metrics`] in the text formats of Prometheus, made for each request from the
//!   counters of a memory server or a compute server. Without requests it computes nothing.
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
