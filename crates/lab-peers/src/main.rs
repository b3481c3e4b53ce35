//! Compares the ordered maps available in Rust: `cargo run --release -p pando-lab-peers -- --help`.
//!
//! All maps get the same keys, distributions and numbers of threads, interleaved in one run, and every answer
//! is checked. This is the only crate that depends on third-party indexes.
#![forbid(unsafe_code)]

use anyhow::Context;
use clap::Parser;
use pando_lab_peers::driver::Plan;
use pando_lab_peers::instructions::{self, Count};
use pando_lab_peers::maps::{self, Entry};
use pando_lab_peers::turns;
use pando_workload::{Distribution, KeySpace};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Compares ordered maps on the same data, in turns, in one run. Every answer is checked.
#[derive(Debug, Parser)]
#[command(name = "pando-lab-peers")]
struct Arguments {
    /// Number of keys; `20m` is 20 million.
    #[arg(long, default_value = "20m", value_parser = count)]
    keys: u64,
    /// Key spaces.
    #[arg(long, value_delimiter = ',', default_value = "dense,random64")]
    space: Vec<KeySpace>,
    /// Distributions of keys: `uniform` or `zipf:THETA`. Popular keys are scattered.
    #[arg(long, value_delimiter = ',', default_value = "zipf:0.99,uniform")]
    dist: Vec<Distribution>,
    /// Numbers of threads.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<usize>,
    /// Rounds; the median is reported.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds per phase, map and round.
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Maps to compare, by name.
    #[arg(long, value_delimiter = ',', value_parser = map)]
    maps: Vec<Entry>,
    /// Records of a scan.
    #[arg(long, default_value_t = 100)]
    scan: usize,
    /// Keys of a multi-get.
    #[arg(long, default_value_t = 64)]
    multi_get: usize,
    /// Drawn keys per thread, used over and over.
    #[arg(long, default_value = "4m", value_parser = count)]
    draws: u64,
    /// Load the records in pseudo-random instead of ascending order.
    #[arg(long)]
    shuffled: bool,
    /// Load each map anew in every round, instead of keeping all in memory.
    #[arg(long)]
    one_at_a_time: bool,
    /// Also write the results to a file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Count instructions per operation instead of time, over so many operations of each kind.
    #[arg(long, value_name = "OPERATIONS", num_args = 0..=1, default_missing_value = "256", value_parser = count)]
    instructions: Option<u64>,
    /// Compare with an earlier build of this program: run both in turns, with the other options.
    #[arg(long, value_name = "PROGRAM", conflicts_with_all = ["json", "instructions"])]
    before: Option<PathBuf>,
    /// Turns of that.
    #[arg(long, default_value_t = 5, requires = "before", value_parser = clap::value_parser!(u16).range(1..))]
    turns: u16,
    /// Compare Elf with other ways to answer conditions on three columns of so many rows like TPC-H's lineitem, instead of
    /// maps; needs the feature `elf`.
    #[arg(long, value_name = "ROWS", num_args = 0..=1, default_missing_value = "6m", value_parser = count)]
    elf: Option<u64>,
    /// Compare maps in files by what they promise of updates that were answered, with so many keys; needs the feature
    /// `durable`.
    #[arg(long, value_name = "KEYS", num_args = 0..=1, default_missing_value = "200k", value_parser = count)]
    durable: Option<u64>,
    /// Directory for these files, on the disk in question.
    #[arg(long, requires = "durable", default_value = ".")]
    directory: PathBuf,
    /// Promises to compare; `group` is kept by a synced write each 50 ms.
    #[arg(long, requires = "durable", value_delimiter = ',', default_value = "off,process,group,immediate")]
    #[arg(value_parser = ["off", "process", "group", "immediate"])]
    promise: Vec<String>,
    /// Maps in files to compare; all if none is named.
    #[arg(long, requires = "durable", value_delimiter = ',', value_parser = ["Pando", "redb", "fjall", "sled"])]
    durable_maps: Vec<String>,
    /// What the process runs in which instructions of one map are counted.
    #[arg(long, hide = true, value_parser = map)]
    counted: Option<Entry>,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    if let Some(rows) = arguments.elf {
        return elf(rows, arguments.rounds, arguments.json.as_deref());
    }
    if let Some(keys) = arguments.durable {
        return durable(keys, arguments);
    }
    if let Some(operations) = arguments.instructions {
        return instructions(&arguments, operations);
    }
    if let Some(before) = &arguments.before {
        let table =
            turns::compare(before, &std::env::current_exe()?, &options_of_both(), arguments.turns.into())?;
        print!("{table}");
        return Ok(());
    }
    let json = arguments.json.clone();
    let report = plan(arguments)?.run(|what| eprintln!("{what}"))?;
    show(&report.markdown(), &report, json.as_deref())
}

/// Prints a report, and writes it to a file if that is wanted.
fn show(markdown: &str, report: &impl Serialize, json: Option<&Path>) -> anyhow::Result<()> {
    print!("{markdown}");
    let Some(path) = json else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(feature = "elf")]
fn elf(rows: u64, rounds: usize, json: Option<&Path>) -> anyhow::Result<()> {
    use pando_lab_peers::selections::{Comparison, compare};
    let comparison = Comparison { rows: usize::try_from(rows)?, rounds };
    let report = compare(&comparison, |what| eprintln!("{what}"))?;
    show(&report.markdown(), &report, json)
}

#[cfg(not(feature = "elf"))]
fn elf(_rows: u64, _rounds: usize, _json: Option<&Path>) -> anyhow::Result<()> {
    anyhow::bail!(
        "this program was built without the comparison of Elf; build it with `cargo build --release -p pando-lab-peers \
         --features elf`"
    )
}

#[cfg(feature = "durable")]
fn durable(keys: u64, arguments: Arguments) -> anyhow::Result<()> {
    use pando_lab_peers::durable::{Comparison, Promise};
    let is_wanted = |promise: &Promise| arguments.promise.iter().any(|name| name == promise.name());
    let comparison = Comparison {
        keys,
        rounds: arguments.rounds,
        time: Duration::from_secs_f64(arguments.seconds),
        promises: Promise::ALL.into_iter().filter(is_wanted).collect(),
        maps: arguments.durable_maps,
        directory: arguments.directory,
    };
    let report = comparison.run(|what| eprintln!("{what}"))?;
    show(&report.markdown(), &report, arguments.json.as_deref())
}

#[cfg(not(feature = "durable"))]
fn durable(_keys: u64, _arguments: Arguments) -> anyhow::Result<()> {
    anyhow::bail!(
        "this program was built without the comparison of maps in files; build it with `cargo build --release -p \
         pando-lab-peers --features durable`"
    )
}

/// Arguments of this process without `--before` and `--turns`.
fn options_of_both() -> Vec<String> {
    let mut options: Vec<String> = std::env::args().skip(1).collect();
    for own in ["--before", "--turns"] {
        if let Some(at) = options.iter().position(|option| option == own) {
            options.drain(at..(at + 2).min(options.len()));
        }
        options.retain(|option| !option.starts_with(&format!("{own}=")));
    }
    options
}

/// Counts instructions for each map in a child process, with the first key space and distribution.
fn instructions(arguments: &Arguments, operations: u64) -> anyhow::Result<()> {
    let (Some(&space), Some(&distribution)) = (arguments.space.first(), arguments.dist.first()) else {
        anyhow::bail!("counting needs a key space and a distribution");
    };
    let maps = if arguments.maps.is_empty() { maps::all() } else { arguments.maps.clone() };
    let count = |map| Count {
        map,
        keys: arguments.keys,
        space,
        distribution,
        scan_len: arguments.scan,
        multi_get_len: arguments.multi_get,
        operations,
    };
    if let Some(map) = arguments.counted {
        return count(map).child();
    }
    let mut counts = Vec::new();
    for &map in &maps {
        eprintln!("counting {}", map.name);
        let own = ["--counted", map.name].map(str::to_owned);
        let arguments: Vec<String> = std::env::args().skip(1).chain(own).collect();
        counts.push((map.name, count(map).run(&arguments)?));
    }
    print!("{}", instructions::markdown(&counts, &count(maps[0])));
    Ok(())
}

fn plan(arguments: Arguments) -> anyhow::Result<Plan> {
    Ok(Plan {
        maps: if arguments.maps.is_empty() { maps::all() } else { arguments.maps },
        keys: arguments.keys,
        spaces: arguments.space,
        distributions: arguments.dist,
        threads: arguments.threads,
        rounds: arguments.rounds,
        time: Duration::from_secs_f64(arguments.seconds),
        scan_len: arguments.scan,
        multi_get_len: arguments.multi_get,
        draws: usize::try_from(arguments.draws)?,
        sorted_load: !arguments.shuffled,
        all_resident: !arguments.one_at_a_time,
    })
}

/// Parses a count with an optional `k`, `m` or `g` for thousands, millions or billions.
fn count(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is not a count such as `1000` or `20m`");
    let (digits, unit) = match text.to_ascii_lowercase().chars().last() {
        Some('k') => (&text[..text.len() - 1], 1_000),
        Some('m') => (&text[..text.len() - 1], 1_000_000),
        Some('g') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(bad)
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| Duration::try_from_secs_f64(*value).is_ok());
    value.ok_or_else(|| format!("`{text}` is not a number of seconds"))
}

fn map(name: &str) -> Result<Entry, String> {
    let entries = maps::all();
    let names: Vec<&str> = entries.iter().map(|entry| entry.name).collect();
    let found = entries.iter().find(|entry| entry.name == name);
    found.copied().ok_or_else(|| format!("there is no map `{name}`; there are: {}", names.join(", ")))
}
