//! What a table that changes was made with: its options, and what all of its parts have in common.
//!
//! Runs are built like the base that the table started with: in its layout and column order, with its gate
//! and instructions. Only sizes, threads and the policy of merges are options.

use crate::build::BuildOptions;
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::kernel::Kernel;
use crate::layout::LayoutKind;
use crate::schema::Schema;

/// How a table that changes keeps its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveOptions {
    /// Rows from which on the row buffer becomes a run, at least 1. Default: 65,536.
    pub buffer_rows: u64,
    /// Runs of a tier that are merged together, at least 2; also the ratio of the sizes of two tiers.
    /// Default: 4.
    pub fan_in: u64,
    /// How runs and merged Elfs are built.
    pub build: BuildOptions,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self { buffer_rows: 1 << 16, fan_in: 4, build: BuildOptions::default() }
    }
}

/// What all parts of a table have in common.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) order: Vec<usize>,
    pub(super) layout: LayoutKind,
    pub(super) gate: Gate,
    pub(super) kernel: Kernel,
    /// Absent if the table holds codes.
    pub(super) schema: Option<Schema>,
    pub(super) options: LiveOptions,
}

impl Config {
    /// Fails if the table holds values.
    pub(super) fn demand_codes(&self) -> Result<()> {
        match self.schema {
            None => Ok(()),
            Some(_) => Err(Error::WrongContents { expected: "values", found: "codes" }),
        }
    }

    /// Fails if the table holds codes.
    pub(super) fn demand_values(&self) -> Result<&Schema> {
        self.schema.as_ref().ok_or(Error::WrongContents { expected: "codes", found: "values" })
    }
}
