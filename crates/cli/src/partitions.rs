//! `pando pool partitions` and `pando pool move-boundary`: the partitions of indexes.
//!
//! Boundaries and owners come from the catalog. The entries of a partition are counted by a scan through
//! its owner if that serves operations, so those in its cache count too. Otherwise they are counted on the
//! memory servers, as last written back, and if the partition has an owner, the count is marked. The load of
//! a compute server is known to that server only ([`pando::ComputeServerStats::operations`]).

use std::fmt::Write;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use clap::Args;
use pando::{
    Cluster, Config, IndexInfo, IndexReport, KeyRange, OpenOptions, Ownership, Partition, ProcessIdentity,
    ScanRange,
};
use pando_lab::units;
use serde_json::{Value, json};

use crate::args::{IndexArgs, LookArgs, PoolArgs};
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::{output, pool, target};

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
    name: String,
    schema: KeySchema,
    parts: Vec<Part>,
}

struct Part {
    keys: KeyRange,
    owner: Option<ProcessIdentity>,
    /// Whether the owner serves operations.
    is_served: bool,
    /// `None` if they could not be counted.
    entries: Option<u64>,
    /// Whether the cache of the owner may hold uncounted changes.
    is_marked: bool,
}

impl Divided {
    /// Counts entries by a report of what was written back.
    fn new(cluster: &Cluster, info: &IndexInfo, reports: &[IndexReport]) -> Result<Self, Failure> {
        let partitions = cluster.partitions(&info.name)?;
        let report = reports.iter().find(|report| report.name == info.name);
        // Boundaries may have moved between the two reads.
        let counted = report
            .map(|report| &report.partition_entries)
            .filter(|entries| entries.len() == partitions.len());
        let part = |(number, Partition { keys, owner, .. }): (usize, Partition)| Part {
            keys,
            is_served: owner.address(&info.name).is_some(),
            owner: owner.process().map(|process| process.identity),
            entries: counted.map(|entries| entries[number]),
            // This process has not opened the index, so every owner is another process.
            is_marked: owner.process().is_some(),
        };
        let parts = partitions.into_iter().enumerate().map(part).collect();
        Ok(Self { name: info.name.clone(), schema: pool::schema_of(info)?, parts })
    }

    /// Counts the entries of served partitions through their owners: only they know their caches.
    fn count_served(&mut self, config: &Config) -> Result<(), Failure> {
        if !self.parts.iter().any(|part| part.is_served) {
            return Ok(());
        }
        let Some(index) = target::served(config, &self.name)? else { return Ok(()) };
        let session = index.session();
        for part in self.parts.iter_mut().filter(|part| part.is_served) {
            let range = ScanRange {
                low: part.keys.low.as_deref().map_or(Bound::Unbounded, Bound::Included),
                high: part.keys.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
                ..ScanRange::all()
            };
            part.entries = Some(session.scan(&range, |_, _| true)? as u64);
            part.is_marked = false;
        }
        Ok(())
    }
}

pub fn run(args: &PartitionsArgs) -> Result<(), Failure> {
    let config = pool::looking(&args.pool, &args.look)?;
    let indexes = pool::with_cluster(config.clone(), |cluster| {
        let infos = match &args.index {
            Some(name) => vec![cluster.index_info(name)?],
            None => cluster.indexes()?,
        };
        let reports = cluster.shapes()?;
        let mut indexes = Vec::new();
        for info in &infos {
            let divided = Divided::new(cluster, info, &reports).and_then(|mut divided| {
                if !args.look.unclean {
                    divided.count_served(&config)?;
                }
                Ok(divided)
            });
            indexes.extend(pool::unless_dropped(cluster, &info.name, divided)?);
        }
        Ok(indexes)
    })?;
    output::tell(args.json.as_deref(), || document(&args.pool.pool, &indexes), || text(&indexes))
}

/// Moves a boundary, or lets the compute servers beside it do so; returns a sentence about the result.
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
        let moved = || {
            format!("partition {below} of index {name} ends at {}, where partition {above} begins", args.to)
        };
        if [below, above].iter().any(|&partition| info.owners[partition].is_some()) {
            cluster.ask_to_move_boundary(name, below, &key)?;
            return Ok(moved());
        }
        // Other processes may own the other partitions.
        let own = OpenOptions::default().own(Ownership::Partitions(vec![below, above]));
        let what = "moving a boundary";
        let index =
            cluster.open_index_with(name, &own).map_err(|error| pool::needs_partitions(what, error))?;
        index.move_boundary(below, &key)?;
        Ok(moved())
    })
}

fn document(path: &Path, indexes: &[Divided]) -> Value {
    let indexes: Vec<Value> = indexes
        .iter()
        .map(|index| {
            let partition = |(number, part)| partition_document(&index.schema, number, part);
            let partitions: Vec<Value> = index.parts.iter().enumerate().map(partition).collect();
            json!({ "name": index.name, "partitions": partitions })
        })
        .collect();
    json!({ "pool": path.to_string_lossy(), "indexes": indexes })
}

fn partition_document(schema: &KeySchema, number: usize, part: &Part) -> Value {
    let key = |key: &Option<Vec<u8>>| key.as_deref().map(|key| schema.json(key));
    json!({
        "partition": number,
        "from": key(&part.keys.low),
        "to": key(&part.keys.high),
        "owner": part.owner.map(|process| process.pid),
        "entries": part.entries,
        "counted": if part.is_marked { "written back" } else { "all" },
    })
}

fn text(indexes: &[Divided]) -> String {
    let mut text = String::new();
    for index in indexes {
        let blank = if text.is_empty() { "" } else { "\n" };
        writeln!(text, "{blank}index {}", index.name).expect("writing to a string does not fail");
        let head = ["partition", "from", "up to", "entries", "share", "owner"].map(str::to_owned);
        let all = index.parts.iter().filter_map(|part| part.entries).sum();
        let rows = index.parts.iter().enumerate().map(|(number, part)| row(&index.schema, number, part, all));
        text.push_str(&pool::aligned(&[head].into_iter().chain(rows).collect::<Vec<_>>()));
    }
    if indexes.iter().flat_map(|index| &index.parts).any(|part| part.is_marked) {
        text.push_str("* as written back by the owner, whose cache may hold later changes\n");
    }
    if indexes.is_empty() {
        text.push_str("no indexes\n");
    }
    text
}

/// `all` is the number of entries of all partitions.
fn row(schema: &KeySchema, number: usize, part: &Part, all: u64) -> [String; 6] {
    let key = |key: &Option<Vec<u8>>| key.as_deref().map_or("-".to_owned(), |key| schema.display(key));
    let mark = if part.is_marked { "*" } else { "" };
    let (entries, share) = match part.entries {
        None => ("?".to_owned(), "?".to_owned()),
        Some(entries) => {
            let share = entries as f64 * 100.0 / all.max(1) as f64;
            (format!("{}{mark}", units::count(entries)), format!("{share:.1}%"))
        }
    };
    [
        number.to_string(),
        key(&part.keys.low),
        key(&part.keys.high),
        entries,
        share,
        part.owner.map_or("nobody".to_owned(), |process| process.to_string()),
    ]
}
