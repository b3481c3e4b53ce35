//! Column orders: by cardinality, as published, or for a workload.
//!
//! The published rule (DAPD 2022 §5.2) puts columns with few distinct values on top, since that shares most
//! prefixes. For a workload, conditions on top matter more: hill climbing moves one column at a time and keeps
//! the move that lowers the cost of the workload most, measured by walks through the Elf of a sample.

use crate::build::{BuildOptions, build_columnar};
use crate::error::Result;
use crate::predicate::{Filter, Predicate};
use crate::search::range;
use crate::sink::Count;
use crate::table::CodeTable;

/// Number of distinct codes of a column.
pub fn cardinality(table: &CodeTable, column: usize) -> usize {
    let codes = table.column(column);
    let maximum = table.maximum(column) as usize;
    // A set of bits is small for dense codes; for others it may be much larger than the column.
    if maximum / 64 <= codes.len() {
        let mut seen = vec![0_u64; maximum / 64 + 1];
        codes.iter().for_each(|code| seen[code as usize / 64] |= 1 << (code % 64));
        return seen.iter().map(|word| word.count_ones() as usize).sum();
    }
    let mut distinct: Vec<u32> = codes.iter().collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct.len()
}

/// Columns in ascending order of their number of distinct codes; equal ones by their number.
pub fn by_cardinality(table: &CodeTable) -> Vec<usize> {
    let mut order: Vec<usize> = (0..table.width()).collect();
    order.sort_by_cached_key(|&column| (cardinality(table, column), column));
    order
}

/// How an order for a workload is looked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advice {
    /// Most rows of the sample, at least 1. Default: 20,000.
    pub sample_rows: usize,
    /// Most rows of a bucket in the Elf that will be built; the sample's are smaller in proportion. Default: 256.
    pub bucket_rows: u32,
    /// Most moves of a column. Default: 20.
    pub moves: usize,
    /// Cost of a step of a walk, in rows compared on one level. Default: 250.
    pub step_rows: f64,
}

impl Default for Advice {
    fn default() -> Self {
        Self { sample_rows: 20_000, bucket_rows: 256, moves: 20, step_rows: 250.0 }
    }
}

/// The sample and the workload that orders are measured with.
struct Climber<'a> {
    sample: CodeTable,
    workload: &'a [Predicate],
    options: BuildOptions,
    /// Rows of the table per row of the sample.
    scale: f64,
    step_rows: f64,
}

impl Climber<'_> {
    /// Cost of the workload in rows of the table compared on one level.
    fn cost(&self, order: &[usize]) -> Result<f64> {
        let elf = build_columnar(&self.sample, order, &self.options)?;
        let mut cost = 0.0;
        for predicate in self.workload {
            let filter = Filter::new(predicate, order)?;
            let (_, work) = range(&elf, &filter, &mut Count::default(), |_| true);
            let levels = filter.constrained().len() as f64;
            cost += work.steps as f64 * self.step_rows + work.compared as f64 * levels * self.scale;
        }
        Ok(cost)
    }
}

/// Looks for a column order in which walks for `workload` cost little, from the order by cardinality. Fails if a
/// predicate names a column that does not exist.
pub fn for_workload(table: &CodeTable, workload: &[Predicate], advice: &Advice) -> Result<Vec<usize>> {
    let mut order = by_cardinality(table);
    let rows = table.rows().min(advice.sample_rows.max(1));
    if rows == 0 || workload.is_empty() {
        return workload
            .iter()
            .try_fold(order.clone(), |same, predicate| Filter::new(predicate, &order).map(|_| same));
    }
    // Evenly spaced rows, so that every part of a table in the order of time is represented.
    let spaced = (0..rows).map(|i| (i as u128 * table.rows() as u128 / rows as u128) as usize);
    let scale = table.rows() as f64 / rows as f64;
    let bucket_rows = (f64::from(advice.bucket_rows) / scale).ceil().max(1.0) as u32;
    let options = BuildOptions { bucket_rows, ..BuildOptions::default() };
    let climber =
        Climber { sample: table.sample(spaced), workload, options, scale, step_rows: advice.step_rows };
    let mut cost = climber.cost(&order)?;
    for _ in 0..advice.moves {
        let Some((better_cost, better)) = best_move(&climber, &order)? else { break };
        if better_cost >= cost {
            break;
        }
        (cost, order) = (better_cost, better);
    }
    Ok(order)
}

/// The best order that differs by the place of one column. Columns without conditions in the workload are moved
/// only to the end.
fn best_move(climber: &Climber<'_>, order: &[usize]) -> Result<Option<(f64, Vec<usize>)>> {
    let is_used = |column| {
        climber.workload.iter().any(|predicate| predicate.conditions().any(|(other, _)| other == column))
    };
    let mut best: Option<(f64, Vec<usize>)> = None;
    for from in 0..order.len() {
        let last = order.len() - 1;
        let first_target = if is_used(order[from]) { 0 } else { last };
        for to in (first_target..=last).filter(|&to| to != from) {
            let mut moved = order.to_vec();
            let column = moved.remove(from);
            moved.insert(to, column);
            let cost = climber.cost(&moved)?;
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, moved));
            }
        }
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predicate::Interval;

    fn table() -> CodeTable {
        let column = |factor: u32, values: u32| {
            (0..4_000_u32).map(move |row| (row.wrapping_mul(factor) >> 12) % values)
        };
        CodeTable::new(vec![
            column(0x9e37_79b9, 900).collect(),
            column(0x85eb_ca6b, 3).collect(),
            column(0xc2b2_ae35, 50).map(|code| code * 1_000_000).collect(),
        ])
        .expect("columns of equal length")
    }

    #[test]
    fn fewer_values_come_first() {
        assert_eq!([0, 1, 2].map(|column| cardinality(&table(), column)), [711, 3, 50]);
        assert_eq!(by_cardinality(&table()), [1, 2, 0]);
    }

    #[test]
    fn the_column_of_the_workload_comes_first() {
        let workload = [Predicate::all().and(0, [Interval::new(10, 12)])];
        let advice = Advice { sample_rows: 2_000, bucket_rows: 16, ..Advice::default() };
        let order = for_workload(&table(), &workload, &advice).expect("column 0 exists");
        assert_eq!(order[0], 0);
        let same = for_workload(&table(), &[], &advice).expect("no predicate");
        assert_eq!(same, by_cardinality(&table()));
        let unknown = [Predicate::all().and(3, [])];
        assert!(for_workload(&table(), &unknown, &advice).is_err());
    }
}
