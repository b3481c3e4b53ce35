//! A simulated cluster in virtual time: unchanged index code runs with hundreds of threads over tens of
//! servers on one core of one machine, and every run repeats exactly.
//!
//! [`SimFabric`] is a fabric like any other. Its verbs take the time given by the [`Model`], and wait for
//! shared resources: NICs, units for atomics, cores of memory servers. [`SimFabric::run`] runs the slots of
//! many threads in the order of their virtual times. No clock, thread or random number of the host has any
//! influence.
//!
//! ```
//! use pando_fabric::{Endpoint, FabricError, GlobalAddr, MemoryServerId};
//! use pando_sim::{Model, SimConfig, SimFabric};
//!
//! let config = SimConfig { regions: vec![1 << 20; 2], compute_servers: 4, seed: 1, model: Model::default() };
//! let cluster = SimFabric::new(&config)?;
//! let threads: Vec<_> = (0..144).map(|thread| cluster.thread(thread / 36, thread as u64)).collect();
//! let counter = GlobalAddr::new(MemoryServerId(1), 64);
//! let threads: Vec<_> = threads.iter().collect();
//! let before = cluster.run(&threads, 1, |thread, _| threads[thread].fetch_add(counter, 1));
//! let mut found: Vec<u64> = before.into_iter().flatten().collect::<Result<_, FabricError>>().expect("it is up");
//! found.sort_unstable();
//! assert_eq!(found, (0..144).collect::<Vec<_>>());
//! // One unit serves all atomics on one address: 480 ns each.
//! assert!(cluster.now() > 144 * 480);
//! # Ok::<(), pando_sim::ModelError>(())
//! ```
#![forbid(unsafe_code)]

mod atomics;
mod contention;
mod endpoint;
mod events;
mod fabric;
mod faults;
pub mod memory;
mod model;
mod network;
mod nic;
mod op;
mod preemption;
mod run;
mod serial;
mod shared;
mod usage;
mod verb;
mod worker;
mod world;

pub use endpoint::SimEndpoint;
pub use fabric::{DirectFabric, SimConfig, SimFabric};
pub use faults::{Fault, FaultBounds, FaultKind, FaultPlan, UnknownFault};
pub use model::{Compute, Faults, MemoryServer, Model, ModelError, Network};
pub use preemption::Preemption;
pub use usage::{Shares, Usage};
