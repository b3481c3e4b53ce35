//! `pando check`: the auditor over every index of a pool and every allocated block.
//!
//! The audit needs the pool alone (or `--unclean`, which sees what others do meanwhile). While other processes work on
//! the pool, the command checks what is possible (`check/beside.rs`) and reports what it omitted. Violations are data on
//! standard output; if there are any, the exit status is 1. Only `--free` changes anything: it frees what the dead left.

mod beside;

use std::io::{Write, stdout};

use pando::CheckReport;
use pando_lab::units;

use crate::args::CheckArgs;
use crate::failure::Failure;
use crate::{elf, pool};

pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let config = match args.free {
        true => pool::existing(&args.pool)?,
        false => pool::looking(&args.pool, &args.look)?,
    };
    if !args.look.unclean
        && !args.free
        && let Some(seen) = pool::beside_others(&config, |cluster| beside::look(&config, cluster))?
    {
        return seen.tell();
    }
    let report = pool::with_cluster(config, |cluster| Ok(cluster.check()?))?;
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
    for elf in &report.elfs {
        if let Some(info) = &elf.info {
            writeln!(output, "{}", elf::line(&elf.name, info))?;
        }
    }
    let CheckReport { violations, violation_count, left_blocks, left_bytes, .. } = report;
    if left_blocks > 0 {
        let (blocks, bytes) = (units::count(left_blocks), units::size(left_bytes));
        let are = match args.free && violation_count == 0 {
            true => "are free now",
            false => "can be freed by `pando check --free`",
        };
        writeln!(output, "{blocks} blocks, {bytes}, left by processes that died, {are}")?;
    }
    if violation_count == 0 {
        return Ok(writeln!(output, "no violations")?);
    }
    for violation in &violations {
        writeln!(output, "violation: {violation}")?;
    }
    output.flush()?;
    Err(Failure::violations(violation_count))
}
