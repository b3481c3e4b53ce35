//! Factors of Elf with its gate over the best scan, for random predicates on 1 to all columns.
//!
//! Scan and Elf take turns in each round, and their medians are compared, for counts, ids and bitmaps. Both must find
//! the same number of rows. Times are processor times of one thread of this machine.

use std::sync::Arc;

use pando_elf::{
    Bitmap, BuildOptions, CodeTable, Count, Elf, Ids, Kernel, LayoutKind, Method, Output, Predicate, Sink,
    scan,
};
use pando_workload::columns::{Random, random_conditions};
use serde_json::{Value, json};

use super::data::{predicate, table};
use super::failed;
use super::orders::order;
use super::spec::{ElfSpec, OrderRule};
use crate::bench::{BenchError, Watch};
use crate::process::thread_time;

const OUTPUTS: [(&str, Output); 3] =
    [("count", Output::Count), ("ids", Output::Ids), ("bitmap", Output::Bitmap)];
/// Shares of the predicates at which the factor is reported.
pub const SHARES: [f64; 9] = [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0];

pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Buffers that are reused, so that no method pays for fresh memory.
struct Buffers {
    ids: Vec<u32>,
    bitmap: Bitmap,
    kernel: Kernel,
}

impl Buffers {
    /// Time of one result in µs, the number of rows found, and whether the Elf was walked.
    fn time(
        &mut self,
        output: Output,
        predicate: &Predicate,
        table: &CodeTable,
        elf: Option<&Elf>,
    ) -> Result<(f64, u64, bool), BenchError> {
        self.ids.clear();
        let start = thread_time();
        let (found, method) = match output {
            Output::Count => {
                let mut count = Count::default();
                let method = find(output, predicate, table, elf, self.kernel, &mut count)?;
                (count.0, method)
            }
            Output::Ids => {
                let mut ids = Ids::new(&mut self.ids, self.kernel);
                let method = find(output, predicate, table, elf, self.kernel, &mut ids)?;
                (self.ids.len() as u64, method)
            }
            Output::Bitmap => {
                self.bitmap.restart();
                let method = find(output, predicate, table, elf, self.kernel, &mut self.bitmap)?;
                (u64::MAX, method)
            }
        };
        let us = (thread_time() - start).as_secs_f64() * 1e6;
        let found = if found == u64::MAX { self.bitmap.count() } else { found };
        Ok((us, found, method == Some(Method::Walk)))
    }
}

fn find<S: Sink>(
    output: Output,
    predicate: &Predicate,
    table: &CodeTable,
    elf: Option<&Elf>,
    kernel: Kernel,
    sink: &mut S,
) -> Result<Option<Method>, BenchError> {
    match elf {
        Some(elf) => Ok(Some(elf.select(predicate).map_err(failed)?.run(output, sink))),
        None => scan(table, predicate, kernel, sink).map_err(failed).map(|()| None),
    }
}

pub fn run(spec: &ElfSpec, predicates: usize, rounds: usize, watch: &dyn Watch) -> Result<Value, BenchError> {
    let table = Arc::new(table(spec.data)?);
    let order = order(&table, OrderRule::Advised)?;
    let elf = Elf::build(&table, &order, LayoutKind::Columnar, &BuildOptions::default())
        .and_then(|elf| elf.with_table(table.clone()))
        .map_err(failed)?;
    let greatest: Vec<u32> = (0..table.width()).map(|column| table.maximum(column)).collect();
    let kernel = Kernel::detect();
    let bitmap = Bitmap::new(table.rows() as u64);
    let mut buffers = Buffers { ids: Vec::with_capacity(table.rows() + 128), bitmap, kernel };
    let mut random = Random(spec.seed);
    let mut factors = [const { Vec::new() }; 3];
    let mut walked = [0u64; 3];
    for number in 0..predicates {
        let predicate = predicate(&random_conditions(&mut random, number, &greatest));
        for (place, &(_, output)) in OUTPUTS.iter().enumerate() {
            if watch.interrupted() {
                return Err(BenchError::Interrupted);
            }
            let mut times = [Vec::new(), Vec::new()];
            let mut found = [0; 2];
            for _ in 0..rounds {
                for (which, elf) in [None, Some(&elf)].into_iter().enumerate() {
                    let (us, rows, walks) = buffers.time(output, &predicate, &table, elf)?;
                    times[which].push(us);
                    found[which] = rows;
                    walked[place] += u64::from(walks && times[which].len() == 1);
                }
            }
            if found[0] != found[1] {
                let [scan, elf] = found;
                return Err(BenchError::Index(format!("a scan finds {scan} rows and the Elf {elf}")));
            }
            let [scan, elf] = times.map(median);
            factors[place].push(elf / scan);
        }
    }
    Ok(report(&table, predicates, factors, walked, kernel))
}

fn report(
    table: &CodeTable,
    predicates: usize,
    factors: [Vec<f64>; 3],
    walked: [u64; 3],
    kernel: Kernel,
) -> Value {
    let mut report = json!({
        "method": "measured",
        "rows": table.rows(),
        "predicates": predicates,
        "kernel": kernel.name(),
    });
    for (place, (mut factors, (name, _))) in factors.into_iter().zip(OUTPUTS).enumerate() {
        factors.sort_by(f64::total_cmp);
        let at = |share: f64| factors[((factors.len() - 1) as f64 * share) as usize];
        report[name] = json!({
            "shares": SHARES,
            "factors": SHARES.map(at),
            "median": at(0.5),
            "p90": at(0.9),
            "p99": at(0.99),
            "worst": at(1.0),
            "above_limit": factors.iter().filter(|&&factor| factor > 1.3).count(),
            "walked": walked[place] as f64 / predicates as f64,
        });
    }
    report
}
