//! A process with a log is killed in the middle of any verb, and recovered, again and again. Where the log is
//! persisted, power is lost with it: each sector that changed since it was last persisted is an old or new one.
//!
//! A WRITE that is under way when the process dies arrives in any of its words. The test knows every answered
//! and every *seen* state of each key: after recovery a key has the last of these, or a later one that was
//! about to be made. If answers do not wait for the disk, this holds for the last ones that were persisted, and
//! of the changes of each slot the first ones are there. The index and all blocks are audited.
//!
//! In some runs the process has two compute servers, each with a log, and keys move between them all the time; in some, nodes,
//! long values and logs move between memory servers, one of which is drained in each life, and ends if it gets so far.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use pando_cache::{Admission, Cache, CacheConfig};
use pando_dex::audit::audit;
use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::{
    Answers, Ctx, DexError, KeyRange, Party, Routes, RoutingTable, ScanRange, Tree, TreeConfig, cut_at,
    drain, flush_side_by_side, give_back_locks, move_keys, redo, spread_all,
};
use pando_fabric::sectors::Sectors;
use pando_fabric::{DynEndpoint, Endpoint, Fabric, GlobalAddr, MemoryServerId};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_log::{Blocks, Contents, Entered, Log, LogError, Options, Persistence, Shape, Space};
use pando_pool::{AttachMode, AttachOptions, Placement, Pool, PoolError, PoolOptions, ProcessIdentity};
use pando_rt::block_on;

use crate::common::INDEX;
use crate::common::mortal::{self, Mortal};

const SLOTS: usize = 4;
/// Keys of each slot, which only that slot changes.
const KEYS: usize = 24;
const SEGMENT: u64 = 8192;
/// Segments of both lanes.
const SEGMENTS: usize = 16;
/// The fewest that a checkpoint of so small a cache fits into: such a log goes round often.
const FEW_SEGMENTS: usize = 8;

/// States of a key in order; the first is absence.
struct History {
    /// With the number of the change that led to it.
    states: Vec<(u64, Option<Vec<u8>>)>,
    /// The last state that was answered or seen.
    known: usize,
    /// The last state that a loss of power must leave, if answers do not wait for the disk.
    persisted: usize,
}

impl History {
    fn of(state: Option<Vec<u8>>) -> Self {
        Self { states: vec![(0, state)], known: 0, persisted: 0 }
    }

    /// A lookup that began when `least` was known has found this.
    fn see(&mut self, least: usize, found: Option<&[u8]>) {
        let at = (least..self.states.len()).find(|&at| self.states[at].1.as_deref() == found);
        let at = at.unwrap_or_else(|| panic!("{found:?} was found, not one of {:?}", &self.states[least..]));
        self.known = self.known.max(at);
    }

    /// Number of the first change that led to `found`, from state `known` on.
    fn made_by(&self, found: Option<&[u8]>) -> Option<u64> {
        let later = &self.states[self.known..];
        later.iter().find(|(_, state)| state.as_deref() == found).map(|(number, _)| *number)
    }

    /// Whether this is possible after all changes up to `last` of the key's slot have been made.
    fn may_be(&self, found: Option<&[u8]>, last: u64) -> bool {
        let is_last = |at: usize| self.states.get(at + 1).is_none_or(|(number, _)| *number > last);
        (self.known..self.states.len()).any(|at| self.states[at].1.as_deref() == found && is_last(at))
    }
}

/// Servers that a world has.
#[derive(Clone, Copy)]
struct Count {
    compute: usize,
    memory: usize,
}

/// What moves between memory servers beside nodes and values.
#[derive(Clone, Copy)]
struct Placed<'w> {
    pool: &'w Pool,
    logs: &'w [Arc<Log>],
}

/// What is the same in all lives of the index.
struct World<L> {
    fabric: LocalFabric,
    sectors: Rc<Sectors>,
    gone: Rc<mortal::Gone>,
    persistence: Persistence,
    layout: L,
    segments: usize,
    root: GlobalAddr,
    /// The root of the log of each compute server, as it is recorded.
    logs: RefCell<Vec<GlobalAddr>>,
    /// The boundary between two compute servers, as it is recorded.
    boundary: RefCell<Vec<u8>>,
    keys: RefCell<Vec<History>>,
    /// Makes values unique.
    count: Cell<u64>,
    /// Slots that are at work, and those of them that still operate on keys.
    working: Cell<usize>,
    operating: Cell<usize>,
    /// Nodes and long values that were moved to other memory servers.
    placed: Cell<u64>,
    /// Memory servers that ended once they were drained.
    ended: Cell<u64>,
    /// The key whose change was begun last. Lookups often ask for it, before its change is answered.
    last: Cell<usize>,
}

fn attach(mode: AttachMode) -> AttachOptions {
    AttachOptions::new(ProcessIdentity::default(), Arc::new(|_| false)).mode(mode)
}

fn key_of(number: usize) -> [u8; 8] {
    // In no order, so that slots use the same leaves.
    (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

impl<L: Layout> World<L> {
    fn new(layout: L, persistence: Persistence, segments: usize, seed: u64) -> Self {
        Self::with_servers(Count { compute: 1, memory: 1 }, layout, persistence, segments, seed)
    }

    fn with_servers(count: Count, layout: L, persistence: Persistence, segments: usize, seed: u64) -> Self {
        let sizes = vec![2 << 20; count.memory];
        let fabric =
            LocalFabric::new(LocalConfig { server_sizes: sizes, huge_pages: false }).expect("memory");
        let ep = DynEndpoint::new(fabric.endpoint(seed).expect("an endpoint"));
        let (root, logs) = block_on(&ep, async {
            let pool =
                Pool::create(&ep, PoolOptions::new(attach(AttachMode::ReadWrite))).await.expect("a pool");
            let root = Tree::create(&ep, &pool, layout, INDEX, &[]).await.expect("a root");
            let shape = Shape { lanes: 2, segments: segments / 2, segment_bytes: SEGMENT };
            // So the first memory server holds the most, and nodes leave it when the index is spread.
            let alloc = async |bytes| pool.alloc(&ep, Placement::Server(MemoryServerId(0)), bytes).await;
            let mut logs = Vec::new();
            for _ in 0..count.compute {
                let blocks = Blocks::gather(shape, alloc).await.expect("blocks");
                logs.push(Log::create(&ep, INDEX, blocks).await.expect("a log").root());
            }
            pool.detach(&ep).await.expect("it is closed");
            (root, logs)
        });
        let keys = (0..SLOTS * KEYS).map(|_| History::of(None)).collect();
        let world = Self {
            fabric,
            sectors: Rc::default(),
            gone: Rc::default(),
            persistence,
            layout,
            segments,
            root,
            logs: RefCell::new(logs),
            boundary: RefCell::new(vec![0x80, 0, 0, 0, 0, 0, 0, 0]),
            keys: RefCell::new(keys),
            count: Cell::new(0),
            working: Cell::new(0),
            operating: Cell::new(0),
            placed: Cell::new(0),
            ended: Cell::new(0),
            last: Cell::new(0),
        };
        if count.compute > 1 {
            block_on(&ep, world.cut(&ep));
        }
        world
    }

    /// Lets leaves end at the boundary.
    async fn cut(&self, ep: &DynEndpoint) {
        let pool = Pool::attach(ep, attach(AttachMode::ReadWrite)).await.expect("it was closed");
        let tree = self.open(ep, &pool, KeyRange::all(), None, 64).await;
        let worker = tree.cache().worker();
        let ctx = Ctx { ep, worker: &worker };
        let boundary = self.boundary.borrow().clone();
        cut_at(&tree, ctx, &boundary).await.expect("the leaf can be split");
        tree.flush(ctx).await.expect("it can be written");
        pool.detach(ep).await.expect("it is closed");
    }

    fn value(&self, random: u64) -> Vec<u8> {
        self.count.set(self.count.get() + 1);
        let count = self.count.get().to_le_bytes();
        if self.layout.value_is_inline(&[0; 16]).is_err() {
            return count.to_vec();
        }
        let len = if random.is_multiple_of(5) { 300 } else { 8 + random as usize % 3 * 4 };
        count.iter().copied().cycle().take(len).collect()
    }

    async fn open(
        &self,
        ep: &DynEndpoint,
        pool: &Pool,
        range: KeyRange,
        log: Option<Arc<Log>>,
        frames: usize,
    ) -> Tree<L> {
        let node_size = self.layout.node_size();
        let mut config = CacheConfig::new((frames * node_size) as u64, node_size);
        config.admission = Admission::lazy(0.4);
        let cache = Arc::new(Cache::new(&config).expect("a cache"));
        let worker = cache.worker();
        let ctx = Ctx { ep, worker: &worker };
        let mut config = TreeConfig::new(INDEX, self.root);
        (config.range, config.log) = (range, log);
        let tree =
            Tree::open(ctx, Arc::clone(&cache), pool.clone(), self.layout, config).await.expect("it opens");
        cache.retire(&worker);
        tree
    }

    fn options(&self) -> Options {
        Options { persistence: self.persistence, ..Options::default() }
    }

    async fn contents(&self, ep: &DynEndpoint, log: GlobalAddr) -> Contents {
        let space = Space::read(ep, log).await.expect("the log is there");
        Contents::read(ep, space).await.expect("the log can be read")
    }

    /// Keys of each compute server, as they are recorded.
    fn ranges(&self) -> Vec<KeyRange> {
        let boundaries = [self.boundary.borrow().clone()];
        KeyRange::from_boundaries(&boundaries[..self.logs.borrow().len() - 1])
    }

    /// Recovers after a death.
    async fn recover(&self, ep: &DynEndpoint) {
        let pool = Pool::attach(ep, attach(AttachMode::Repair)).await.expect("nobody lives");
        // In any order.
        let logs = self.logs.borrow().clone();
        let (mut redone, servers) = (Vec::new(), logs.len());
        let first = if servers > 1 { ep.random() as usize % servers } else { 0 };
        for server in 0..servers {
            let contents = self.contents(ep, logs[(first + server) % servers]).await;
            let in_use = |server| !pool.has_drained(server);
            redo(ep, self.layout, &contents, in_use, |_, _| ()).await.expect("it can be redone");
            redone.push(contents);
        }
        if servers > 1 {
            give_back_locks(ep, self.layout, self.root).await.expect("nobody lives");
        }
        let tree = self.open(ep, &pool, KeyRange::all(), None, 64).await;
        let report = audit(ep, &[&tree]).await.expect("it can be read");
        assert_eq!(report.violations, Vec::<String>::new());
        let of_logs = redone.iter().flat_map(|contents| contents.space().blocks());
        let blocks = report.blocks.iter().chain(of_logs).collect::<Vec<_>>();
        pool.rebuild_allocation(ep, blocks).await.expect("no block is used twice");
        for contents in redone {
            Log::resume(ep, contents, self.options()).await.expect("the log opens");
        }
        pool.detach(ep).await.expect("it is closed");
    }

    /// Checks each key against its states, and forgets all states but the one that it has.
    async fn check(&self, ep: &DynEndpoint) {
        let pool = Pool::attach(ep, attach(AttachMode::ReadOnlyUnclean)).await.expect("it is there");
        let tree = self.open(ep, &pool, KeyRange::all(), None, 64).await;
        let worker = tree.cache().worker();
        let slots = self.keys.borrow().len() / KEYS;
        for slot in 0..slots {
            let mut all = Vec::new();
            for number in slot * KEYS..(slot + 1) * KEYS {
                let mut value = Vec::new();
                let found = tree.get(Ctx { ep, worker: &worker }, &key_of(number), &mut value).await;
                all.push(found.expect("a lookup").then_some(value));
            }
            let keys = &mut self.keys.borrow_mut()[slot * KEYS..][..KEYS];
            let made = keys.iter().zip(&all).enumerate().map(|(i, (key, found))| {
                let possible = &key.states[key.known..];
                let made = key.made_by(found.as_deref());
                made.unwrap_or_else(|| panic!("key {i} of {slot} is {found:?}, not one of {possible:?}"))
            });
            let last = made.max().unwrap_or(0);
            for (i, (key, found)) in keys.iter_mut().zip(all).enumerate() {
                let states = &key.states;
                assert!(
                    key.may_be(found.as_deref(), last),
                    "key {i} of {slot} is {found:?} of {states:?} after change {last}"
                );
                *key = History::of(found);
            }
        }
    }

    /// Power is lost.
    fn lose_power(&self, ep: &DynEndpoint) {
        block_on(ep, self.sectors.lose_power(ep)).expect("memory");
        if self.persistence == Persistence::Later {
            self.keys.borrow_mut().iter_mut().for_each(|key| key.known = key.persisted);
        }
    }

    /// Persists the log now and then, or when somebody waits for that, while others work.
    async fn serve(&self, ep: &DynEndpoint, log: &Log) {
        while self.working.get() > 0 {
            if log.is_awaited() || self.persistence == Persistence::Later && ep.random().is_multiple_of(64) {
                let known: Vec<_> = self.keys.borrow().iter().map(|key| key.known).collect();
                log.persist(ep).await.expect("memory");
                let mut keys = self.keys.borrow_mut();
                keys.iter_mut().zip(known).for_each(|(key, known)| key.persisted = known.max(key.persisted));
            }
            ep.yield_now().await;
        }
    }

    async fn count_work<T>(&self, work: impl Future<Output = T>) -> T {
        let done = work.await;
        self.working.set(self.working.get() - 1);
        done
    }

    async fn count_operating<T>(&self, work: impl Future<Output = T>) -> T {
        let done = self.count_work(work).await;
        self.operating.set(self.operating.get() - 1);
        done
    }

    /// Runs operations until the process dies, or for a while.
    fn live(&self, ep: &DynEndpoint, frames: usize, operations: usize) {
        self.gone.0.set(None);
        let started = mortal::run_one(ep, async {
            let pool = Pool::attach(ep, attach(AttachMode::ReadWrite)).await.expect("it was closed");
            for server in 1..pool.servers() as u16 {
                pool.readmit_server(ep, MemoryServerId(server)).await.expect("no index is open");
            }
            let (mut logs, mut trees) = (Vec::new(), Vec::new());
            let at_first = self.logs.borrow().clone();
            for (at, range) in at_first.into_iter().zip(self.ranges()) {
                let contents = self.contents(ep, at).await;
                let log = Arc::new(Log::resume(ep, contents, self.options()).await.expect("the log opens"));
                trees.push(self.open(ep, &pool, range, Some(Arc::clone(&log)), frames).await);
                logs.push(log);
            }
            (pool, logs, trees)
        });
        let Some((pool, logs, trees)) = started else { return };
        if let [lower, upper] = &trees[..] {
            let placed = Placed { pool: &pool, logs: &logs };
            return self.live_beside(ep, placed, [lower, upper], operations);
        }
        let (log, tree) = (&logs[0], &trees[0]);
        let worker = tree.cache().worker();
        let ctx = Ctx { ep, worker: &worker };
        // Without a server, those who wait persist the log themselves.
        let serves = self.persistence == Persistence::Later || ep.random().is_multiple_of(2);
        if serves {
            log.serve(Box::new(|| ()));
        }
        let (servers, placed) = ([(tree, ctx)], Placed { pool: &pool, logs: &logs });
        self.operating.set(SLOTS);
        let work = |slot| self.count_operating(self.operate(ctx, tree, slot, operations));
        let slots = (0..SLOTS).map(|slot| Box::pin(work(slot)) as Pin<Box<dyn Future<Output = ()> + '_>>);
        let mut slots: Vec<_> = slots.collect();
        if pool.servers() > 1 {
            slots.push(Box::pin(self.count_work(self.place_anew(placed, &servers))));
        }
        self.run(ep, serves.then_some(log), slots);
        // Half of those that live on write everything back, but die before they leave the pool.
        if !ep.as_type::<Mortal>().is_dead() && ep.random().is_multiple_of(2) {
            let flush = async { tree.flush(ctx).await.map(drop).expect("it can be written") };
            self.run(ep, serves.then_some(log), vec![Box::pin(self.count_work(flush))]);
        }
        drop(pool);
    }

    /// As [`World::live`], with two compute servers, between which keys move.
    fn live_beside(&self, ep: &DynEndpoint, placed: Placed<'_>, trees: [&Tree<L>; 2], operations: usize) {
        let workers = trees.map(|tree| tree.cache().worker());
        let servers: [_; 2] = std::array::from_fn(|i| (trees[i], Ctx { ep, worker: &workers[i] }));
        let table = RoutingTable::in_order(vec![self.boundary.borrow().clone()]).expect("one boundary");
        let routes = Routes::new(table);
        self.operating.set(SLOTS);
        let work = |slot| self.count_operating(self.operate_beside(&routes, servers, slot, operations));
        let slots = (0..SLOTS).map(|slot| Box::pin(work(slot)) as Pin<Box<dyn Future<Output = ()> + '_>>);
        let mut slots: Vec<_> = slots.collect();
        slots.push(Box::pin(self.count_work(self.move_about(&routes, servers))));
        if ep.random().is_multiple_of(2) {
            slots.push(Box::pin(self.count_work(self.flush_often(servers))));
        }
        if placed.pool.servers() > 1 {
            slots.push(Box::pin(self.count_work(self.place_anew(placed, &servers))));
        }
        self.run(ep, None, slots);
    }

    /// Slots other than these are at work.
    fn others_work(&self) -> bool {
        self.operating.get() > 0
    }

    /// Moves a log away from a memory server.
    async fn move_log(&self, ep: &DynEndpoint, placed: Placed<'_>, number: usize, from: MemoryServerId) {
        let log = &placed.logs[number];
        let alloc = async |bytes| placed.pool.alloc(ep, Placement::LeastLoaded, bytes).await;
        let blocks = log.space().without(|at| at.server() == from, alloc).await.expect("room");
        let enter = async |root| {
            ep.yield_now().await;
            self.logs.borrow_mut()[number] = root;
            Entered::<LogError>::Yes
        };
        for (at, bytes) in log.move_to(ep, blocks, enter).await.expect("it can be written") {
            placed.pool.free(ep, at, bytes).await.expect("it was in use");
        }
    }

    /// Spreads the index over the memory servers, moves logs, and drains one of the servers, as long as others work.
    async fn place_anew(&self, placed: Placed<'_>, servers: &[(&Tree<L>, Ctx<'_, DynEndpoint>)]) {
        let (ep, pool) = (servers[0].1.ep, placed.pool);
        let leaving = MemoryServerId(1 + ep.random() as u16 % (pool.servers() as u16 - 1));
        let until = ep.random() % 20;
        for turn in 0.. {
            for &(tree, ctx) in servers {
                let moved = match turn < until {
                    true => spread_all(tree, ctx, |_| self.others_work()).await,
                    false => {
                        pool.drain_server(ep, leaving).await.expect("it is not the first one");
                        let drained = drain(tree, ctx, leaving, |_| self.others_work()).await;
                        drained.map(|drained| drained.nodes + drained.values)
                    }
                };
                match moved {
                    Ok(moved) => self.placed.set(self.placed.get() + moved),
                    // Keys are on their way to another compute server.
                    Err(DexError::NotOwned) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            if turn >= until {
                self.end_drained(ep, pool, leaving).await;
            }
            if !self.others_work() {
                return;
            }
            let (number, from) = (ep.random() as usize % servers.len(), ep.random() as u16 % 3);
            self.move_log(ep, placed, number, MemoryServerId(from)).await;
            for _ in 0..ep.random() % 30 {
                ep.yield_now().await;
            }
        }
    }

    /// Ends a memory server, and with it its memory, if it is empty.
    async fn end_drained(&self, ep: &DynEndpoint, pool: &Pool, leaving: MemoryServerId) {
        pool.leave_inactive(ep).await.expect("memory");
        match pool.finish_drain(ep, leaving).await {
            Ok(()) => {
                self.ended.set(self.ended.get() + u64::from(self.gone.0.get().is_none()));
                self.gone.0.set(Some(leaving));
            }
            Err(PoolError::NotEmpty { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Moves the boundary as long as others work.
    async fn move_about(&self, routes: &Routes, servers: [(&Tree<L>, Ctx<'_, DynEndpoint>); 2]) {
        let ep = servers[0].1.ep;
        while self.others_work() {
            let (to, old) = (ep.random().to_be_bytes(), self.boundary.borrow().clone());
            let (from, into) = if to[..] < old[..] { (0, 1) } else { (1, 0) };
            let (low, high) = if from == 0 { (to.to_vec(), old) } else { (old, to.to_vec()) };
            let party = |server: usize| Party { server, tree: servers[server].0, ctx: servers[server].1 };
            let record = async |table: &RoutingTable| {
                *self.boundary.borrow_mut() = table.boundaries()[0].clone();
                Ok(())
            };
            let flush = async |leaving: Arc<_>| flush_side_by_side(&leaving, servers[from].1, 2).await;
            let range = KeyRange { low: Some(low), high: Some(high) };
            move_keys(routes, party(from), party(into), range, flush, record).await.expect("a move");
            for _ in 0..ep.random() % 30 {
                ep.yield_now().await;
            }
        }
    }

    /// Makes one checkpoint after the other as long as others work: otherwise there are few.
    async fn flush_often(&self, servers: [(&Tree<L>, Ctx<'_, DynEndpoint>); 2]) {
        while self.others_work() {
            let (tree, ctx) = servers[servers[0].1.ep.random() as usize % 2];
            tree.flush(ctx).await.expect("it can be written");
            ctx.ep.yield_now().await;
        }
    }

    async fn operate_beside(
        &self,
        routes: &Routes,
        servers: [(&Tree<L>, Ctx<'_, DynEndpoint>); 2],
        slot: usize,
        operations: usize,
    ) {
        let ep = servers[0].1.ep;
        for _ in 0..operations {
            let random = ep.random();
            let any = if random >> 36 & 1 == 1 { self.last.get() } else { random as usize % (SLOTS * KEYS) };
            let (number, change) = match random >> 32 & 15 {
                0..=7 => (slot * KEYS + random as usize % KEYS, Some(Some(self.value(random >> 40)))),
                8..=10 => (slot * KEYS + random as usize % KEYS, Some(None)),
                _ => (any, None),
            };
            let (key, least) = (key_of(number), self.keys.borrow()[number].known);
            let at = change.as_ref().map(|state| self.begin(number, state.clone()));
            let mut value = Vec::new();
            let done = loop {
                let (tree, ctx) = servers[routes.table().owner_of(&key)];
                let done = match &change {
                    Some(Some(value)) => tree.put(ctx, &key, value).await,
                    Some(None) => tree.remove(ctx, &key).await,
                    None => tree.get(ctx, &key, &mut value).await,
                };
                match done {
                    // The key is on its way.
                    Err(DexError::NotOwned) => ep.yield_now().await,
                    done => break done.expect("an operation"),
                }
            };
            let mut keys = self.keys.borrow_mut();
            match at {
                Some(at) => keys[number].known = at,
                None => keys[number].see(least, done.then_some(&value[..])),
            }
        }
    }

    /// Polls slots that count as work, beside one that serves the log.
    fn run<'s>(
        &'s self,
        ep: &'s DynEndpoint,
        log: Option<&'s Arc<Log>>,
        mut slots: Vec<Pin<Box<dyn Future<Output = ()> + 's>>>,
    ) {
        self.working.set(slots.len());
        if let Some(log) = log {
            slots.push(Box::pin(self.serve(ep, log)));
        }
        mortal::run(ep, slots);
    }

    async fn operate(&self, ctx: Ctx<'_, DynEndpoint>, tree: &Tree<L>, slot: usize, operations: usize) {
        for _ in 0..operations {
            let random = ctx.ep.random();
            let own = slot * KEYS + random as usize % KEYS;
            let any = if random >> 36 & 1 == 1 { self.last.get() } else { random as usize % (SLOTS * KEYS) };
            match random >> 32 & 15 {
                0..=6 => {
                    let value = self.value(random >> 40);
                    let at = self.begin(own, Some(value.clone()));
                    tree.put(ctx, &key_of(own), &value).await.expect("a put");
                    self.keys.borrow_mut()[own].known = at;
                }
                7..=10 => {
                    let at = self.begin(own, None);
                    tree.remove(ctx, &key_of(own)).await.expect("a removal");
                    self.keys.borrow_mut()[own].known = at;
                }
                11..=13 => {
                    let least = self.keys.borrow()[any].known;
                    let mut value = Vec::new();
                    let found = tree.get(ctx, &key_of(any), &mut value).await.expect("a lookup");
                    self.keys.borrow_mut()[any].see(least, found.then_some(&value[..]));
                }
                14 => self.get_many(ctx, tree, any).await,
                _ => self.scan(ctx, tree).await,
            }
        }
    }

    fn begin(&self, number: usize, state: Option<Vec<u8>>) -> usize {
        let mut keys = self.keys.borrow_mut();
        self.last.set(number);
        self.count.set(self.count.get() + 1);
        keys[number].states.push((self.count.get(), state));
        keys[number].states.len() - 1
    }

    async fn get_many(&self, ctx: Ctx<'_, DynEndpoint>, tree: &Tree<L>, first: usize) {
        let numbers: Vec<_> = (first..SLOTS * KEYS).step_by(3).collect();
        let least: Vec<_> = numbers.iter().map(|&number| self.keys.borrow()[number].known).collect();
        let keys: Vec<_> = numbers.iter().map(|&number| key_of(number)).collect();
        let mut answers = Answers::default();
        tree.multi_get(ctx, &keys, &mut answers).await.expect("lookups");
        for (i, &number) in numbers.iter().enumerate() {
            self.keys.borrow_mut()[number].see(least[i], answers.get(i));
        }
    }

    async fn scan(&self, ctx: Ctx<'_, DynEndpoint>, tree: &Tree<L>) {
        let least: Vec<_> = self.keys.borrow().iter().map(|history| history.known).collect();
        let mut found = vec![None; least.len()];
        let numbers: Vec<_> = (0..least.len()).map(key_of).collect();
        let visit = |key: &[u8], value: &[u8]| {
            let number = numbers.iter().position(|known| known == key).expect("a key of the test");
            found[number] = Some(value.to_vec());
            true
        };
        tree.scan(ctx, &ScanRange::all(), visit).await.expect("a scan");
        for (number, value) in found.iter().enumerate() {
            self.keys.borrow_mut()[number].see(least[number], value.as_deref());
        }
    }
}

/// Several lives of one index, of random length, the recoveries between them included.
fn run<L: Layout>(layout: L, persistence: Persistence, seed: u64) {
    run_on(Count { compute: 1, memory: 1 }, layout, persistence, seed);
}

/// Returns the number of nodes and values that were moved to other memory servers, and of memory servers that ended.
fn run_with<L: Layout>(world: World<L>, seed: u64) -> [u64; 2] {
    let (layout, persistence) = (world.layout, world.persistence);
    let cuts = persistence != Persistence::Never;
    let raw =
        |life: u64| world.fabric.endpoint(seed.wrapping_mul(31).wrapping_add(life)).expect("an endpoint");
    let ep = |left, life: u64, slots| {
        DynEndpoint::new(Mortal::new(
            raw(life),
            Rc::clone(&world.sectors),
            Rc::clone(&world.gone),
            left,
            slots,
        ))
    };
    for life in 0..6 {
        let random = ep(None, life, 1).random();
        // A checkpoint may log an image of each node in the cache, in a quarter of the log.
        let most = world.segments * SEGMENT as usize / 4 / layout.node_size();
        let (verbs, frames) = (random as u32 % 1500, (12 + random as usize % 53).min(most));
        world.live(&ep(Some(verbs), life, SLOTS as u32 + 2), frames, 150);
        if cuts {
            world.lose_power(&DynEndpoint::new(raw(life + 300)));
        }
        if life % 2 == 1 {
            let left = (random >> 32) as u32 % 150;
            let dying = ep(Some(left), life + 100, 1);
            mortal::run_one(&dying, world.recover(&dying));
            if cuts && random >> 63 == 1 {
                world.lose_power(&DynEndpoint::new(raw(life + 400)));
            }
        }
        let whole = ep(None, life + 200, 1);
        block_on(&whole, async {
            world.recover(&whole).await;
            world.check(&whole).await;
        });
    }
    [world.placed.get(), world.ended.get()]
}

/// [`run`] with two compute servers.
fn run_beside<L: Layout>(layout: L, persistence: Persistence, seed: u64) {
    run_on(Count { compute: 2, memory: 1 }, layout, persistence, seed);
}

/// [`run`] with several memory servers, between which nodes and values move.
fn run_on<L: Layout>(count: Count, layout: L, persistence: Persistence, seed: u64) -> [u64; 2] {
    run_with(World::with_servers(count, layout, persistence, SEGMENTS, seed), seed)
}

/// `KILLED_SEEDS` says how many, or `A..B` which.
fn seeds(run: impl Fn(u64)) {
    let text = std::env::var("KILLED_SEEDS").unwrap_or_default();
    let (first, end) = text.split_once("..").unwrap_or(("0", &text));
    for seed in first.parse().unwrap_or(0)..end.parse().unwrap_or(60) {
        println!("seed {seed}");
        run(seed);
    }
}

fn small_nodes() -> FixedLayout {
    FixedLayout::new(256, 8, 8).expect("a layout").with_fanout_limit(4)
}

/// Nodes of several sectors.
fn nodes_of_sectors() -> FixedLayout {
    FixedLayout::new(2048, 8, 8).expect("a layout").with_fanout_limit(4)
}

fn slotted(bytes: usize) -> SlottedLayout {
    SlottedLayout::new(bytes).expect("a layout").with_fanout_limit(5)
}

fn small_log(seed: u64) -> World<SlottedLayout> {
    World::new(slotted(1024), Persistence::BeforeAnswer, FEW_SEGMENTS, seed)
}

#[test]
fn fixed_nodes_lose_nothing_that_was_answered_or_seen() {
    seeds(|seed| run(small_nodes(), Persistence::Never, seed));
}

#[test]
fn slotted_nodes_lose_nothing_that_was_answered_or_seen() {
    seeds(|seed| run(slotted(512), Persistence::Never, seed));
}

#[test]
fn keys_that_move_between_compute_servers_are_not_lost() {
    seeds(|seed| run_beside(small_nodes(), Persistence::Never, seed));
    seeds(|seed| run_beside(slotted(512), Persistence::Never, seed));
}

#[test]
fn keys_that_move_between_compute_servers_are_not_lost_with_the_power() {
    seeds(|seed| run_beside(nodes_of_sectors(), Persistence::BeforeAnswer, seed));
    seeds(|seed| run_beside(slotted(1024), Persistence::BeforeAnswer, seed));
}

#[test]
fn fixed_nodes_lose_nothing_with_the_power() {
    seeds(|seed| run(nodes_of_sectors(), Persistence::BeforeAnswer, seed));
}

#[test]
fn slotted_nodes_lose_nothing_with_the_power() {
    seeds(|seed| run(slotted(1024), Persistence::BeforeAnswer, seed));
    seeds(|seed| {
        run_with(small_log(seed), seed);
    });
}

/// [`run_on`] for all seeds; enough must move.
fn moved_on<L: Layout>(compute: usize, layout: L, persistence: Persistence) {
    let (moved, ended) = (Cell::new(0), Cell::new(0));
    let count = Count { compute, memory: 3 };
    seeds(|seed| {
        let [more_moved, more_ended] = run_on(count, layout, persistence, seed);
        moved.set(moved.get() + more_moved);
        ended.set(ended.get() + more_ended);
    });
    println!("{} nodes and values have moved, {} memory servers have ended", moved.get(), ended.get());
    assert!(moved.get() > 0, "only {} nodes and values have moved", moved.get());
}

#[test]
fn nodes_that_move_between_memory_servers_are_not_lost() {
    moved_on(1, small_nodes(), Persistence::Never);
    moved_on(1, slotted(512), Persistence::Never);
    moved_on(2, small_nodes(), Persistence::Never);
    moved_on(2, slotted(512), Persistence::Never);
}

#[test]
fn nodes_that_move_between_memory_servers_are_not_lost_with_the_power() {
    moved_on(1, slotted(1024), Persistence::BeforeAnswer);
    moved_on(2, nodes_of_sectors(), Persistence::BeforeAnswer);
    moved_on(2, slotted(1024), Persistence::BeforeAnswer);
}

#[test]
fn what_was_persisted_survives_a_loss_of_power_without_holes() {
    seeds(|seed| run(nodes_of_sectors(), Persistence::Later, seed));
    seeds(|seed| run(slotted(1024), Persistence::Later, seed));
}

/// Whether one of some seeds finds something wrong.
#[cfg(feature = "defects")]
fn is_found<D: pando_fabric::defect::Defect>(defect: D, run: impl Fn(u64) + std::panic::RefUnwindSafe) {
    let found = (0..200).find(|&seed| {
        pando_fabric::defect::with_defect(Some(defect), || std::panic::catch_unwind(|| run(seed)).is_err())
    });
    println!("{defect:?}: seed {found:?}");
    assert!(found.is_some(), "{defect:?} is not found");
}

#[cfg(feature = "defects")]
#[test]
fn each_defect_of_the_use_of_the_log_is_found() {
    use pando_log::defect::{Defect, OfIndex};
    let run = |seed| run(small_nodes(), Persistence::Never, seed);
    OfIndex::ALL.into_iter().for_each(|defect| is_found(defect, run));
    is_found(Defect::AckBeforeLog, run);
}

#[cfg(feature = "defects")]
#[test]
fn each_defect_of_moves_with_logs_is_found() {
    use pando_log::defect::OfMoves;
    for defect in OfMoves::OF_PROCESS {
        is_found(defect, |seed| run_beside(small_nodes(), Persistence::Never, seed));
    }
    for defect in OfMoves::OF_POWER {
        is_found(defect, |seed| run_beside(nodes_of_sectors(), Persistence::BeforeAnswer, seed));
    }
    let run = |seed| {
        run_on(Count { compute: 1, memory: 3 }, small_nodes(), Persistence::Never, seed);
    };
    is_found(OfMoves::RelocationUnlogged, run);
    is_found(pando_log::defect::OfLogMoves::Unfrozen, run);
}

#[cfg(feature = "defects")]
#[test]
fn each_defect_of_a_log_that_is_persisted_is_found() {
    for defect in pando_log::defect::OfPower::ALL {
        is_found(defect, |seed| {
            run_with(small_log(seed), seed);
        });
    }
}
