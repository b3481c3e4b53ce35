//! Measures the cost of the code on this machine: the compute-side numbers of the simulated cluster's model.
//!
//! Measurements run the real code (cache, tree, executor) on memory servers in this process, so a READ costs
//! only a copy. Each number is the median of several rounds. Numbers of a network are not measured;
//! [`pando_sim::Model`] names their sources.

mod contended;
mod single;
mod testbed;

use std::fmt::Write as _;

use pando_sim::{Compute, Model};

/// Default number of rounds; odd, so that the median is one of them.
pub const ROUNDS: usize = 9;

/// Amount of measuring.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// Number of times that everything is measured.
    pub rounds: usize,
    /// Records of the measured index.
    pub keys: u64,
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self { rounds: ROUNDS, keys: 2_000_000 }
    }
}

/// Reason why nothing could be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    #[error("{0}")]
    Options(&'static str),
    #[error("the index to measure in: {0}")]
    Index(#[from] pando_dex::DexError),
    #[error("the index to measure in: {0}")]
    Pool(#[from] pando_pool::PoolError),
    #[error("the index to measure in: {0}")]
    Fabric(#[from] pando_fabric::FabricError),
    #[error("the cache to measure in: {0}")]
    Cache(#[from] pando_cache::CacheError),
    #[error("the keys to measure with: {0}")]
    Keys(#[from] pando_workload::SpecError),
}

/// One number of the model.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Name in the section `[compute]` of the model.
    pub name: &'static str,
    /// Description of what was measured.
    pub what: &'static str,
    /// Median of all rounds in ns, then minimum and maximum.
    pub median_ns: f64,
    pub least_ns: f64,
    pub most_ns: f64,
}

impl Measured {
    fn of(name: &'static str, what: &'static str, mut rounds: Vec<f64>) -> Self {
        rounds.sort_by(f64::total_cmp);
        let (least, most) = (rounds.first().copied(), rounds.last().copied());
        Self {
            name,
            what,
            median_ns: rounds.get(rounds.len() / 2).copied().unwrap_or(0.0),
            least_ns: least.unwrap_or(0.0),
            most_ns: most.unwrap_or(0.0),
        }
    }

    /// The median as the model stores it: in whole ns, and at least 1, since no work is free.
    pub fn whole_ns(&self) -> u64 {
        (self.median_ns.round() as u64).max(1)
    }
}

/// Results of all measurements, and the machine.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// Name of the processor, as the system reports it.
    pub processor: String,
    pub rounds: usize,
    pub measured: Vec<Measured>,
}

/// Measures everything. Calls `progress` with the number of finished rounds and of all rounds.
///
/// # Errors
/// [`CalibrateError`], mostly for lack of memory.
pub fn run(
    options: &CalibrateOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<Calibration, CalibrateError> {
    if options.rounds == 0 {
        return Err(CalibrateError::Options("it takes one round at least"));
    }
    if options.keys < 10_000 {
        return Err(CalibrateError::Options("it takes an index of 10,000 keys at least"));
    }
    let testbed = testbed::Testbed::new(options.keys)?;
    let mut rounds: Vec<(&'static str, &'static str, Vec<f64>)> = Vec::new();
    for round in 0..options.rounds {
        progress(round, options.rounds);
        let mut note = |name, what, ns: f64| match rounds.iter_mut().find(|(known, ..)| *known == name) {
            Some((.., list)) => list.push(ns),
            None => rounds.push((name, what, vec![ns])),
        };
        single::measure(&testbed, round as u64, &mut note)?;
        contended::measure(&mut note);
    }
    progress(options.rounds, options.rounds);
    let measured = rounds.into_iter().map(|(name, what, list)| Measured::of(name, what, list)).collect();
    Ok(Calibration { processor: processor(), rounds: options.rounds, measured })
}

/// Model name of the processor; the architecture if the system does not report a name.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

impl Calibration {
    /// Table for readers: the measured numbers beside the model's defaults.
    pub fn table(&self) -> String {
        let usual = Model::default().compute;
        let mut table = format!("{}, median of {} rounds\n\n", self.processor, self.rounds);
        let _ = writeln!(
            table,
            "{:<18} {:>8} {:>8} {:>8} {:>8}  what",
            "compute.", "ns", "least", "most", "default"
        );
        for Measured { name, what, median_ns, least_ns, most_ns } in &self.measured {
            let default = default_of(&usual, name).map_or_else(|| "-".to_owned(), |ns| ns.to_string());
            let _ = writeln!(
                table,
                "{name:<18} {median_ns:>8.1} {least_ns:>8.1} {most_ns:>8.1} {default:>8}  {what}"
            );
        }
        table
    }

    /// A section `[compute]` that [`Model::from_toml`] reads. Numbers that cannot be measured are left out,
    /// which leaves them at their defaults.
    pub fn toml(&self) -> String {
        let mut text = format!(
            "# Measured by `pando calibrate` on: {}. Medians of {} rounds.\n[compute]\n",
            self.processor, self.rounds
        );
        for measured in &self.measured {
            let _ = writeln!(text, "# {}.\n{} = {}", measured.what, measured.name, measured.whole_ns());
        }
        text
    }
}

fn default_of(compute: &Compute, name: &str) -> Option<u64> {
    let value = serde_json::to_value(compute).ok()?;
    value.get(name)?.as_u64()
}
