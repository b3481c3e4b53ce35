//! `pando check`: the auditor over every index of a pool and every allocated block.
//!
//! The audit needs the pool alone (or `--unclean`, which changes nothing). While other processes work on the
//! pool, the command checks what is possible (`check/beside.rs`) and reports what it omitted. Violations are
//! data on standard output; if there are any, the exit status is 1.

mod beside;

use std::io::{Write, stdout};

use pando::CheckReport;
use pando_lab::units;

use crate::args::CheckArgs;
use crate::failure::Failure;
use crate::{elf, pool};

pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let config = pool::looking(&args.pool, &args.look)?;
    if !args.look.unclean
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
    let CheckReport { violations, violation_count, .. } = report;
    if violation_count == 0 {
        return Ok(writeln!(output, "no violations")?);
    }
    for violation in &violations {
        writeln!(output, "violation: {violation}")?;
    }
    output.flush()?;
    Err(Failure::failed(format_args!("{} violations", units::count(violation_count))))
}
