//! One workload on one configuration, measured as the papers measure (DEX §8.1).
//!
//! Phases: open a cluster, load sorted keys, warm up, measure, compare a scan of everything with the expected entries, audit.
//! - Every compute server owns an equal part of the key space and has threads of its own, each with its own stream of
//!   operations on keys of that part; all threads perform equally many. With a hot spot or a balancer the streams are of
//!   all keys, and operations go to their owners.
//! - A thread keeps `slots` operations in flight by the slot executor; one slot is one operation at a time.
//! - Verbs and cache accesses are differences of each thread's counters over its measured operations.
//! - One operation in [`SAMPLED`] is timed: two looks at the clock cost about 50 ns, which on every one of them would
//!   be a sixth of a cached lookup. On the simulated cluster, whose clock is free, every one is.
//!
//! Threads are those of this machine, or those of a simulated cluster ([`FabricKind::Sim`]), where times are virtual and
//! a run repeats itself.

mod driver;
mod hosted;
mod latency;
pub(crate) mod load;
mod report;
mod run;
mod simulated;
mod spec;
mod system;
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
pub use spec::{BenchSpec, FabricKind, LayoutChoice, Length};
pub use system::{Design, ShermanSetup, SmartSetup, System};
pub(crate) use testbed::PhaseResult;
pub use text::render;

pub use pando_sim::{Model, ModelError};

use pando_workload::SpecError;

/// Why a benchmark could not run to its end. Wrong answers are no error but a figure of the report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    #[error(transparent)]
    Spec(#[from] SpecError),
    #[error("{0}")]
    Invalid(String),
    /// An impossible simulated cluster.
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Pando(#[from] pando::Error),
    /// The index under test failed where it must not.
    #[error("{0}")]
    Index(String),
    #[error("no place for a temporary pool: {0}")]
    NoPlace(std::io::Error),
    #[error("interrupted")]
    Interrupted,
    /// The last of these errors.
    #[error("operations kept failing for 10 seconds, such as by: {0}")]
    KeptFailing(String),
}

impl BenchError {
    pub(crate) fn index(error: impl std::error::Error) -> BenchError {
        BenchError::Index(error.to_string())
    }

    /// Whether the input is at fault.
    pub fn is_bad_input(&self) -> bool {
        match self {
            BenchError::Spec(_) | BenchError::Invalid(_) | BenchError::Model(_) => true,
            BenchError::Pando(error) => error.is_bad_input(),
            BenchError::Index(_)
            | BenchError::NoPlace(_)
            | BenchError::Interrupted
            | BenchError::KeptFailing(_) => false,
        }
    }
}

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
    /// A phase begins; `total` is how much there is to do: entries, operations or, in a run by time, milliseconds.
    /// 0: unknown.
    fn begin(&self, phase: Phase, total: u64);
    /// `done` of the phase's total is done.
    fn advance(&self, done: u64);
    /// Whether to stop here; asked several times a second, or with each operation.
    fn interrupted(&self) -> bool {
        false
    }
}

/// Ignores everything.
impl Watch for () {
    fn begin(&self, _: Phase, _: u64) {}
    fn advance(&self, _: u64) {}
}
