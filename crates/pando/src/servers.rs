//! The compute servers that this process runs for one index: a tree for each partition that it owns.
//!
//! The catalog has the owner of each partition. At rest, only a process that owns all partitions changes
//! them, so no other process has a cached node of the index. Changes during use are in `repartition.rs`.
//!
//! A compute server has a number while the index is open. The catalog numbers partitions in the order of
//! their keys. When the index is opened, both numbers are the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::endpoint::AnyEndpoint;
use pando_cache::{Cache, CacheCounts};
use pando_dex::audit::{Blocks, audit};
use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{Ctx, KeyRange, Offloading, Routes, RoutingTable, Tree, TreeConfig};
use pando_fabric::GlobalAddr;
use pando_pool::{IndexRecord, IndexSpec, PoolError};
use pando_rt::block_on;

use crate::cluster::Shared;
use crate::config::{CacheOptions, Config};
use crate::error::{Error, Owner, Result};
use crate::options::{Descriptor, IndexLayout, IndexOptions, NodeLayout, OpenOptions, Ownership};
use crate::stats::{ComputeServerStats, FormerStats, SmoCounts};
use crate::{lost, partitions, reading};

/// Number of DEX in the catalog.
const SYSTEM: u16 = 1;
/// Frames of the cache of a tree that is opened for one piece of work.
const PASSING_FRAMES: u64 = 256;

/// The compute servers of an index in this process. Replaced as a whole when compute servers are added or
/// removed, or when the root moves.
#[derive(Clone)]
pub(crate) struct Servers {
    /// The record as of the opening of the index; any process may have changed partitions since.
    pub record: IndexRecord,
    pub descriptor: Descriptor,
    /// The owners of all keys as far as this process knows; those of its own keys are current.
    pub routes: Arc<Routes>,
    pub trees: Trees,
    /// Operations that each compute server executed for sessions, by its number, including removed compute
    /// servers.
    pub loads: Vec<Arc<AtomicU64>>,
}

/// Trees by the number of the compute server; `None` for one of another process, or a removed one.
#[derive(Clone)]
pub(crate) enum Trees {
    Fixed(TreesOf<FixedLayout>),
    Slotted(TreesOf<SlottedLayout>),
}

pub(crate) type TreesOf<L> = Vec<Option<Arc<Tree<L>>>>;

/// Evaluates `$body` with the trees of either layout.
macro_rules! with_trees {
    ($servers:expr, |$trees:ident| $body:expr) => {
        match &$servers.trees {
            $crate::servers::Trees::Fixed($trees) => $body,
            $crate::servers::Trees::Slotted($trees) => $body,
        }
    };
}
pub(crate) use with_trees;

/// Evaluates `$body` with either layout.
macro_rules! with_layout {
    ($layout:expr, |$name:ident| $body:expr) => {
        match $layout {
            $crate::options::NodeLayout::Fixed($name) => $body,
            $crate::options::NodeLayout::Slotted($name) => $body,
        }
    };
}
pub(crate) use with_layout;

/// Origin of the boundaries of a new index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Chosen {
    Given,
    /// Equal parts of the key space, chosen without knowing any keys.
    Equally,
}

/// Counts of former compute servers, by number.
#[derive(Default)]
pub(crate) struct Past(Vec<(CacheCounts, SmoCounts)>);

impl Past {
    /// Adds the counts of the compute servers in `before` whose trees are not in `now`.
    pub fn add(&mut self, before: &Servers, now: &Servers) {
        let gone = |server: &ComputeServerStats| !before.has_same_tree(now, server.number);
        for server in before.stats_of_all().into_iter().filter(gone) {
            if self.0.len() <= server.number {
                self.0.resize_with(server.number + 1, Default::default);
            }
            let (cache, smo) = &mut self.0[server.number];
            (*cache, *smo) = (*cache + server.cache, *smo + server.smo);
        }
    }

    /// Adds the counts of earlier trees to the compute servers with the same numbers; returns the counts of
    /// the other ones.
    pub fn add_to(&self, stats: &mut [ComputeServerStats], servers: &Servers) -> FormerStats {
        let mut former = FormerStats::default();
        for (number, &(cache, smo)) in self.0.iter().enumerate() {
            match stats.iter_mut().find(|server| server.number == number) {
                Some(server) => (server.cache, server.smo) = (server.cache + cache, server.smo + smo),
                None => (former.cache, former.smo) = (former.cache + cache, former.smo + smo),
            }
        }
        let all: u64 = servers.loads.iter().map(|load| load.load(Relaxed)).sum();
        former.operations = all.saturating_sub(stats.iter().map(|server| server.operations).sum());
        former
    }
}

impl Servers {
    pub fn node_layout(&self) -> Result<NodeLayout> {
        self.descriptor.node_layout(self.record.node_size as usize)
    }

    /// First keys of all partitions but the first.
    pub fn boundaries(&self) -> Vec<Vec<u8>> {
        self.routes.table().boundaries().to_vec()
    }

    pub fn range_of(&self, number: usize) -> Result<KeyRange> {
        let table = self.routes.table();
        table.range_of(number).ok_or_else(|| {
            let name = &self.record.name;
            Error::InvalidOption(format!("there is no compute server {number} of index {name:?}"))
        })
    }

    /// The error for a session of a compute server that this process does not run.
    pub fn no_such_server(&self, number: usize) -> Error {
        let mine = self.stats().iter().map(|server| server.number.to_string()).collect::<Vec<_>>();
        let mine = if mine.is_empty() { "none".to_owned() } else { mine.join(", ") };
        let name = &self.record.name;
        Error::InvalidOption(format!(
            "this process does not run compute server {number} of index {name:?}; those that it runs: {mine}"
        ))
    }

    /// Whether this process runs the compute server of this number.
    pub fn runs(&self, number: usize) -> bool {
        with_trees!(self, |trees| trees.get(number).is_some_and(Option::is_some))
    }

    /// Whether this process runs all compute servers.
    pub fn runs_all(&self) -> bool {
        self.routes.table().owners().iter().all(|&number| self.runs(number))
    }

    fn has_same_tree(&self, other: &Self, number: usize) -> bool {
        match (&self.trees, &other.trees) {
            (Trees::Fixed(mine), Trees::Fixed(theirs)) => is_same(mine, theirs, number),
            (Trees::Slotted(mine), Trees::Slotted(theirs)) => is_same(mine, theirs, number),
            _ => false,
        }
    }

    /// Returns a copy with one more compute server, which has no keys yet, and its number.
    pub fn grown(&self, shared: &Shared, ep: &AnyEndpoint) -> Result<(Self, usize)> {
        let mut grown = self.clone();
        let number = match &mut grown.trees {
            Trees::Fixed(trees) => push_empty(shared, ep, &self.record, trees)?,
            Trees::Slotted(trees) => push_empty(shared, ep, &self.record, trees)?,
        };
        grown.loads.push(Arc::default());
        Ok((grown, number))
    }

    /// Returns a copy without compute server `number`, which has no keys.
    pub fn without(&self, number: usize) -> Self {
        let mut fewer = self.clone();
        match &mut fewer.trees {
            Trees::Fixed(trees) => trees[number] = None,
            Trees::Slotted(trees) => trees[number] = None,
        }
        fewer
    }

    /// Checks that this process runs all compute servers.
    ///
    /// # Errors
    /// [`Error::NotAllOwned`].
    pub fn check_runs_all(&self, what: &'static str) -> Result<()> {
        match self.routes.table().owners().iter().position(|&number| !self.runs(number)) {
            Some(partition) => Err(Error::NotAllOwned { what, index: self.record.name.clone(), partition }),
            None => Ok(()),
        }
    }

    pub fn flush(&self, ep: &AnyEndpoint) -> Result<()> {
        with_trees!(self, |trees| trees.iter().flatten().try_for_each(|tree| flush_tree(ep, tree)))
    }

    /// Counts of the compute servers that have keys, in the order of their keys.
    pub fn stats(&self) -> Vec<ComputeServerStats> {
        let owners = self.routes.table().owners().to_vec();
        let mut all = self.stats_of_all();
        let place = |server: &ComputeServerStats| owners.iter().position(|&owner| owner == server.number);
        all.retain(|server| place(server).is_some());
        all.sort_by_key(place);
        all
    }

    fn stats_of_all(&self) -> Vec<ComputeServerStats> {
        let table = self.routes.table();
        with_trees!(self, |trees| {
            let running = trees.iter().zip(&self.loads).enumerate();
            let stats = running.filter_map(|(number, (tree, load))| {
                let tree = tree.as_ref()?;
                let cache = tree.cache();
                Some(ComputeServerStats {
                    number,
                    range: table.range_of(number).unwrap_or_else(KeyRange::none),
                    operations: load.load(Relaxed),
                    cache: cache.counts(),
                    cache_bytes: (cache.frames() * cache.node_size() + cache.overhead_bytes()) as u64,
                    frames: cache.frames(),
                    smo: SmoCounts::of(tree.smo_counts()),
                })
            });
            stats.collect()
        })
    }
}

fn is_same<L>(mine: &TreesOf<L>, theirs: &TreesOf<L>, number: usize) -> bool {
    match (mine.get(number), theirs.get(number)) {
        (Some(Some(mine)), Some(Some(theirs))) => Arc::ptr_eq(mine, theirs),
        _ => false,
    }
}

/// Opens a tree without keys, behind the existing ones; returns its number.
fn push_empty<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    record: &IndexRecord,
    trees: &mut TreesOf<L>,
) -> Result<usize> {
    let layout = trees.iter().flatten().next().ok_or(Error::Closed)?.layout();
    let cache = (shared.config.cache, &shared.config.cache_options);
    let tree = open_tree(shared, ep, layout, record, KeyRange::none(), cache)?;
    trees.push(Some(Arc::new(tree)));
    Ok(trees.len() - 1)
}

/// Runs `work` with a temporary worker of the tree's cache.
pub(crate) fn with_ctx<L: Layout, T>(
    ep: &AnyEndpoint,
    tree: &Tree<L>,
    work: impl FnOnce(Ctx<'_, AnyEndpoint>) -> Result<T>,
) -> Result<T> {
    let worker = tree.cache().worker();
    let done = work(Ctx { ep, worker: &worker });
    tree.cache().retire(&worker);
    done
}

fn flush_tree<L: Layout>(ep: &AnyEndpoint, tree: &Tree<L>) -> Result<()> {
    with_ctx(ep, tree, |ctx| Ok(block_on(ep, tree.flush(ctx)).map(drop)?))
}

/// Opens the tree of the compute server that owns `range`, with a cache of `bytes`.
fn open_tree<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    record: &IndexRecord,
    range: KeyRange,
    (bytes, options): (u64, &CacheOptions),
) -> Result<Tree<L>> {
    let cache = Arc::new(Cache::new(&options.config(bytes, layout.node_size()))?);
    let mut config = TreeConfig::new(record.id, record.root);
    config.subtree_level = record.subtree_level;
    config.range = range;
    config.patience_ns = shared.config.patience_ns();
    config.read_ahead = shared.config.read_ahead;
    config.offloading = Offloading::with_policy(shared.config.offload);
    let worker = cache.worker();
    let ctx = Ctx { ep, worker: &worker };
    let tree = block_on(ep, Tree::open(ctx, Arc::clone(&cache), shared.pool.clone(), layout, config));
    cache.retire(&worker);
    Ok(tree?)
}

/// Opens the whole index for one piece of work. No process has it open or has dirty nodes of it.
pub(crate) fn open_passing<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    record: &IndexRecord,
) -> Result<Tree<L>> {
    let bytes = PASSING_FRAMES * layout.node_size() as u64;
    open_tree(shared, ep, layout, record, KeyRange::all(), (bytes, &CacheOptions::default()))
}

/// All blocks of the index, to be freed.
///
/// # Errors
/// [`Error::BadIndex`] if the index is damaged.
pub(crate) fn blocks_of<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    record: &IndexRecord,
) -> Result<Blocks> {
    let tree = open_passing(shared, ep, layout, record)?;
    let report = block_on(ep, audit(ep, &[&tree]))?;
    match report.violations.into_iter().next() {
        None => Ok(report.blocks),
        Some(reason) => Err(Error::BadIndex { name: record.name.clone(), reason }),
    }
}

pub(crate) fn free_blocks(shared: &Shared, ep: &AnyEndpoint, blocks: &Blocks) -> Result<()> {
    for (addr, bytes) in blocks.iter() {
        block_on(ep, shared.pool.free(ep, addr, bytes))?;
    }
    Ok(())
}

/// Checks that an index has the expected layout.
///
/// # Errors
/// [`Error::WrongLayout`].
pub(crate) fn check_layout(name: &str, found: IndexLayout, expected: Option<IndexLayout>) -> Result<()> {
    match expected.filter(|&expected| expected != found) {
        Some(expected) => Err(Error::WrongLayout { name: name.to_owned(), found, expected }),
        None => Ok(()),
    }
}

/// Layout, catalog entry and origin of the boundaries of an index with these options.
///
/// # Errors
/// All errors that can be detected before anything is created.
pub(crate) fn plan(
    config: &Config,
    name: &str,
    options: &IndexOptions,
) -> Result<(NodeLayout, IndexSpec, Chosen)> {
    let descriptor = Descriptor::of(options)?;
    let layout = descriptor.node_layout(options.node_size)?;
    // An index that this process could not open is not created.
    Cache::new(&config.cache_options.config(config.cache, options.node_size))?;
    let (boundaries, chosen) = match (&options.boundaries, config.compute_servers) {
        (Some(boundaries), _) => (boundaries.clone(), Chosen::Given),
        (None, Some(servers)) => (partitions::equal(options.layout, servers)?, Chosen::Equally),
        (None, None) => (Vec::new(), Chosen::Given),
    };
    partitions::check(&boundaries)?;
    with_layout!(layout, |layout| boundaries.iter().try_for_each(|key| layout.key(key).map(drop)))?;
    if let Ownership::Partitions(own) = &options.own
        && let Some(partition) = own.iter().find(|&&partition| partition > boundaries.len())
    {
        let partitions = boundaries.len() + 1;
        return Err(Error::InvalidOption(format!(
            "there is no partition {partition}: the index has {partitions}, counted from 0"
        )));
    }
    let spec = IndexSpec {
        name: name.to_owned(),
        system: SYSTEM,
        node_size: options.node_size as u32,
        subtree_level: options.subtree_level,
        root: GlobalAddr::NULL,
        layout: [descriptor.encode(), options.description.clone()].concat(),
        boundaries,
    };
    spec.check()?;
    Ok((layout, spec, chosen))
}

/// Creates an index and enters it into the catalog. A failure leaves nothing behind, or is
/// [`Error::Perhaps`].
pub(crate) fn create(
    shared: &Shared,
    ep: &AnyEndpoint,
    name: &str,
    options: &IndexOptions,
) -> Result<Chosen> {
    let (layout, spec, chosen) = plan(&shared.config, name, options)?;
    let boundaries = spec.boundaries.clone();
    let spec = IndexSpec { boundaries: Vec::new(), ..spec };
    // The record comes first, since every node carries the number that the catalog assigns. This process owns
    // it until it has a root.
    let record = match block_on(ep, shared.pool.create_own_index(ep, spec.clone())) {
        Err(PoolError::IndexExists { .. }) if clear_unmade(shared, ep, name)? => {
            block_on(ep, shared.pool.create_own_index(ep, spec))
        }
        done => done,
    }?;
    let made = with_layout!(layout, |layout| plant(shared, ep, layout, record, boundaries));
    match made {
        Ok(()) => Ok(chosen),
        // The index may be complete, so it stays.
        Err(error @ Error::Perhaps { .. }) => Err(error),
        Err(error) => match block_on(ep, shared.pool.drop_index(ep, name)) {
            Ok(_) => Err(error),
            // The name is taken by an index without a root.
            Err(_) => Err(error.perhaps(CREATING)),
        },
    }
}

/// Removes an index of this name if its creation was abandoned; returns whether the name is free.
fn clear_unmade(shared: &Shared, ep: &AnyEndpoint, name: &str) -> Result<bool> {
    match block_on(ep, shared.pool.open_index(ep, name)) {
        Ok(record) if lost::is_unmade(shared, ep, &record, true)? => {
            match lost::unlink(shared, ep, &record) {
                // Another process removed it first; an index that it creates is another one.
                Ok(()) | Err(Error::Pool(PoolError::UnknownIndex { .. })) => Ok(true),
                Err(error) => Err(error),
            }
        }
        Ok(_) => Ok(false),
        Err(PoolError::UnknownIndex { .. }) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

const CREATING: &str = "making the index";

/// Outcome of writing a record with a new root.
pub(crate) enum Written {
    Yes(IndexRecord),
    /// The catalog does not have the new root.
    No(Error),
    /// Unknown outcome; both roots stay allocated.
    Perhaps(Error),
}

/// Writes a record with a new root. After an error, the record in the catalog tells whether it was written.
pub(crate) fn write_root(shared: &Shared, ep: &AnyEndpoint, record: &IndexRecord) -> Written {
    let error = match block_on(ep, shared.pool.update_index(ep, record)) {
        Ok(written) => return Written::Yes(written),
        Err(error) => Error::from(error),
    };
    match block_on(ep, shared.pool.open_index(ep, &record.name)) {
        Ok(now) if now.id == record.id && now.root == record.root => Written::Yes(now),
        Ok(_) | Err(PoolError::UnknownIndex { .. }) => Written::No(error),
        Err(_) => Written::Perhaps(error),
    }
}

/// Gives a new record a root, and cuts the empty index at the boundaries.
fn plant<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    mut record: IndexRecord,
    boundaries: Vec<Vec<u8>>,
) -> Result<()> {
    record.root = block_on(ep, Tree::create(ep, &shared.pool, layout, record.id, &[]))?;
    let planted = match cut(shared, ep, layout, &record, &boundaries) {
        Ok(()) => {
            record.owners = vec![None; boundaries.len() + 1];
            record.boundaries = boundaries;
            write_root(shared, ep, &record)
        }
        Err(error) => Written::No(error),
    };
    match planted {
        Written::Yes(_) => Ok(()),
        Written::No(error) => {
            // No record refers to these blocks. Those that cannot be freed now are found by an audit.
            let _ =
                blocks_of(shared, ep, layout, &record).and_then(|blocks| free_blocks(shared, ep, &blocks));
            Err(error)
        }
        Written::Perhaps(error) => Err(Error::Perhaps { what: CREATING, error: Box::new(error) }),
    }
}

/// Splits leaves at `boundaries`. After a failure some leaves are split already, which does no harm.
pub(crate) fn cut<L: Layout>(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: L,
    record: &IndexRecord,
    boundaries: &[Vec<u8>],
) -> Result<()> {
    if boundaries.is_empty() {
        return Ok(());
    }
    let tree = open_passing(shared, ep, layout, record)?;
    let cut = with_ctx(ep, &tree, |ctx| {
        boundaries.iter().try_for_each(|boundary| Ok(block_on(ep, pando_dex::cut_at(&tree, ctx, boundary))?))
    });
    flush_tree(ep, &tree)?;
    cut
}

/// Opens an index of the catalog: claims partitions and opens a tree for each. If the configuration asks for
/// another number of compute servers, cuts the index anew first, unless `keep`.
pub(crate) fn open(
    shared: &Shared,
    ep: &AnyEndpoint,
    name: &str,
    options: &OpenOptions,
    keep: bool,
) -> Result<Servers> {
    let mut record = match shared.reading() {
        true => reading::record_at_rest(shared, ep, name)?,
        false => finished_record(shared, ep, name)?,
    };
    let (descriptor, layout) = described(&record)?;
    check_layout(name, descriptor.layout, options.expect)?;
    if shared.read_only() {
        record.boundaries.clear();
        return open_trees(shared, ep, layout, descriptor, record, |_| true);
    }
    let owned = match &options.own {
        Ownership::All => (0..record.owners.len()).collect(),
        Ownership::Partitions(list) => list.clone(),
    };
    record = claim(shared, ep, name, &owned)?;
    let opened = (|| {
        if let (Some(count), Ownership::All, false) = (shared.config.compute_servers, &options.own, keep)
            && count != record.boundaries.len() + 1
        {
            let boundaries = with_layout!(layout, |layout| {
                partitions::of_keys(ep, layout, descriptor.layout, &record, count)
            })?;
            record = recut(shared, ep, layout, record, boundaries)?;
        }
        let mine = shared.pool.slot();
        let owners = record.owners.clone();
        open_trees(shared, ep, layout, descriptor, record, |partition| owners[partition] == mine)
    })();
    if opened.is_err() {
        // Partitions that cannot be released stay owned by this process, which can open them again and
        // releases them when it closes the pool.
        let _ = shared.record(ep, name).and_then(|record| {
            let mine: Vec<usize> =
                (0..record.owners.len()).filter(|&at| record.owners[at] == shared.pool.slot()).collect();
            Ok(block_on(ep, shared.pool.release_partitions(ep, name, &mine))?)
        });
    }
    opened
}

/// Record of an index. If it has no root yet, waits while the process that creates the index lives.
pub(crate) fn finished_record(shared: &Shared, ep: &AnyEndpoint, name: &str) -> Result<IndexRecord> {
    const PAUSE: Duration = Duration::from_micros(200);
    let deadline = Instant::now() + shared.config.patience();
    loop {
        let record = shared.record(ep, name)?;
        // An inspection may see an index whose creation was abandoned.
        if !record.root.is_null() || shared.looking() || Instant::now() >= deadline {
            return Ok(record);
        }
        if lost::is_unmade(shared, ep, &record, false)? {
            let reason =
                "the process that was making it ended before it was done; drop it, or create it again";
            return Err(Error::BadIndex { name: name.to_owned(), reason: reason.to_owned() });
        }
        std::thread::sleep(PAUSE);
    }
}

fn described(record: &IndexRecord) -> Result<(Descriptor, NodeLayout)> {
    let bad = |reason: String| Error::BadIndex { name: record.name.clone(), reason };
    if record.system != SYSTEM {
        return Err(bad(format!("it is of an unknown kind {}", record.system)));
    }
    if record.root.is_null() {
        return Err(bad("another process is making it and has not finished; try again".to_owned()));
    }
    let descriptor = Descriptor::decode(&record.layout).map_err(bad)?;
    let layout = descriptor.node_layout(record.node_size as usize).map_err(|error| bad(error.to_string()))?;
    Ok((descriptor, layout))
}

fn claim(shared: &Shared, ep: &AnyEndpoint, name: &str, partitions: &[usize]) -> Result<IndexRecord> {
    match block_on(ep, shared.pool.claim_partitions(ep, name, partitions)) {
        Err(PoolError::PartitionOwned { name, partition, owner: process }) => {
            let what = "this process can work on it";
            let found = block_on(ep, shared.pool.processes(ep))?;
            let address = found.iter().find(|found| found.process == process);
            let owner = match address {
                Some(found) => Owner::of(&shared.process(found), &name),
                None => Owner { process, address: None },
            };
            Err(Error::PartitionOwned { index: name, partition, owner, what })
        }
        done => Ok(done?),
    }
}

/// Changes the boundaries of an index. This process owns all of it and has no trees of it open.
pub(crate) fn recut(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: NodeLayout,
    mut record: IndexRecord,
    boundaries: Vec<Vec<u8>>,
) -> Result<IndexRecord> {
    with_layout!(layout, |layout| cut(shared, ep, layout, &record, &boundaries))?;
    record.owners = vec![shared.pool.slot(); boundaries.len() + 1];
    record.boundaries = boundaries;
    Ok(block_on(ep, shared.pool.update_index(ep, &record))?)
}

/// Opens a tree for each partition that `is_mine`.
pub(crate) fn open_trees(
    shared: &Shared,
    ep: &AnyEndpoint,
    layout: NodeLayout,
    descriptor: Descriptor,
    record: IndexRecord,
    is_mine: impl Fn(usize) -> bool,
) -> Result<Servers> {
    let count = record.boundaries.len() + 1;
    let routes = Arc::new(Routes::new(RoutingTable::in_order(record.boundaries.clone())?));
    let loads = (0..count).map(|_| Arc::default()).collect();
    open_numbered(shared, ep, (layout, descriptor, record), (routes, loads), is_mine)
}

/// Opens the trees of all partitions anew, all of which this process owns. The compute servers of `before`
/// keep their numbers, although the root or the boundaries may be others.
pub(crate) fn reopen_trees(
    shared: &Shared,
    ep: &AnyEndpoint,
    record: IndexRecord,
    before: &Servers,
) -> Result<Servers> {
    let numbers = before.routes.table().owners().to_vec();
    let table = RoutingTable::new(record.boundaries.clone(), numbers)?;
    let (routes, loads) = (Arc::new(Routes::new(table)), before.loads.clone());
    open_numbered(shared, ep, (before.node_layout()?, before.descriptor, record), (routes, loads), |_| true)
}

fn open_numbered(
    shared: &Shared,
    ep: &AnyEndpoint,
    (layout, descriptor, record): (NodeLayout, Descriptor, IndexRecord),
    (routes, loads): (Arc<Routes>, Vec<Arc<AtomicU64>>),
    is_mine: impl Fn(usize) -> bool,
) -> Result<Servers> {
    fn each<L: Layout>(
        shared: &Shared,
        ep: &AnyEndpoint,
        layout: L,
        record: &IndexRecord,
        range_of: impl Fn(usize) -> Option<KeyRange>,
        numbers: usize,
    ) -> Result<TreesOf<L>> {
        let cache = (shared.config.cache, &shared.config.cache_options);
        let open = |range| open_tree(shared, ep, layout, record, range, cache).map(Arc::new);
        (0..numbers).map(|number| range_of(number).map(open).transpose()).collect()
    }
    let table = routes.table();
    let range_of = |number| {
        let partition = table.partition_owned_by(number).filter(|&partition| is_mine(partition));
        partition.map(|partition| table.range(partition))
    };
    let trees = match layout {
        NodeLayout::Fixed(layout) => Trees::Fixed(each(shared, ep, layout, &record, range_of, loads.len())?),
        NodeLayout::Slotted(layout) => {
            Trees::Slotted(each(shared, ep, layout, &record, range_of, loads.len())?)
        }
    };
    Ok(Servers { routes, record, descriptor, trees, loads })
}

/// Removes the index from the catalog and frees its blocks. This process owns all of it, and it is at rest.
pub(crate) fn drop_index(shared: &Shared, ep: &AnyEndpoint, servers: &Servers) -> Result<()> {
    servers.flush(ep)?;
    let blocks =
        with_layout!(servers.node_layout()?, |layout| blocks_of(shared, ep, layout, &servers.record))?;
    block_on(ep, shared.pool.drop_index(ep, &servers.record.name))?;
    free_blocks(shared, ep, &blocks)
}
