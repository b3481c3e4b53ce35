//! Bulk load: many entries into an empty index, by several threads at once, without descents or splits.
//!
//! Sorted input is cut into slices; each thread writes one, and the upper levels are built over them.
//! Unsorted input is sorted first; of several entries with the same key, the last one is loaded. A load that
//! fails leaves the index empty and frees the blocks it has written.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;

use pando_dex::layout::Layout;
use pando_dex::{BulkLoad, DexError, ScanRange, SortedSource, Tree};
use pando_pool::IndexRecord;
use pando_rt::block_on;

use super::Index;
use crate::error::{Error, Result};
use crate::layout::with_layout;
use crate::local::create::{Written, write_root};
use crate::local::open::reopen_trees;
use crate::local::servers::{blocks_of, free_blocks, with_ctx};
use crate::local::{Servers, partitions};
use crate::options::check_count;
use crate::place::AnyEndpoint;
use crate::shared::Shared;

const WHAT: &str = "a bulk load";
/// Largest number of threads of a bulk load.
pub const BULK_THREADS_MAX: usize = 1024;
/// Largest number of entries that a load requests from its source at once when it writes them.
const LOADED_AT_ONCE: u64 = 4096;

/// Options of a bulk load.
#[derive(Clone, Copy)]
pub struct BulkOptions<'p> {
    /// Threads, 1 to 1024; the number of processors.
    pub threads: usize,
    /// Fill grade of leaves, 0 to 1; 0.9. Each leaf has at least one entry.
    pub leaf_fill: f64,
    /// Fill grade of inner nodes, 0 to 1; 0.9.
    pub inner_fill: f64,
    /// Called from time to time, by any of the threads, with the number of entries done.
    pub progress: Option<&'p (dyn Fn(u64) + Sync)>,
}

impl Default for BulkOptions<'_> {
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(BULK_THREADS_MAX);
        Self { threads, leaf_fill: 0.9, inner_fill: 0.9, progress: None }
    }
}

impl std::fmt::Debug for BulkOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { threads, leaf_fill, inner_fill, .. } = self;
        let mut fields = f.debug_struct("BulkOptions");
        fields.field("threads", threads).field("leaf_fill", leaf_fill).field("inner_fill", inner_fill);
        fields.finish_non_exhaustive()
    }
}

impl BulkOptions<'_> {
    fn check(&self) -> Result<()> {
        check_count(self.threads, "threads", BULK_THREADS_MAX)?;
        for (what, fill) in [("leaves", self.leaf_fill), ("inner nodes", self.inner_fill)] {
            if !(0.0..=1.0).contains(&fill) {
                let text = format!("{what} cannot be filled to {fill}: it must be between 0 and 1");
                return Err(Error::InvalidOption(text));
            }
        }
        Ok(())
    }
}

/// Result of loading unsorted input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// Entries in the index.
    pub entries: u64,
    /// Entries replaced by a later one with the same key.
    pub duplicates: u64,
}

/// A source that counts the entries visited.
struct Counted<'s> {
    source: &'s dyn SortedSource,
    done: &'s AtomicU64,
    stop: &'s AtomicBool,
    progress: Option<&'s (dyn Fn(u64) + Sync)>,
}

impl SortedSource for Counted<'_> {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn visit(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> pando_dex::Result<()>,
    ) -> pando_dex::Result<()> {
        if self.stop.load(Relaxed) {
            return Err(DexError::Layout("another thread of the load failed".to_owned()));
        }
        let entries = range.end - range.start;
        self.source.visit(range, each)?;
        // The load reads single entries and whole slices only to plan; batches between these sizes are
        // loaded.
        if let Some(progress) = self.progress.filter(|_| (2..=LOADED_AT_ONCE).contains(&entries)) {
            let done = self.done.fetch_add(entries, Relaxed) + entries;
            progress(done.min(self.len()));
        }
        Ok(())
    }
}

impl Index {
    /// Loads sorted entries into this index, which must be empty, and returns their number. No session may be
    /// open.
    ///
    /// If the boundaries of the partitions were chosen at creation, without knowing any keys, new ones are
    /// chosen, so that all compute servers get equally many entries.
    /// ```
    /// use pando::{BulkOptions, Cluster, Config, IndexOptions};
    ///
    /// let cluster = Cluster::open(Config::embedded())?;
    /// let index = cluster.create_index("n", &IndexOptions::integers())?;
    /// let entries: Vec<_> = (0..10_000_u64).map(|n| (n.to_be_bytes(), (2 * n).to_be_bytes())).collect();
    /// assert_eq!(index.bulk_load(&entries[..], &BulkOptions::default())?, 10_000);
    /// assert_eq!(index.integers()?.get(21)?, Some(42));
    /// # Ok::<(), pando::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotEmpty`]; [`Error::SessionsOpen`]; [`Error::NotAllOwned`]; entries that are out of order or
    /// that the layout cannot hold; a full pool. The index is empty then.
    pub fn bulk_load(&self, source: &(impl SortedSource + ?Sized), options: &BulkOptions<'_>) -> Result<u64> {
        // Behind one type, the load is compiled once, and not in each crate with a source.
        self.bulk_load_from(&source, options)
    }

    fn bulk_load_from(&self, source: &dyn SortedSource, options: &BulkOptions<'_>) -> Result<u64> {
        options.check()?;
        self.shared.writable()?;
        let _alone = self.data.exclusive(WHAT)?;
        let servers = self.data.servers()?;
        servers.check_runs_all(WHAT)?;
        self.shared.with_endpoint(|ep| {
            servers.flush(ep)?;
            if !is_empty(ep, &servers)? {
                return Err(Error::NotEmpty { name: self.name().to_owned() });
            }
            let layout = servers.node_layout()?;
            let loaded = with_layout!(layout, |layout| {
                let work = Load { shared: &self.shared, ep, layout, options };
                work.run(&servers, source, self.data.recut_by_load)
            });
            // The cached root may be outdated, also after a failure.
            let reopened = self
                .shared
                .record(ep, self.name())
                .and_then(|record| reopen_trees(&self.shared, ep, record, &servers));
            match reopened {
                Ok(reopened) => self.data.replace(reopened),
                // The old compute servers must not write over the entries loaded.
                Err(error) => {
                    self.data.unsettle(WHAT, &error);
                    loaded?;
                    return Err(error.perhaps(WHAT));
                }
            }
            loaded
        })
    }

    /// Sorts entries and loads them into this index, as [`Index::bulk_load`] does. Of several entries with
    /// the same key, the last one is loaded.
    ///
    /// # Errors
    /// Errors of [`Index::bulk_load`].
    pub fn bulk_load_unsorted<K, V>(
        &self,
        mut entries: Vec<(K, V)>,
        options: &BulkOptions<'_>,
    ) -> Result<Loaded>
    where
        K: AsRef<[u8]> + Sync,
        V: AsRef<[u8]> + Sync,
    {
        let given = entries.len();
        // The sort must be stable: the order of equal keys tells which one is the last.
        entries.sort_by(|(a, _), (b, _)| a.as_ref().cmp(b.as_ref()));
        entries.dedup_by(|later, kept| {
            let same = later.0.as_ref() == kept.0.as_ref();
            if same {
                std::mem::swap(later, kept);
            }
            same
        });
        let duplicates = (given - entries.len()) as u64;
        Ok(Loaded { entries: self.bulk_load(&entries[..], options)?, duplicates })
    }
}

fn is_empty(ep: &AnyEndpoint, servers: &Servers) -> Result<bool> {
    let first = ScanRange { limit: 1, ..ScanRange::all() };
    with_layout!(&servers.trees, |trees| {
        for tree in trees.iter().flatten() {
            let scanned = with_ctx(ep, tree, |ctx| Ok(block_on(ep, tree.scan(ctx, &first, |_, _| false))?))?;
            if scanned.entries > 0 {
                return Ok(false);
            }
        }
    });
    Ok(true)
}

/// A running load into an index that is empty and at rest.
struct Load<'l, L> {
    shared: &'l Shared,
    ep: &'l AnyEndpoint,
    layout: L,
    options: &'l BulkOptions<'l>,
}

impl<L: Layout> Load<'_, L> {
    /// Builds a tree beside the empty one, and enters it into the catalog in its place.
    fn run(&self, servers: &Servers, source: &dyn SortedSource, recut: bool) -> Result<u64> {
        let (shared, ep) = (self.shared, self.ep);
        // Boundaries may have moved since the index was opened.
        let mut record = shared.record(ep, &servers.record.name)?;
        if recut && let Some(boundaries) = boundaries_of(source, record.boundaries.len() + 1)? {
            record.boundaries = boundaries;
        }
        let old = blocks_of(shared, ep, self.layout, &servers.record)?;
        record.root = block_on(ep, Tree::create(ep, &shared.pool, self.layout, record.id, &[]))?;
        let entries = match self.load(&record, source) {
            Ok(entries) => entries,
            Err(error) => {
                self.free_root(&record, &error);
                return Err(error);
            }
        };
        shared.persist(ep)?;
        match write_root(shared, ep, &record) {
            Written::Yes(_) => {
                shared.losing_on_error(|| free_blocks(shared, ep, &old))?;
                Ok(entries)
            }
            Written::No(error) => {
                // No record refers to these blocks. Those that cannot be freed now are found by an audit.
                let _ = blocks_of(shared, ep, self.layout, &record)
                    .and_then(|blocks| free_blocks(shared, ep, &blocks));
                Err(error)
            }
            Written::Perhaps(error) => Err(error.perhaps(WHAT)),
        }
    }

    /// Frees the root of a tree that was not loaded, unless it may lead to other nodes.
    fn free_root(&self, record: &IndexRecord, error: &Error) {
        if !error.may_have_taken_effect() {
            // The caller needs the error of the load.
            let bytes = self.layout.node_size() as u64;
            let _ = block_on(self.ep, self.shared.pool.free(self.ep, record.root, bytes));
        }
    }

    fn load(&self, record: &IndexRecord, source: &dyn SortedSource) -> Result<u64> {
        let (ep, options) = (self.ep, self.options);
        let pool = self.shared.pool.clone();
        let load = BulkLoad::new(self.layout, pool, record.id, record.subtree_level, &record.boundaries)
            .leaf_fill(options.leaf_fill)
            .inner_fill(options.inner_fill);
        let slices = load.plan(source, options.threads)?;
        let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        let counted = Counted { source, done: &done, stop: &stop, progress: options.progress };
        let (shared, load, counted, count) = (self.shared, &load, &counted, slices.len());
        let loaded: Vec<Result<_>> = thread::scope(|scope| {
            let threads = slices.into_iter().enumerate().map(|(number, range)| {
                scope.spawn(move || {
                    shared.with_endpoint(|ep| {
                        let slice = block_on(ep, load.load_slice(ep, counted, range, count, number));
                        if slice.is_err() {
                            counted.stop.store(true, Relaxed);
                        }
                        Ok(slice?)
                    })
                })
            });
            let threads: Vec<_> = threads.collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        let slices = match first_error(loaded) {
            Ok(slices) => slices,
            Err((error, others)) => {
                block_on(ep, load.discard(ep, others));
                return Err(error);
            }
        };
        let entries = block_on(ep, load.finish(ep, slices, record.root))?;
        if let Some(progress) = options.progress {
            progress(entries);
        }
        Ok(entries)
    }
}

/// All slices; after a failure the error and the slices that were loaded. Prefers the error of the thread
/// that failed to those of threads that stopped for it.
fn first_error<T>(slices: Vec<Result<T>>) -> Result<Vec<T>, (Error, Vec<T>)> {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for slice in slices {
        match slice {
            Ok(slice) => good.push(slice),
            Err(error) => bad.push(error),
        }
    }
    match bad.into_iter().min_by_key(|error| matches!(error, Error::Index(DexError::Layout(_)))) {
        Some(error) => Err((error, good)),
        None => Ok(good),
    }
}

/// Boundaries that cut the source into `parts` with equally many entries; `None` if there are fewer entries
/// than parts.
fn boundaries_of(source: &dyn SortedSource, parts: usize) -> Result<Option<Vec<Vec<u8>>>> {
    if source.len() < parts as u64 {
        return Ok(None);
    }
    let mut boundaries = Vec::with_capacity(parts - 1);
    for at in partitions::quantiles(source.len(), parts) {
        source.visit(at..at + 1, &mut |key, _| {
            boundaries.push(key.to_vec());
            Ok(())
        })?;
    }
    // If the boundaries do not ascend, the input is unsorted, and the load itself reports where.
    Ok(Some(boundaries).filter(|boundaries| partitions::check(boundaries).is_ok()))
}
