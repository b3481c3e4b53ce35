//! `pando restore`: restores an index from a dump.
//!
//! The dump is read to its end before anything is changed, so a damaged or truncated dump restores nothing. A
//! dump from a pipe is kept in a temporary file meanwhile. An index created by the command is dropped if it
//! cannot be filled. An existing, empty index keeps its new entries, and the command reports that it is
//! incomplete.

use std::fs::File;
use std::io::{BufReader, Seek, Write, stdout};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use clap::Args;
use pando::{BULK_THREADS_MAX, Cluster, Config, IndexLayout, IndexOptions, OpenOptions};
use pando_lab::units;
use pando_workload::dump::{DumpError, Header, Reader};

use crate::args::{NewPoolArgs, PoolArgs};
use crate::batch::Batch;
use crate::failure::Failure;
use crate::indexes::options_of;
use crate::load::{Loader, Summary, stdin_file};
use crate::plan::no_replacement;
use crate::signals::Interrupt;
use crate::target::{self, Found, Reach};
use crate::{pool, progress};

const BUFFER: usize = 1 << 18;
/// Bytes of entries per batch.
const BATCH_BYTES: u64 = 256 << 20;
/// Entries between two checks of progress and signals.
const STRIDE: u64 = 1024;

#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// The dump; - is standard input
    file: PathBuf,
    #[command(flatten)]
    pool: PoolArgs,
    #[command(flatten)]
    new_pool: NewPoolArgs,
    /// The index [default: that of the dump]
    #[arg(long, value_name = "NAME")]
    index: Option<String>,
    /// Make an index that is there anew, as it was when it was dumped
    #[arg(long, conflicts_with = "merge")]
    replace: bool,
    /// Put the entries into an index that has some, in place of those with the same keys
    #[arg(long)]
    merge: bool,
}

/// A dump that was verified.
struct Dump {
    file: File,
    name: String,
    header: Header,
    entries: u64,
    bytes: u64,
}

pub fn run(args: &RestoreArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::listen()?;
    let dump = Dump::check(&args.file, &interrupt)?;
    let name = args.index.clone().unwrap_or_else(|| dump.header.name.clone());
    if pool::compute_servers(&args.pool.pool)?.is_none() {
        pool::look(&args.pool, &args.new_pool, |_| Ok(()))?;
    }
    let start = Instant::now();
    let mut summary = Summary::default();
    match target::find(&args.pool, Some(&name))? {
        Some(found) => restore_into(args, &dump, found, &mut summary, &interrupt)?,
        None => restore_new(args, &dump, &name, false, &mut summary, &interrupt)?,
    }
    let rate = dump.entries as f64 / start.elapsed().as_secs_f64().max(1e-9);
    Ok(writeln!(
        stdout(),
        "{} entries restored into index {name}; {}, {} entries/s",
        units::count(dump.entries),
        units::duration(start.elapsed()),
        units::figure(rate)
    )?)
}

impl Dump {
    /// Reads and verifies all of it.
    fn check(path: &Path, interrupt: &Interrupt) -> Result<Dump, Failure> {
        let is_stdin = path.as_os_str() == "-";
        let name = if is_stdin { "standard input".to_owned() } else { path.display().to_string() };
        let cannot = |error| Failure::bad_input(format_args!("cannot open {name}: {error}"));
        let mut file = if is_stdin { stdin_file()? } else { File::open(path).map_err(cannot)? };
        let there = file.metadata().map_err(cannot)?;
        if there.is_dir() {
            return Err(cannot(std::io::ErrorKind::IsADirectory.into()));
        }
        if !there.is_file() {
            file = kept(file, &name)?;
        }
        let bytes = file.metadata().map_err(cannot)?.len();
        let bad = |error: DumpError| Failure::bad_input(format_args!("{name} is not restored: {error}"));
        let (header, mut reader) = Reader::begin(rewound(&file)?).map_err(bad)?;
        let bar = progress::bar("checking", 0);
        let mut entries = 0u64;
        while reader.next_entry().map_err(bad)?.is_some() {
            entries += 1;
            if entries.is_multiple_of(STRIDE) {
                bar.set_position(entries);
                interrupt.check()?;
            }
        }
        bar.finish_and_clear();
        Ok(Dump { file, name, header, entries, bytes })
    }

    fn layout(&self) -> IndexLayout {
        match self.header.sizes {
            None => IndexLayout::Bytes,
            Some((key_size, value_size)) => {
                IndexLayout::Fixed { key_size: key_size as usize, value_size: value_size as usize }
            }
        }
    }

    fn options(&self) -> IndexOptions {
        options_of(self.layout())
            .node_size(self.header.node_size as usize)
            .subtree_level(self.header.subtree_level)
            .boundaries(self.header.boundaries.clone())
            .description(self.header.description.clone())
    }

    /// Inserts the entries batch by batch.
    fn insert(&self, loader: &mut Loader<'_>) -> Result<(), Failure> {
        // Another process may have changed the file since it was verified.
        let changed = |error: DumpError| Failure::failed(format_args!("{} has changed: {error}", self.name));
        let (_, mut reader) = Reader::begin(rewound(&self.file)?).map_err(changed)?;
        let mut batch = Batch::default();
        let mut in_bulk = loader.begins_in_bulk()?;
        let mut has_more = true;
        while has_more {
            batch.clear();
            while has_more && batch.memory() < BATCH_BYTES {
                match reader.next_entry().map_err(changed)? {
                    Some((key, value)) => batch.push(key, value),
                    None => has_more = false,
                }
            }
            if !batch.is_empty() {
                loader.insert(&batch, in_bulk)?;
                in_bulk = false;
            }
            loader.interrupt.check()?;
        }
        Ok(())
    }
}

/// A reader from the beginning of the file.
fn rewound(file: &File) -> Result<BufReader<&File>, Failure> {
    let mut file = file;
    file.rewind().map_err(|error| Failure::failed(format_args!("cannot read the dump: {error}")))?;
    Ok(BufReader::with_capacity(BUFFER, file))
}

/// Copies a pipe into an unnamed temporary file.
fn kept(mut pipe: File, name: &str) -> Result<File, Failure> {
    let directory = std::env::temp_dir();
    let path = directory.join(format!("pando-restore-{}", std::process::id()));
    let cannot =
        |error| Failure::failed(format_args!("cannot keep {name} in {}: {error}", directory.display()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).map_err(cannot)?;
    std::fs::remove_file(&path).map_err(cannot)?;
    std::io::copy(&mut pipe, &mut file).map_err(cannot)?;
    Ok(file)
}

fn loader<'a>(reach: Reach<'a>, interrupt: &'a Interrupt, summary: &'a mut Summary) -> Loader<'a> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(BULK_THREADS_MAX);
    Loader { reach, own: &[], fill: 0.9, interrupt, threads, summary }
}

/// Restores into an existing index.
fn restore_into(
    args: &RestoreArgs,
    dump: &Dump,
    found: Found,
    summary: &mut Summary,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let name = &found.shape.name;
    match found.served {
        Some(_) if args.replace => Err(no_replacement(name)),
        Some(index) => {
            check_alike(dump, &found.shape)?;
            fill(args, dump, name, &mut loader(Reach::There(index), interrupt, summary))
        }
        None if args.replace => restore_new(args, dump, name, true, summary, interrupt),
        None => {
            check_alike(dump, &found.shape)?;
            pool::with_cluster(pool::existing(&args.pool)?, |cluster| {
                let index = cluster.open_index_with(name, &OpenOptions::default())?;
                fill(args, dump, name, &mut loader(Reach::Here(&index), interrupt, summary))
            })
        }
    }
}

/// Fills an existing index.
fn fill(args: &RestoreArgs, dump: &Dump, name: &str, loader: &mut Loader<'_>) -> Result<(), Failure> {
    if !args.merge && !loader.reach.session()?.is_empty()? {
        return Err(Failure::bad_input(format_args!(
            "index {name:?} has entries; --merge puts those of the dump beside them, --replace makes it anew"
        )));
    }
    dump.insert(loader).map_err(|failure| {
        let done = units::count(loader.summary.loaded());
        let all = units::count(dump.entries);
        failure.with(format_args!("index {name:?} is not whole: {done} of {all} entries were restored"))
    })
}

/// Creates the index, and the pool if needed; drops the index if it cannot be filled.
fn restore_new(
    args: &RestoreArgs,
    dump: &Dump,
    name: &str,
    is_there: bool,
    summary: &mut Summary,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    // Check before anything is created.
    dump.options().check(name, &Config::embedded().cache(args.pool.cache))?;
    let config = pool::perhaps_new(&args.pool, &args.new_pool, dump.bytes)?;
    pool::with_cluster(config, |cluster: &Cluster| {
        if is_there {
            cluster.drop_index(name)?;
        }
        let index = cluster.create_index(name, &dump.options())?;
        let done = dump.insert(&mut loader(Reach::Here(&index), interrupt, summary));
        drop(index);
        done.map_err(|failure| match cluster.drop_index(name) {
            Ok(()) => failure.with(format_args!("index {name:?} was dropped again")),
            Err(error) => failure.with(format_args!("index {name:?} is not whole, and stays: {error}")),
        })
    })
}

/// Checks that the index has the layout and key columns of the dump.
fn check_alike(dump: &Dump, shape: &target::Shape) -> Result<(), Failure> {
    let name = &shape.name;
    if shape.layout != dump.layout() {
        return Err(Failure::bad_input(format_args!(
            "index {name:?} holds {}, and {} has {}",
            shape.layout,
            dump.name,
            dump.layout()
        )));
    }
    let types = |description| crate::keys::KeySchema::of_description(name, description);
    let (there, dumped) = (types(&shape.description)?, types(&dump.header.description)?);
    if there != dumped {
        return Err(Failure::bad_input(format_args!(
            "keys of index {name:?} are made of the columns {}, those of {} of {}",
            there.columns(),
            dump.name,
            dumped.columns()
        )));
    }
    Ok(())
}
