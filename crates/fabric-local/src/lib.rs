//! Fabrics within one host: `local` (memory of this process) and `shm` (files mapped by several processes).
//!
//! A memory server is a region of bytes accessed as relaxed atomic words, so that any number of threads and
//! processes may READ and WRITE it concurrently. A race may tear a page but never a word, and is never
//! undefined behaviour. Both fabrics create the same [`LocalEndpoint`], whose verbs complete at once.
//!
//! ```
//! use pando_fabric::{Endpoint, Fabric, GlobalAddr, MemoryServerId};
//! use pando_fabric_local::{LocalConfig, LocalFabric};
//! # fn block_on<T>(future: impl Future<Output = T>) -> T {
//! #     let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
//! #     match std::pin::pin!(future).poll(&mut cx) {
//! #         std::task::Poll::Ready(value) => value,
//! #         std::task::Poll::Pending => unreachable!("verbs of this fabric complete at once"),
//! #     }
//! # }
//!
//! let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![1 << 20; 2], huge_pages: false })?;
//! let endpoint = fabric.endpoint(1)?;
//! let counter = GlobalAddr::new(MemoryServerId(1), 4096);
//! assert_eq!(block_on(endpoint.fetch_add(counter, 5))?, 0);
//! assert_eq!(block_on(endpoint.read_word(counter))?, 5);
//! assert_eq!(endpoint.counters().snapshot().atomics, 1);
//! # Ok::<(), pando_fabric::FabricError>(())
//! ```
#![deny(unsafe_code)]

mod cores;
mod endpoint;
mod local;
mod lock;
#[cfg(feature = "power")]
pub mod power;
mod process;
mod promise;
mod region;
mod regions;
mod served;
mod shm;
#[allow(unsafe_code, reason = "memory mappings; everything unsafe of this crate is in this file")]
mod sys;

pub use endpoint::LocalEndpoint;
pub use local::{LocalConfig, LocalFabric};
pub use lock::ExclusiveLock;
pub use process::{process_alive, this_process};
pub use served::ServedRegion;
pub use shm::{HugePages, ShmConfig, ShmFabric};
