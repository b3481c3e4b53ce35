//! `pando pool partitions` and `pando pool move-boundary`: the partitions of indexes.
//!
//! Boundaries and owners come from the catalog. Entries are counted on the memory servers, as last written
//! back, while other processes may work on the pool. The caches of other processes are not visible, so the
//! count of an owned partition is marked. The load of a compute server is known to that server only
//! ([`pando::ComputeServerStats::operations`]).

use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use pando::{IndexInfo, IndexReport, OpenOptions, Ownership};
use pando_lab::units;
use serde_json::{Value, json};

use crate::args::{IndexArgs, LookArgs, PoolArgs};
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::{output, pool};

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

#[derive(Args, Debug)]
pub struct MoveBoundaryArgs {
    #[command(flatten)]
    target: IndexArgs,
    /// The partition that is to end at the key, counted from 0; the next one begins there
    #[arg(long, value_name = "N")]
    partition: usize,
    /// The key; of a composite key, the first columns will do
    #[arg(long, value_name = "KEY", allow_negative_numbers = true)]
    to: String,
}

/// An index with its partitions.
struct Divided {
    info: IndexInfo,
    schema: KeySchema,
    /// Number of entries by partition; `None` if they could not be counted.
    entries: Option<Vec<u64>>,
}

impl Divided {
    fn new(info: IndexInfo, reports: &[IndexReport]) -> Result<Self, Failure> {
        let report = reports.iter().find(|report| report.name == info.name);
        let counted = report.map(|report| report.partition_entries.clone());
        // Boundaries may have moved between the two reads.
        let entries = counted.filter(|entries| entries.len() == info.owners.len());
        Ok(Self { schema: pool::schema_of(&info)?, info, entries })
    }

    /// Whether the cache of another process may hold uncounted changes of a partition.
    fn is_cached_elsewhere(&self, partition: usize) -> bool {
        // This process has not opened the index, so every owner is another process.
        self.info.owners[partition].is_some()
    }

    /// First key of a partition; `None` for the first one.
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
    output::tell(args.json.as_deref(), || document(&args.pool.pool, &indexes), || text(&indexes))
}

/// Moves a boundary; returns a sentence about the result.
pub fn move_boundary(args: &MoveBoundaryArgs) -> Result<String, Failure> {
    let (name, below) = (&args.target.index, args.partition);
    pool::with_cluster(pool::existing(&args.target.pool)?, |cluster| {
        let info = cluster.index_info(name)?;
        let key = pool::schema_of(&info)?.prefix(args.to.as_bytes())?;
        let above = below.saturating_add(1);
        if above >= info.owners.len() {
            return Err(Failure::bad_input(format_args!(
                "no partition comes after partition {below} of index {name:?}: it has {}, counted from 0",
                info.owners.len()
            )));
        }
        // Other processes may own the other partitions.
        let own = OpenOptions::default().own(Ownership::Partitions(vec![below, above]));
        let what = "moving a boundary";
        let index =
            cluster.open_index_with(name, &own).map_err(|error| pool::needs_partitions(what, error))?;
        index.move_boundary(below, &key)?;
        Ok(format!("partition {below} of index {name} ends at {}, where partition {above} begins", args.to))
    })
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
        "counted": if index.is_cached_elsewhere(partition) { "written back" } else { "all" },
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
    let is_some = |index: &Divided| (0..index.info.owners.len()).any(|at| index.is_cached_elsewhere(at));
    if indexes.iter().any(is_some) {
        text.push_str("* as written back by the owner, whose cache may hold later changes\n");
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
            let mark = if index.is_cached_elsewhere(partition) { "*" } else { "" };
            (format!("{}{mark}", units::count(entries[partition])), format!("{share:.1}%"))
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
