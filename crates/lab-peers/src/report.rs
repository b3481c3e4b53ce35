//! Results as a Markdown table and as JSON.
//!
//! Rates are medians over the rounds, with their ratio to the fastest B-tree of others. A table is marked if
//! its threads were kept from their processors, since its rates then depend on the machine more than on the
//! maps.

use crate::Kind;
use crate::maps::Entry;
use crate::measure::Phase;
use serde::Serialize;
use std::fmt::Write;

/// If the median processor share of a table is below this value, a warning follows the table.
const BUSY_BELOW: f64 = 0.97;

/// All results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub keys: u64,
    pub rounds: usize,
    pub seconds_per_phase: f64,
    pub scan_len: usize,
    pub multi_get_len: usize,
    pub sorted_load: bool,
    pub tables: Vec<Table>,
    /// Names and notes of the maps.
    pub notes: Vec<(&'static str, &'static str)>,
}

/// Results for one combination of key space, distribution and number of threads.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    pub space: String,
    pub distribution: String,
    pub threads: usize,
    pub maps: Vec<MapReport>,
}

/// Results of one map in a table.
#[derive(Clone, Debug, Serialize)]
pub struct MapReport {
    pub name: &'static str,
    pub kind: Kind,
    /// A map of this project; the ratios' base is never one of these.
    pub ours: bool,
    pub load_seconds: f64,
    /// Growth of resident memory while the map was loaded. `None` where freed memory may have been reused: in
    /// all key spaces but the first, and if maps are loaded anew in every round.
    pub bytes_per_key: Option<f64>,
    pub phases: Vec<PhaseReport>,
}

/// Results of one phase of one map.
#[derive(Clone, Debug, Serialize)]
pub struct PhaseReport {
    pub phase: Phase,
    /// Median rate over the rounds, in operations per second.
    pub median: f64,
    /// `median` divided by that of the fastest B-tree of others.
    pub ratio: f64,
    pub rounds: Vec<f64>,
    /// Fraction of the time that a thread was on a processor: median over the rounds.
    pub processor_share: f64,
}

/// Result of one phase of one map in one round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Operations per second, summed over the threads.
    pub rate: f64,
    /// Mean fraction of the time that a thread was on a processor.
    pub processor_share: f64,
}

impl MapReport {
    pub(crate) fn new(
        entry: &Entry,
        outcomes: [Vec<Outcome>; Phase::ALL.len()],
        load_seconds: f64,
        bytes_per_key: Option<f64>,
    ) -> MapReport {
        let phase = |(phase, outcomes): (Phase, Vec<Outcome>)| {
            let rounds: Vec<f64> = outcomes.iter().map(|outcome| outcome.rate).collect();
            let shares: Vec<f64> = outcomes.iter().map(|outcome| outcome.processor_share).collect();
            let processor_share = median(&shares);
            PhaseReport { phase, median: median(&rounds), ratio: 1.0, rounds, processor_share }
        };
        let phases = Phase::ALL.into_iter().zip(outcomes).map(phase).collect();
        let (name, kind, ours) = (entry.name, entry.kind, entry.ours);
        MapReport { name, kind, ours, load_seconds, bytes_per_key, phases }
    }
}

impl Table {
    /// Makes a table and fills in the ratios.
    pub(crate) fn new(
        space: String,
        distribution: String,
        threads: usize,
        mut maps: Vec<MapReport>,
    ) -> Table {
        for phase in 0..Phase::ALL.len() {
            let is_peer = |map: &&MapReport| map.kind == Kind::BTree && !map.ours;
            let peers = maps.iter().filter(is_peer).map(|map| map.phases[phase].median);
            let Some(fastest) = peers.max_by(f64::total_cmp) else { continue };
            maps.iter_mut().for_each(|map| map.phases[phase].ratio = map.phases[phase].median / fastest);
        }
        Table { space, distribution, threads, maps }
    }

    fn markdown(&self, report: &Report, out: &mut String) -> std::fmt::Result {
        let plural = if self.threads == 1 { "" } else { "s" };
        writeln!(out, "### {} keys, {}, {} thread{plural}\n", self.space, self.distribution, self.threads)?;
        let (multi, scan) = (report.multi_get_len, report.scan_len);
        writeln!(
            out,
            "| map | kind | lookup | multi-get of {multi} | update | scan of {scan} | B/key | load |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|---|")?;
        for map in &self.maps {
            let kind = match map.kind {
                Kind::BTree => "B-tree",
                Kind::SkipList => "skip list",
                Kind::RadixTree => "radix tree",
            };
            write!(out, "| {} | {kind} |", map.name)?;
            for phase in &map.phases {
                write!(out, " {:.2} ({:.2}x) |", phase.median / 1e6, phase.ratio)?;
            }
            let bytes = map.bytes_per_key.map_or_else(|| "-".to_owned(), |bytes| format!("{bytes:.0}"));
            writeln!(out, " {bytes} | {:.1} s |", map.load_seconds)?;
        }
        writeln!(out)?;
        let shares = self.maps.iter().flat_map(|map| &map.phases).map(|phase| phase.processor_share);
        let share = median(&shares.collect::<Vec<f64>>());
        if share < BUSY_BELOW {
            let percent = 100.0 * share;
            writeln!(
                out,
                "**The machine was busy: threads had a processor for {percent:.0}% of the time.**\n"
            )?;
        }
        Ok(())
    }
}

impl Report {
    /// The tables, then the settings and the notes.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        self.write_markdown(&mut out).expect("writing to a string does not fail");
        out
    }

    fn write_markdown(&self, out: &mut String) -> std::fmt::Result {
        for table in &self.tables {
            table.markdown(self, out)?;
        }
        let order = if self.sorted_load { "ascending" } else { "pseudo-random" };
        writeln!(
            out,
            "{} keys and values of 8 bytes, loaded in {order} order. Million operations per second (multi-gets \
             count their keys, scans count once), median of {} rounds of {} s, in turns; in brackets the ratio \
             to the fastest B-tree of others.\n",
            self.keys, self.rounds, self.seconds_per_phase
        )?;
        self.notes.iter().try_for_each(|(name, note)| writeln!(out, "- {name}: {note}."))
    }
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps;

    #[test]
    fn ratios_are_to_the_fastest_b_tree_of_others() {
        let entries = maps::all();
        let outcome = |rate| Outcome { rate, processor_share: 1.0 };
        let rates = |rate: f64| [(); 4].map(|()| [rate, 3.0 * rate, 2.0 * rate].map(outcome).to_vec());
        let map = |i: usize, rate| MapReport::new(&entries[i], rates(rate), 0.0, None);
        let last = entries.len() - 1;
        assert_eq!(entries[last].kind, Kind::RadixTree);
        let others = entries.iter().position(|entry| !entry.ours).expect("there are others");
        let maps = vec![map(0, 6.0), map(others, 1.0), map(others + 1, 2.0), map(last, 8.0)];
        let table = Table::new(String::new(), String::new(), 1, maps);
        let ratios: Vec<f64> = table.maps.iter().map(|map| map.phases[0].ratio).collect();
        assert_eq!(ratios, [3.0, 0.5, 1.0, 4.0]);
        assert_eq!(table.maps[0].phases[3].median, 12.0);
    }
}
