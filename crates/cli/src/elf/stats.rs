//! `pando elf stats` and `check`, and what `pando stats` says of Elf tables.
//!
//! The shape of a table is in its description, which one READ gives, also while others change the table. A check reads
//! every byte.

use std::fmt::Write as _;
use std::io::{Write, stdout};

use pando::Cluster;
use pando::elf::{LayoutKind, TableInfo};
use pando_lab::units;
use serde_json::{Value, json};

use super::args::{ElfCheckArgs, ElfStatsArgs};
use super::types::name_of;
use super::with_elf;
use crate::failure::Failure;
use crate::{output, pool};

/// A table of the pool.
pub struct ElfShape {
    pub name: String,
    pub info: TableInfo,
}

/// The tables of the pool, in the order of their names; damaged ones and those that are dropped meanwhile are missing.
pub fn shapes(cluster: &Cluster) -> Result<Vec<ElfShape>, Failure> {
    let mut shapes = Vec::new();
    for name in cluster.elf_names()? {
        match cluster.open_elf(&name).and_then(|elf| elf.info()) {
            Ok(info) => shapes.push(ElfShape { name, info }),
            Err(error @ pando::Error::Fabric(_)) => return Err(error.into()),
            Err(_) => {}
        }
    }
    Ok(shapes)
}

pub fn run(args: &ElfStatsArgs) -> Result<(), Failure> {
    let config = pool::looking(&args.target.pool, &args.look)?;
    let shape = with_elf(config, &args.target, |_, elf| {
        Ok(ElfShape { name: elf.name().to_owned(), info: elf.info()? })
    })?;
    let parts = |text: &mut String| {
        for (number, part) in shape.info.parts.iter().enumerate() {
            let gone = part.deleted_rows as f64 * 100.0 / part.rows.max(1) as f64;
            writeln!(
                text,
                "  part {number:<5} {} rows, {} deleted ({gone:.0}%), ids {} to {}, {} trees of {}, dictionaries {}",
                units::count(part.rows),
                units::count(part.deleted_rows),
                part.first_id,
                part.id_bound - 1,
                part.trees,
                units::size(part.image_bytes),
                units::size(part.dictionary_bytes)
            )
            .expect("writing to a string does not fail");
        }
    };
    let whole = || {
        let mut whole = String::new();
        text(&shape, &mut whole);
        parts(&mut whole);
        whole
    };
    output::tell(args.json.as_deref(), || document(&shape), whole)
}

pub fn check(args: &ElfCheckArgs) -> Result<(), Failure> {
    let config = pool::looking(&args.target.pool, &args.look)?;
    let report = with_elf(config, &args.target, |_, elf| Ok(elf.check()?))?;
    let mut output = stdout().lock();
    if let Some(info) = &report.info {
        writeln!(output, "{}", line(&report.name, info))?;
    }
    if report.violations.is_empty() {
        return Ok(writeln!(output, "no violations")?);
    }
    for violation in &report.violations {
        writeln!(output, "violation: {violation}")?;
    }
    output.flush()?;
    Err(Failure::violations(report.violations.len() as u64))
}

/// One line about a table.
pub fn line(name: &str, info: &TableInfo) -> String {
    format!("elf {name}: {} rows in {} parts", units::count(info.rows), info.parts.len())
}

pub fn document(shape: &ElfShape) -> Value {
    let ElfShape { name, info } = shape;
    let spec = &info.spec;
    let columns = spec.schema.columns();
    let column = |&column: &usize| json!(columns[column].name);
    let parts = info.parts.iter().map(|part| {
        json!({
            "rows": part.rows,
            "deleted": part.deleted_rows,
            "first_id": part.first_id,
            "id_bound": part.id_bound,
            "trees": part.trees,
            "image_bytes": part.image_bytes,
            "dictionary_bytes": part.dictionary_bytes,
        })
    });
    json!({
        "name": name,
        "rows": info.rows,
        "id_bound": info.id_bound,
        "layout": spec.layout.name(),
        "bucket_rows": spec.bucket_rows,
        "columns": columns
            .iter()
            .map(|column| json!({ "name": column.name, "type": name_of(column.kind) }))
            .collect::<Vec<_>>(),
        "order": spec.order.iter().map(column).collect::<Vec<_>>(),
        "parts": parts.collect::<Vec<_>>(),
    })
}

pub fn text(shape: &ElfShape, text: &mut String) {
    let ElfShape { name, info } = shape;
    let spec = &info.spec;
    let columns = spec.schema.columns();
    let mut line = |label: &str, content: String| {
        writeln!(text, "  {label:<10} {content}").expect("writing to a string does not fail");
    };
    line("elf", name.clone());
    let buckets = match spec.layout {
        LayoutKind::Columnar => format!(", buckets of {} rows", spec.bucket_rows),
        LayoutKind::Linear => String::new(),
    };
    line("layout", format!("{}{buckets}", spec.layout.name()));
    let typed = columns.iter().map(|column| format!("{}:{}", column.name, name_of(column.kind)));
    line("columns", typed.collect::<Vec<_>>().join(", "));
    let order = spec.order.iter().map(|&column| columns[column].name.as_str());
    line("order", order.collect::<Vec<_>>().join(", "));
    let sum = |figure: fn(&pando::elf::PartInfo) -> u64| info.parts.iter().map(figure).sum::<u64>();
    line(
        "rows",
        format!(
            "{} in {} parts, {} deleted; images of {}, dictionaries of {}",
            units::count(info.rows),
            info.parts.len(),
            units::count(sum(|part| part.deleted_rows)),
            units::size(sum(|part| part.image_bytes)),
            units::size(sum(|part| part.dictionary_bytes))
        ),
    );
}
