//! `pando stats`: the shape of a pool and its indexes.
//!
//! What memory is in use comes from the pool, the shape of an index from the auditor, which walks it at rest. While
//! other processes are attached it comes from a walk that needs nobody's leave and sees what was last written back;
//! the output says so (`approximate` in the JSON).

use std::fmt::Write;
use std::path::Path;

use pando::{Cluster, IndexInfo, IndexReport, ServerUsage};
use pando_lab::units;
use serde_json::{Value, json};

use crate::args::StatsArgs;
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::output::write_document;
use crate::pool;

/// An index: what the catalog says, and its shape.
struct Shape {
    info: IndexInfo,
    schema: KeySchema,
    /// `None` if nothing could be made out, such as that of an index which is just being made.
    report: Option<IndexReport>,
    /// Others are attached, and may be changing it.
    approximate: bool,
}

pub fn run(args: &StatsArgs) -> Result<(), Failure> {
    let config = pool::looking(&args.pool, &args.look)?;
    let look = |cluster: &Cluster, is_alone| {
        let servers = cluster.stats()?.pool;
        Ok((servers, shapes(cluster, is_alone)?))
    };
    let beside = match args.look.unclean {
        true => None,
        false => pool::beside_others(&config, |cluster| look(cluster, false))?,
    };
    let (servers, shapes) = match beside {
        Some(seen) => seen,
        None => pool::with_cluster(config, |cluster| look(cluster, true))?,
    };
    match &args.json {
        Some(path) => write_document(path, &format!("{}\n", document(&args.pool.pool, &servers, &shapes))),
        None => write_document(Path::new("-"), &text(&args.pool.pool, &servers, &shapes)),
    }
}

fn shapes(cluster: &Cluster, is_alone: bool) -> Result<Vec<Shape>, Failure> {
    let checked = is_alone.then(|| cluster.check()).transpose();
    let (mut reports, approximate) = match checked {
        Ok(None) => (cluster.shapes()?, true),
        Ok(Some(report)) => (report.indexes, false),
        Err(pando::Error::NotAlone { .. }) => (cluster.shapes()?, true),
        Err(error) => return Err(error.into()),
    };
    let shape = |info: IndexInfo| {
        let schema = pool::schema_of(&info)?;
        let report = reports.iter().position(|report| report.name == info.name).map(|at| reports.remove(at));
        Ok(Shape { info, schema, report, approximate })
    };
    cluster.indexes()?.into_iter().map(shape).collect()
}

fn document(path: &Path, servers: &[ServerUsage], shapes: &[Shape]) -> Value {
    let servers: Vec<Value> = servers.iter().map(pool::server_document).collect();
    let indexes: Vec<Value> = shapes.iter().map(index_document).collect();
    json!({ "pool": path.to_string_lossy(), "servers": servers, "indexes": indexes })
}

fn index_document(shape: &Shape) -> Value {
    let Shape { info, schema, report, approximate } = shape;
    let boundaries: Vec<String> = info.boundaries.iter().map(|boundary| schema.display(boundary)).collect();
    let of_report = |figure: fn(&IndexReport) -> Value| report.as_ref().map(figure);
    json!({
        "name": info.name,
        "layout": info.layout.to_string(),
        "key_columns": schema.columns(),
        "node_size": info.node_size,
        "subtree_level": info.subtree_level,
        "boundaries": boundaries,
        "approximate": approximate,
        "entries": of_report(|report| json!(report.entries)),
        "leaves": of_report(|report| json!(report.leaves)),
        "inner_nodes": of_report(|report| json!(report.inner_nodes)),
        "height": of_report(|report| json!(report.height)),
        "leaf_fullness": of_report(|report| json!(report.leaf_fullness)),
        "key_bytes": of_report(|report| json!(report.key_bytes)),
        "value_bytes": of_report(|report| json!(report.value_bytes)),
        "bytes": of_report(|report| json!(report.bytes)),
        "strays": of_report(|report| json!(report.strays)),
    })
}

fn text(path: &Path, servers: &[ServerUsage], shapes: &[Shape]) -> String {
    let mut text = format!("pool {}\n\n", path.display());
    text.push_str(&pool::table(servers));
    for shape in shapes {
        text.push('\n');
        index_text(shape, &mut text);
    }
    if shapes.is_empty() {
        text.push_str("\nno indexes\n");
    }
    text
}

fn index_text(shape: &Shape, text: &mut String) {
    let Shape { info, schema, report, approximate } = shape;
    let mut line = |label: &str, content: String| {
        writeln!(text, "  {label:<10} {content}").expect("writing to a string does not fail");
    };
    line("index", info.name.clone());
    line("layout", format!("{}, nodes of {}", info.layout, units::size(info.node_size as u64)));
    line("key", schema.columns());
    if !info.boundaries.is_empty() {
        let boundaries: Vec<String> =
            info.boundaries.iter().map(|boundary| schema.display(boundary)).collect();
        line("partitions", format!("{}, cut at {}", boundaries.len() + 1, boundaries.join(" | ")));
    }
    let Some(report) = report else {
        return line("shape", "not to be made out; it may be just being made".to_owned());
    };
    let data = report.key_bytes + report.value_bytes;
    line("entries", format!("{}, {} of keys and values", units::count(report.entries), units::size(data)));
    let shape = format!(
        "{} levels, {} leaves ({:.0}% full), {} inner nodes, {}",
        report.height,
        units::count(report.leaves),
        report.leaf_fullness * 100.0,
        units::count(report.inner_nodes),
        units::size(report.bytes)
    );
    line("shape", shape);
    if *approximate {
        let unread = match report.unreadable {
            0 => String::new(),
            nodes => format!("; {} nodes changed too fast to be read", units::count(nodes)),
        };
        line("", format!("as last written back, while other processes are attached{unread}"));
    }
}
