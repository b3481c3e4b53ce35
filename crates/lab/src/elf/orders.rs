//! An Elf in both layouts with the columns in one order: size, build, and queries by walks alone.
//!
//! The table is like TPC-H's lineitem. Elves have no table beside them, so the gate never scans and both layouts are
//! compared by their walks.
//! Times are medians of rounds: processor time of one thread.

use pando_elf::{Advice, CodeTable, Elf, LayoutKind, Predicate, by_cardinality, cardinality, for_workload};
use pando_workload::columns::{Q6, mixed_workload};
use serde_json::{Value, json};

use super::data::{predicate, table};
use super::failed;
use super::spec::{ElfSpec, OrderRule};
use super::timing::median;
use crate::bench::{BenchError, Watch};
use crate::process::thread_time;

/// Predicates of the mixed workload of lineitem.
pub fn workload(table: &CodeTable) -> Vec<Predicate> {
    let greatest: Vec<u32> = (0..table.width()).map(|column| table.maximum(column)).collect();
    mixed_workload(&greatest).iter().map(|conditions| predicate(conditions)).collect()
}

/// The order that a rule gives.
pub fn order(table: &CodeTable, rule: OrderRule) -> Result<Vec<usize>, BenchError> {
    let mut order = by_cardinality(table);
    match rule {
        OrderRule::Ascending => {}
        OrderRule::Descending => order.reverse(),
        OrderRule::Table => order = (0..table.width()).collect(),
        OrderRule::ConditionsFirst => {
            let place = |column: usize| Q6.iter().position(|condition| condition.0 == column);
            order.sort_by_key(|&column| (place(column).is_none(), cardinality(table, column)));
        }
        OrderRule::Advised => {
            return for_workload(table, &workload(table), &Advice::default()).map_err(failed);
        }
    }
    Ok(order)
}

pub fn run(spec: &ElfSpec, rule: OrderRule, rounds: usize, watch: &dyn Watch) -> Result<Value, BenchError> {
    let table = table(spec.data)?;
    let order = order(&table, rule)?;
    let mixed = workload(&table);
    let q6 = predicate(&Q6);
    let mut ids = Vec::with_capacity(table.rows() + 128);
    let mut report = json!({ "method": "measured", "rows": table.rows(), "order": order });
    for (name, layout) in [("linear", LayoutKind::Linear), ("columnar", LayoutKind::Columnar)] {
        let start = thread_time();
        let elf = Elf::build(&table, &order, layout, &Default::default()).map_err(failed)?;
        let build_seconds = (thread_time() - start).as_secs_f64();
        let mut times = [Vec::new(), Vec::new()];
        let mut found = 0;
        for _ in 0..rounds {
            if watch.interrupted() {
                return Err(BenchError::Interrupted);
            }
            found = walk(&elf, &q6, &mut ids, &mut times[0])?;
            let start = thread_time();
            for predicate in &mixed {
                walk(&elf, predicate, &mut ids, &mut Vec::new())?;
            }
            times[1].push((thread_time() - start).as_secs_f64() * 1e6 / mixed.len() as f64);
        }
        let [q6_us, mixed_us] = times.map(median);
        report[name] = json!({
            "image_bytes": elf.bytes().len(),
            "build_seconds": build_seconds,
            "q6_us": q6_us,
            "mixed_us": mixed_us,
            "q6_rows": found,
        });
    }
    Ok(report)
}

/// Finds the ids of a predicate and returns their number.
fn walk(
    elf: &Elf,
    predicate: &Predicate,
    ids: &mut Vec<u32>,
    times: &mut Vec<f64>,
) -> Result<u64, BenchError> {
    ids.clear();
    let start = thread_time();
    elf.select(predicate).and_then(|selection| selection.ids_into(ids)).map_err(failed)?;
    times.push((thread_time() - start).as_secs_f64() * 1e6);
    Ok(ids.len() as u64)
}
