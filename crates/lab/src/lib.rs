//! The laboratory: drives the indexes with workloads and reports their costs.
//!
//! [`bench::run`] runs one workload on one configuration and returns a [`bench::BenchReport`], as in the
//! papers: load, warm up, measure, with verbs and cache accesses of the measured operations only.
//! [`elf`] measures Elf. `under_test` is the laboratory's view of an index, the same for all systems and fabrics. [`experiments`]
//! reproduces the tables and figures of the papers, [`figure`] draws them. [`units`] formats and parses sizes
//! and counts.
#![forbid(unsafe_code)]

pub mod bench;
pub mod calibrate;
mod copies;
pub mod elastic;
pub mod elf;
pub mod experiments;
pub mod figure;
pub mod process;
pub mod simulate;
mod spec;
mod under_test;
pub mod units;
