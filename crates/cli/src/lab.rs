//! `pando lab`: reproduces tables and figures of the papers.
//!
//! `list` lists the experiments. `run` performs one and writes JSON, a table and plots to a directory. Failed
//! cells are marked in the table, and the command ends with status 1. `summary` prints one table over the
//! results of many.

use std::cell::RefCell;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::ProgressBar;
use pando_lab::experiments::{self, Experiment, Progress, RunOptions, Scale, Setting};

use crate::failure::Failure;
use crate::output::print;
use crate::progress;
use crate::signals::Interrupt;

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// List the experiments
    List,
    /// Run an experiment: JSON, a Markdown table and plots (SVG, PNG)
    Run(LabRunArgs),
    /// Print one table over the results of all experiments, beside the papers' values
    Summary {
        /// The directory with the JSON files that runs left
        dir: PathBuf,
    },
}

#[derive(Args, Debug)]
pub struct LabRunArgs {
    /// Its name, as `pando lab list` has it
    experiment: String,
    /// quick: a hundredth of the paper's data or a few, minutes on two cores; full: the paper's 200 million records
    #[arg(long, value_name = "SCALE", value_enum, default_value_t = ScaleArg::Quick, hide_possible_values = true)]
    scale: ScaleArg,
    /// The directory for the results; it is made if there is none
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only the cells with this text in the names of their panel, series or place on the x axis
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    only: String,
    /// Operations in flight on each thread, up to 64 [default: as the paper has it, mostly 1]
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Cells that run side by side [default: one on each core]; the results are the same
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    #[arg(long, value_name = "N", default_value = "42")]
    seed: u64,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ScaleArg {
    Quick,
    Full,
    /// To see that an experiment runs.
    #[value(hide = true)]
    Tiny,
}

impl From<ScaleArg> for Scale {
    fn from(scale: ScaleArg) -> Scale {
        match scale {
            ScaleArg::Quick => Scale::Quick,
            ScaleArg::Full => Scale::Full,
            ScaleArg::Tiny => Scale::Tiny,
        }
    }
}

pub fn run(command: &LabCommand) -> Result<(), Failure> {
    match command {
        LabCommand::List => list(),
        LabCommand::Run(args) => run_one(args),
        LabCommand::Summary { dir } => print(&experiments::summary(dir)?),
    }
}

fn list() -> Result<(), Failure> {
    let width = experiments::all().map(|experiment| experiment.name.len()).max().unwrap_or(0);
    let line =
        |Experiment { name, title, source, .. }: &Experiment| format!("{name:width$}  {title} ({source})\n");
    print(&experiments::all().map(line).collect::<String>())
}

fn run_one(args: &LabRunArgs) -> Result<(), Failure> {
    let Some(experiment) = experiments::find(&args.experiment) else {
        return Err(Failure::bad_input(format_args!(
            "there is no experiment `{}`; `pando lab list` names them",
            args.experiment
        )));
    };
    let setting = Setting { slots: args.slots, ..Setting::new(args.scale.into(), args.seed) };
    let bar = CellBar { interrupt: Interrupt::listen()?, bar: RefCell::new(ProgressBar::hidden()) };
    let options = RunOptions { only: &args.only, jobs: args.jobs.map(usize::from) };
    let written = experiments::run(experiment, setting, options, &args.out, &bar);
    bar.bar.borrow().finish_and_clear();
    let written = written?;
    let mut text = String::new();
    for file in &written.files {
        text.push_str(&format!("{}\n", file.display()));
    }
    print(&text)?;
    match written.troubled {
        0 => Ok(()),
        troubled => Err(Failure::failed(format_args!(
            "{troubled} of {} cells failed; {} says how",
            written.cells,
            args.out.join(format!("{}.md", experiment.name)).display()
        ))),
    }
}

/// One progress bar over all cells.
struct CellBar {
    interrupt: Interrupt,
    bar: RefCell<ProgressBar>,
}

impl Progress for CellBar {
    fn cells(&self, done: usize, all: usize) {
        let mut bar = self.bar.borrow_mut();
        if bar.length() != Some(all as u64) {
            *bar = progress::bar("cells", all as u64);
        }
        bar.set_position(done as u64);
    }

    fn interrupted(&self) -> bool {
        self.interrupt.wanted()
    }
}
