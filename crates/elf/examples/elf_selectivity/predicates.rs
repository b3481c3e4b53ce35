//! The table like TPC-H's lineitem, and predicates on it: that of Q6 and those of a mixed workload.

use pando_elf::{CodeTable, Interval, Predicate};
use pando_workload::columns;

/// Columns of Q6 in the order of their cardinality: discount, quantity, and date of shipment.
pub const Q6: [usize; 3] = [columns::Q6[0].0, columns::Q6[1].0, columns::Q6[2].0];

/// The table, of about four rows per order.
pub fn table(rows: usize) -> CodeTable {
    CodeTable::new(columns::lineitem(rows)).expect("columns of equal length")
}

/// The predicate of Q6 on the given columns.
pub fn q6(columns: [usize; 3]) -> Predicate {
    let conditions = columns.into_iter().zip(columns::Q6);
    conditions
        .fold(Predicate::all(), |all, (column, (_, low, high))| all.and(column, [Interval::new(low, high)]))
}

/// Predicates on one to four columns that queries of TPC-H use.
pub fn mixed_workload(table: &CodeTable) -> Vec<Predicate> {
    let greatest: Vec<u32> = (0..table.width()).map(|column| table.maximum(column)).collect();
    let predicate = |conditions: Vec<columns::Condition>| {
        conditions
            .into_iter()
            .fold(Predicate::all(), |all, (column, low, high)| all.and(column, [Interval::new(low, high)]))
    };
    columns::mixed_workload(&greatest).into_iter().map(predicate).collect()
}
