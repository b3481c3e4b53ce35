//! Random configurations of an index on a simulated cluster, with a check of every history.
//!
//! A *seed* determines a system with its techniques, servers, nodes, caches, keys, operations and faults
//! ([`Setup`]). The operations run in virtual time ([`pando_sim`]) and are recorded with invocation and
//! response. Then the history is checked and the index audited. Equal seeds and options give equal histories,
//! so a command line with a seed repeats its findings.

mod case_dex;
mod case_peers;
mod check;
mod client;
mod cluster;
mod death;
mod dex;
mod fall;
mod faults;
mod history;
mod index;
mod keys;
mod linear;
mod moves;
mod peers;
mod pool_audit;
mod pool_case;
mod pool_model;
mod pool_pages;
mod pool_process;
mod pool_run;
mod processes;
mod report;
mod run;
mod setup;
mod systems;

pub use check::{Kind, Violation};
pub use faults::FaultSet;
pub use report::Summary;
pub use run::{SeedReport, run_seed, run_setup};
pub use setup::Setup;
pub use systems::Systems;
