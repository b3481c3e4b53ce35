//! Measures one workload on one configuration, as in the papers (DEX §8.1).
//!
//! Phases: open a cluster, load sorted keys, warm up, measure, compare a full scan with the expected entries,
//! audit.
//! - Each compute server owns an equal part of the key space and has its own threads, each with its own
//!   stream of operations on keys of that part; all threads perform equally many. With a hot spot or a
//!   balancer, streams cover all keys, and operations go to their owners.
//! - A thread keeps `slots` operations in flight by the slot executor; one slot means one operation at a
//!   time.
//! - Verbs and cache accesses are differences of each thread's counters over its measured operations.
//! - One operation in [`SAMPLED`] is timed: two readings of the clock cost about 50 ns, a sixth of a cached
//!   lookup. On the simulated cluster, whose clock is free, every operation is timed.
//!
//! Threads run on this machine or on a simulated cluster ([`FabricKind::Sim`]), where times are virtual and a
//! run is repeatable.

mod driver;
mod hosted;
pub(crate) mod latency;
pub(crate) mod load;
mod report;
mod run;
mod simulated;
mod testbed;
mod text;
mod verify;

pub(crate) use driver::{Driver, Quota, Series, Shared, Source, Task};
pub use latency::{Latency, SAMPLED};
pub use report::{
    BalanceFigures, BenchReport, CacheFigures, LatencyFigures, LoadFigures, PerOp, ResourceFigures,
    SeriesFigures, SmoFigures, WALL_CLOCK,
};
pub use run::run;
pub(crate) use simulated::make_fabric;
pub(crate) use testbed::PhaseResult;
pub use text::render;

pub use crate::spec::{
    BenchError, BenchSpec, Design, FabricKind, LayoutChoice, Length, ShermanSetup, SmartSetup, System,
};
pub use pando_sim::{Model, ModelError};

/// Phases of a run, for a display of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Load,
    WarmUp,
    Measure,
    Verify,
    Audit,
}

/// Receives the progress of a run, on the thread that called [`run`].
pub trait Watch {
    /// A phase begins. `total` is its amount of work: entries, operations or, in a run by time, milliseconds;
    /// 0 if unknown.
    fn begin(&self, phase: Phase, total: u64);
    /// `done` of the phase's total has been done.
    fn advance(&self, done: u64);
    /// Whether the run must stop; asked several times a second, or with each operation.
    fn interrupted(&self) -> bool {
        false
    }
}

/// Ignores all progress.
impl Watch for () {
    fn begin(&self, _: Phase, _: u64) {}
    fn advance(&self, _: u64) {}
}
