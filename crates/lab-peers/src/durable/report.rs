//! Results as a Markdown table and as JSON.
//!
//! A rate is a median over the turns. It is compared with the fastest map of others that promises the same, and with
//! the same map that promises nothing.

use std::fmt::Write;

use serde::Serialize;

use super::maps::Entry;
use super::{Comparison, Promise, Rates, TOGETHER, Way};
use crate::report::median;

/// All results of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub keys: u64,
    pub rounds: usize,
    pub seconds: f64,
    /// Mean time of overwriting 4 KiB of a file and waiting for the disk, 20 times before each turn: median of these.
    pub synced_write_ms: f64,
    pub lines: Vec<Line>,
}

/// Results of one map with one promise.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    pub promise: Promise,
    pub name: &'static str,
    /// How the map keeps the promise.
    pub how: &'static str,
    /// A map of this project; ratios are never taken to one of these.
    pub ours: bool,
    pub ways: Vec<WayReport>,
}

/// Results of one way.
#[derive(Clone, Debug, Serialize)]
pub struct WayReport {
    pub way: Way,
    /// Updates per second.
    pub median: f64,
    /// `median` divided by that of the fastest map of others with this promise, if one was measured.
    pub ratio: Option<f64>,
    /// `median` divided by that of the same map with [`Promise::Off`], if that was measured.
    pub of_off: Option<f64>,
    pub rounds: Vec<f64>,
}

impl Report {
    pub(super) fn new<'a>(
        comparison: &Comparison,
        synced_write_ms: f64,
        measured: impl Iterator<Item = (&'a Entry, Rates)>,
    ) -> Self {
        let way = |(way, rounds): (Way, Vec<f64>)| WayReport {
            way,
            median: median(&rounds),
            ratio: None,
            of_off: None,
            rounds,
        };
        let line = |(entry, rates): (&Entry, Rates)| Line {
            promise: entry.promise,
            name: entry.name,
            how: entry.how,
            ours: entry.is_ours(),
            ways: Way::ALL.into_iter().zip(rates).map(way).collect(),
        };
        let mut lines: Vec<Line> = measured.map(line).collect();
        for way in 0..Way::ALL.len() {
            for i in 0..lines.len() {
                let (promise, name) = (lines[i].promise, lines[i].name);
                let rate = |line: &Line| line.ways[way].median;
                let peers = lines.iter().filter(|line| line.promise == promise && !line.ours);
                let best = peers.map(rate).max_by(f64::total_cmp);
                let off = lines.iter().find(|line| line.promise == Promise::Off && line.name == name);
                let off = off.map(rate);
                let own = &mut lines[i].ways[way];
                own.ratio = best.map(|best| own.median / best);
                own.of_off = off.map(|off| own.median / off);
            }
        }
        let seconds = comparison.time.as_secs_f64();
        Self { keys: comparison.keys, rounds: comparison.rounds, seconds, synced_write_ms, lines }
    }

    /// The table, then what it means and how each map keeps its promise.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        self.write_markdown(&mut out).expect("writing to a string does not fail");
        out
    }

    fn write_markdown(&self, out: &mut String) -> std::fmt::Result {
        writeln!(out, "| promise | map | single | batched, {TOGETHER} | 2 threads | of `off` |")?;
        writeln!(out, "|---|---|---|---|---|---|")?;
        for line in &self.lines {
            write!(out, "| {} | {} |", line.promise.name(), line.name)?;
            for way in &line.ways {
                let ratio = way.ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2}x)"));
                write!(out, " {:.0}{ratio} |", way.median)?;
            }
            let of_off = line.ways.iter().map(|way| way.of_off.map(|ratio| format!("{ratio:.2}")));
            let of_off: Option<Vec<_>> = of_off.collect();
            writeln!(out, " {} |", of_off.map_or_else(|| "-".to_owned(), |ratios| ratios.join(" / ")))?;
        }
        writeln!(
            out,
            "\nUpdates per second of {} keys of 8 bytes, uniform, values of 8 bytes: median of {} rounds of {} s, in \
             turns; in brackets the ratio to the fastest map of others with the same promise. One synced write of 4 KiB took \
             {:.2} ms.\n",
            self.keys, self.rounds, self.seconds, self.synced_write_ms
        )?;
        for line in &self.lines {
            writeln!(out, "- {}, {}: {}.", line.promise.name(), line.name, line.how)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::maps;
    use super::*;

    #[test]
    fn ratios_are_to_others_with_the_same_promise_and_to_off() {
        let comparison = Comparison {
            keys: 1,
            rounds: 3,
            time: Duration::from_secs(1),
            promises: Promise::ALL.to_vec(),
            maps: Vec::new(),
            directory: "/tmp".into(),
        };
        let entries = maps::all();
        let find = |name, promise| {
            let entry = entries.iter().find(|entry| entry.name == name && entry.promise == promise);
            entry.expect("it is in the table")
        };
        let rates = |rate: f64| [(); 3].map(|()| vec![rate, 9.0 * rate, 2.0 * rate]);
        let measured = [
            (find("Pando", Promise::Off), rates(8.0)),
            (find("Pando", Promise::Immediate), rates(6.0)),
            (find("redb", Promise::Immediate), rates(2.0)),
            (find("fjall", Promise::Immediate), rates(4.0)),
        ];
        let report = Report::new(&comparison, 1.5, measured.into_iter());
        let of = |line: usize| {
            let way = &report.lines[line].ways[0];
            (way.median, way.ratio, way.of_off)
        };
        assert_eq!(of(0), (16.0, None, Some(1.0)));
        assert_eq!(of(1), (12.0, Some(1.5), Some(0.75)));
        assert_eq!(of(2), (4.0, Some(0.5), None));
        let text = report.markdown();
        assert!(
            text.contains(
                "| immediate | Pando | 12 (1.50x) | 12 (1.50x) | 12 (1.50x) | 0.75 / 0.75 / 0.75 |"
            ),
            "{text}"
        );
        assert!(text.contains("| immediate | redb | 4 (0.50x) | 4 (0.50x) | 4 (0.50x) | - |"), "{text}");
    }
}
