//! `pando stats`: the shape of a pool and its indexes.
//!
//! Memory usage comes from the pool, the shape of an index from the auditor, which needs it at rest. While
//! other processes are attached, the shape comes from a walk without coordination over the nodes as last
//! written back, which the output marks (`approximate` in the JSON). If compute servers serve an index, its
//! entries are counted through them, since most may be in their caches.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use pando::remote::RemoteIndex;
use pando::{Cluster, Config, IndexInfo, IndexReport, ScanRange, ServerUsage};
use pando_lab::units;
use serde_json::{Value, json};

use crate::args::StatsArgs;
use crate::elf::{self, ElfShape};
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::{output, pool, target};

/// An index: its catalog entry and its shape.
struct Shape {
    info: IndexInfo,
    schema: KeySchema,
    /// `None` if the shape could not be determined, for instance while the index is being created.
    report: Option<IndexReport>,
    /// Whether other processes are attached and may be changing it.
    approximate: bool,
    served: Option<Served>,
}

/// Result of a scan through the compute servers of an index, which includes the entries in their caches.
#[derive(Default)]
struct Served {
    servers: BTreeSet<String>,
    entries: u64,
    key_bytes: u64,
    value_bytes: u64,
}

impl Served {
    fn scan(index: &RemoteIndex) -> Result<Served, Failure> {
        let servers = index.owners().into_iter().map(|(_, address)| address).collect();
        let mut served = Served { servers, ..Served::default() };
        index.session().scan(&ScanRange::all(), |key, value| {
            served.entries += 1;
            served.key_bytes += key.len() as u64;
            served.value_bytes += value.len() as u64;
            true
        })?;
        Ok(served)
    }
}

pub fn run(args: &StatsArgs) -> Result<(), Failure> {
    let config = pool::looking(&args.pool, &args.look)?;
    let look = |cluster: &Cluster, is_alone| {
        let servers = cluster.stats()?.pool;
        let elfs = elf::shapes(cluster)?;
        let mut shapes = shapes(cluster, is_alone)?;
        if !is_alone {
            for shape in &mut shapes {
                shape.count_served(&config, cluster)?;
            }
        }
        Ok((servers, shapes, elfs))
    };
    let beside = match args.look.unclean {
        true => None,
        false => pool::beside_others(&config, |cluster| look(cluster, false))?,
    };
    let (servers, shapes, elfs) = match beside {
        Some(seen) => seen,
        None => pool::with_cluster(config.clone(), |cluster| look(cluster, true))?,
    };
    let pool = &args.pool.pool;
    let document = || document(pool, &servers, &shapes, &elfs);
    output::tell(args.json.as_deref(), document, || text(pool, &servers, &shapes, &elfs))
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
        Ok(Shape { info, schema, report, approximate, served: None })
    };
    cluster.indexes()?.into_iter().map(shape).collect()
}

impl Shape {
    /// Counts the entries of an index through its compute servers, if it has any: only they know their
    /// caches.
    fn count_served(&mut self, config: &Config, cluster: &Cluster) -> Result<(), Failure> {
        let name = &self.info.name;
        if self.info.owners.iter().all(Option::is_none) {
            return Ok(());
        }
        let counted =
            target::served(config, name).and_then(|index| index.as_ref().map(Served::scan).transpose());
        self.served = pool::unless_dropped(cluster, name, counted)?.flatten();
        let (Some(served), Some(report)) = (&self.served, &mut self.report) else { return Ok(()) };
        (report.entries, report.key_bytes) = (served.entries, served.key_bytes);
        report.value_bytes = served.value_bytes;
        Ok(())
    }
}

fn document(path: &Path, servers: &[ServerUsage], shapes: &[Shape], elfs: &[ElfShape]) -> Value {
    let servers: Vec<Value> = servers.iter().map(pool::server_document).collect();
    let indexes: Vec<Value> = shapes.iter().map(index_document).collect();
    let elfs: Vec<Value> = elfs.iter().map(elf::document).collect();
    json!({ "pool": path.to_string_lossy(), "servers": servers, "indexes": indexes, "elfs": elfs })
}

fn index_document(shape: &Shape) -> Value {
    let Shape { info, schema, report, approximate, served } = shape;
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
        "served_by": served.as_ref().map(|served| json!(served.servers)),
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

fn text(path: &Path, servers: &[ServerUsage], shapes: &[Shape], elfs: &[ElfShape]) -> String {
    let mut text = format!("pool {}\n\n", path.display());
    text.push_str(&pool::table(servers));
    for shape in shapes {
        text.push('\n');
        index_text(shape, &mut text);
    }
    for shape in elfs {
        text.push('\n');
        elf::text(shape, &mut text);
    }
    if shapes.is_empty() && elfs.is_empty() {
        text.push_str("\nno indexes\n");
    }
    text
}

fn index_text(shape: &Shape, text: &mut String) {
    let Shape { info, schema, report, approximate, served } = shape;
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
    if let Some(served) = served {
        let servers: Vec<&str> = served.servers.iter().map(String::as_str).collect();
        line("", format!("counted by a scan through the compute servers {}", servers.join(", ")));
    }
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
            nodes => format!("; {} nodes were not yet, or just being so", units::count(nodes)),
        };
        line("", format!("as last written back, while other processes are attached{unread}"));
    }
}
