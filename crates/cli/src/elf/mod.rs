//! `pando elf`: tables for conditions on several columns at once.
//!
//! The commands open the pool themselves and work beside other processes: a query reads the table as it is when it
//! starts, and of two changes at once the second one is done on the result of the first. What a command reads and
//! infers from a file it says on standard error.

mod args;
mod build;
mod change;
mod file;
mod query;
mod stats;
mod types;

pub use args::ElfCommand;
pub use stats::{ElfShape, document, line, shapes, text};

use pando::elf::Elf;
use pando::{Cluster, Config};

use crate::args::TargetArgs;
use crate::failure::Failure;
use crate::pool;

pub fn run(command: &ElfCommand) -> Result<(), Failure> {
    match command {
        ElfCommand::Build(args) => build::run(args),
        ElfCommand::Query(args) => query::run(args),
        ElfCommand::Insert(args) => change::insert(args),
        ElfCommand::Delete(args) => change::delete(args),
        ElfCommand::Merge(args) => change::merge(args),
        ElfCommand::Stats(args) => stats::run(args),
        ElfCommand::Check(args) => stats::check(args),
        ElfCommand::Drop(args) => change::drop_table(args),
    }
}

/// Runs `work` on an existing table: the named one, or the only one of the pool.
fn with_elf<T>(
    config: Config,
    args: &TargetArgs,
    work: impl FnOnce(&Cluster, &Elf) -> Result<T, Failure>,
) -> Result<T, Failure> {
    pool::with_cluster(config, |cluster| {
        let name = match &args.index {
            Some(name) => name.clone(),
            None => only(cluster)?,
        };
        let elf = cluster.open_elf(&name)?;
        work(cluster, &elf)
    })
}

/// Name of the only table of the pool.
fn only(cluster: &Cluster) -> Result<String, Failure> {
    match &cluster.elf_names()?[..] {
        [] => Err(Failure::bad_input("the pool has no Elf; `pando elf build` makes one")),
        [only] => Ok(only.clone()),
        names => Err(Failure::bad_input(format_args!(
            "the pool has the Elfs {}; say by --index which one",
            names.join(", ")
        ))),
    }
}
