//! One query at a time by several threads (DAPD 2022 §5.5).
//!
//! On the model each matching value of the first column is a task, and a thread that has ended one takes the next.
//! Threads are created for each query, as in the paper. They are cores of one socket that share the last cache
//! and the channels; a task is simulated at once, and channels keep account of when they are busy. Measured is
//! [`pando_elf::Elf::with_threads`], which creates threads only for searches that are long enough.

use std::cell::RefCell;
use std::time::Instant;

use pando_elf::{CodeTable, Count, Filter, Linear, ListId, Meter, Space, Touch, range};
use pando_sim::memory::{Core, Machine};
use pando_workload::columns::Condition;
use serde_json::{Value, json};

use super::data::{Dataset, Queries, dataset, predicate};
use super::spec::{Base, ElfSpec, QuerySpec, SearchCosts, Threads};
use super::{failed, walker};
use crate::bench::{BenchError, Watch};

/// Creating a thread takes this long in the thread that creates it, and waiting for its end at least this long:
/// estimates, about what `std::thread` takes on this machine.
const SPAWN_NS: f64 = 12_000.0;
const JOIN_NS: f64 = 3_000.0;
/// Taking a task from the common counter.
const TASK_CYCLES: f64 = 60.0;
/// Collecting a result: 4 bytes are written and read again.
const RESULT_NS: f64 = 0.5;

/// Cores that search, one task after the other.
struct Team(RefCell<Members>);

struct Members {
    machine: Machine,
    cores: Vec<Core>,
    current: usize,
    costs: SearchCosts,
}

impl Meter for &Team {
    fn touch(&self, touch: Touch) {
        let Members { machine, cores, current, costs } = &mut *self.0.borrow_mut();
        let (kind, base) = walker::place_of(touch.space);
        let bytes = base + touch.words.start * 4..base + touch.words.end * 4;
        walker::read(&mut cores[*current], machine, &touch, kind, bytes, costs);
    }

    fn probe(&self, _list: ListId, _cached: usize) {}
}

impl Team {
    fn new(spec: &ElfSpec, costs: SearchCosts, threads: usize) -> Self {
        let machine = Machine::new(&spec.model, threads);
        let cores = vec![Core::new(&spec.model, threads); threads];
        Self(RefCell::new(Members { machine, cores, current: 0, costs }))
    }

    fn now_ns(&self) -> f64 {
        self.0.borrow().cores.iter().map(Core::now_ns).fold(0.0, f64::max)
    }

    /// Creates all threads, one after the other.
    fn begin(&self) {
        let now = self.now_ns();
        let Members { machine, cores, .. } = &mut *self.0.borrow_mut();
        machine.forget_before(now);
        let is_parallel = cores.len() > 1;
        for (number, core) in cores.iter_mut().enumerate() {
            core.wait_until(now + if is_parallel { (number + 1) as f64 * SPAWN_NS } else { 0.0 });
        }
    }

    /// The next task goes to the thread that is free first.
    fn take_task(&self) {
        let members = &mut *self.0.borrow_mut();
        let by_clock = |a: &usize, b: &usize| {
            members.cores[*a].now_ns().total_cmp(&members.cores[*b].now_ns()).then(a.cmp(b))
        };
        members.current = (0..members.cores.len()).min_by(by_clock).unwrap_or(0);
        members.cores[members.current].compute(TASK_CYCLES);
    }

    fn end_task(&self) {
        let members = &mut *self.0.borrow_mut();
        members.cores[members.current].settle();
    }

    /// Waits for all threads and collects what they found.
    fn end(&self, found: u64) {
        let end = self.now_ns();
        let threads = self.0.borrow().cores.len();
        let collecting = if threads > 1 { threads as f64 * JOIN_NS + found as f64 * RESULT_NS } else { 0.0 };
        self.0.borrow_mut().cores.iter_mut().for_each(|core| core.wait_until(end + collecting));
    }
}

/// The tasks of a query: a filter for each value of the first column that occurs in its interval.
fn tasks(dataset: &Dataset, conditions: &[Condition]) -> Vec<Filter> {
    let first = dataset.order[0];
    let Some(&(_, low, high)) = conditions.iter().find(|condition| condition.0 == first) else {
        return vec![dataset.filter(conditions)];
    };
    let only = |value: u32| {
        let one = |&(column, low, high): &Condition| match column == first {
            true => (column, value, value),
            false => (column, low, high),
        };
        dataset.filter(&conditions.iter().map(one).collect::<Vec<_>>())
    };
    (low..=high).map(only).collect()
}

pub fn run(
    spec: &ElfSpec,
    queries: &QuerySpec,
    threads: Threads,
    watch: &dyn Watch,
) -> Result<Value, BenchError> {
    let dataset = dataset(spec.data)?;
    let mut stream = Queries::new(&dataset, queries.kind, queries.range_percent, spec.seed)?;
    let number = queries.warm_up + queries.queries;
    let all: Vec<Vec<Condition>> = (0..number).map(|_| stream.conditions()).collect();
    let (seconds, found) = match threads {
        Threads::Modelled(threads) => modelled(spec, &dataset, queries, threads, &all, watch)?,
        Threads::Measured(threads) => measured(&dataset, queries, threads, &all, watch)?,
    };
    let method = if matches!(threads, Threads::Modelled(_)) { "modelled" } else { "measured" };
    Ok(json!({
        "method": method,
        "threads": threads.number(),
        "queries": queries.queries,
        "found": found,
        "seconds": seconds,
        "qps": queries.queries as f64 / seconds,
        "image_bytes": dataset.image.access().as_ref().len(),
        "rows": CodeTable::rows(&dataset.table),
    }))
}

fn modelled(
    spec: &ElfSpec,
    dataset: &Dataset,
    queries: &QuerySpec,
    threads: usize,
    all: &[Vec<Condition>],
    watch: &dyn Watch,
) -> Result<(f64, u64), BenchError> {
    let team = Team::new(spec, spec.costs(queries.kind), threads);
    let image = dataset.image.clone();
    match queries.store.base {
        Base::Dram => simulate(&team, &image.metered(Space::Dram, &team), dataset, queries, all, watch),
        Base::DualAccess => {
            let layout = image.dual_access(&team).map_err(failed)?;
            simulate(&team, &layout, dataset, queries, all, watch)
        }
        Base::Persistent => {
            let layout = image.with_levels(queries.store.levels).map_err(failed)?.with_meter(&team);
            simulate(&team, &layout, dataset, queries, all, watch)
        }
    }
}

fn simulate<A: pando_elf::Access>(
    team: &Team,
    layout: &Linear<A>,
    dataset: &Dataset,
    queries: &QuerySpec,
    all: &[Vec<Condition>],
    watch: &dyn Watch,
) -> Result<(f64, u64), BenchError> {
    let now = || team.now_ns() / 1e9;
    drive(queries, all, now, |conditions| {
        team.begin();
        let mut count = Count::default();
        for filter in tasks(dataset, conditions) {
            if watch.interrupted() {
                return Err(BenchError::Interrupted);
            }
            team.take_task();
            range(layout, &filter, &mut count, |_| true);
            team.end_task();
        }
        team.end(count.0);
        Ok(count.0)
    })
}

/// Answers all queries by `answer`, which returns the number of rows found. Returns the seconds and the rows of those
/// behind the warm-up.
fn drive(
    queries: &QuerySpec,
    all: &[Vec<Condition>],
    now: impl Fn() -> f64,
    mut answer: impl FnMut(&[Condition]) -> Result<u64, BenchError>,
) -> Result<(f64, u64), BenchError> {
    let (mut start, mut found) = (now(), 0);
    for (number, conditions) in all.iter().enumerate() {
        if number as u64 == queries.warm_up {
            (start, found) = (now(), 0);
        }
        match answer(conditions)? {
            0 => {
                let what = "a query does not find the row that it was made from";
                return Err(BenchError::Index(what.to_owned()));
            }
            rows => found += rows,
        }
    }
    Ok((now() - start, found))
}

fn measured(
    dataset: &Dataset,
    queries: &QuerySpec,
    threads: usize,
    all: &[Vec<Condition>],
    watch: &dyn Watch,
) -> Result<(f64, u64), BenchError> {
    let elf = dataset.elf()?.with_threads(threads);
    let mut ids: Vec<u32> = Vec::new();
    let start = Instant::now();
    drive(
        queries,
        all,
        || start.elapsed().as_secs_f64(),
        |conditions| {
            if watch.interrupted() {
                return Err(BenchError::Interrupted);
            }
            ids.clear();
            elf.select(&predicate(conditions)).and_then(|found| found.ids_into(&mut ids)).map_err(failed)?;
            Ok(ids.len() as u64)
        },
    )
}
