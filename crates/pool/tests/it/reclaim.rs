//! A process that keeps bitmaps dies while others go on: another one takes its chunks over and frees its place. No block that
//! is in use is handed out, those that others freed are, and locks of the dead process stay abandoned.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando_fabric::{Endpoint, Fabric, GlobalAddr, MemoryServerId, PageBuf};
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_pool::{AttachOptions, IndexSpec, Placement, Pool, PoolError, PoolOptions, ProcessIdentity};
use pando_rt::block_on;

const BLOCK: u64 = 1024;

/// Processes up to this number are dead.
struct World {
    ep: LocalEndpoint,
    dead: Arc<AtomicU64>,
}

impl World {
    fn new(seed: u64, max_attached: usize) -> (Self, Pool) {
        let config = LocalConfig { server_sizes: vec![4 << 20; 2], huge_pages: false };
        let ep = LocalFabric::new(config).expect("memory").endpoint(seed).expect("an endpoint");
        let world = Self { ep, dead: Arc::default() };
        let options = PoolOptions::new(world.options(1000, true)).max_attached(max_attached);
        let pool = block_on(&world.ep, Pool::create(&world.ep, options)).expect("a pool");
        (world, pool)
    }

    fn options(&self, pid: u32, keeps: bool) -> AttachOptions {
        let dead = Arc::clone(&self.dead);
        let is_alive = move |process: &ProcessIdentity| u64::from(process.pid) > dead.load(Relaxed);
        AttachOptions::new(ProcessIdentity { pid, start_time: 1, host: 1 }, Arc::new(is_alive))
            .wait_ns_max(20_000_000)
            .keeps_bitmaps(keeps)
    }

    fn attach(&self, pid: u32) -> Pool {
        block_on(&self.ep, Pool::attach(&self.ep, self.options(pid, true))).expect("there is a place")
    }

    fn below(&self, bound: u64) -> u64 {
        self.ep.random() % bound
    }

    fn kill(&self, pid: u32) {
        self.dead.store(u64::from(pid), Relaxed);
    }
}

fn spec(name: &str, root: GlobalAddr) -> IndexSpec {
    let (system, node_size, subtree_level, layout) = (0, BLOCK as u32, 3, vec![0; 40]);
    IndexSpec {
        name: name.to_owned(),
        system,
        node_size,
        subtree_level,
        root,
        layout,
        boundaries: Vec::new(),
    }
}

/// Blocks of a process that is about to die.
#[derive(Default)]
struct Blocks {
    used: BTreeSet<GlobalAddr>,
    /// Those that are in no stored bitmap. A log has them, also those that were freed since.
    fresh: BTreeSet<GlobalAddr>,
}

/// Blocks are allocated and freed by a process that dies and, in part, by one that lives.
async fn work(world: &World, dies: &Pool, lives: &Pool) -> Blocks {
    let (ep, mut blocks) = (&world.ep, Blocks::default());
    for _ in 0..world.below(400) {
        match world.below(12) {
            0..=6 => {
                let placement = Placement::Server(MemoryServerId(world.below(2) as u16));
                let at = dies.alloc(ep, placement, BLOCK).await.expect("room");
                blocks.used.insert(at);
                blocks.fresh.insert(at);
            }
            7..=8 => {
                let number = world.below(1 + blocks.used.len() as u64) as usize;
                let Some(at) = blocks.used.iter().nth(number).copied() else { continue };
                let by = if world.below(2) == 0 { dies } else { lives };
                by.free(ep, at, BLOCK).await.expect("it is allocated");
                blocks.used.remove(&at);
            }
            9 => {
                dies.store_bitmaps(ep).await.expect("memory");
                blocks.fresh.clear();
            }
            10 if world.below(8) == 0 => {
                let name = format!("{}", world.below(1 << 60));
                dies.create_index(ep, spec(&name, GlobalAddr::NULL)).await.expect("room");
            }
            _ => {}
        }
    }
    blocks
}

/// Processes live and die, and another one goes on with what they leave.
fn live_and_die(seed: u64) -> Result<(), String> {
    let (world, lives) = World::new(seed, 4);
    let ep = &world.ep;
    for pid in 1..12 {
        let dies = world.attach(pid);
        let slot = dies.slot().expect("it may write");
        let Blocks { used, fresh } = block_on(ep, work(&world, &dies, &lives));
        world.kill(pid);
        let reclaimed = block_on(ep, async {
            let blocks = fresh.iter().map(|&at| (at, BLOCK));
            lives.mark_allocated(ep, slot, blocks).await.expect("memory");
            lives.reclaim(ep, slot).await.expect("memory")
        });
        let mut wrong = Vec::new();
        if !reclaimed || lives.stray_frees().0 > 0 {
            wrong.push(format!("{reclaimed}, {:?}", lives.stray_frees()));
        }
        for &at in &used {
            if block_on(ep, lives.is_allocated(ep, at, BLOCK)).expect("memory") != Some(true) {
                wrong.push(format!("{at} is in use and free"));
            }
        }
        // Whatever is handed out is overwritten.
        let mut got = Vec::new();
        while let Ok(at) = block_on(ep, lives.alloc(ep, Placement::LeastLoaded, BLOCK)) {
            block_on(ep, ep.write(at, PageBuf::zeroed(BLOCK as usize))).expect("memory");
            got.push(at);
        }
        let records = block_on(ep, lives.list_indexes(ep)).map_err(|error| error.to_string())?;
        if got.iter().any(|at| used.contains(at)) {
            wrong.push("blocks in use were handed out".to_owned());
        }
        if block_on(ep, lives.processes(ep)).expect("memory").len() > 1 {
            wrong.push("the dead process is still there".to_owned());
        }
        for at in used.into_iter().chain(got) {
            wrong.extend(block_on(ep, lives.free(ep, at, BLOCK)).err().map(|error| error.to_string()));
        }
        for record in records {
            block_on(ep, lives.drop_index(ep, &record.name)).map_err(|error| error.to_string())?;
        }
        if !wrong.is_empty() {
            return Err(format!("process {pid}: {wrong:?}"));
        }
    }
    Ok(())
}

/// After a process died that had locked something, others take its place in the table again and again.
fn leave_a_lock() -> Result<(), String> {
    let (world, lives) = World::new(3, 2);
    let ep = &world.ep;
    let at = block_on(ep, lives.alloc(ep, Placement::LeastLoaded, 64)).expect("room");
    block_on(ep, ep.write_word(at, 0)).expect("memory");
    let dies = world.attach(1);
    let slot = dies.slot().expect("it may write");
    std::mem::forget(block_on(ep, dies.lock(ep, at, u64::MAX)).expect("it is free"));
    world.kill(1);
    for pid in 2..300 {
        let dead = block_on(ep, lives.processes(ep)).expect("memory");
        let dead = dead.iter().find(|other| !other.is_alive).expect("it is dead").slot;
        assert!(block_on(ep, lives.reclaim(ep, dead)).expect("memory"));
        let next = world.attach(pid);
        if !block_on(ep, next.is_abandoned(ep, slot)).expect("memory") {
            return Err(format!("process {pid} counts as the one that died"));
        }
        world.kill(pid);
    }
    let taken = block_on(ep, lives.take_over(ep, at, slot)).expect("memory");
    taken.map(|lock| block_on(ep, lock.unlock(ep, u64::MAX)).expect("memory")).ok_or("it is not locked")?;
    Ok(())
}

#[test]
fn what_a_dead_process_leased_is_used_again_and_nothing_that_is_in_use() {
    (0..60).try_for_each(live_and_die).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_lock_of_a_dead_process_is_nobody_elses() {
    leave_a_lock().unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn it_is_not_time_as_long_as_an_heir_is_awaited_or_bitmaps_are_unknown() {
    let (world, lives) = World::new(1, 4);
    let ep = &world.ep;
    let root = block_on(ep, lives.alloc(ep, Placement::LeastLoaded, BLOCK)).expect("room");
    block_on(ep, lives.create_index(ep, spec("n", root))).expect("room");
    let [owner, unknown] =
        [true, false].map(|keeps| block_on(ep, Pool::attach(ep, world.options(1, keeps))).expect("a place"));
    block_on(ep, owner.claim_partitions(ep, "n", &[0])).expect("it is nobody's");
    let reclaim = |of: &Pool| block_on(ep, lives.reclaim(ep, of.slot().expect("it may write")));
    assert!(!reclaim(&owner).expect("memory"), "it lives");
    world.kill(1);
    assert!(
        !reclaim(&owner).expect("memory")
            && !reclaim(&unknown).expect("memory")
            && !reclaim(&lives).expect("memory")
    );
    let lost = block_on(ep, lives.claim_partitions(ep, "n", &[0]));
    assert!(matches!(lost, Err(PoolError::PartitionLost { .. })), "{lost:?}");
    block_on(ep, lives.inherit_partitions(ep, "n", &[0])).expect("it is dead");
    assert!(reclaim(&owner).expect("memory") && !reclaim(&owner).expect("memory"));
    assert_eq!(block_on(ep, lives.processes(ep)).expect("memory").len(), 2);
}

#[cfg(feature = "defects")]
#[test]
fn each_defect_is_found() {
    use pando_fabric::defect::with_defect;
    use pando_pool::defect::OfReclaim;
    for defect in [OfReclaim::Unstored, OfReclaim::CatalogUnmarked] {
        let found = (0..200).find_map(|seed| {
            let run = || std::panic::catch_unwind(|| live_and_die(seed));
            with_defect(Some(defect), run)
                .map_or(Some((seed, "a panic".to_owned())), |done| Some((seed, done.err()?)))
        });
        println!("{defect:?}: {:?}", found.expect("it is found"));
    }
    println!("{:?}", with_defect(Some(OfReclaim::SameGeneration), leave_a_lock).expect_err("it is found"));
}
