//! `pando simulate`: random configurations on a simulated cluster, with every history checked.
//!
//! Standard output gets one summary line, and for each failing seed the violations, the operations around
//! them, and the command that repeats the run. The exit status is 1 if any seed fails.

use std::fmt::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use pando_lab::simulate::{FaultSet, SeedReport, Summary, Systems, run_seed};
use pando_lab::units;

use crate::failure::Failure;
use crate::output::{print, write_document};
use crate::progress;
use crate::signals::Interrupt;

#[derive(Args, Debug)]
pub struct SimulateArgs {
    /// The seeds to run: from A to B - 1
    #[arg(long, value_name = "A..B", default_value = "0..100", value_parser = parse_seeds)]
    seeds: Range<u64>,
    /// Go on with the seeds after these for so many minutes in all
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Which index: dex, or one to compare with: fg, fg+, sherman, art, smart, each also with p- before it for keys divided among
    /// compute servers; all for any of them with any techniques, as the seed wants it
    #[arg(long, value_name = "NAME", default_value = "all")]
    system: String,
    /// Techniques that the system has besides: those of `bench`. What the seed draws is what is left open then
    #[arg(long, value_name = "TECHNIQUE,..", value_delimiter = ',')]
    with: Vec<String>,
    /// Techniques that the system has not
    #[arg(long, value_name = "TECHNIQUE,..", value_delimiter = ',')]
    without: Vec<String>,
    /// What may go wrong, where a seed wants it: torn, spikes, slow, stop, kill, disconnect, lost-answers,
    /// kill-compute, all of these or none; kill-memory, which ends one of the memory servers, of which there are
    /// copies then; cut-off, which drops futures of operations; and preempt, which preempts
    /// threads while they compute
    #[arg(long, value_name = "FAULT,..", default_value = "none")]
    faults: FaultSet,
    /// Write JSON to a file or to standard output: the summary, and the seeds that show something wrong
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

fn parse_seeds(text: &str) -> Result<Range<u64>, String> {
    let range = text.split_once("..").and_then(|(first, end)| Some(first.parse().ok()?..end.parse().ok()?));
    match range {
        Some(seeds) if seeds.start < seeds.end => Ok(seeds),
        _ => Err("seeds are written like 0..100, the last one not included".into()),
    }
}

pub fn run(args: &SimulateArgs) -> Result<(), Failure> {
    let time = match args.minutes {
        Some(minutes) if !(minutes > 0.0 && minutes <= 100_000.0) => {
            return Err(Failure::bad_input(format_args!(
                "--minutes must be above 0 and at most 100000, not {minutes}"
            )));
        }
        minutes => minutes.map(|minutes| Duration::from_secs_f64(minutes * 60.0)),
    };
    let systems = Systems::new(&args.system, &args.with, &args.without).map_err(Failure::bad_input)?;
    let interrupt = Interrupt::listen()?;
    let began = Instant::now();
    let bar = progress::bar("simulate", if time.is_some() { 0 } else { args.seeds.end - args.seeds.start });
    let mut summary = Summary::new(&systems, args.faults);
    let seeds = args.seeds.clone().chain((args.seeds.end..u64::MAX).take_while(|_| time.is_some()));
    for seed in seeds {
        let is_late = time.is_some_and(|time| began.elapsed() >= time);
        if interrupt.wanted() || is_late {
            break;
        }
        let report = run_seed(seed, &systems, args.faults);
        if !report.violations.is_empty() && args.json.is_none() {
            bar.suspend(|| print(&render(&report, &systems, args.faults)))?;
        }
        summary.add(report);
        bar.inc(1);
    }
    bar.finish_and_clear();
    summary.seconds = began.elapsed().as_secs_f64();
    match &args.json {
        Some(path) => write_document(path, &(summary.to_json() + "\n"))?,
        None => print(&line(&summary, interrupt.wanted()))?,
    }
    match summary.failed_seeds.len() {
        0 => Ok(()),
        1 => Err(Failure::failed("one seed shows something wrong")),
        wrong => Err(Failure::failed(format_args!("{wrong} seeds show something wrong"))),
    }
}

/// The summary line.
fn line(summary: &Summary, interrupted: bool) -> String {
    format!(
        "{}{} seeds, {} operations ({} failed by faults), {} histories of a key checked, {} violations, {} of virtual time, {}\n",
        if interrupted { "interrupted after " } else { "" },
        units::count(summary.seeds),
        units::count(summary.operations),
        units::count(summary.failed_operations),
        units::count(summary.key_histories),
        units::count(summary.violations),
        units::duration(Duration::from_nanos(summary.virtual_ns)),
        units::duration(Duration::from_secs_f64(summary.seconds)),
    )
}

/// Violations of a seed, and the command that repeats it.
fn render(report: &SeedReport, systems: &Systems, faults: FaultSet) -> String {
    let seed = report.setup.seed;
    let techniques =
        report.setup.system.techniques().map_or(String::new(), |names| format!(" with {}", names.join(", ")));
    let mut text = format!("seed {seed}, {}{techniques}:\n", report.setup.name());
    for violation in &report.violations {
        let _ = write!(text, " {}\n{}", violation.what, violation.excerpt);
    }
    let _ = writeln!(text, " again: pando simulate {systems} --seeds {seed}..{} --faults {faults}", seed + 1);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_lab::simulate::{Kind, Violation};

    #[test]
    fn a_violation_comes_with_the_command_that_repeats_it() {
        let mut report = run_seed(7, &Systems::dex(), FaultSet::NONE);
        report.violations.push(Violation {
            kind: Kind::Scan,
            what: "a scan went astray".into(),
            excerpt: "  put 1\n".into(),
        });
        let text = render(&report, &Systems::dex(), "torn,stop".parse().expect("valid"));
        assert!(text.contains("went astray\n  put 1\n"), "{text}");
        assert!(
            text.ends_with(" again: pando simulate --system dex --seeds 7..8 --faults torn,stop\n"),
            "{text}"
        );
    }

    #[test]
    fn seeds_are_a_range_that_is_not_empty() {
        assert_eq!(parse_seeds("3..7"), Ok(3..7));
        for text in ["", "3", "3..", "3..3", "7..3", "a..b", "-1..2"] {
            assert!(parse_seeds(text).is_err(), "{text}");
        }
    }
}
