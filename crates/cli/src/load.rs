//! `pando load`: rows of a file into an index.
//!
//! Rows are gathered and sorted in memory, batch by batch. The first batch of an empty index is loaded in bulk; any
//! other is put in the order of keys, on all cores, which replaces the values of keys that are there. An index that compute
//! servers own is loaded by them, many rows under way at once. When the load is interrupted or fails, the pool is closed with
//! what was loaded so far.

use std::fs::File;
use std::io::stdin;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pando::{BulkOptions, Cluster, Index, IndexLayout, IndexOptions, OpenOptions, Ownership};
use pando_lab::units;
use pando_workload::dataset::{self, Format, ReadOptions, Records};
use serde_json::json;

use crate::args::LoadArgs;
use crate::batch::Batch;
use crate::failure::Failure;
use crate::indexes::{boundaries, node_size};
use crate::keys::KeySchema;
use crate::output::write_document;
use crate::pool;
use crate::progress;
use crate::signals::Interrupt;
use crate::target::{self, Found, Reach, Session};

/// Rejected rows that the summary quotes.
const REJECTED_QUOTED: usize = 20;
/// Rows between two looks at the progress and the signals.
const STRIDE: u64 = 1024;
/// Bytes of the longest value of an index of byte strings.
const VALUE_MAX: usize = 16 << 20;

pub fn run(args: &LoadArgs) -> Result<(), Failure> {
    check_options(args)?;
    let found = target::find(&args.target.pool, args.target.index.as_deref())?;
    let rows = open_file(args, found.as_ref().map(|found| &found.schema))?;
    let schema = KeySchema::of_layout(rows.key_layout());
    let interrupt = Interrupt::listen()?;
    let threads = args.threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    let (own, fill, sort_memory) = (&args.own[..], args.fill, args.sort_memory);
    let mut summary = Summary::default();
    let start = Instant::now();
    let loaded = match found {
        // Whoever names partitions to own takes them.
        Some(Found { shape, schema: there, served: Some(index) }) if args.own.is_empty() => {
            check_schema(&shape.name, &there, &schema)?;
            check_served(args, &shape.name)?;
            let (boundaries, reach) = (Vec::new(), Reach::There(index));
            let (interrupt, summary) = (&interrupt, &mut summary);
            Loader { reach, own, fill, sort_memory, boundaries, interrupt, threads, summary }.load(rows)
        }
        found => {
            let name = match (&args.target.index, found) {
                (Some(name), _) => name.clone(),
                (None, Some(found)) => found.shape.name,
                (None, None) => {
                    return Err(Failure::bad_input("there is no index; say by --index how to call it"));
                }
            };
            let file_bytes = std::fs::metadata(&args.file).map_or(0, |file| file.len());
            let config = pool::perhaps_new(&args.target.pool, &args.new_pool, file_bytes)?;
            pool::with_cluster(config, |cluster| {
                let index = open_index(args, &name, cluster, &schema)?;
                let (boundaries, reach) = (index.boundaries()?, Reach::Here(&index));
                let (interrupt, summary) = (&interrupt, &mut summary);
                Loader { reach, own, fill, sort_memory, boundaries, interrupt, threads, summary }.load(rows)
            })
        }
    };
    summary.time = start.elapsed();
    summary.tell_rejected();
    match loaded {
        Ok(()) => summary.tell(args),
        Err(failure) => Err(failure.with(summary.so_far())),
    }
}

fn check_options(args: &LoadArgs) -> Result<(), Failure> {
    if !(args.fill > 0.0 && args.fill <= 1.0) {
        return Err(Failure::bad_input(format_args!(
            "--fill must be above 0 and at most 1, not {}",
            args.fill
        )));
    }
    if args.threads == Some(0) {
        return Err(Failure::bad_input("--threads must be at least 1"));
    }
    if args.replace && !args.own.is_empty() {
        return Err(Failure::bad_input("--replace empties the whole index, so it cannot be used with --own"));
    }
    if args.delimiter.is_some_and(|delimiter| !delimiter.is_ascii()) {
        return Err(Failure::bad_input("--delimiter must be one byte"));
    }
    Ok(())
}

/// What the compute servers of an index cannot do.
fn check_served(args: &LoadArgs, name: &str) -> Result<(), Failure> {
    if args.replace {
        return Err(Failure::bad_input(format_args!(
            "--replace makes index {name:?} anew, but compute servers own it; empty it by `pando del --all` first"
        )));
    }
    Ok(())
}

/// Opens the file, whose keys are those of an index that is `there` if nothing else is said of them.
fn open_file(args: &LoadArgs, there: Option<&KeySchema>) -> Result<Records, Failure> {
    let is_stdin = args.file.as_os_str() == "-";
    let by_name = || if is_stdin { None } else { Format::of_path(&args.file) };
    let format = args.format.or_else(by_name).ok_or_else(|| {
        let name = if is_stdin { "-".into() } else { args.file.display().to_string() };
        Failure::bad_input(format_args!(
            "the name {name} does not say what format the file has; use --format csv, tsv, parquet, text or words"
        ))
    })?;
    let options = ReadOptions {
        key: args.key.clone(),
        value: args.value.clone(),
        header: !args.no_header,
        delimiter: args.delimiter.map(|delimiter| delimiter as u8),
        text_keys: there.map(|schema| schema.layout().clone()),
        ..ReadOptions::default()
    };
    if is_stdin {
        return Ok(dataset::open_file(stdin_file()?, Path::new("standard input"), format, &options)?);
    }
    Ok(dataset::open(Path::new(&args.file), format, &options)?)
}

/// Standard input as a file.
pub fn stdin_file() -> Result<File, Failure> {
    let owned = stdin().as_fd().try_clone_to_owned();
    owned
        .map(File::from)
        .map_err(|error| Failure::failed(format_args!("cannot read standard input: {error}")))
}

/// The index, made if it is not there.
fn open_index(args: &LoadArgs, name: &str, cluster: &Cluster, schema: &KeySchema) -> Result<Index, Failure> {
    let check = || check_schema(name, &pool::schema_of(&cluster.index_info(name)?)?, schema);
    let own = match args.own.is_empty() {
        true => Ownership::All,
        false => Ownership::Partitions(args.own.clone()),
    };
    let exists = cluster.index_names()?.iter().any(|there| there == name);
    if exists {
        check()?;
    }
    if !exists || args.replace {
        let options = match exists {
            true => emptied(name, cluster)?,
            false => IndexOptions::bytes()
                .node_size(node_size(args.node_size)?)
                .boundaries(boundaries(&args.boundaries, schema)?)
                .description(schema.description()),
        };
        match cluster.create_index(name, &options.own(own.clone())) {
            // Another process was quicker.
            Err(pando::Error::IndexExists { .. }) => check()?,
            made => return Ok(made?),
        }
    }
    Ok(cluster.open_index_with(name, &OpenOptions::default().own(own))?)
}

/// Drops the index; what to make in its place.
fn emptied(name: &str, cluster: &Cluster) -> Result<IndexOptions, Failure> {
    let info = cluster.index_info(name)?;
    let options = match info.layout {
        IndexLayout::Fixed { key_size, value_size } => IndexOptions::fixed(key_size, value_size),
        IndexLayout::Bytes => IndexOptions::bytes(),
    };
    cluster.drop_index(name)?;
    Ok(options
        .node_size(info.node_size)
        .subtree_level(info.subtree_level)
        .boundaries(info.boundaries)
        .description(info.description))
}

fn check_schema(name: &str, there: &KeySchema, schema: &KeySchema) -> Result<(), Failure> {
    if there == schema {
        return Ok(());
    }
    Err(Failure::bad_input(format_args!(
        "keys of index {name:?} are made of the columns {}, those of the file of {}; say the types as in --key a:int,b:str",
        there.columns(),
        schema.columns()
    )))
}

/// Inserts rows into an index.
pub struct Loader<'a> {
    pub reach: Reach<'a>,
    /// The partitions whose rows are taken; all, if there are none here.
    pub own: &'a [usize],
    /// How full leaves become that are loaded in bulk.
    pub fill: f64,
    /// Bytes of rows that are inserted together.
    pub sort_memory: u64,
    /// Keys at which new partitions begin.
    pub boundaries: Vec<Vec<u8>>,
    pub interrupt: &'a Interrupt,
    pub threads: usize,
    pub summary: &'a mut Summary,
}

impl Loader<'_> {
    fn load(&mut self, mut rows: Records) -> Result<(), Failure> {
        let mut batch = Batch::default();
        let mut in_bulk = self.begins_in_bulk()?;
        while self.gather(&mut rows, &mut batch)? {
            self.summary.duplicates += batch.sort();
            self.insert(&batch, in_bulk)?;
            in_bulk = false;
            batch.clear();
            self.interrupt.check()?;
        }
        match self.summary.lost.take() {
            Some(reason) => Err(Failure::failed(reason)),
            None => Ok(()),
        }
    }

    /// Whether the first batch goes into an empty index that is all ours.
    pub fn begins_in_bulk(&self) -> Result<bool, Failure> {
        let is_ours = self.own.is_empty() && matches!(self.reach, Reach::Here(_));
        Ok(is_ours && self.reach.session()?.is_empty()?)
    }

    /// Inserts rows in the order of their keys.
    pub fn insert(&mut self, batch: &Batch, in_bulk: bool) -> Result<(), Failure> {
        match self.reach {
            Reach::Here(index) if in_bulk => self.bulk_load(index, batch),
            _ => self.put_all(batch),
        }
    }

    /// Fills the batch with rows of the file; `false` if there are no more.
    fn gather(&mut self, rows: &mut Records, batch: &mut Batch) -> Result<bool, Failure> {
        let progress = rows.progress();
        let bar = progress::bytes_bar("reading", progress.total);
        let mut limits = Limits::of(&self.reach)?;
        while batch.memory() < self.sort_memory.max(1) {
            let Some(row) = rows.next() else { break };
            self.summary.rows += 1;
            if self.summary.rows.is_multiple_of(STRIDE) {
                bar.set_position(rows.progress().done);
                self.interrupt.check()?;
            }
            match row {
                Ok(record) => self.take(&record.key, &record.value, &mut limits, batch),
                Err(rejected) if rejected.is_fatal() => self.summary.lost = Some(rejected.to_string()),
                Err(rejected) => self.summary.reject(|| rejected.to_string()),
            }
        }
        bar.finish_and_clear();
        Ok(!batch.is_empty())
    }

    fn take(&mut self, key: &[u8], value: &[u8], limits: &mut Limits, batch: &mut Batch) {
        if !self.owns(key) {
            self.summary.left_to_others += 1;
            return;
        }
        let row = self.summary.rows;
        match limits.check(key, value) {
            Ok(()) => batch.push(key, value),
            Err(reason) => self.summary.reject(|| format!("row {row}: {reason}")),
        }
    }

    fn owns(&self, key: &[u8]) -> bool {
        let partition = || self.boundaries.partition_point(|boundary| boundary.as_slice() <= key);
        self.own.is_empty() || self.own.contains(&partition())
    }

    fn bulk_load(&mut self, index: &Index, batch: &Batch) -> Result<(), Failure> {
        let bar = progress::bar("loading", batch.len() as u64);
        let note = |entries: u64| bar.set_position(entries);
        let options = BulkOptions {
            threads: self.threads,
            leaf_fill: self.fill,
            progress: Some(&note),
            ..BulkOptions::default()
        };
        self.summary.inserted += index.bulk_load(batch, &options)?;
        bar.finish_and_clear();
        Ok(())
    }

    /// Puts the rows on all threads, each its share of the keys.
    fn put_all(&mut self, batch: &Batch) -> Result<(), Failure> {
        let bar = progress::bar("inserting", batch.len() as u64);
        let (inserted, replaced) = (AtomicU64::new(0), AtomicU64::new(0));
        let stop = AtomicBool::new(false);
        let threads = self.threads.min(batch.len()).max(1);
        let put = Putting { batch, bar: &bar, interrupt: self.interrupt, stop: &stop };
        let ended: Result<(), Failure> = thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let share = batch.len() * thread / threads..batch.len() * (thread + 1) / threads;
                    let (put, reach, inserted, replaced) = (&put, &self.reach, &inserted, &replaced);
                    scope.spawn(move || put.share(reach, share, inserted, replaced))
                })
                .collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        bar.finish_and_clear();
        self.summary.inserted += inserted.into_inner();
        self.summary.replaced += replaced.into_inner();
        ended
    }
}

/// What keys and values the index can hold. Rows it cannot are rejected one by one, before a whole batch fails.
struct Limits {
    session: Session,
    layout: IndexLayout,
    /// Keys that are longer than any the index took so far are tried.
    key_len_tried: usize,
}

impl Limits {
    fn of(reach: &Reach<'_>) -> Result<Limits, Failure> {
        Ok(Limits { session: reach.session()?, layout: reach.layout(), key_len_tried: 0 })
    }

    fn check(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let (len, key_len) = (value.len(), key.len());
        match self.layout {
            IndexLayout::Fixed { key_size, .. } if key_len != key_size => {
                return Err(format!("a key of {key_len} bytes in an index whose keys have {key_size}"));
            }
            IndexLayout::Fixed { value_size, .. } if len != value_size => {
                return Err(format!("a value of {len} bytes in an index whose values have {value_size}"));
            }
            IndexLayout::Bytes if len > VALUE_MAX => {
                return Err(format!("a value of {len} bytes is longer than {VALUE_MAX}"));
            }
            _ => {}
        }
        if key_len > self.key_len_tried {
            match self.session.contains(key) {
                Err(error) if error.is_bad_input() => return Err(error.to_string()),
                // Other trouble comes up again when the row is inserted, and ends the load there.
                _ => self.key_len_tried = key_len,
            }
        }
        Ok(())
    }
}

/// What threads that put rows share.
struct Putting<'a> {
    batch: &'a Batch,
    bar: &'a ProgressBar,
    interrupt: &'a Interrupt,
    stop: &'a AtomicBool,
}

impl Putting<'_> {
    fn share(
        &self,
        reach: &Reach<'_>,
        rows: std::ops::Range<usize>,
        inserted: &AtomicU64,
        replaced: &AtomicU64,
    ) -> Result<(), Failure> {
        let session = reach.session().inspect_err(|_| self.stop.store(true, Relaxed))?;
        for start in rows.clone().step_by(STRIDE as usize) {
            let some = (start..rows.end.min(start + STRIDE as usize)).map(|row| self.batch.row(row));
            let (put, ended) = session.put_all(some);
            replaced.fetch_add(put.replaced, Relaxed);
            inserted.fetch_add(put.inserted, Relaxed);
            if let Err(error) = ended {
                self.stop.store(true, Relaxed);
                return Err(error.into());
            }
            self.bar.inc(STRIDE);
            self.interrupt.check()?;
            if self.stop.load(Relaxed) {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// What became of the rows.
#[derive(Debug, Default)]
pub struct Summary {
    rows: u64,
    inserted: u64,
    replaced: u64,
    /// Rows whose key came again later in the file.
    duplicates: u64,
    left_to_others: u64,
    rejected: u64,
    first_rejected: Vec<String>,
    /// Why the rest of the file could not be read.
    lost: Option<String>,
    time: Duration,
}

impl Summary {
    fn reject(&mut self, reason: impl FnOnce() -> String) {
        self.rejected += 1;
        if self.first_rejected.len() < REJECTED_QUOTED {
            self.first_rejected.push(reason());
        }
    }

    fn tell_rejected(&self) {
        if self.rejected == 0 {
            return;
        }
        eprintln!("{} rows were rejected:", units::count(self.rejected));
        for reason in &self.first_rejected {
            eprintln!("  {reason}");
        }
        let more = self.rejected - self.first_rejected.len() as u64;
        if more > 0 {
            eprintln!("  and {} more", units::count(more));
        }
    }

    /// Rows that are in the index.
    pub fn loaded(&self) -> u64 {
        self.inserted + self.replaced
    }

    fn so_far(&self) -> String {
        format!("{} rows were loaded before", units::count(self.loaded()))
    }

    fn tell(&self, args: &LoadArgs) -> Result<(), Failure> {
        let rate = self.rows as f64 / self.time.as_secs_f64().max(1e-9);
        if let Some(path) = &args.json {
            let document = json!({
                "rows": self.rows,
                "inserted": self.inserted,
                "replaced": self.replaced,
                "duplicates": self.duplicates,
                "left_to_others": self.left_to_others,
                "rejected": self.rejected,
                "seconds": self.time.as_secs_f64(),
                "rows_per_second": rate,
            });
            return write_document(path, &format!("{document}\n"));
        }
        let mut text = format!(
            "{} rows: {} inserted, {} replaced",
            units::count(self.rows),
            units::count(self.inserted),
            units::count(self.replaced)
        );
        for (count, what) in [
            (self.duplicates, "superseded by a later row"),
            (self.left_to_others, "left to the owners of their partitions"),
            (self.rejected, "rejected"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {} {what}", units::count(count)));
            }
        }
        text.push_str(&format!("; {}, {} rows/s\n", units::duration(self.time), units::figure(rate)));
        write_document(Path::new("-"), &text)
    }
}
