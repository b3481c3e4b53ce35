//! Errors of benchmarks.
//!
//! Those of the specification are found before anything is allocated. Systems under test have their own
//! errors, which end a benchmark only where no failure is allowed.

use pando_sim::ModelError;
use pando_workload::SpecError;

/// Reason why a benchmark ended early. Wrong answers are no error but a figure of the report.
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
    /// The index under test failed where no failure is allowed.
    #[error("{0}")]
    Index(String),
    #[error("no place for a temporary pool: {0}")]
    NoPlace(std::io::Error),
    #[error("interrupted")]
    Interrupted,
    /// The last complaint that was kept.
    #[error("operations kept failing for 10 seconds, such as by: {0}")]
    KeptFailing(String),
}

impl BenchError {
    pub(crate) fn index(error: impl std::error::Error) -> BenchError {
        BenchError::Index(error.to_string())
    }

    /// Whether the input caused the error.
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
