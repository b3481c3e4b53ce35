//! A run of the pool: concurrent processes, faults, and checks after all have ended.
//!
//! At rest only dead processes are in the attach table. The catalog is readable, and has each index in a
//! state that its process knows as possible. Each loaded tree has all entries or none, as recorded, and no
//! violation. Blocks of the catalog, a tree or a process have one owner and are allocated; without failures
//! and deaths, no other blocks are. After a death, a repair frees the others.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use pando_dex::audit::check_blocks;
use pando_fabric::{GlobalAddr, Nanos};
use pando_pool::{AttachMode, IndexRecord, Pool, PoolOptions};
use pando_rt::block_on;
use pando_sim::{Fault, FaultBounds, SimConfig, SimEndpoint, SimFabric};

use super::check::{Judged, Kind, Violation};
use super::cluster::ClusterError;
use super::faults::end_of;
use super::pool_audit::{Used, twice_or_free, walk};
use super::pool_case::{PATIENT_NS, PoolCase, REGION};
use super::pool_model::Shape;
use super::pool_process::{Process, World};
use super::setup::{Setup, random_of};

/// Approximate time of a step of a process without faults, in ns.
const STEP_NS: f64 = 60_000.0;

/// Runs the pool of `setup`.
pub fn run_pool(setup: &Setup, case: PoolCase) -> Result<Judged, ClusterError> {
    let fabric = SimFabric::new(&SimConfig {
        regions: vec![REGION; setup.memory_servers],
        compute_servers: case.processes,
        seed: setup.seed,
        model: setup.model(),
    })?;
    let world = World {
        fabric,
        wait_ns: case.wait_ns,
        often: case.often,
        alive: Arc::new(Mutex::new(Vec::new())),
        held: RefCell::default(),
        violations: RefCell::default(),
        log: RefCell::default(),
        hash: Cell::new(setup.seed),
        operations: Cell::new(0),
        failed: Cell::new(0),
        doubts: Cell::new(0),
        calm: Cell::new(0),
        is_adding: Cell::new(false),
        leaks: Cell::new(false),
        somebody_died: Cell::new(false),
    };
    let processes: Vec<_> = (0..case.processes)
        .map(|number| {
            let ep = world.fabric.thread(number, setup.seed.wrapping_mul(100) + number as u64);
            let random = random_of(setup.seed, &format!("process {number} of the pool"));
            Process::new(&world, number, ep, random)
        })
        .collect();
    // The first process formats the pool and stays: after a death, others may attach only while a living
    // process is attached.
    let first = &processes[0];
    first.pid.set(world.new_pid());
    let options = PoolOptions::new(world.attach_options(first.pid.get())).chunk_size(16 << 10);
    *first.pool.borrow_mut() = Some(block_on(&first.ep, Pool::create(&first.ep, options))?);
    plan_faults(setup, case, &world);
    let endpoints: Vec<_> = processes.iter().map(|process| &process.ep).collect();
    world.fabric.run(&endpoints, 1, |thread, _| processes[thread].live(case.steps));
    if world.violations.borrow().is_empty() {
        let ep = world.fabric.direct(setup.seed);
        let at_rest = AtRest { world: &world, processes: &processes, ep: &ep };
        if let Err(error) = at_rest.check() {
            world.wrong(format!("at rest: {error}"));
        }
    }
    let told = |(what, excerpt)| Violation { kind: Kind::Audit, what, excerpt };
    Ok(Judged {
        operations: world.operations.get(),
        failed: world.failed.get(),
        ended: world.fabric.now(),
        hash: world.hash.get(),
        violations: world.violations.take().into_iter().take(5).map(told).collect(),
    })
}

fn plan_faults(setup: &Setup, case: PoolCase, world: &World) {
    let began = world.fabric.now();
    let span = (case.steps as f64 * STEP_NS * setup.latency_scale) as Nanos;
    let mut usual = setup.model().faults;
    usual.lost_answer_share = case.lost_share;
    let bounds = FaultBounds {
        compute_servers: case.processes,
        memory_servers: setup.memory_servers,
        from: began + 1,
        until: began + 2 + span,
        faults: 0,
        usual,
    };
    let until = bounds.until;
    let mut plan = setup.faults.plan(&random_of(setup.seed, "faults of the run"), bounds);
    if case.lost_share > 0.0 {
        plan.faults.insert(0, (began + 1, Fault::LostAnswers { share: case.lost_share }));
        plan.faults.push((until, Fault::LostAnswers { share: 0.0 }));
    }
    world.fabric.plan(&plan);
    // After the last fault, leftovers may take as long as the most patient process waits.
    world.calm.set(end_of(&plan).max(began) + 4 * PATIENT_NS);
}

/// Checks of the pool after all processes have ended.
struct AtRest<'w> {
    world: &'w World,
    processes: &'w [Process<'w>],
    ep: &'w SimEndpoint,
}

impl AtRest<'_> {
    fn check(&self) -> Result<(), ClusterError> {
        let ep = self.ep;
        // 1. Only dead processes are in the attach table.
        let looking = self.world.attach_options(self.world.new_pid()).mode(AttachMode::ReadOnlyUnclean);
        let pool = block_on(ep, Pool::attach(ep, looking))?;
        let left = block_on(ep, pool.attached(ep))?;
        for (slot, process) in &left {
            if self.processes.iter().any(|of| of.pid.get() == process.pid && of.pool.borrow().is_some()) {
                self.world.wrong(format!("{process} in place {slot} has not left"));
            }
        }
        // 2. The catalog and the values are as the processes know them.
        let records: BTreeMap<String, IndexRecord> = block_on(ep, pool.list_indexes(ep))?
            .into_iter()
            .map(|record| (record.name.clone(), record))
            .collect();
        self.compare(&records);
        self.look_at_values(&pool)?;
        let wrong = |what| self.world.wrong(format!("at rest: {what}"));
        // 3. Each block of the catalog, a process or an index has one owner and is allocated.
        let mut used = Used::new();
        block_on(ep, pool.visit_catalog_blocks(ep, |addr, bytes| used.push((addr, bytes))))?;
        for process in self.processes {
            used.extend(process.blocks());
            for (value, _) in process.values() {
                block_on(ep, pool.visit_value_blocks(ep, value, |addr, bytes| used.push((addr, bytes))))?;
            }
        }
        for record in records.values().filter(|record| !record.root.is_null()) {
            let report = block_on(ep, walk(ep, &pool, record))?;
            used.extend(report.blocks.iter());
            for process in self.processes.iter().filter(|process| process.has_index(&record.name)) {
                process.compare_entries(record, &report).into_iter().for_each(wrong);
            }
        }
        // Checked before a repair, which would correct it.
        block_on(ep, twice_or_free(ep, &pool, used.clone()))?.into_iter().for_each(wrong);
        // 4. No other block is allocated, or a repair frees it.
        match left.is_empty() {
            true => self.account(&used),
            false => self.repair(used),
        }
    }

    /// Checks that the catalog matches the possible states of all processes.
    fn compare(&self, records: &BTreeMap<String, IndexRecord>) {
        let mut known_names = 0;
        for process in self.processes {
            let mut known = process.known.borrow_mut();
            for (name, index) in &mut known.indexes {
                let record = records.get(name);
                known_names += usize::from(record.is_some());
                if let Err(wrong) = index.see(record.map(|record| Shape::of(record, None))) {
                    self.world.wrong(format!("index {name:?}, at rest: {wrong}"));
                }
            }
        }
        if known_names != records.len() {
            self.world.wrong(format!("{} indexes, of which {known_names} are known", records.len()));
        }
    }

    fn look_at_values(&self, pool: &Pool) -> Result<(), ClusterError> {
        for process in self.processes {
            for (value, bytes) in process.values() {
                let mut read = Vec::new();
                block_on(self.ep, pool.get_value(self.ep, value, &mut read))?;
                if read != bytes {
                    self.world.wrong(format!("the value at {} has other bytes, at rest", value.addr));
                }
            }
        }
        Ok(())
    }

    /// Checks that used blocks are allocated once, and that no others are, unless an operation failed.
    fn account(&self, used: &[(GlobalAddr, u64)]) -> Result<(), ClusterError> {
        let pid = self.world.new_pid();
        let pool = block_on(self.ep, Pool::attach(self.ep, self.world.attach_options(pid)))?;
        let leaks = self.world.leaks.get() || self.world.failed.get() > 0;
        for what in block_on(self.ep, check_blocks(self.ep, &pool, &mut [], used))? {
            // Pages stay allocated when their processes leave.
            if !what.contains("belong to nothing") || !leaks && self.pages() == 0 {
                self.world.wrong(what);
            }
        }
        block_on(self.ep, pool.detach(self.ep))?;
        Ok(())
    }

    fn pages(&self) -> usize {
        self.world.held.borrow().values().filter(|&&size| size == super::pool_case::PAGE).count()
    }

    /// After a death: checks that the pool refuses to attach, and that a repair corrects its allocation.
    fn repair(&self, used: Used) -> Result<(), ClusterError> {
        let (ep, world) = (self.ep, self.world);
        let options = |mode| world.attach_options(world.new_pid()).mode(mode);
        if block_on(ep, Pool::attach(ep, options(AttachMode::ReadWrite))).is_ok() {
            world.wrong("a pool in which somebody died counts as clean".to_owned());
        }
        let repairing = block_on(ep, Pool::attach(ep, options(AttachMode::Repair)))?;
        let mut catalog = Vec::new();
        block_on(ep, repairing.visit_catalog_blocks(ep, |addr, _| catalog.push(addr)))?;
        let reachable = used.iter().copied().filter(|(addr, _)| !catalog.contains(addr));
        block_on(ep, repairing.rebuild_allocation(ep, reachable))?;
        block_on(ep, repairing.detach(ep))?;
        let pool = block_on(ep, Pool::attach(ep, options(AttachMode::ReadWrite)))?;
        block_on(ep, check_blocks(ep, &pool, &mut [], &used))?.into_iter().for_each(|what| world.wrong(what));
        Ok(block_on(ep, pool.detach(ep))?)
    }
}
