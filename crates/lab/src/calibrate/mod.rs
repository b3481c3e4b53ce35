//! What the code costs on the machine at hand: the compute-side numbers of the simulated cluster's model.
//!
//! Everything is measured with the real code (cache, tree, executor) on memory servers in this process, so that a READ costs
//! a copy and nothing else. Each number is the median of several rounds. Numbers of a network are not measured: they come
//! from where [`pando_sim::Model`] says.

mod contended;
mod single;
mod testbed;

use std::fmt::Write as _;

use pando_sim::{Compute, Model};

/// Rounds by default: an odd number, so that there is a median.
pub const ROUNDS: usize = 9;

/// How much to measure.
#[derive(Clone, Debug)]
pub struct CalibrateOptions {
    /// Times that everything is measured.
    pub rounds: usize,
    /// Records of the index that lookups are measured in.
    pub keys: u64,
}

impl Default for CalibrateOptions {
    fn default() -> Self {
        Self { rounds: ROUNDS, keys: 2_000_000 }
    }
}

/// Why nothing could be measured.
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
    /// Its name in the section `[compute]`.
    pub name: &'static str,
    /// What was measured.
    pub what: &'static str,
    /// Median of all rounds in ns, the least and the most.
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

    /// As the model has it: whole ns, and 1 at least, since nothing is for nothing.
    pub fn whole_ns(&self) -> u64 {
        (self.median_ns.round() as u64).max(1)
    }
}

/// What was measured, and where.
#[derive(Clone, Debug)]
pub struct Calibration {
    /// The processor, as the system calls it.
    pub processor: String,
    pub rounds: usize,
    pub measured: Vec<Measured>,
}

/// Measures everything; `progress` is told how many of how many rounds are done.
///
/// # Errors
/// [`CalibrateError`], mostly for too little memory.
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

/// Model name of the processor; the architecture where the system does not say.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

impl Calibration {
    /// A table for people: what was measured, and what the model has in its place.
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

    /// A section `[compute]` that [`Model::from_toml`] reads. Numbers that cannot be measured are left out, and so as in the
    /// default.
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
