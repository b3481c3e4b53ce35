//! The laboratory: drives the indexes with workloads and reports what they cost.
//!
//! [`bench::run`] performs one workload on one configuration and gives a [`bench::BenchReport`], as the papers measure:
//! load, warm up, measure, with verbs and cache accesses counted over the measured operations only. [`units`]
//! reads and writes sizes and counts as people do.
#![forbid(unsafe_code)]

pub mod bench;
pub mod process;
pub mod units;
