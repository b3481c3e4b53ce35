//! Queries of an Elf in the memory servers of a simulated cluster, by READs.
//!
//! An exact match runs on the linear layout of a uniform table, the predicate of Q6 on the columnar layout of a table
//! like lineitem whose first columns are those of its conditions. READs, bytes and round trips are counted; times
//! are those of the simulated network. What the reader computes takes no time.

use pando_elf::{BuildOptions, CodeTable, Elf, LayoutKind, Predicate};
use pando_elf_remote::{PublishOptions, Publisher, ReadOptions, Reader};
use pando_fabric::Endpoint;
use pando_pool::{AttachOptions, Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{Model, SimConfig, SimFabric};
use pando_workload::columns::Q6;
use serde_json::{Value, json};

use super::data::{Queries, dataset, predicate, table};
use super::failed;
use super::orders::order;
use super::spec::{ElfSpec, Kind, OrderRule};
use crate::bench::{BenchError, Watch};

const MEMORY_SERVERS: usize = 4;
const NAME: &str = "elf";

/// An image, and predicates whose results are known.
fn prepare(spec: &ElfSpec, queries: usize, exact: bool) -> Result<(Elf, Vec<(Predicate, u64)>), BenchError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = BuildOptions { threads, ..BuildOptions::default() };
    let build = |table: &CodeTable, order: &[usize], layout| {
        Elf::build(table, order, layout, &options).map_err(failed)
    };
    let (elf, predicates) = if exact {
        let dataset = dataset(spec.data)?;
        let elf = build(&dataset.table, &dataset.order, LayoutKind::Linear)?;
        let mut stream = Queries::new(&dataset, Kind::Exact, 0, spec.seed)?;
        (elf, (0..queries).map(|_| predicate(&stream.conditions())).collect::<Vec<_>>())
    } else {
        let table = table(spec.data)?;
        let order = order(&table, OrderRule::ConditionsFirst)?;
        (build(&table, &order, LayoutKind::Columnar)?, vec![predicate(&Q6); queries])
    };
    let counted = predicates.into_iter().map(|predicate| {
        let count = elf.select(&predicate).map_err(failed)?.count();
        Ok((predicate, count))
    });
    let counted = counted.collect::<Result<Vec<_>, BenchError>>()?;
    Ok((elf, counted))
}

fn cluster(elf: &Elf, seed: u64) -> Result<SimFabric, BenchError> {
    let share = elf.bytes().len() as u64 / MEMORY_SERVERS as u64;
    let region = (share + share / 4 + (64 << 20)).next_multiple_of(2 << 20);
    let model = Model::default();
    let regions = vec![region; MEMORY_SERVERS];
    Ok(SimFabric::new(&SimConfig { regions, compute_servers: 1, seed, model })?)
}

pub fn run(
    spec: &ElfSpec,
    cache_bytes: u64,
    queries: usize,
    exact: bool,
    watch: &dyn Watch,
) -> Result<Value, BenchError> {
    let (elf, predicates) = prepare(spec, queries, exact)?;
    let fabric = cluster(&elf, spec.seed)?;
    let direct = fabric.direct(spec.seed);
    let options = PoolOptions::new(AttachOptions::embedded());
    let pool = block_on(&direct, Pool::create(&direct, options)).map_err(BenchError::index)?;
    let opened = Publisher::open(&direct, pool.clone(), NAME, PublishOptions::default());
    let publisher = block_on(&direct, opened).map_err(BenchError::index)?;
    block_on(&direct, publisher.publish(&direct, &elf)).map_err(BenchError::index)?;

    // The image is not replaced, so the catalog is looked at once.
    let options = ReadOptions { cache_bytes, check_age_ns: u64::MAX, ..ReadOptions::default() };
    let reader = Reader::new(pool, NAME, options);
    let ep = fabric.thread(0, spec.seed);
    let cached = block_on(&ep, reader.cached(&ep)).map_err(BenchError::index)?.value;
    let (mut reads, mut bytes, mut round_trips, mut most, mut ns) = (0, 0, 0, 0, 0);
    for (predicate, expected) in &predicates {
        if watch.interrupted() {
            return Err(BenchError::Interrupted);
        }
        let start = ep.now();
        let answer = block_on(&ep, reader.ids::<u32, _>(&ep, predicate)).map_err(BenchError::index)?;
        ns += ep.now() - start;
        if answer.value.len() as u64 != *expected {
            let found = answer.value.len();
            return Err(BenchError::Index(format!("{found} rows were found instead of {expected}")));
        }
        (reads, bytes) = (reads + answer.cost.reads, bytes + answer.cost.bytes_read);
        (round_trips, most) = (round_trips + answer.cost.round_trips, most.max(answer.cost.bytes_read));
    }
    let each = |total: u64| total as f64 / predicates.len() as f64;
    Ok(json!({
        "method": "counted, times modelled",
        "rows": spec.data.rows(),
        "image_bytes": elf.bytes().len(),
        "cached_levels": cached.levels,
        "cached_bytes": cached.bytes,
        "result_rows": predicates.first().map(|(_, rows)| *rows),
        "reads": each(reads),
        "bytes": each(bytes),
        "bytes_max": most,
        "round_trips": each(round_trips),
        "us": each(ns) / 1e3,
    }))
}
