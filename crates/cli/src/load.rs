//! `pando load`: loads the rows of a file into an index.
//!
//! Rows are gathered and sorted in memory, batch by batch. The first batch of an empty index is bulk loaded;
//! any other is put in key order, on all cores, and replaces the values of existing keys. If compute servers
//! own the index, they execute the puts, many at a time. An interrupted or failed load closes the pool with
//! the rows loaded so far.
//!
//! The first batch is gathered before anything is created, emptied or changed, and a batch with too many
//! rejected rows is not loaded. So a faulty file changes nothing, except by the batches before the fault if
//! it exceeds the memory for sorting.

use std::fs::File;
use std::io::stdin;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pando::{BULK_THREADS_MAX, BulkOptions, Cluster, Index, OpenOptions};
use pando_lab::units;
use pando_workload::dataset::{self, Format, ReadOptions, Records};
use serde_json::json;

use crate::args::LoadArgs;
use crate::batch::Batch;
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::plan::{self, Plan};
use crate::rejects::Rejects;
use crate::signals::Interrupt;
use crate::target::{self, Reach};
use crate::{output, pool, progress};

/// Rows between two checks of progress and signals.
const STRIDE: u64 = 1024;
/// Default fill of leaves.
const FILL: f64 = 0.9;

pub fn run(args: &LoadArgs) -> Result<(), Failure> {
    plan::check_options(args)?;
    let found = target::find(&args.target.pool, args.target.index.as_deref())?;
    let rows = open_file(args, found.as_ref().map(|found| &found.schema))?;
    let schema = KeySchema::of_layout(rows.key_layout());
    let interrupt = Interrupt::listen()?;
    let plan = Plan::new(args, found, &schema)?;
    let mut source = Source { args, plan: &plan, interrupt: &interrupt, rows };
    let mut summary = Summary::default();
    let start = Instant::now();
    let loaded = load(&mut source, &schema, &mut summary);
    summary.time = start.elapsed();
    match loaded {
        Ok(()) => {
            summary.rejects.tell();
            summary.tell(args)
        }
        Err(failure) => {
            // If there are too many, the failure itself reports them.
            if summary.rejects.count() <= args.max_rejects {
                summary.rejects.tell();
            }
            Err(failure.with(summary.so_far()))
        }
    }
}

/// Gathers the first batch, and only then creates or changes anything.
fn load(source: &mut Source<'_>, schema: &KeySchema, summary: &mut Summary) -> Result<(), Failure> {
    let Source { args, plan, interrupt, .. } = *source;
    let threads = || thread::available_parallelism().map_or(1, usize::from).min(BULK_THREADS_MAX);
    let threads = args.threads.unwrap_or_else(threads);
    let (own, fill) = (&args.own[..], args.fill.unwrap_or(FILL));
    let mut batch = Batch::default();
    source.gather(&mut batch, summary)?;
    if let Some(index) = &plan.served {
        let reach = Reach::There(index.clone());
        return Loader { reach, own, fill, interrupt, threads, summary }.load(source, batch);
    }
    let file_bytes = std::fs::metadata(&args.file).map_or(0, |file| file.len());
    let config = pool::perhaps_new(&args.target.pool, &args.new_pool, file_bytes)?;
    pool::with_cluster(config, |cluster| {
        let index = open_index(args, plan, cluster, schema)?;
        let reach = Reach::Here(&index);
        Loader { reach, own, fill, interrupt, threads, summary }.load(source, batch)
    })
}

/// Opens the file. By default its keys have the schema of the existing index (`there`).
fn open_file(args: &LoadArgs, there: Option<&KeySchema>) -> Result<Records, Failure> {
    let is_stdin = args.file.as_os_str() == "-";
    let by_name = || if is_stdin { None } else { Format::of_path(&args.file) };
    let format = args.format.or_else(by_name).ok_or_else(|| {
        let name = if is_stdin { "-".into() } else { args.file.display().to_string() };
        Failure::bad_input(format_args!(
            "the name {name} does not say what format the file has; use --format csv, tsv, parquet, text or words"
        ))
    })?;
    plan::check_format(args, format)?;
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

/// Opens the index. Creates it if it does not exist, and empties it on request.
fn open_index(args: &LoadArgs, plan: &Plan, cluster: &Cluster, schema: &KeySchema) -> Result<Index, Failure> {
    let name = &plan.name;
    let exists = cluster.index_names()?.contains(name);
    if exists && args.replace {
        cluster.drop_index(name)?;
    }
    if !exists || args.replace {
        match cluster.create_index(name, &plan.options) {
            // Another process was faster.
            Err(pando::Error::IndexExists { .. }) => {}
            made => return Ok(made?),
        }
    }
    plan::check_schema(name, &pool::schema_of(&cluster.index_info(name)?)?, schema)?;
    Ok(cluster.open_index_with(name, &OpenOptions::default().own(plan.own.clone()))?)
}

/// Source of rows: the file.
struct Source<'a> {
    args: &'a LoadArgs,
    plan: &'a Plan,
    interrupt: &'a Interrupt,
    rows: Records,
}

impl Source<'_> {
    /// Fills the batch with rows of the file; it stays empty at the end of the file.
    ///
    /// # Errors
    /// If too many rows are rejected; nothing of this batch is loaded then.
    fn gather(&mut self, batch: &mut Batch, summary: &mut Summary) -> Result<(), Failure> {
        let bar = progress::bytes_bar("reading", self.rows.progress().total);
        let rejects_max = self.args.max_rejects;
        while batch.memory() < self.args.sort_memory.max(1) {
            let Some(row) = self.rows.next() else { break };
            summary.rows += 1;
            if summary.rows.is_multiple_of(STRIDE) {
                bar.set_position(self.rows.progress().done);
                self.interrupt.check()?;
            }
            match row {
                Ok(record) => self.take(&record.key, &record.value, batch, summary),
                Err(rejected) if rejected.is_fatal() => summary.lost = Some(rejected.to_string()),
                Err(rejected) => summary.rejects.add(|| rejected.to_string()),
            }
            // Further rejects would not be quoted.
            if summary.rejects.is_hopeless(rejects_max) {
                break;
            }
        }
        bar.finish_and_clear();
        summary.rejects.check(rejects_max)
    }

    fn take(&self, key: &[u8], value: &[u8], batch: &mut Batch, summary: &mut Summary) {
        if !self.plan.owns(key) {
            summary.left_to_others += 1;
            return;
        }
        let row = summary.rows;
        match self.plan.check_row(key, value) {
            Ok(()) => batch.push(key, value),
            Err(reason) => summary.rejects.add(|| format!("row {row}: {reason}")),
        }
    }
}

/// Inserts rows into an index.
pub struct Loader<'a> {
    pub reach: Reach<'a>,
    /// The partitions whose rows are loaded; all if empty.
    pub own: &'a [usize],
    /// Fill of bulk-loaded leaves.
    pub fill: f64,
    pub interrupt: &'a Interrupt,
    pub threads: usize,
    pub summary: &'a mut Summary,
}

impl Loader<'_> {
    /// Loads `batch` and then all further batches.
    fn load(&mut self, source: &mut Source<'_>, mut batch: Batch) -> Result<(), Failure> {
        let mut in_bulk = self.begins_in_bulk()?;
        if source.args.fill.is_some() && !in_bulk {
            let name = &source.plan.name;
            return Err(Failure::bad_input(format_args!(
                "--fill is for an empty index, and {name:?} has entries"
            )));
        }
        while !batch.is_empty() {
            self.summary.duplicates += batch.sort();
            self.insert(&batch, in_bulk)?;
            in_bulk = false;
            batch.clear();
            self.interrupt.check()?;
            source.gather(&mut batch, self.summary)?;
        }
        match self.summary.lost.take() {
            Some(reason) => Err(Failure::failed(reason)),
            None => Ok(()),
        }
    }

    /// Whether the first batch goes into an empty index that this process owns completely.
    pub fn begins_in_bulk(&self) -> Result<bool, Failure> {
        let is_ours = self.own.is_empty() && matches!(self.reach, Reach::Here(_));
        Ok(is_ours && self.reach.session()?.is_empty()?)
    }

    /// Inserts a sorted batch.
    pub fn insert(&mut self, batch: &Batch, in_bulk: bool) -> Result<(), Failure> {
        match self.reach {
            Reach::Here(index) if in_bulk => self.bulk_load(index, batch),
            _ => self.put_all(batch),
        }
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

    /// Puts the rows on all threads, each with its share of the key range.
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

/// State shared by the threads that put rows.
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

/// Numbers of rows by their result.
#[derive(Debug, Default)]
pub struct Summary {
    rows: u64,
    inserted: u64,
    replaced: u64,
    /// Rows superseded by a later one with the same key.
    duplicates: u64,
    left_to_others: u64,
    rejects: Rejects,
    /// Reason why the rest of the file could not be read.
    lost: Option<String>,
    time: Duration,
}

impl Summary {
    /// Number of rows put into the index.
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
                "rejected": self.rejects.count(),
                "seconds": self.time.as_secs_f64(),
                "rows_per_second": rate,
            });
            return output::write_document(path, &format!("{document}\n"));
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
            (self.rejects.count(), "rejected"),
        ] {
            if count > 0 {
                text.push_str(&format!(", {} {what}", units::count(count)));
            }
        }
        text.push_str(&format!("; {}, {} rows/s\n", units::duration(self.time), units::figure(rate)));
        output::print(&text)
    }
}
