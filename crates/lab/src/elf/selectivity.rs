//! Factors of Elf with its gate over the best scan, for random predicates on 1 to all columns.
//!
//! Scan and Elf take turns in each round, and their medians are compared, for counts, ids and bitmaps. Both must find
//! the same number of rows. Times are processor times of one thread of this machine.

use std::sync::Arc;

use pando_elf::{BuildOptions, CodeTable, Elf, Kernel, LayoutKind};
use pando_workload::columns::{Random, random_conditions};
use serde_json::{Value, json};

use super::data::{predicate, table};
use super::failed;
use super::orders::order;
use super::spec::{ElfSpec, OrderRule};
use super::timing::{Buffers, OUTPUTS, Way, median};
use crate::bench::{BenchError, Watch};

/// Shares of the predicates at which the factor is reported.
pub const SHARES: [f64; 9] = [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0];

pub fn run(spec: &ElfSpec, predicates: usize, rounds: usize, watch: &dyn Watch) -> Result<Value, BenchError> {
    let table = Arc::new(table(spec.data)?);
    let order = order(&table, OrderRule::Advised)?;
    let elf = Elf::build(&table, &order, LayoutKind::Columnar, &BuildOptions::default())
        .and_then(|elf| elf.with_table(table.clone()))
        .map_err(failed)?;
    let greatest: Vec<u32> = (0..table.width()).map(|column| table.maximum(column)).collect();
    let kernel = Kernel::detect();
    let ways = [Way::Scan { table: &table, kernel }, Way::Elf(&elf)];
    let mut buffers = Buffers::new(table.rows());
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
                for (which, way) in ways.into_iter().enumerate() {
                    let timed = buffers.time(output, &predicate, way)?;
                    times[which].push(timed.us);
                    found[which] = timed.rows;
                    walked[place] += u64::from(timed.is_walk && times[which].len() == 1);
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
