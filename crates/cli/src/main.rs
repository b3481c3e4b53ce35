//! `pando`: the command line.
//!
//! Each command has a module. A command returns a [`Failure`], which becomes one sentence on standard error
//! and an exit status: 2 for wrong usage or input, 1 for a failed operation. Data goes to standard output,
//! everything else to standard error. A closed standard output ends a command without an error.
#![forbid(unsafe_code)]

mod args;
mod batch;
mod bench;
mod calibrate;
mod check;
mod compute_server;
mod daemon;
mod del;
mod dump;
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

use args::Command;
use failure::Failure;

fn main() -> ExitCode {
    let ended = match args::parse() {
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
