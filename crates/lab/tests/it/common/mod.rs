//! What the tests of whole benchmarks have in common.

use pando_lab::bench::{self, BenchReport, BenchSpec, Length};

/// Performs a benchmark in which nothing must go wrong.
pub fn run(spec: &BenchSpec) -> BenchReport {
    let report = bench::run(spec, &()).unwrap_or_else(|error| panic!("{spec:?}: {error}"));
    assert!(report.is_clean(), "{}", bench::render(&report));
    if let Length::Ops(ops) = spec.length {
        assert_eq!(report.ops, ops);
    }
    report
}

/// Every operation is of one kind, and the entries are those that the auditor found.
pub fn adds_up(report: &BenchReport) {
    let operations = report.operations;
    let sum = operations.reads + operations.updates + operations.inserts + operations.scans;
    assert_eq!(sum + operations.read_modify_writes, report.ops, "{}", report.workload);
    let entries = report.entries.expect("verified");
    assert_eq!(report.tree.expect("audited").entries, entries, "{}", report.workload);
}
