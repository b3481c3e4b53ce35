//! `pando check`: the auditor over every index of a pool and every allocated block.
//!
//! It needs the pool alone (or `--unclean`, which only looks). Violations are data, so they go to standard output;
//! that there were any is the failure, with exit status 1.

use std::io::{Write, stdout};

use crate::args::CheckArgs;
use crate::failure::Failure;
use crate::pool;
use pando_lab::units;

pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let report = pool::with_cluster(pool::looking(&args.pool, &args.look)?, |cluster| Ok(cluster.check()?))?;
    let mut output = stdout().lock();
    for index in &report.indexes {
        writeln!(
            output,
            "index {}: {} entries in {} leaves under {} inner nodes, {} levels",
            index.name,
            units::count(index.entries),
            units::count(index.leaves),
            units::count(index.inner_nodes),
            index.height
        )?;
    }
    if report.violation_count == 0 {
        return Ok(writeln!(output, "no violations")?);
    }
    for violation in &report.violations {
        writeln!(output, "violation: {violation}")?;
    }
    output.flush()?;
    Err(Failure::failed(format_args!("{} violations", units::count(report.violation_count))))
}
