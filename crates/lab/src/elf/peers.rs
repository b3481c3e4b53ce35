//! The conditions of TPC-H's queries on a table like lineitem, by scans and by Elves.
//!
//! All methods take turns in each round, and medians are reported, for count, ids and bitmap. Each runs twice in its
//! turn, and the second run counts, since methods leave different things in the processor's caches. Before that they must find
//! the same rows. So one run measures all methods of a query; it is made for the first of them and kept for the
//! others.

use std::sync::{Arc, Mutex, PoisonError};

use pando_elf::{
    Advice, BuildOptions, CodeTable, Elf, Interval, Kernel, LayoutKind, Output, Predicate, by_cardinality,
    for_workload,
};
use pando_workload::columns::{TPCH, TpchQuery};
use serde_json::{Value, json};

use super::data::table;
use super::failed;
use super::spec::{Data, ElfSpec, PeerMethod};
use super::timing::{Buffers, OUTPUTS, Way, median};
use crate::bench::{BenchError, Watch};

/// What all queries share.
struct Peers {
    data: Data,
    table: Arc<CodeTable>,
    /// By cardinality.
    linear: Elf,
    /// In an order for the six queries.
    linear_advised: Elf,
    columnar_advised: Elf,
}

/// Reports of all methods of a query, in the order of [`PeerMethod::ALL`].
struct Measured {
    data: Data,
    query: usize,
    rounds: usize,
    reports: Vec<Value>,
}

#[derive(Default)]
struct Kept {
    peers: Option<Peers>,
    measured: Option<Measured>,
}

static KEPT: Mutex<Kept> = Mutex::new(Kept { peers: None, measured: None });

fn predicate(query: &TpchQuery, column_of: impl Fn(usize) -> usize) -> Predicate {
    query.conditions.iter().fold(Predicate::all(), |all, condition| {
        let intervals = condition.intervals.iter().map(|&(low, high)| Interval::new(low, high));
        all.and(column_of(condition.column), intervals)
    })
}

fn build(table: &CodeTable, order: &[usize], layout: LayoutKind) -> Result<Elf, BenchError> {
    Elf::build(table, order, layout, &BuildOptions::default()).map_err(failed)
}

impl Peers {
    fn new(data: Data) -> Result<Self, BenchError> {
        let table = Arc::new(table(data)?);
        let workload: Vec<Predicate> = TPCH.iter().map(|query| predicate(query, |column| column)).collect();
        let advised = for_workload(&table, &workload, &Advice::default()).map_err(failed)?;
        let linear = build(&table, &by_cardinality(&table), LayoutKind::Linear)?;
        let linear_advised = build(&table, &advised, LayoutKind::Linear)?;
        let columnar_advised = build(&table, &advised, LayoutKind::Columnar)?;
        let columnar_advised = columnar_advised.with_table(table.clone()).map_err(failed)?;
        Ok(Self { data, table, linear, linear_advised, columnar_advised })
    }

    /// Measures all methods of a query.
    fn measure(&self, query: &TpchQuery, rounds: usize, watch: &dyn Watch) -> Result<Vec<Value>, BenchError> {
        let columns: Vec<usize> = query.conditions.iter().map(|condition| condition.column).collect();
        let few = self.table.project(&columns).map_err(failed)?;
        let own = build(&few, &by_cardinality(&few), LayoutKind::Columnar)?;
        let in_table = predicate(query, |column| column);
        let place_of = |column| columns.iter().position(|&other| other == column).unwrap_or_default();
        let in_few = predicate(query, place_of);
        let scan = |kernel| Way::Scan { table: &self.table, kernel };
        let methods = PeerMethod::ALL.map(|method| match method {
            PeerMethod::Scan => (&in_table, scan(Kernel::detect())),
            PeerMethod::PortableScan => (&in_table, scan(Kernel::portable())),
            PeerMethod::Linear => (&in_table, Way::Elf(&self.linear)),
            PeerMethod::LinearAdvised => (&in_table, Way::Elf(&self.linear_advised)),
            PeerMethod::ColumnarOwn => (&in_few, Way::Elf(&own)),
            PeerMethod::ColumnarAdvised => (&in_table, Way::Elf(&self.columnar_advised)),
        });
        let mut buffers = Buffers::new(self.table.rows());
        let rows = same_rows(&methods, &mut buffers)?;
        let mut times = [const { [const { Vec::new() }; 3] }; PeerMethod::ALL.len()];
        let mut walked = [[false; 3]; PeerMethod::ALL.len()];
        for _ in 0..rounds {
            for (number, &(predicate, way)) in methods.iter().enumerate() {
                for (place, &(name, output)) in OUTPUTS.iter().enumerate() {
                    if watch.interrupted() {
                        return Err(BenchError::Interrupted);
                    }
                    // The first run brings what it reads back into the processor's caches.
                    buffers.time(output, predicate, way)?;
                    let timed = buffers.time(output, predicate, way)?;
                    if timed.rows != rows {
                        let found = timed.rows;
                        return Err(BenchError::Index(format!("{name}: {found} rows instead of {rows}")));
                    }
                    times[number][place].push(timed.us);
                    walked[number][place] = timed.is_walk;
                }
            }
        }
        let reports = times.into_iter().zip(walked).map(|(times, walked)| {
            let mut report = json!({ "method": "measured", "rows": self.table.rows(), "result_rows": rows });
            for ((us, is_walk), (name, _)) in times.map(median).into_iter().zip(walked).zip(OUTPUTS) {
                report[name] = json!({ "us": us, "is_walk": is_walk });
            }
            report
        });
        Ok(reports.collect())
    }
}

/// The number of rows that a query finds, if all methods find the same ones.
fn same_rows(methods: &[(&Predicate, Way<'_>)], buffers: &mut Buffers) -> Result<u64, BenchError> {
    let mut first = None;
    for &(predicate, way) in methods {
        let rows = buffers.time(Output::Bitmap, predicate, way)?.rows;
        let bitmap = first.get_or_insert_with(|| buffers.bitmap.clone());
        if *bitmap != buffers.bitmap {
            let expected = bitmap.count();
            return Err(BenchError::Index(format!("{rows} rows were found, others found {expected} others")));
        }
    }
    Ok(first.map_or(0, |bitmap| bitmap.count()))
}

pub fn run(
    spec: &ElfSpec,
    query: usize,
    method: PeerMethod,
    rounds: usize,
    watch: &dyn Watch,
) -> Result<Value, BenchError> {
    let data = spec.data;
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let is_same =
        |measured: &Measured| (measured.data, measured.query, measured.rounds) == (data, query, rounds);
    if !kept.measured.as_ref().is_some_and(is_same) {
        let peers = match kept.peers.take().filter(|peers| peers.data == data) {
            Some(peers) => peers,
            None => Peers::new(data)?,
        };
        let reports = peers.measure(&TPCH[query], rounds, watch);
        kept.peers = Some(peers);
        kept.measured = Some(Measured { data, query, rounds, reports: reports? });
    }
    let place = PeerMethod::ALL.iter().position(|&other| other == method);
    let report = kept.measured.as_ref().zip(place).and_then(|(measured, place)| measured.reports.get(place));
    report.cloned().ok_or_else(|| BenchError::Index("no such method was measured".to_owned()))
}
