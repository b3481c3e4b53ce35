//! DEX as the index of a run: a tree and a cache for each compute server, a routing table for each process.
//!
//! An operation goes to the compute server that its thread's router names. Sometimes it goes to another one
//! first, which must refuse it unless it has become the owner. With several processes, each has its own
//! routing table, which is correct for its own keys, and moves only these (`moves.rs`).
//!
//! Compute servers with logs may die (`death.rs`): each is a process of its own, and its tree is replaced by that of its heir.

use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use pando_cache::CacheWorker;
use pando_dex::audit::{audit, check_blocks};
use pando_dex::layout::Layout;
use pando_dex::{
    Answers, Ctx, DexError, Router, Routes, RoutingTable, ScanRange, Swapped, Tree, TreeConfig, partition_of,
};
use pando_fabric::{Endpoint, GlobalAddr, Nanos};
use pando_log::LogError;
use pando_pool::Pool;
use pando_rt::block_on;

use super::case_dex::DexCase;
use super::client::{Client, Gathered, within};
use super::cluster::{Cluster, ClusterError, INDEX, boundaries, draw_entries};
use super::death::{self, Doom};
use super::fall;
use super::history::{Answer, Book, Key, Op};
use super::index::Index;
use super::linear::Value;
use super::moves::KeyMove;
use super::pool_audit::{Used, twice_or_free};
use super::processes::Processes;
use super::setup::{Draw, PATIENCE_NS, Setup};
use crate::copies::SimEndpoint;
use crate::under_test::dex::Assembly;

/// DEX with all its compute servers.
pub struct Dex<L: Layout> {
    pub case: DexCase,
    /// Number of compute servers with keys at the start.
    keyed_servers: usize,
    pub pool: Pool,
    pub processes: Processes,
    pub layout: L,
    /// By compute server; the last ones have no keys at the start.
    lives: Vec<RefCell<Rc<Life<L>>>>,
    /// By compute server: whether a slot is about to be its heir.
    heirs: Vec<Cell<bool>>,
    /// By process.
    pub routes: Vec<Arc<Routes>>,
    /// First keys of the second and further processes; these never move.
    between_processes: Vec<Vec<u8>>,
    /// By process: the latest move whose keys left the old owner.
    pub moves: Vec<RefCell<Option<KeyMove>>>,
    /// Whether operations are cut off.
    is_cut_off: bool,
}

/// A compute server until it dies.
pub struct Life<L: Layout> {
    /// Virtual time at which it dies; 0 once it is dead.
    pub ends: Cell<Nanos>,
    /// What it dies soon after, at an operation, and when at the latest.
    pub doom: Cell<Option<(Doom, Nanos)>>,
    /// Number of the last record of a change of several nodes.
    pub changed: Cell<u64>,
    /// Number of its process, and the pool as it is attached to that.
    pub pid: u32,
    pub pool: Pool,
    pub tree: Tree<L>,
}

impl<L: Layout> Life<L> {
    pub fn new(pid: u32, pool: Pool, tree: Tree<L>) -> Self {
        let (ends, doom, changed) = (Cell::new(Nanos::MAX), Cell::new(None), Cell::new(0));
        Self { ends, doom, changed, pid, pool, tree }
    }

    /// Whether the time of its death is drawn, or the operation before it.
    pub fn is_doomed(&self) -> bool {
        self.doom.get().is_some() || self.ends.get() != Nanos::MAX
    }

    /// Clocks of threads differ a little: it is dead for all threads as soon as it is for one.
    pub fn is_alive(&self, now: Nanos) -> bool {
        let lives = now < self.ends.get();
        if !lives {
            self.ends.set(0);
        }
        lives
    }
}

/// A life as one thread uses it.
pub struct Using<L: Layout> {
    pub life: Rc<Life<L>>,
    worker: CacheWorker,
}

impl<L: Layout> Using<L> {
    fn new(life: Rc<Life<L>>) -> Self {
        let worker = life.tree.cache().worker();
        Self { life, worker }
    }

    pub fn server<'u>(&'u self, ep: &'u SimEndpoint) -> (&'u Tree<L>, Ctx<'u, SimEndpoint>) {
        (&self.life.tree, Ctx { ep, worker: &self.worker })
    }
}

impl<L: Layout> Drop for Using<L> {
    fn drop(&mut self) {
        self.life.tree.cache().retire(&self.worker);
    }
}

/// State of one thread.
pub struct DexThread<L: Layout> {
    /// By compute server.
    using: Vec<RefCell<Rc<Using<L>>>>,
    /// By process.
    routers: Vec<Router>,
}

impl<L: Layout> Dex<L> {
    /// Makes and loads the index of `setup`; records its entries in `book`.
    pub fn new(
        setup: &Setup,
        case: DexCase,
        layout: L,
        cluster: &Cluster,
        ep: &SimEndpoint,
        book: &mut Book,
    ) -> Result<Self, ClusterError> {
        let pool = cluster.pool.clone();
        let boundaries = boundaries(setup, &book.keys);
        let tree = TreeConfig {
            patience_ns: PATIENCE_NS,
            offloading: case.offloading(),
            read_ahead: setup.read_ahead,
            whole_leaves: Draw::of(setup.seed, "writes").one_of(&[false, false, true]),
            subtree_level: case.subtree_level,
            ..TreeConfig::new(INDEX, GlobalAddr::NULL)
        };
        let assembly = Assembly::new(&pool, layout, &boundaries, case.cache_config(), tree);
        let (spares, leaf_fill) = (case.moves.spare_servers, setup.fill());
        let log = case.is_logged().then(|| death::shape_of_log(setup, &case));
        let verbs_take_ns = setup.verbs_take_ns();
        let processes = cluster.processes.clone();
        let began = death::begin_processes(setup, &processes, ep)?;
        let pools: Vec<_> = began.iter().map(|(_, pool)| pool.clone()).collect();
        let assembly = Assembly { pools: &pools, spares, leaf_fill, log, verbs_take_ns, ..assembly };
        let trees = block_on(ep, assembly.trees(ep, &draw_entries(setup, book).as_slice()))?;
        let keyed_servers = setup.compute_servers;
        let process = |server| case.process_of(keyed_servers, server);
        let is_between = |&at: &usize| process(at) != process(at + 1);
        let between_processes =
            (0..boundaries.len()).filter(is_between).map(|at| boundaries[at].clone()).collect();
        let table = RoutingTable::in_order(boundaries)?;
        let routes = (0..case.processes).map(|_| Arc::new(Routes::new(table.clone()))).collect();
        let is_cut_off = setup.faults.cuts_off();
        let moves = (0..case.processes).map(|_| RefCell::default()).collect();
        death::register_logs(ep, &pools, &trees)?;
        let life = |(server, tree)| {
            let (pid, pool) = began.get(server).cloned().unwrap_or_else(|| (0, pool.clone()));
            RefCell::new(Rc::new(Life::new(pid, pool, tree)))
        };
        let lives: Vec<_> = trees.into_iter().enumerate().map(life).collect();
        let heirs = vec![Cell::new(false); lives.len()];
        Ok(Self {
            case,
            keyed_servers,
            pool,
            processes,
            layout,
            lives,
            heirs,
            routes,
            between_processes,
            moves,
            is_cut_off,
        })
    }

    /// The present or last life of a compute server.
    pub fn life(&self, server: usize) -> Rc<Life<L>> {
        Rc::clone(&self.lives[server].borrow())
    }

    pub fn has_heir(&self, server: usize) -> bool {
        self.heirs[server].get()
    }

    pub fn set_heir(&self, server: usize, has_one: bool) {
        self.heirs[server].set(has_one);
    }

    /// The heir of a compute server goes on.
    pub fn replace(&self, server: usize, heir: Life<L>) {
        *self.lives[server].borrow_mut() = Rc::new(heir);
    }

    /// Number of compute servers.
    pub fn servers(&self) -> usize {
        self.lives.len()
    }

    /// The process whose compute servers own `key`.
    pub fn process_of(&self, key: &[u8]) -> usize {
        partition_of(&self.between_processes, key)
    }

    /// The process of a compute server.
    pub fn process_of_server(&self, server: usize) -> usize {
        self.case.process_of(self.keyed_servers, server)
    }
}

impl<L: Layout> Index for Dex<L> {
    type Error = DexError;
    type Thread = DexThread<L>;

    const SWAPS: bool = true;
    const DESCENDS: bool = true;

    fn begin_thread(&self, ep: &SimEndpoint) -> DexThread<L> {
        DexThread {
            using: self
                .lives
                .iter()
                .map(|life| RefCell::new(Rc::new(Using::new(Rc::clone(&life.borrow())))))
                .collect(),
            routers: self.routes.iter().map(|routes| Router::new(Arc::clone(routes), ep.random())).collect(),
        }
    }

    fn may_have_taken_effect(error: &DexError) -> bool {
        error.may_have_taken_effect()
    }

    async fn answer(client: &Client<Self>, op: &Op) -> Result<Answer, DexError> {
        match op.key() {
            Some(key) => client.answer_of(key, op).await,
            None if matches!(op, Op::Move) => client.move_some().await,
            None => client.flush().await,
        }
    }

    fn has_to_move(&self) -> bool {
        self.unmade_move().is_some()
    }

    async fn live(client: &Client<Self>) {
        death::live(client).await;
    }

    async fn fall(client: &Client<Self>) -> Result<bool, ClusterError> {
        fall::fall(client).await
    }

    async fn settle(client: &Client<Self>) {
        for server in 0..client.index.servers() {
            if client.index.case.deaths > 0 {
                // What fails here is finished by a later operation.
                let _ = client.at(server, async |tree, ctx| tree.flush(ctx).await).await;
            }
        }
    }

    async fn scan(
        client: &Client<Self>,
        range: &ScanRange<'_>,
        found: &Gathered<'_>,
    ) -> Result<(), DexError> {
        let visit = RefCell::new(|key: &[u8], value: &[u8]| found.visit(key, value));
        let scan_of = async |server: usize, part: &ScanRange<'_>| {
            let visit = |key: &[u8], value: &[u8]| (visit.borrow_mut())(key, value);
            client.at(server, async |tree, ctx| tree.scan_owned(ctx, part, visit).await).await
        };
        for (process, part) in client.parts(range) {
            let handed_out = found.len();
            if handed_out == found.limit {
                break;
            }
            let part = ScanRange { limit: range.limit - handed_out, ..part };
            client.own.routers[process].scanned(&client.ep, &part, PATIENCE_NS, scan_of).await?;
        }
        Ok(())
    }

    fn go_together(client: &Client<Self>, one: Key, other: Key) -> bool {
        let owner = |key: Key| {
            let key = client.book.keys[key as usize].as_slice();
            client.router(key).owner_of(key)
        };
        owner(one) == owner(other)
    }

    fn audit(&self, ep: &SimEndpoint, failed: bool) -> Result<Vec<String>, ClusterError> {
        let lives: Vec<_> = (0..self.servers()).map(|server| self.life(server)).collect();
        let trees: Vec<_> = lives.iter().map(|life| &life.tree).collect();
        for tree in trees.iter().filter(|_| self.is_cut_off || self.case.deaths > 0) {
            let worker = tree.cache().worker();
            // A flush finishes the leftovers of operations that were cut off.
            block_on(ep, tree.flush(Ctx { ep, worker: &worker }))?;
            tree.cache().retire(&worker);
        }
        let logs = trees.iter().filter_map(|tree| tree.config().log.as_deref());
        let logs: Vec<_> = logs.flat_map(|log| log.space().blocks().collect::<Vec<_>>()).collect();
        let report = block_on(ep, audit(ep, &trees))?;
        let mut wrong = report.violations.clone();
        if self.case.deaths > 0 {
            let used: Used = report.blocks.iter().chain(logs).collect();
            let nodes = used[..(report.leaves + report.inner_nodes) as usize].iter().map(|(node, _)| *node);
            wrong.extend(death::look_for_locks(ep, &lives, nodes)?);
            // Each process knows the blocks in its own chunks. Those of the dead keep what they had.
            for pool in lives.iter().map(|life| &life.pool).chain([&self.pool]) {
                wrong.extend(block_on(ep, twice_or_free(ep, pool, used.clone()))?);
            }
            return Ok(wrong);
        }
        wrong.extend(block_on(ep, check_blocks(ep, &self.pool, &mut [report], &logs))?);
        if failed || self.case.falls {
            // A failed operation, or a dead process, may leak blocks, which a rebuild of the allocation reclaims.
            wrong.retain(|what| !what.contains("belong to nothing"));
        }
        Ok(wrong)
    }
}

impl<L: Layout> Client<Dex<L>> {
    /// A compute server as it is now.
    pub(super) fn using(&self, server: usize) -> Rc<Using<L>> {
        let life = self.index.life(server);
        let mut using = self.own.using[server].borrow_mut();
        if !Rc::ptr_eq(&using.life, &life) {
            *using = Rc::new(Using::new(life));
        }
        Rc::clone(&using)
    }

    /// Runs an operation at a compute server, which ends where it is if that dies.
    pub(super) async fn at<T>(
        &self,
        server: usize,
        op: impl AsyncFnOnce(&Tree<L>, Ctx<'_, SimEndpoint>) -> Result<T, DexError>,
    ) -> Result<T, DexError> {
        death::wait_for_heir(self, server).await?;
        let using = self.using(server);
        let (tree, ctx) = using.server(&self.ep);
        let has_died = || !using.life.is_alive(self.ep.now());
        let op = pin!(op(tree, ctx));
        let watched = pin!(death::watched(self, &using.life, op));
        let ended = within(&self.ep, Nanos::MAX, has_died, watched).await;
        ended.unwrap_or(Err(DexError::Log(LogError::Expired)))
    }

    /// The router of the process that owns `key`.
    fn router(&self, key: &[u8]) -> &Router {
        &self.own.routers[self.index.process_of(key)]
    }

    /// Performs `op` at the owner of `key`. Sometimes asks another compute server first, which must refuse.
    async fn answer_of(&self, key: Key, op: &Op) -> Result<Answer, DexError> {
        let key = &self.book.keys[key as usize];
        let servers = self.index.servers();
        if servers > 1 && self.below(32) == 0 {
            let other = (self.router(key).owner_of(key) + 1 + self.below(servers - 1)) % servers;
            match self.answer_by(other, op).await {
                Err(DexError::NotOwned) => {}
                other => return other,
            }
        }
        match op {
            Op::MultiGet(keys) => self.multi_get(keys).await,
            op => {
                self.router(key)
                    .routed(&self.ep, key, PATIENCE_NS, async |server| self.answer_by(server, op).await)
                    .await
            }
        }
    }

    /// Looks up several keys at once, or one by one if some have moved.
    async fn multi_get(&self, keys: &[Key]) -> Result<Answer, DexError> {
        let first = &self.book.keys[keys[0] as usize];
        let owner = self.router(first).route(first);
        match self.answer_by(owner, &Op::MultiGet(keys.to_vec())).await {
            Err(DexError::NotOwned) => {}
            done => return done,
        }
        let mut values = Vec::new();
        for key in keys {
            let (op, bytes) = (Op::Get(*key), &self.book.keys[*key as usize]);
            let get = async |server| self.answer_by(server, &op).await;
            match self.router(bytes).routed(&self.ep, bytes, PATIENCE_NS, get).await? {
                Answer::Found(value) => values.push(value),
                other => unreachable!("a lookup finds something or nothing, not {other:?}"),
            }
        }
        Ok(Answer::Values(values))
    }

    async fn answer_by(&self, server: usize, op: &Op) -> Result<Answer, DexError> {
        self.at(server, async |tree, ctx| self.answer_of_tree(tree, ctx, op).await).await
    }

    async fn answer_of_tree(
        &self,
        tree: &Tree<L>,
        ctx: Ctx<'_, SimEndpoint>,
        op: &Op,
    ) -> Result<Answer, DexError> {
        let key = |key: &Key| self.book.keys[*key as usize].as_slice();
        let bytes = |value: &Value| self.book.bytes(*value);
        let flag = Answer::Flag;
        Ok(match op {
            Op::Get(k) => {
                let mut out = Vec::new();
                let found = tree.get(ctx, key(k), &mut out).await?;
                Answer::Found(found.then(|| self.book.value(*k, &out)))
            }
            Op::Put(k, value) => flag(tree.put(ctx, key(k), &bytes(value)).await?),
            Op::Insert(k, value) => flag(tree.insert(ctx, key(k), &bytes(value)).await?),
            Op::Update(k, value) => flag(tree.update(ctx, key(k), &bytes(value)).await?),
            Op::Remove(k) => flag(tree.remove(ctx, key(k)).await?),
            Op::Swap { key: k, expected, new } => {
                let (expected, new) = (expected.as_ref().map(bytes), new.as_ref().map(bytes));
                match tree.compare_and_swap(ctx, key(k), expected.as_deref(), new.as_deref()).await? {
                    Swapped::Done => Answer::Swapped,
                    Swapped::Found(found) => Answer::Found(found.map(|found| self.book.value(*k, &found))),
                }
            }
            Op::MultiGet(keys) => {
                let wanted: Vec<_> = keys.iter().map(key).collect();
                let mut answers = Answers::default();
                tree.multi_get(ctx, &wanted, &mut answers).await?;
                let found = keys.iter().zip(answers.iter());
                Answer::Values(
                    found.map(|(k, value)| value.map(|value| self.book.value(*k, value))).collect(),
                )
            }
            Op::Scan(_) | Op::Flush | Op::Move => unreachable!("no operation of one compute server's keys"),
        })
    }

    async fn flush(&self) -> Result<Answer, DexError> {
        let server = self.below(self.index.servers());
        self.at(server, async |tree, ctx| tree.flush(ctx).await).await?;
        Ok(Answer::Done)
    }

    /// Divides a range by process, in the order of the scan.
    fn parts<'r>(&'r self, range: &ScanRange<'r>) -> Vec<(usize, ScanRange<'r>)> {
        let between = &self.index.between_processes;
        let start = |reverse| ScanRange { reverse, ..*range }.first_partition(between);
        let (first, last) = (start(false), start(true));
        let part = |process: usize| {
            let mut part = *range;
            if process > first {
                part.low = Bound::Included(&between[process - 1]);
            }
            if process < last {
                part.high = Bound::Excluded(&between[process]);
            }
            (process, part)
        };
        let mut parts: Vec<_> = (first..=last).map(part).collect();
        if range.reverse {
            parts.reverse();
        }
        parts
    }
}
