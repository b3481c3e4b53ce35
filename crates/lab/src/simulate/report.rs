//! Summary of many seeds, as text and JSON report it.
//!
//! Only seeds with violations are stored completely, so that runs of hours need little memory. Other figures
//! are sums over all seeds. Fields may be added to the JSON; existing ones keep their names.

use std::collections::BTreeMap;

use serde::Serialize;

use super::faults::FaultSet;
use super::run::SeedReport;
use super::systems::Systems;
use crate::process;

/// Sums over seeds, and the seeds with violations.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// As on the command line.
    pub systems: String,
    pub faults: FaultSet,
    pub seeds: u64,
    /// By the name of the seed's system.
    pub seeds_of: BTreeMap<&'static str, u64>,
    pub operations: u64,
    /// Failed operations; they are legal during faults.
    pub failed_operations: u64,
    /// Keys whose histories were checked.
    pub key_histories: u64,
    pub violations: u64,
    pub virtual_ns: u64,
    /// Duration on the host.
    pub seconds: f64,
    /// Hash of the histories of all seeds, in their order.
    pub history_hash: u64,
    pub failed_seeds: Vec<SeedReport>,
    pub commit: &'static str,
}

impl Summary {
    pub fn new(systems: &Systems, faults: FaultSet) -> Self {
        Self {
            systems: systems.to_string(),
            faults,
            seeds: 0,
            seeds_of: BTreeMap::new(),
            operations: 0,
            failed_operations: 0,
            key_histories: 0,
            violations: 0,
            virtual_ns: 0,
            seconds: 0.0,
            history_hash: 0,
            failed_seeds: Vec::new(),
            commit: process::commit(),
        }
    }

    pub fn add(&mut self, report: SeedReport) {
        self.seeds += 1;
        *self.seeds_of.entry(report.setup.name()).or_default() += 1;
        self.operations += report.operations;
        self.failed_operations += report.failed_operations;
        self.key_histories += report.setup.keys as u64;
        self.violations += report.violations.len() as u64;
        self.virtual_ns += report.virtual_ns;
        self.history_hash = self.history_hash.rotate_left(1) ^ report.history_hash;
        if !report.violations.is_empty() {
            self.failed_seeds.push(report);
        }
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data is always JSON")
    }
}
