//! `pando elf insert`, `delete`, `merge` and `drop`.
//!
//! Each change takes effect at once, and as a whole or not at all. What it replaced is freed before the command ends.
//! The rows of a file are read before the pool is opened for the change.

use pando::elf::{Cell, Column as TableColumn, ColumnType, Elf, EncodedTable, TableEncoder, Value};
use pando_lab::units;
use pando_workload::dataset::{Column, DatasetError};
use serde_json::json;

use super::args::{DeleteArgs, InsertArgs, MergeArgs};
use super::file::RowFile;
use super::with_elf;
use crate::args::IndexArgs;
use crate::failure::Failure;
use crate::signals::Interrupt;
use crate::{output, pool};

pub fn insert(args: &InsertArgs) -> Result<(), Failure> {
    let file = RowFile::open(&args.file)?;
    let interrupt = Interrupt::listen()?;
    // 1. The columns of the table, while the pool is not kept open.
    let looking = pool::existing(&args.target.pool)?.read_only(true);
    let (name, schema) =
        with_elf(looking, &args.target, |_, elf| Ok((elf.name().to_owned(), elf.info()?.spec.schema)))?;
    let selected = columns_of(args, schema.columns())?;
    let found = file.columns(&selected)?;
    if found.len() != schema.columns().len() {
        return Err(Failure::bad_input(format_args!(
            "{} columns are to be inserted into {name:?}, which has {}",
            found.len(),
            schema.columns().len()
        )));
    }
    // 2. The rows.
    let kinds: Vec<ColumnType> = schema.columns().iter().map(|column| column.kind).collect();
    let mut encoder = TableEncoder::new(schema);
    let max = args.file.max_rejects;
    let summary = file.read(&selected, &kinds, max, &interrupt, |cells| push(&mut encoder, cells))?;
    let rows: EncodedTable = encoder.finish().map_err(Failure::bad_input)?;
    // 3. The change.
    let config = pool::existing(&args.target.pool)?;
    let ids = pool::with_cluster(config, |cluster| Ok(cluster.open_elf(&name)?.insert_encoded(&rows)?))?;
    summary.rejects.tell();
    let count = ids.end - ids.start;
    let document = || json!({ "rows": count, "rejected": summary.rejects.count(), "first_id": ids.start, "id_bound": ids.end });
    let text = || match count {
        0 => "0 rows inserted\n".to_owned(),
        _ => format!("{} rows inserted, ids {} to {}\n", units::count(count), ids.start, ids.end - 1),
    };
    output::tell(args.file.json.as_deref(), document, text)
}

/// Columns of the file in the order of the table's.
fn columns_of(args: &InsertArgs, columns: &[TableColumn]) -> Result<Vec<Column>, Failure> {
    if !args.columns.is_empty() {
        return Ok(args.columns.iter().map(|column| column.parse()).collect::<Result<_, DatasetError>>()?);
    }
    match args.file.no_header {
        true => Ok(Vec::new()),
        false => Ok(columns.iter().map(|column| Column::named(&column.name)).collect()),
    }
}

fn push(encoder: &mut TableEncoder, cells: &[Cell<'_>]) -> Result<(), Failure> {
    for (number, cell) in cells.iter().enumerate() {
        let column = encoder.column(number);
        let pushed = match *cell {
            Cell::Null => column.push(&Value::Null),
            Cell::Number(number) => column.push_unscaled(number),
            Cell::Text(text) => column.push_str(text),
        };
        pushed.map_err(Failure::bad_input)?;
    }
    Ok(())
}

pub fn delete(args: &DeleteArgs) -> Result<(), Failure> {
    // An interrupt must not end the process before the pool is closed.
    Interrupt::listen()?;
    let deleted = with_elf(pool::existing(&args.target.pool)?, &args.target, |_, elf| {
        Ok(match &args.condition {
            Some(condition) => elf.delete(condition)?,
            None => elf.delete_all()?,
        })
    })?;
    output::print(&format!("{} rows deleted\n", units::count(deleted)))
}

pub fn merge(args: &MergeArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::listen()?;
    let (before, after) = with_elf(pool::existing(&args.target.pool)?, &args.target, |_, elf| {
        let parts = |elf: &Elf| Ok::<_, Failure>(elf.info()?.parts.len());
        let before = parts(elf)?;
        if args.all {
            elf.merge_all()?;
        } else {
            while elf.merge()?.is_some() {
                interrupt.check()?;
            }
        }
        Ok((before, parts(elf)?))
    })?;
    output::print(&format!("{before} parts before, {after} now\n"))
}

pub fn drop_table(args: &IndexArgs) -> Result<(), Failure> {
    Interrupt::listen()?;
    pool::with_cluster(pool::existing(&args.pool)?, |cluster| Ok(cluster.drop_elf(&args.index)?))
}
