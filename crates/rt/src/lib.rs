//! Slot executor: one thread keeps many operations in flight.
//!
//! A [`Worker`] runs up to 64 *slots*, each one pinned future that loops over operations. A slot that waits
//! for a verb, or that yields while a cache line is fetched, is pending; its endpoint sets a bit when it is
//! ready again. Switching slots costs a few nanoseconds: nothing is allocated, queued or locked. For one
//! operation at a time there is [`block_on`].
//!
//! A worker without ready slots spins for a moment. Then it sleeps if its endpoint can wait for answers
//! (`Endpoint::idle`), and otherwise offers its core to other threads again and again. A worker whose slots
//! only yield to each other also offers its core, more rarely: they may be waiting for a thread that has no
//! core.
//!
//! ```
//! use pando_fabric::{Endpoint, Fabric, FabricError, GlobalAddr, MemoryServerId};
//! use pando_fabric_local::{LocalConfig, LocalFabric};
//! use pando_rt::{Worker, block_on};
//!
//! let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![4096], huge_pages: false })?;
//! let endpoint = &fabric.endpoint(1)?;
//! let counter = GlobalAddr::new(MemoryServerId(0), 64);
//! let results = Worker::new(endpoint, 16).run(|slot| async move {
//!     for _ in 0..10 {
//!         endpoint.fetch_add(counter, u64::from(slot)).await?;
//!         endpoint.yield_now().await;
//!     }
//!     Ok::<_, FabricError>(slot)
//! });
//! assert_eq!(results.len(), 16);
//! assert_eq!(block_on(endpoint, endpoint.read_word(counter))?, 10 * (15 * 16 / 2));
//! # Ok::<(), FabricError>(())
//! ```
#![forbid(unsafe_code)]

mod affinity;
mod block_on;
mod idle;
mod worker;

pub use affinity::pin_to_core;
pub use block_on::block_on;
pub use worker::{SLOTS_MAX, Worker, run_slots};
