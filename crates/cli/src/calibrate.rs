//! `pando calibrate`: costs of the code on this machine, for the model of the simulated cluster.
//!
//! The real code is measured for a few seconds. The output is a table; `--toml` writes the section of the
//! model that `pando bench --cluster` reads.

use std::path::PathBuf;

use clap::Args;
use pando_lab::calibrate::{self, CalibrateError, CalibrateOptions};
use pando_lab::units::parse_count;

use crate::failure::Failure;
use crate::output::{print, write_document};
use crate::progress;

#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// Times that everything is measured; the medians count
    #[arg(long, value_name = "N", default_value = "9")]
    rounds: usize,
    /// Keys of the index that lookups are measured in
    #[arg(long, value_name = "N", default_value = "2m", value_parser = parse_count)]
    keys: u64,
    /// Write the section [compute] of a cluster model to a file, or to standard output in place of the table
    #[arg(long, value_name = "FILE|-")]
    toml: Option<PathBuf>,
}

pub fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    let options = CalibrateOptions { rounds: args.rounds, keys: args.keys };
    let bar = progress::bar("measure", args.rounds as u64);
    let measured = calibrate::run(&options, |round, _| bar.set_position(round as u64));
    bar.finish_and_clear();
    let calibration = measured.map_err(|error| match error {
        CalibrateError::Options(text) => Failure::bad_input(text),
        other => Failure::failed(other),
    })?;
    if let Some(path) = &args.toml {
        write_document(path, &calibration.toml())?;
        if path.as_os_str() == "-" {
            return Ok(());
        }
    }
    print(&calibration.table())
}
