//! Measurements of Elf: on a model of persistent memory, on this machine, and on a simulated cluster.
//!
//! An [`ElfSpec`] names a table, what is done with it, and the memory model. [`run`] returns a report whose fields say
//! what is *modelled* and what is *measured*. Modelled times are a function of the specification: a store reports
//! every range of words that a search reads to a `Walker`, which lets a core of
//! [`pando_sim::memory`] read them. Each query must find the row that it was made from.

mod build;
mod data;
mod offload;
mod orders;
mod parallel;
mod peers;
mod policy;
mod queries;
mod remote;
mod selectivity;
mod spec;
mod timing;
mod walker;

pub use spec::{
    Base, Data, ElfSpec, ElfWork, Fixed, Kind, OffloadSpec, OrderRule, PeerMethod, PolicyKind, QuerySpec,
    SearchCosts, Store, Threads,
};

use serde_json::Value;

use crate::bench::{BenchError, Watch};

/// Runs a measurement.
///
/// # Errors
/// An interruption, or data that cannot be made.
pub fn run(spec: &ElfSpec, watch: &dyn Watch) -> Result<Value, BenchError> {
    spec.validate()?;
    match &spec.work {
        ElfWork::Build => build::build(spec),
        ElfWork::Hybrid => build::hybrid(spec),
        ElfWork::Queries(queries) => queries::modelled(spec, queries, watch),
        ElfWork::Measured(queries) => queries::measured(spec, queries, watch),
        ElfWork::Parallel { queries, threads } => parallel::run(spec, queries, *threads, watch),
        ElfWork::Selectivity { predicates, rounds } => selectivity::run(spec, *predicates, *rounds, watch),
        ElfWork::Order { rule, rounds } => orders::run(spec, *rule, *rounds, watch),
        ElfWork::Remote { cache_bytes, queries, exact } => {
            remote::run(spec, *cache_bytes, *queries, *exact, watch)
        }
        ElfWork::Offload(offload) => offload::run(spec, offload, watch),
        ElfWork::Peer { query, method, rounds } => peers::run(spec, *query, *method, *rounds, watch),
    }
}

/// An error of Elf, which a valid specification gives rise to only if there is no memory.
fn failed(error: pando_elf::Error) -> BenchError {
    BenchError::Index(error.to_string())
}
