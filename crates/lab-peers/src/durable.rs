//! Compares ordered maps in files by what they promise of an update that was answered, in turns.
//!
//! Each turn makes a map anew, loads it, and updates values of uniformly drawn keys in three ways: one at a time, 64
//! together, and one at a time on two threads. Rates are medians of the turns. Their ratios are to the fastest map
//! of others with the same promise, and to the same map without a promise. Beside them is the time of one synced write
//! in the same directory. Some of the updates of each way are looked up afterwards.

mod feed;
mod maps;
mod report;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use pando_workload::{Distribution, KeySpace, mix64};

use crate::data::{DataSet, Draw};
use crate::report::median;
use feed::Feed;
use maps::{Entry, Map};

pub use report::Report;

/// What is left of updates that were answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// Nothing is promised.
    Off,
    /// All of them, if the process is killed: the kernel has them.
    Process,
    /// Those until [`INTERVAL`] before, if power is lost.
    Group,
    /// All of them, if power is lost.
    Immediate,
}

/// Time between two synced writes with [`Promise::Group`].
const INTERVAL: Duration = Duration::from_millis(50);

impl Promise {
    pub const ALL: [Promise; 4] = [Promise::Off, Promise::Process, Promise::Group, Promise::Immediate];

    pub fn name(self) -> &'static str {
        match self {
            Promise::Off => "off",
            Promise::Process => "process",
            Promise::Group => "group",
            Promise::Immediate => "immediate",
        }
    }
}

/// How updates are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// One after the other.
    Single,
    /// [`TOGETHER`] by one commit or, with Pando, in flight.
    Batched,
    /// One after the other on each of two threads.
    Threads,
}

/// Updates of a commit.
const TOGETHER: usize = 64;
/// Drawn keys of a thread, used over and over.
const DRAWS: usize = 1 << 18;

impl Way {
    pub const ALL: [Way; 3] = [Way::Single, Way::Batched, Way::Threads];

    fn together(self) -> usize {
        if self == Way::Batched { TOGETHER } else { 1 }
    }

    fn threads(self) -> usize {
        if self == Way::Threads { 2 } else { 1 }
    }
}

/// What is compared.
#[derive(Clone, Debug)]
pub struct Comparison {
    pub keys: u64,
    pub rounds: usize,
    /// Duration of one way of one map in one round.
    pub time: Duration,
    pub promises: Vec<Promise>,
    /// Names of the maps that are compared; none stands for all.
    pub maps: Vec<String>,
    /// Directory for the files, all of which are removed.
    pub directory: PathBuf,
}

/// Rates of one map: for each way, one for each round.
type Rates = [Vec<f64>; Way::ALL.len()];

impl Comparison {
    /// Measures all maps in turns and reports each to `tell`.
    ///
    /// # Errors
    /// Nothing to measure; an unusable directory; errors of a map, or a lost update.
    pub fn run(&self, tell: impl Fn(&str)) -> anyhow::Result<Report> {
        ensure!(self.keys > 0, "there must be at least one key");
        ensure!(self.rounds > 0, "there must be at least one round");
        ensure!(self.time > Duration::ZERO, "a turn must take longer than 0 seconds");
        let home = tempfile::tempdir_in(&self.directory)
            .with_context(|| format!("no directory can be made in {}", self.directory.display()))?;
        let data = DataSet::new(KeySpace::Dense, self.keys);
        let draws = |thread| data.draws(Distribution::Uniform, DRAWS, 0, mix64(thread));
        let draws = [draws(0)?, draws(1)?];
        let is_wanted = |entry: &Entry| {
            let is_named = self.maps.is_empty() || self.maps.iter().any(|name| name == entry.name);
            is_named && self.promises.contains(&entry.promise)
        };
        let entries: Vec<Entry> = maps::all().into_iter().filter(is_wanted).collect();
        ensure!(!entries.is_empty(), "none of these maps keeps one of these promises");
        let mut rates = vec![Rates::default(); entries.len()];
        let mut syncs = Vec::new();
        for round in 0..self.rounds {
            // Another order in each round: a disk may be slower after a map that wrote much.
            let mut order: Vec<usize> = (0..entries.len()).collect();
            order.sort_by_key(|&i| mix64((round * entries.len() + i) as u64));
            for i in order {
                syncs.push(synced_write_ms(home.path()).context("a file cannot be written and synced")?);
                let entry = &entries[i];
                tell(&format!("round {}, {}: {}", round + 1, entry.promise.name(), entry.name));
                let turn = Turn { data: &data, draws: &draws, time: self.time, round };
                let turn = turn.run(entry, &home.path().join("map"), &mut rates[i]);
                turn.with_context(|| format!("{}, {}", entry.name, entry.promise.name()))?;
            }
        }
        Ok(Report::new(self, median(&syncs), entries.iter().zip(rates)))
    }
}

/// What all turns of a round have in common.
struct Turn<'a> {
    data: &'a DataSet,
    /// For each thread.
    draws: &'a [Vec<Draw>; 2],
    time: Duration,
    round: usize,
}

impl Turn<'_> {
    /// Makes a map in `home`, measures it and removes it.
    fn run(&self, entry: &Entry, home: &Path, rates: &mut Rates) -> anyhow::Result<()> {
        std::fs::create_dir(home)?;
        let map = (entry.load)(home, entry.promise, &self.data.pairs)?;
        for (way, rates) in Way::ALL.into_iter().zip(rates) {
            rates.push(self.rate(&*map, way)?);
        }
        drop(map);
        std::fs::remove_dir_all(home)?;
        Ok(())
    }

    /// Updates per second.
    fn rate(&self, map: &dyn Map, way: Way) -> anyhow::Result<f64> {
        let sequence = (self.round * Way::ALL.len() + way as usize + 1) as u64;
        let ends = AtomicBool::new(false);
        let start = Instant::now();
        let feeds: Vec<Feed<'_>> = thread::scope(|scope| {
            let start_thread = |draws| {
                let feed = Feed::new(draws, sequence, &ends);
                scope.spawn(move || map.run(&feed, way.together()).map(|()| feed))
            };
            let threads: Vec<_> =
                self.draws[..way.threads()].iter().map(|draws| start_thread(draws)).collect();
            thread::sleep(self.time);
            ends.store(true, Relaxed);
            let done = threads.into_iter().map(|thread| match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            done.collect::<anyhow::Result<_>>()
        })?;
        let seconds = start.elapsed().as_secs_f64();
        feeds.iter().try_for_each(|feed| feed.check(|key| map.get(key)))?;
        Ok(feeds.iter().map(Feed::taken).sum::<usize>() as f64 / seconds)
    }
}

/// Mean milliseconds of overwriting 4 KiB of a file and waiting for the disk.
fn synced_write_ms(directory: &Path) -> std::io::Result<f64> {
    const WRITES: u32 = 20;
    let path = directory.join("synced");
    let file = File::create(&path)?;
    file.write_all_at(&[0; 4096], 0)?;
    file.sync_all()?;
    let start = Instant::now();
    for write in 0..WRITES {
        file.write_all_at(&[write as u8; 4096], 0)?;
        file.sync_data()?;
    }
    let taken = start.elapsed();
    std::fs::remove_file(path)?;
    Ok(taken.as_secs_f64() * 1e3 / f64::from(WRITES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison() -> Comparison {
        Comparison {
            keys: 1_000,
            rounds: 1,
            time: Duration::from_millis(1),
            promises: Promise::ALL.to_vec(),
            maps: Vec::new(),
            directory: std::env::temp_dir(),
        }
    }

    #[test]
    fn every_map_keeps_its_updates() {
        let report = comparison().run(|_| ()).expect("no update is lost");
        assert_eq!(report.lines.len(), maps::all().len());
        let ways = report.lines.iter().flat_map(|line| &line.ways);
        assert!(ways.into_iter().all(|way| way.median > 0.0 && way.rounds.len() == 1));
        assert!(report.synced_write_ms > 0.0);
    }

    #[test]
    fn an_impossible_comparison_is_refused() {
        let nowhere = PathBuf::from("/does/not/exist");
        for (bad, what) in [
            (Comparison { keys: 0, ..comparison() }, "one key"),
            (Comparison { rounds: 0, ..comparison() }, "one round"),
            (Comparison { time: Duration::ZERO, ..comparison() }, "0 seconds"),
            (Comparison { directory: nowhere, ..comparison() }, "/does/not/exist"),
            (Comparison { maps: vec!["Pandora".to_owned()], ..comparison() }, "none of these maps"),
        ] {
            let error = bad.run(|_| ()).expect_err("refused");
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
