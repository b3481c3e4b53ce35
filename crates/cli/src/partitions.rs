//! `pando pool partitions`: who has which keys of the indexes.
//!
//! Boundaries and owners stand in the catalog, entries are counted on the memory servers as they were last written back; all of
//! it while other processes work on the pool. How much is asked of a compute server only its own process knows
//! ([`pando::ComputeServerStats::operations`]).

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use pando::{IndexInfo, IndexReport};
use pando_lab::units;
use serde_json::{Value, json};

use crate::args::{LookArgs, PoolArgs};
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::output::write_document;
use crate::pool;

#[derive(Args, Debug)]
pub struct PartitionsArgs {
    #[command(flatten)]
    pool: PoolArgs,
    /// Of this index only
    #[arg(long, value_name = "NAME")]
    index: Option<String>,
    #[command(flatten)]
    look: LookArgs,
    /// Write the table as JSON to a file, or to standard output
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

/// An index with its partitions.
struct Divided {
    info: IndexInfo,
    schema: KeySchema,
    /// By partition. `None` if they could not be counted.
    entries: Option<Vec<u64>>,
}

impl Divided {
    fn new(info: IndexInfo, reports: &[IndexReport]) -> Result<Self, Failure> {
        let report = reports.iter().find(|report| report.name == info.name);
        let counted = report.map(|report| report.partition_entries.clone());
        // Boundaries may have moved between the two looks.
        let entries = counted.filter(|entries| entries.len() == info.owners.len());
        Ok(Self { schema: pool::schema_of(&info)?, info, entries })
    }

    /// Where a partition begins; `None` for the first.
    fn from(&self, partition: usize) -> Option<&[u8]> {
        partition.checked_sub(1).map(|below| self.info.boundaries[below].as_slice())
    }
}

pub fn run(args: &PartitionsArgs) -> Result<(), Failure> {
    let config = pool::looking(&args.pool, &args.look)?;
    let indexes = pool::with_cluster(config, |cluster| {
        let infos = match &args.index {
            Some(name) => vec![cluster.index_info(name)?],
            None => cluster.indexes()?,
        };
        let reports = cluster.shapes()?;
        infos.into_iter().map(|info| Divided::new(info, &reports)).collect::<Result<Vec<_>, _>>()
    })?;
    match &args.json {
        Some(path) => write_document(path, &format!("{}\n", document(&args.pool.pool, &indexes))),
        None => write_document(Path::new("-"), &text(&indexes)),
    }
}

fn document(path: &Path, indexes: &[Divided]) -> Value {
    let indexes: Vec<Value> = indexes
        .iter()
        .map(|index| {
            let partitions: Vec<Value> =
                (0..index.info.owners.len()).map(|partition| partition_document(index, partition)).collect();
            json!({ "name": index.info.name, "partitions": partitions })
        })
        .collect();
    json!({ "pool": path.to_string_lossy(), "indexes": indexes })
}

fn partition_document(index: &Divided, partition: usize) -> Value {
    let key = |key: &[u8]| index.schema.json(key);
    json!({
        "partition": partition,
        "from": index.from(partition).map(key),
        "to": index.info.boundaries.get(partition).map(|boundary| key(boundary)),
        "owner": index.info.owners[partition].map(|process| process.pid),
        "entries": index.entries.as_ref().map(|entries| entries[partition]),
    })
}

fn text(indexes: &[Divided]) -> String {
    let mut text = String::new();
    for index in indexes {
        let blank = if text.is_empty() { "" } else { "\n" };
        writeln!(text, "{blank}index {}", index.info.name).expect("writing to a string does not fail");
        let head = ["partition", "from", "up to", "entries", "share", "owner"].map(str::to_owned);
        let rows = (0..index.info.owners.len()).map(|partition| row(index, partition));
        text.push_str(&pool::aligned(&[head].into_iter().chain(rows).collect::<Vec<_>>()));
    }
    if indexes.is_empty() {
        text.push_str("no indexes\n");
    }
    text
}

fn row(index: &Divided, partition: usize) -> [String; 6] {
    let key = |key: Option<&[u8]>| key.map_or("-".to_owned(), |key| index.schema.display(key));
    let (entries, share) = match &index.entries {
        None => ("?".to_owned(), "?".to_owned()),
        Some(entries) => {
            let all: u64 = entries.iter().sum();
            let share = entries[partition] as f64 * 100.0 / all.max(1) as f64;
            (units::count(entries[partition]), format!("{share:.1}%"))
        }
    };
    [
        partition.to_string(),
        key(index.from(partition)),
        key(index.info.boundaries.get(partition).map(Vec::as_slice)),
        entries,
        share,
        index.info.owners[partition].map_or("nobody".to_owned(), |process| process.to_string()),
    ]
}
