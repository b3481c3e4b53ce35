//! The laboratory: drives the indexes with workloads and reports what they cost.
//!
//! [`bench::run`] performs one workload on one configuration and gives a [`bench::BenchReport`], as the papers measure:
//! load, warm up, measure, with verbs and cache accesses counted over the measured operations only. `under_test` is
//! how the laboratory sees an index, whichever system it is and whatever carries its verbs. [`experiments`] reproduces the
//! tables and figures of the papers, [`figure`] draws them. [`units`] reads and writes sizes and counts as people do.
#![forbid(unsafe_code)]

pub mod bench;
pub mod calibrate;
pub mod elastic;
pub mod experiments;
pub mod figure;
pub mod process;
pub mod simulate;
mod under_test;
pub mod units;
