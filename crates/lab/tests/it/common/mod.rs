//! Helpers of the tests of complete benchmarks.

use pando_lab::bench::{self, BenchReport, BenchSpec, Length};

/// Runs a benchmark that must be clean.
pub fn run(spec: &BenchSpec) -> BenchReport {
    let report = bench::run(spec, &()).unwrap_or_else(|error| panic!("{spec:?}: {error}"));
    assert!(report.is_clean(), "{}", bench::render(&report));
    if let Length::Ops(ops) = spec.length {
        assert_eq!(report.ops, ops);
    }
    report
}

/// Checks that each operation is of one kind, and that the auditor found as many entries as the final scan.
pub fn adds_up(report: &BenchReport) {
    let operations = report.operations;
    let sum = operations.reads + operations.updates + operations.inserts + operations.scans;
    assert_eq!(sum + operations.read_modify_writes, report.ops, "{}", report.workload);
    let entries = report.entries.expect("verified");
    assert_eq!(report.tree.expect("audited").entries, entries, "{}", report.workload);
}
