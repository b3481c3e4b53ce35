//! Rounds of measurements: in each round, every map runs every phase.
//!
//! Maps alternate within one run, so that other load on the machine slows all of them alike. The report takes
//! medians over the rounds. A wrong answer ends the run.

use crate::BATCH;
use crate::data::{DataSet, Draw};
use crate::maps::Entry;
use crate::measure::{Contender, Job, Phase, WrongAnswer};
use crate::report::{MapReport, Outcome, Report, Table};
use anyhow::{Context, ensure};
use pando_workload::{Distribution, KeySpace, mix64};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Maps and settings of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    pub maps: Vec<Entry>,
    pub keys: u64,
    pub spaces: Vec<KeySpace>,
    pub distributions: Vec<Distribution>,
    pub threads: Vec<usize>,
    pub rounds: usize,
    /// Duration of one phase of one map in one round.
    pub time: Duration,
    pub scan_len: usize,
    pub multi_get_len: usize,
    /// Number of drawn keys per thread; a thread cycles through them.
    pub draws: usize,
    /// Load records in ascending order of keys instead of a pseudo-random one.
    pub sorted_load: bool,
    /// Keep all maps in memory, instead of loading each again in every round.
    pub all_resident: bool,
}

impl Plan {
    /// Runs all measurements and reports each step to `progress`.
    ///
    /// # Errors
    /// If the plan is not valid, a map cannot be loaded, or a map gives a wrong answer.
    pub fn run(&self, mut progress: impl FnMut(&str)) -> anyhow::Result<Report> {
        ensure!(self.keys > 0 && self.rounds > 0 && !self.maps.is_empty(), "there is nothing to measure");
        ensure!(self.draws >= BATCH, "at least {BATCH} keys must be drawn");
        ensure!(self.threads.iter().all(|&threads| threads > 0), "a measurement needs a thread");
        ensure!(self.multi_get_len > 0 && self.scan_len > 0, "multi-gets and scans need a length");
        let mut tables = Vec::new();
        for (i, &space) in self.spaces.iter().enumerate() {
            progress(&format!("making {} keys, {space}", self.keys));
            let data = DataSet::new(space, self.keys);
            let shuffled = if self.sorted_load { Vec::new() } else { data.shuffled() };
            let is_heap_fresh = i == 0 && self.all_resident;
            let loads = vec![Load::default(); self.maps.len()];
            let mut run = SpaceRun { plan: self, data: &data, shuffled: &shuffled, loads, is_heap_fresh };
            tables.extend(run.tables(&mut progress)?);
        }
        Ok(Report {
            keys: self.keys,
            rounds: self.rounds,
            seconds_per_phase: self.time.as_secs_f64(),
            scan_len: self.scan_len,
            multi_get_len: self.multi_get_len,
            sorted_load: self.sorted_load,
            tables,
            notes: self.maps.iter().map(|entry| (entry.name, entry.note)).collect(),
        })
    }
}

/// The measurements over one key space.
struct SpaceRun<'a> {
    plan: &'a Plan,
    data: &'a DataSet,
    shuffled: &'a [(u64, u64)],
    /// Cost of the latest load of each map.
    loads: Vec<Load>,
    /// No map has been freed yet, so the growth of resident memory is the size of a map.
    is_heap_fresh: bool,
}

/// Cost of loading a map.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    seconds: f64,
    bytes_per_key: Option<f64>,
}

impl SpaceRun<'_> {
    fn tables(&mut self, progress: &mut impl FnMut(&str)) -> anyhow::Result<Vec<Table>> {
        let plan = self.plan;
        let mut resident: Vec<Option<Box<dyn Contender>>> = (0..plan.maps.len()).map(|_| None).collect();
        if plan.all_resident {
            for (i, slot) in resident.iter_mut().enumerate() {
                *slot = Some(self.load(i, progress)?);
            }
        }
        let mut tables = Vec::new();
        let mut sequence = 0;
        for &distribution in &plan.distributions {
            for &threads in &plan.threads {
                progress(&format!("{distribution}, {threads} threads"));
                let (scan, multi) = (plan.scan_len, plan.multi_get_len);
                let measurement =
                    Measurement::new(self.data, distribution, threads, plan.draws, scan, multi, plan.time)?;
                let mut outcomes = vec![[const { Vec::new() }; Phase::ALL.len()]; plan.maps.len()];
                for round in 0..plan.rounds {
                    sequence += 1;
                    self.round(&measurement, &resident, round, sequence, &mut outcomes, progress)?;
                }
                tables.push(self.table(distribution, threads, outcomes));
            }
        }
        Ok(tables)
    }

    /// Runs one round. The map that comes first changes from round to round.
    fn round(
        &mut self,
        measurement: &Measurement<'_>,
        resident: &[Option<Box<dyn Contender>>],
        round: usize,
        sequence: u64,
        outcomes: &mut [Rounds],
        progress: &mut impl FnMut(&str),
    ) -> anyhow::Result<()> {
        let count = self.plan.maps.len();
        let order = (0..count).map(|i| (i + round) % count);
        let plan = self.plan;
        let mut measure = |i: usize, map: &dyn Contender, phase: usize| -> anyhow::Result<()> {
            let outcome = measurement.run(map, Phase::ALL[phase], sequence);
            outcomes[i][phase]
                .push(outcome.with_context(|| format!("{} gave a wrong answer", plan.maps[i].name))?);
            Ok(())
        };
        if plan.all_resident {
            for phase in 0..Phase::ALL.len() {
                for i in order.clone() {
                    measure(i, resident[i].as_deref().expect("loaded before"), phase)?;
                }
            }
            return Ok(());
        }
        for i in order {
            let map = self.load(i, progress)?;
            for phase in 0..Phase::ALL.len() {
                measure(i, &*map, phase)?;
            }
        }
        Ok(())
    }

    fn load(&mut self, i: usize, progress: &mut impl FnMut(&str)) -> anyhow::Result<Box<dyn Contender>> {
        let entry = &self.plan.maps[i];
        let sorted = self.plan.sorted_load;
        let pairs = if sorted { &self.data.pairs } else { self.shuffled };
        let (before, start) = (resident_bytes(), Instant::now());
        let map =
            (entry.load)(pairs, sorted).with_context(|| format!("{} could not be loaded", entry.name))?;
        let seconds = start.elapsed().as_secs_f64();
        let grown = resident_bytes().saturating_sub(before);
        // After a map was freed, the next one may reuse its memory, and the process does not grow.
        let bytes_per_key = self.is_heap_fresh.then(|| grown as f64 / self.plan.keys as f64);
        progress(&format!("loaded {} in {seconds:.1} s, {} MiB in use", entry.name, resident_bytes() >> 20));
        let load = Load { seconds, bytes_per_key };
        self.loads[i] = load;
        Ok(map)
    }

    fn table(&self, distribution: Distribution, threads: usize, outcomes: Vec<Rounds>) -> Table {
        let map = |(i, outcomes)| {
            let (entry, load): (&Entry, Load) = (&self.plan.maps[i], self.loads[i]);
            MapReport::new(entry, outcomes, load.seconds, load.bytes_per_key)
        };
        let maps = outcomes.into_iter().enumerate().map(map).collect();
        Table::new(self.data.space.to_string(), distribution.to_string(), threads, maps)
    }
}

/// Outcomes per phase, one for each round.
type Rounds = [Vec<Outcome>; Phase::ALL.len()];

/// The drawn keys and settings that every phase of every map uses.
pub struct Measurement<'a> {
    data: &'a DataSet,
    /// One list per thread.
    draws: Vec<Vec<Draw>>,
    /// Like `draws`, with the expected sums of scans.
    scans: Vec<Vec<Draw>>,
    scan_len: usize,
    multi_get_len: usize,
    time: Duration,
}

impl<'a> Measurement<'a> {
    /// Draws keys for every thread.
    ///
    /// # Errors
    /// If the distribution is not valid here, or the scans are too long to be checked.
    pub fn new(
        data: &'a DataSet,
        distribution: Distribution,
        threads: usize,
        draws: usize,
        scan_len: usize,
        multi_get_len: usize,
        time: Duration,
    ) -> anyhow::Result<Measurement<'a>> {
        let lists = |count, len| -> anyhow::Result<Vec<Vec<Draw>>> {
            let seeds = (0..threads as u64).map(mix64);
            seeds.map(|seed| data.draws(distribution, count, len, seed)).collect()
        };
        // A scan takes about as long as ten lookups, so fewer draws suffice.
        let (draws, scans) = (lists(draws, 0)?, lists((draws / 8).max(BATCH), scan_len)?);
        Ok(Measurement { data, draws, scans, scan_len, multi_get_len, time })
    }

    /// Runs `phase` on all threads at once.
    ///
    /// # Errors
    /// The first wrong answer of any thread.
    pub fn run(&self, map: &dyn Contender, phase: Phase, sequence: u64) -> Result<Outcome, WrongAnswer> {
        let lists = if phase == Phase::Scan { &self.scans } else { &self.draws };
        let barrier = Barrier::new(lists.len());
        let work = |thread: usize, draws: &[Draw]| {
            // Rounds start at different draws, so that they use different keys.
            let first = mix64(sequence) as usize % (draws.len() / BATCH) * BATCH;
            let job = Job {
                phase,
                data: self.data,
                draws,
                first,
                scan_len: self.scan_len,
                multi_get_len: self.multi_get_len,
                sequence,
                threads: lists.len(),
                time: self.time,
                limit: u64::MAX,
            };
            pin(thread);
            barrier.wait();
            map.run(&job)
        };
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> =
                lists.iter().enumerate().map(|(i, draws)| scope.spawn(move || work(i, draws))).collect();
            let mut outcome = Outcome::default();
            for thread in threads {
                let tally = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                outcome.rate += tally.rate();
                let share = tally.processor_time.as_secs_f64() / tally.time.as_secs_f64();
                outcome.processor_share += share / lists.len() as f64;
            }
            Ok(outcome)
        })
    }
}

/// Pins the thread to one of the processors that it may use. If the system refuses, the thread runs anywhere.
fn pin(thread: usize) {
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect();
    let Some(&cpu) = processors.get(thread % processors.len().max(1)) else { return };
    let mut one = CpuSet::new();
    one.set(cpu);
    let _ = sched_setaffinity(None, &one);
}

/// Resident memory of this process in bytes; 0 if the system does not report it.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
