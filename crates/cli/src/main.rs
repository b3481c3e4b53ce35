//! `pando`: the command line.
//!
//! Each command has a module. A command returns a [`Failure`], which becomes one sentence on standard error
//! and an exit status: 2 for wrong usage or input, 1 for a failed operation. Errors of clap become one, too.
//! Data goes to standard output, everything else to standard error. A closed standard output ends a command
//! without an error.
#![forbid(unsafe_code)]

mod args;
mod backup;
mod batch;
mod bench;
mod calibrate;
mod check;
mod compute_server;
mod copies;
mod daemon;
mod del;
mod dump;
mod elf;
mod failure;
mod get;
mod help;
mod indexes;
mod keys;
mod lab;
mod load;
mod memory_server;
mod memory_servers;
mod output;
mod partitions;
mod plan;
mod pool;
mod progress;
mod put;
mod rejects;
mod restore;
mod scan;
mod signals;
mod simulate;
mod stats;
mod status;
mod target;
mod text;
mod up;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use failure::Failure;

/// A range index for disaggregated memory: load data into a pool, look at it, measure the index.
#[derive(Debug, Parser)]
#[command(name = "pando", version, about, max_term_width = 110, after_help = help::EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure the index with a workload
    Bench(Box<bench::BenchArgs>),
    /// Load a file into an index
    Load(args::LoadArgs),
    /// Make an empty index
    Create(args::CreateArgs),
    /// Remove an index and free its memory
    Drop(args::IndexArgs),
    /// Look up keys
    Get(args::GetArgs),
    /// Insert a key or replace its value
    Put(args::PutArgs),
    /// Delete keys or a range of them
    Del(args::DelArgs),
    /// Print a range of an index, or all of it, in order
    Scan(args::ScanArgs),
    /// Write all entries of an index to a file
    Dump(dump::DumpArgs),
    /// Make an index from a dump
    Restore(restore::RestoreArgs),
    /// Copies of all indexes of a pool as they were at one moment: make, list, verify and restore them
    #[command(subcommand)]
    Backup(backup::BackupCommand),
    /// Tables for conditions on several columns: make, query and change them
    #[command(subcommand)]
    Elf(elf::ElfCommand),
    /// Look at a pool's memory servers, add one, drain one
    #[command(subcommand)]
    Pool(memory_servers::PoolCommand),
    /// Show the shape of a pool and its indexes
    Stats(args::StatsArgs),
    /// Check every invariant of a pool and its indexes
    Check(args::CheckArgs),
    /// Measure what the code costs on this machine, for the model of the simulated cluster
    Calibrate(calibrate::CalibrateArgs),
    /// Reproduce the papers' tables and figures
    #[command(subcommand)]
    Lab(lab::LabCommand),
    /// Offer memory of this host to compute servers elsewhere
    MemoryServer(memory_server::MemoryServerArgs),
    /// Own partitions of an index in the pool of memory servers
    ComputeServer(compute_server::ComputeServerArgs),
    /// Run a whole cluster of processes on this host, until it is interrupted
    Up(up::UpArgs),
    /// Show whether the servers of a cluster can be reached, who is attached, and who owns what
    Status(status::StatusArgs),
    /// Run random configurations on a simulated cluster and check every history
    Simulate(simulate::SimulateArgs),
}

fn main() -> ExitCode {
    pando_lab::process::set_commit(env!("PANDO_COMMIT"));
    let ended = match parse() {
        Ok(Some(command)) => signals::outlive_size_limit().and_then(|()| run(command)),
        // The requested help or version was printed.
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Bench(args) => bench::run(*args),
        Command::Load(args) => load::run(&args),
        Command::Create(args) => indexes::create(&args),
        Command::Drop(args) => indexes::drop(&args),
        Command::Get(args) => get::run(&args),
        Command::Put(args) => put::run(&args),
        Command::Del(args) => del::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Restore(args) => restore::run(&args),
        Command::Backup(command) => backup::run(&command),
        Command::Elf(command) => elf::run(&command),
        Command::Pool(command) => memory_servers::run(&command),
        Command::Stats(args) => stats::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Lab(command) => lab::run(&command),
        Command::MemoryServer(args) => memory_server::run(&args),
        Command::ComputeServer(args) => compute_server::run(&args),
        Command::Up(args) => up::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Simulate(args) => simulate::run(&args),
    }
}

/// Parses the command line; `None` after printing the requested help or version.
fn parse() -> Result<Option<Command>, Failure> {
    match Cli::try_parse() {
        Ok(cli) => Ok(Some(cli.command)),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                error.print()?;
                Ok(None)
            }
            _ => Err(Failure::BadInput(sentence_of(&error))),
        },
    }
}

/// First paragraph of a clap error, without the usage and tips that follow it.
fn sentence_of(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "a command is missing; `pando help` lists them".to_owned();
    }
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.strip_prefix("error: ").unwrap_or(first).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_clap_refuses_is_one_sentence() {
        for arguments in [
            &["pando"][..],
            &["pando", "sing"],
            &["pando", "get", "--pool", "p"],
            &["pando", "load", "x", "--pool", "p", "--index", "i", "--format", "xml"],
            &["pando", "scan", "--pool", "p", "--index", "i", "--limit", "many"],
        ] {
            let error = Cli::try_parse_from(arguments).expect_err("refused");
            let sentence = sentence_of(&error);
            assert!(!sentence.is_empty() && !sentence.contains("Usage"), "{sentence}");
        }
    }
}
