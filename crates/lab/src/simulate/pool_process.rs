//! A simulated process that uses a pool: its operations, and the checks of their answers.
//!
//! It makes, changes, loads and drops its own indexes, allocates and frees blocks and values, locks and
//! writes a page, with writes that are cut off, adds memory servers, leaves and comes back, or dies. The
//! checks trust every success, and every error that says that nothing happened. After each failure, of this
//! or another process, it checks all that it owns.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};

use pando_dex::layout::fixed::FixedLayout;
use pando_dex::{BulkLoad, DexError, Tree};
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, Nanos, Random};
use pando_pool::{
    AttachOptions, IndexRecord, IndexSpec, Placement, Pool, PoolError, ProcessIdentity, Result as PoolResult,
    ValueRef,
};
use pando_sim::{SimEndpoint, SimFabric};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::pool_case::{Often, PATIENT_NS, REGION, SERVERS_MAX, layout};
use super::pool_model::{Known, Outcome, Possible, Shape};

/// Entries of a loaded index.
pub const LOADED: u64 = 40;
const NAMES: [&str; 3] = ["a", "b", "c"];
/// Lines of the log that a violation quotes.
const EXCERPT: usize = 12;

/// State shared by all processes.
pub struct World {
    pub fabric: SimFabric,
    /// Longest time that a process waits for another one.
    pub wait_ns: Nanos,
    pub often: Often,
    /// Whether each process is alive, by pid.
    pub alive: Arc<Mutex<Vec<bool>>>,
    /// Blocks that are owned, by living or dead processes.
    pub held: RefCell<BTreeMap<GlobalAddr, u64>>,
    /// Violations, each with the lines of the log before it.
    pub violations: RefCell<Vec<(String, String)>>,
    pub log: RefCell<Vec<String>>,
    pub hash: Cell<u64>,
    pub operations: Cell<u64>,
    pub failed: Cell<u64>,
    /// Number of events after which a process must check all that it owns.
    pub doubts: Cell<u64>,
    /// Virtual time after which no fault has an effect.
    pub calm: Cell<Nanos>,
    /// A process adds a memory server. One does so at a time, as the lock of a fabric ensures.
    pub is_adding: Cell<bool>,
    /// Nodes may be leaked legitimately.
    pub leaks: Cell<bool>,
    /// A process died while it was attached, or may have been.
    pub somebody_died: Cell<bool>,
}

impl World {
    pub fn wrong(&self, what: String) {
        let log = self.log.borrow();
        let excerpt = log[log.len().saturating_sub(EXCERPT)..].iter().map(|line| format!("  {line}\n"));
        self.violations.borrow_mut().push((what, excerpt.collect()));
    }

    pub(super) fn note(&self, line: String) {
        self.hash.set(xxh3_64_with_seed(line.as_bytes(), self.hash.get()));
        self.log.borrow_mut().push(line);
    }

    pub fn attach_options(&self, pid: u32) -> AttachOptions {
        let alive = Arc::clone(&self.alive);
        let is_alive = move |process: &ProcessIdentity| {
            alive.lock().unwrap_or_else(PoisonError::into_inner)[process.pid as usize]
        };
        let process = ProcessIdentity { pid, start_time: 1, host: 1 };
        AttachOptions::new(process, Arc::new(is_alive)).wait_ns_max(self.wait_ns)
    }

    pub fn new_pid(&self) -> u32 {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.push(true);
        alive.len() as u32 - 1
    }

    pub fn end(&self, pid: u32) {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)[pid as usize] = false;
    }
}

/// A process with all that it owns.
pub struct Process<'w> {
    pub world: &'w World,
    pub number: usize,
    pub ep: SimEndpoint,
    pub random: Random,
    pub pid: Cell<u32>,
    pub pool: RefCell<Option<Pool>>,
    pub known: RefCell<Known>,
    blocks: RefCell<Vec<(GlobalAddr, u64)>>,
    values: RefCell<Vec<(ValueRef, Vec<u8>)>>,
    /// A page with a lock, and the content that it must have in the end.
    pub(super) page: Cell<Option<(GlobalAddr, u64)>>,
    /// Value of [`World::doubts`] at this process's latest check.
    pub(super) doubts: Cell<u64>,
}

impl<'w> Process<'w> {
    pub fn new(world: &'w World, number: usize, ep: SimEndpoint, random: Random) -> Self {
        Self {
            world,
            number,
            ep,
            random,
            pid: Cell::new(0),
            pool: RefCell::default(),
            known: RefCell::default(),
            blocks: RefCell::default(),
            values: RefCell::default(),
            page: Cell::default(),
            doubts: Cell::default(),
        }
    }

    pub(super) fn below(&self, end: usize) -> usize {
        (self.random.next() >> 32) as usize % end
    }

    fn pool(&self) -> Option<Pool> {
        self.pool.borrow().clone()
    }

    /// The blocks that this process owns, each with its bytes.
    pub fn blocks(&self) -> Vec<(GlobalAddr, u64)> {
        self.blocks.borrow().clone()
    }

    pub fn values(&self) -> Vec<(ValueRef, Vec<u8>)> {
        self.values.borrow().clone()
    }

    /// Whether the index with this name is one of this process.
    pub fn has_index(&self, name: &str) -> bool {
        self.known.borrow().indexes.contains_key(name)
    }

    pub(super) fn now_well(&self) -> bool {
        self.ep.now() > self.world.calm.get()
    }

    /// Records the outcome of an operation. A failure is a violation if no fault was active at the start
    /// (`was_well`).
    fn judge<T, E: Display>(
        &self,
        what: &str,
        done: &Result<T, E>,
        was_well: bool,
        may_have_taken_effect: impl Fn(&E) -> bool,
    ) -> Outcome {
        let outcome = Outcome::of(done, may_have_taken_effect);
        let said = done.as_ref().err().map_or_else(String::new, |error| format!(": {error}"));
        let (world, now) = (self.world, self.ep.now());
        world.note(format!("{now} process {} ({}), {what}: {outcome:?}{said}", self.number, self.pid.get()));
        world.operations.set(world.operations.get() + 1);
        if outcome != Outcome::Done {
            world.failed.set(world.failed.get() + 1);
            world.doubts.set(world.doubts.get() + 1);
            if was_well {
                world.wrong(format!("{what} failed though nothing was wrong{said}"));
            }
        }
        outcome
    }

    /// Whether an operation may fail with `error` without faults: the pool is full, or the process waits for
    /// too short a time.
    fn is_excused(&self, error: &PoolError) -> bool {
        let is_wait = matches!(
            error,
            PoolError::CatalogBusy | PoolError::LockTimedOut { .. } | PoolError::WaitedTooLong { .. }
        );
        error.is_full() || is_wait && self.world.wait_ns < PATIENT_NS
    }

    fn judge_pool<T>(&self, what: &str, done: &PoolResult<T>, was_well: bool) -> Outcome {
        let is_excused = done.as_ref().is_err_and(|error| self.is_excused(error));
        self.judge(what, done, was_well && !is_excused, PoolError::may_have_taken_effect)
    }

    /// One life: `operations` operations, some more after the end of faults, and then a detach.
    pub async fn live(&self, operations: usize) {
        for _ in 0..operations {
            self.operate().await;
        }
        while !self.now_well() {
            self.ep.sleep_until(self.world.calm.get() + 1).await;
        }
        for _ in 0..6 {
            self.operate().await;
        }
        self.leave().await;
    }

    /// Number of an operation; half of them are of the frequent kinds.
    fn draw_operation(&self) -> usize {
        let often: &[usize] = match self.world.often {
            Often::Everything => &[],
            Often::Changes => &[0, 5, 5, 10],
            Often::Pages => &[19, 19, 19, 21],
            Often::Loads => &[0, 10, 12, 12],
            Often::Servers => &[14, 14, 14, 20, 21, 21],
        };
        match self.below(24) {
            n if n < 12 && !often.is_empty() => often[n % often.len()],
            _ => self.below(24),
        }
    }

    async fn operate(&self) {
        if !self.world.violations.borrow().is_empty() {
            return;
        }
        let Some(pool) = self.pool() else { return self.come().await };
        let name = format!("{} {}", NAMES[self.below(NAMES.len())], self.number);
        self.perform(&pool, &name).await;
        if self.doubts.get() < self.world.doubts.get()
            && let Some(pool) = self.pool()
        {
            self.look_around(&pool);
        }
    }

    async fn perform(&self, pool: &Pool, name: &str) {
        match self.draw_operation() {
            0..3 => self.create(pool, name).await,
            3..5 => self.open(pool, name).await,
            5..7 => self.recut(pool, name).await,
            7..9 => self.own(pool, name, true).await,
            9 => self.own(pool, name, false).await,
            10..12 => self.drop_index(pool, name).await,
            12..14 => self.load(pool, name).await,
            14..16 => self.alloc(pool).await,
            16 => self.free(pool).await,
            17 => self.put_value(pool).await,
            18 => self.take_value(pool).await,
            19 => self.write_page(pool).await,
            20 => self.add_server(pool).await,
            21 if self.number > 0 => self.leave().await,
            22 if self.number > 0 && self.below(6) == 0 => self.die(),
            _ => drop(pool.learn(&self.ep).await),
        }
    }

    async fn come(&self) {
        let (pid, well) = (self.world.new_pid(), self.now_well());
        self.pid.set(pid);
        let attached = Pool::attach(&self.ep, self.world.attach_options(pid)).await;
        if self.world.somebody_died.get() && matches!(attached, Err(PoolError::NotClosedCleanly { .. })) {
            // All living processes have left, and only dead ones are in the attach table.
            return self.world.end(pid);
        }
        match self.judge_pool("attach", &attached, well) {
            Outcome::Done => *self.pool.borrow_mut() = attached.ok(),
            _ => {
                self.world.end(pid);
                self.world.somebody_died.set(true);
            }
        }
    }

    /// Detaches from the pool; repeats that until it succeeds.
    async fn leave(&self) {
        let Some(pool) = self.pool() else { return };
        loop {
            let well = self.now_well();
            let left = pool.detach(&self.ep).await;
            let is_excused = left.as_ref().is_err_and(|error| self.is_excused(error));
            match self.judge_pool("detach", &left, well) {
                Outcome::Done => break,
                _ if well && !is_excused => return,
                _ => self.pause().await,
            }
        }
        self.expect_no_lock(&pool);
        self.known.borrow_mut().left();
        *self.pool.borrow_mut() = None;
        self.world.end(self.pid.get());
        if let Some((at, content)) = self.page.take() {
            self.expect_page(at, content).await;
        }
    }

    /// Waits for a while, so that faults may end.
    pub(super) async fn pause(&self) {
        self.ep.sleep_until(self.ep.now() + PATIENT_NS / 8).await;
    }

    /// Ends without a detach. Its blocks stay allocated.
    fn die(&self) {
        self.world.note(format!("{} process {} dies", self.ep.now(), self.number));
        self.world.end(self.pid.get());
        self.world.leaks.set(true);
        self.world.somebody_died.set(true);
        *self.pool.borrow_mut() = None;
        self.blocks.borrow_mut().clear();
        self.values.borrow_mut().clear();
        self.page.set(None);
        // Its partitions are lost: they name an attach slot that this process will not have again.
        self.known.borrow_mut().left();
    }

    async fn create(&self, pool: &Pool, name: &str) {
        let parts = 1 + self.below(40);
        let spec = IndexSpec {
            name: name.to_owned(),
            system: 1,
            node_size: layout().0,
            subtree_level: 1,
            root: GlobalAddr::NULL,
            layout: vec![1],
            boundaries: cuts(parts),
        };
        let (well, is_own) = (self.now_well(), self.below(2) == 0);
        let made = match is_own {
            true => pool.create_own_index(&self.ep, spec).await,
            false => pool.create_index(&self.ep, spec).await,
        };
        if let Err(PoolError::IndexExists { .. }) = made {
            let mut known = self.known.borrow_mut();
            let index = known.index(name);
            let there: Vec<_> = index.states().iter().filter(|state| state.is_some()).cloned().collect();
            if there.is_empty() {
                self.world.wrong(format!("{name} exists, though it was never made"));
            }
            return;
        }
        let outcome = self.judge_pool(&format!("create {name:?}"), &made, well);
        let shape = Shape { root: 0, boundaries: cuts(parts), own: vec![is_own; parts] };
        // Success implies that the index did not exist before, so all states lead to the new one.
        self.known.borrow_mut().index(name).change(outcome, |_| Some(shape.clone()));
    }

    /// Opens an index and checks its record against the possible states. `None` if it does not exist or is
    /// unreadable.
    async fn look(&self, pool: &Pool, name: &str) -> Option<IndexRecord> {
        let well = self.now_well();
        let found = match pool.open_index(&self.ep, name).await {
            Err(PoolError::UnknownIndex { .. }) => Ok(None),
            found => found.map(Some),
        };
        if self.judge_pool(&format!("open {name:?}"), &found, well) != Outcome::Done {
            return None;
        }
        let record = found.ok().flatten();
        let shape = record.as_ref().map(|record| Shape::of(record, pool.slot()));
        if let Err(wrong) = self.known.borrow_mut().index(name).see(shape) {
            self.world.wrong(format!("index {name:?}: {wrong}"));
        }
        record
    }

    async fn open(&self, pool: &Pool, name: &str) {
        self.look(pool, name).await;
    }

    async fn recut(&self, pool: &Pool, name: &str) {
        let Some(mut record) = self.look(pool, name).await else { return };
        let parts = 1 + self.below(60);
        record.recut(cuts(parts), None);
        if self.below(2) == 0 {
            record.logs.reverse();
        }
        self.update(pool, &record).await;
    }

    async fn update(&self, pool: &Pool, record: &IndexRecord) -> Outcome {
        let well = self.now_well();
        let updated = pool.update_index(&self.ep, record).await;
        let outcome = self.judge_pool(&format!("update {:?}", record.name), &updated, well);
        let after = Some(Shape::of(record, pool.slot()));
        self.known.borrow_mut().index(&record.name).change(outcome, |_| after.clone());
        outcome
    }

    /// Claims or releases all partitions.
    async fn own(&self, pool: &Pool, name: &str, claims: bool) {
        let Some(record) = self.look(pool, name).await else { return };
        let all: Vec<usize> = (0..record.owners.len()).collect();
        let well = self.now_well();
        let done = match claims {
            true => pool.claim_partitions(&self.ep, name, &all).await,
            false => pool.release_partitions(&self.ep, name, &all).await,
        };
        if matches!(done, Err(PoolError::PartitionLost { .. })) {
            return;
        }
        let outcome = self.judge_pool(&format!("own {name:?}: {claims}"), &done, well);
        self.known.borrow_mut().index(name).change(outcome, |state| {
            let mut state = state.clone();
            if let Some(shape) = &mut state {
                shape.own.fill(claims);
            }
            state
        });
    }

    async fn drop_index(&self, pool: &Pool, name: &str) {
        let Some(record) = self.look(pool, name).await else { return };
        let well = self.now_well();
        let dropped = match pool.drop_index(&self.ep, name).await {
            // The index is of an earlier life, which died.
            Err(PoolError::PartitionLost { .. }) => pool.drop_lost_index(&self.ep, &record).await,
            done => done,
        };
        // Somebody has changed it since.
        if matches!(dropped, Err(PoolError::StaleRecord { .. })) {
            return;
        }
        let outcome = self.judge_pool(&format!("drop {name:?}"), &dropped, well);
        self.known.borrow_mut().index(name).change(outcome, |_| None);
        if !record.root.is_null() {
            self.world.leaks.set(true);
        }
    }

    /// Gives the index a root if it has none, and loads entries.
    async fn load(&self, pool: &Pool, name: &str) {
        let Some(mut record) = self.look(pool, name).await else { return };
        let (_, layout) = layout();
        if record.root.is_null() {
            let well = self.now_well();
            let made = Tree::create(&self.ep, pool, layout, record.id, &[]).await;
            self.judge_dex(&format!("a root for {name:?}"), &made, well);
            let Ok(root) = made else { return };
            record.root = root;
            self.known.borrow_mut().entries.insert(root.raw(), Possible::only(0));
            if self.update(pool, &record).await != Outcome::Done {
                // The record may point to the root, so the root is not freed and may leak.
                return self.world.leaks.set(true);
            }
        }
        let loaded = self.known.borrow().entries.get(&record.root.raw()).is_some_and(|of| of.states() == [0]);
        if loaded {
            self.fill(pool, &record, layout).await;
        }
    }

    async fn fill(&self, pool: &Pool, record: &IndexRecord, layout: FixedLayout) {
        let entries: Vec<_> = (0..LOADED).map(|n| ((n << 8).to_be_bytes(), n.to_be_bytes())).collect();
        let load = BulkLoad::new(layout, pool.clone(), record.id, record.subtree_level, &[]);
        let well = self.now_well();
        let mut may_be_linked = false;
        let loaded = async {
            let plan = load.plan(&entries.as_slice(), 1)?;
            let mut slices = Vec::new();
            for (number, range) in plan.iter().enumerate() {
                let slice =
                    load.load_slice(&self.ep, &entries.as_slice(), range.clone(), plan.len(), number).await?;
                slices.push(slice);
            }
            may_be_linked = true;
            load.finish(&self.ep, slices, record.root).await
        };
        let loaded = loaded.await;
        let mut outcome = self.judge_dex(&format!("load {:?}", record.name), &loaded, well);
        if !may_be_linked && outcome == Outcome::Perhaps {
            outcome = Outcome::NotDone;
        }
        let mut known = self.known.borrow_mut();
        let entries = known.entries.get_mut(&record.root.raw()).expect("just looked up");
        entries.change(outcome, |_| LOADED);
    }

    fn judge_dex<T>(&self, what: &str, done: &Result<T, DexError>, was_well: bool) -> Outcome {
        let is_excused = matches!(done, Err(DexError::Pool(error)) if self.is_excused(error));
        self.judge(what, done, was_well && !is_excused, DexError::may_have_taken_effect)
    }

    /// Adds a block to the owned ones.
    pub(super) fn take(&self, addr: GlobalAddr, size: u64) {
        if self.world.held.borrow_mut().insert(addr, size).is_some() {
            self.world.wrong(format!("the block at {addr} was handed out twice"));
        }
    }

    fn placement(&self, pool: &Pool) -> Placement {
        if self.world.often == Often::Servers && self.below(2) == 0 {
            // The server that joined last.
            return Placement::Server(MemoryServerId(pool.servers() as u16 - 1));
        }
        match self.below(pool.servers() + 1) {
            0 => Placement::LeastLoaded,
            server => Placement::Server(MemoryServerId(server as u16 - 1)),
        }
    }

    async fn alloc(&self, pool: &Pool) {
        let (size, well) = ([64, 256, 1024, 1280][self.below(4)], self.now_well());
        let got = pool.alloc(&self.ep, self.placement(pool), size).await;
        self.judge_pool("alloc", &got, well);
        if let Ok(addr) = got {
            self.take(addr, size);
            self.blocks.borrow_mut().push((addr, size));
        }
    }

    async fn free(&self, pool: &Pool) {
        let Some((addr, size)) = self.blocks.borrow_mut().pop() else { return };
        self.world.held.borrow_mut().remove(&addr);
        let well = self.now_well();
        let freed = pool.free(&self.ep, addr, size).await;
        if self.judge_pool("free", &freed, well) == Outcome::NotDone {
            self.take(addr, size);
            self.blocks.borrow_mut().push((addr, size));
        }
    }

    async fn put_value(&self, pool: &Pool) {
        let len = [10, 300, 5_000, 40_000][self.below(4)];
        let bytes: Vec<u8> = (0..len).map(|_| (self.random.next() >> 40) as u8).collect();
        let well = self.now_well();
        let put = pool.put_value(&self.ep, self.placement(pool), &bytes).await;
        self.judge_pool("put a value", &put, well);
        if let Ok(value) = put {
            self.take(value.addr, value.len);
            self.values.borrow_mut().push((value, bytes));
        }
    }

    /// Reads a value, checks it and frees it.
    async fn take_value(&self, pool: &Pool) {
        let Some((value, bytes)) = self.values.borrow_mut().pop() else { return };
        let (well, mut read) = (self.now_well(), Vec::new());
        let got = pool.get_value(&self.ep, value, &mut read).await;
        self.judge_pool("get a value", &got, well);
        if got.is_err() {
            return self.values.borrow_mut().push((value, bytes));
        }
        if read != bytes {
            self.world.wrong(format!("the value at {} has other bytes", value.addr));
        }
        self.world.held.borrow_mut().remove(&value.addr);
        let well = self.now_well();
        let freed = pool.free_value(&self.ep, value).await;
        // A value has several blocks; after an error some may be free.
        self.judge_pool("free a value", &freed, well);
    }

    async fn add_server(&self, pool: &Pool) {
        let world = self.world;
        if world.is_adding.get() || pool.servers() >= SERVERS_MAX {
            return;
        }
        world.is_adding.set(true);
        if pool.learn(&self.ep).await.is_ok() && pool.servers() < SERVERS_MAX {
            if self.ep.regions().len() <= pool.servers() {
                world.fabric.add_memory_server(REGION).expect("a small region");
            }
            let well = self.now_well();
            let added = pool.add_server(&self.ep, None).await;
            self.judge_pool("add a server", &added, well);
            world.doubts.set(world.doubts.get() + 1);
        }
        world.is_adding.set(false);
    }
}

fn cuts(parts: usize) -> Vec<Vec<u8>> {
    (1..parts).map(|at| (at as u32).to_be_bytes().to_vec()).collect()
}
