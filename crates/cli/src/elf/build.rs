//! `pando elf build`: a table from the rows of a file.
//!
//! Everything that can be wrong with the options and the file is found before anything is created. The table is in the
//! catalog when it is complete; until then a replaced one is found.

use std::num::NonZero;
use std::time::Instant;

use pando::Cluster;
use pando::elf::{BuiltElf, Column as TableColumn, ColumnType, ElfBuild, ElfOptions, Order, Schema};
use pando_lab::units;
use pando_workload::dataset::Column;
use serde_json::json;

use super::args::BuildArgs;
use super::file::{FileColumn, RowFile, Summary};
use crate::failure::{self, Failure};
use crate::signals::Interrupt;
use crate::{output, pool};

/// Most bytes of a name in the catalog.
const NAME_MAX: usize = 255;

pub fn run(args: &BuildArgs) -> Result<(), Failure> {
    let start = Instant::now();
    let (pool_args, name) = (&args.target.pool, &args.target.index);
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Failure::bad_input(format_args!(
            "the name of an Elf has 1 to {NAME_MAX} bytes, not {}",
            name.len()
        )));
    }
    let options = options(args)?;
    let mut servers = pool::new_servers(pool_args, &args.new_pool)?;
    let file = RowFile::open(&args.file)?;
    let (selected, given): (Vec<Column>, Vec<_>) =
        args.columns.iter().map(|column| (column.column.clone(), column.kind)).unzip();
    // The name, before the file is read.
    pool::look(pool_args, &args.new_pool, |cluster| {
        servers = cluster.memory_servers()?.len();
        check_name(cluster, name, args.replace)
    })?;
    let options = match args.trees {
        Some(0) => return Err(Failure::bad_input("--trees is a number of trees, at least 1")),
        Some(trees) => options.trees(trees),
        None => options.trees_up_to(servers),
    };
    let interrupt = Interrupt::listen()?;
    let (columns, inferred) = file.infer(&selected, &given, &interrupt)?;
    let kinds: Vec<ColumnType> = columns.iter().map(|column| column.kind).collect();
    let mut build = ElfBuild::new(schema(&columns)?, &options)?;
    let max = args.file.max_rejects;
    let summary = file.read(&selected, &kinds, max, &interrupt, |cells| Ok(build.push_cells(cells)?))?;
    let built = build.finish()?;
    interrupt.check()?;
    let config = pool::perhaps_new(pool_args, &args.new_pool, built.bytes())?;
    pool::with_cluster(config, |cluster| {
        match args.replace {
            true => cluster.replace_elf(name, &built)?,
            false => cluster.create_elf(name, &built)?,
        };
        Ok(())
    })?;
    inferred.into_iter().for_each(failure::tell);
    summary.rejects.tell();
    tell(args, &summary, &built, start)
}

fn options(args: &BuildArgs) -> Result<ElfOptions, Failure> {
    let threads = || std::thread::available_parallelism().map_or(1, NonZero::get);
    Ok(ElfOptions::default()
        .layout(args.layout.kind())
        .order(order(args)?)
        .bucket_rows(args.bucket_rows)
        .threads(args.threads.unwrap_or_else(threads))
        .memory(args.memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))))
}

/// Fails if the index cannot be made.
fn check_name(cluster: &Cluster, name: &str, replace: bool) -> Result<(), Failure> {
    let exists = cluster.index_names()?.iter().any(|other| other == name);
    match exists {
        false => Ok(()),
        true if !replace => Err(pando::Error::IndexExists { name: name.to_owned() }.into()),
        true => Ok(cluster.open_elf(name).map(drop)?),
    }
}

/// Column order by the options.
fn order(args: &BuildArgs) -> Result<Order, Failure> {
    let named: Vec<&str> = args.order.iter().map(String::as_str).collect();
    match (&named[..], &args.workload) {
        (["auto"], Some(file)) => {
            let text = std::fs::read_to_string(file).map_err(|error| {
                Failure::bad_input(format_args!("cannot read {}: {error}", file.display()))
            })?;
            let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            Ok(Order::Workload(lines.map(str::to_owned).collect()))
        }
        (_, Some(_)) => {
            Err(Failure::bad_input("--workload chooses the column order, so it goes with --order auto only"))
        }
        (["auto" | "cardinality"], None) => Ok(Order::Cardinality),
        _ => Ok(Order::Columns(args.order.clone())),
    }
}

/// Every column may hold NULL, so that later rows may have it.
fn schema(columns: &[FileColumn]) -> Result<Schema, Failure> {
    let column = |column: &FileColumn| TableColumn::new(&column.name, column.kind).nullable();
    Schema::new(columns.iter().map(column).collect()).map_err(Failure::bad_input)
}

fn tell(args: &BuildArgs, summary: &Summary, built: &BuiltElf, start: Instant) -> Result<(), Failure> {
    let (time, spec) = (start.elapsed(), built.spec());
    let columns = spec.schema.columns();
    let order: Vec<&str> = spec.order.iter().map(|&column| columns[column].name.as_str()).collect();
    let document = || {
        json!({
            "rows": built.rows(),
            "rejected": summary.rejects.count(),
            "columns": columns.len(),
            "order": order,
            "layout": spec.layout.name(),
            "trees": built.trees(),
            "image_bytes": built.bytes(),
            "seconds": time.as_secs_f64(),
        })
    };
    let text = || {
        format!(
            "{} rows of {} columns, {} trees of {}, column order {}; {}\n",
            units::count(built.rows()),
            columns.len(),
            built.trees(),
            units::size(built.bytes()),
            order.join(","),
            units::duration(time)
        )
    };
    output::tell(args.file.json.as_deref(), document, text)
}
