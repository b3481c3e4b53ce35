//! Real processes over one pool in mapped files. A test starts this binary again for each further process,
//! with its task in the environment.

use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;

use pando_fabric::{Endpoint, Fabric, GlobalAddr};
use pando_fabric_local::{HugePages, LocalEndpoint, ShmConfig, ShmFabric, process_alive, this_process};
use pando_pool::{
    AttachMode, AttachOptions, IndexSpec, Placement, Pool, PoolError, PoolOptions, ProcessIdentity,
};
use pando_rt::block_on;

const TASK: &str = "PANDO_POOL_TEST_TASK";
const PATH: &str = "PANDO_POOL_TEST_PATH";
const BLOCKS: usize = 1500;

fn options() -> AttachOptions {
    let (pid, start_time) = this_process();
    let process = ProcessIdentity { pid, start_time, host: 0 };
    let is_alive = Arc::new(|process: &ProcessIdentity| process_alive(process.pid, process.start_time));
    AttachOptions::new(process, is_alive).wait_ns_max(60_000_000_000)
}

fn create(path: &Path) -> (LocalEndpoint, Pool) {
    let config = ShmConfig { servers: 2, bytes_per_server: 4 << 20, huge_pages: HugePages::WhenOffered };
    let ep = ShmFabric::create(path, config).expect("create files").endpoint(1).expect("endpoint");
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::new(options()))).expect("create pool");
    (ep, pool)
}

fn start(path: &Path, task: &str) -> Child {
    let exe = std::env::current_exe().expect("own path");
    let arguments = ["--exact", "two_processes::a_further_process", "--nocapture"];
    Command::new(exe).args(arguments).env(TASK, task).env(PATH, path).spawn().expect("start")
}

fn spec(name: &str, root: GlobalAddr) -> IndexSpec {
    IndexSpec {
        name: name.to_owned(),
        system: 0,
        node_size: 1024,
        subtree_level: 3,
        root,
        layout: Vec::new(),
        boundaries: vec![b"m".to_vec()],
    }
}

#[test]
fn a_further_process() {
    let (Ok(task), Ok(path)) = (std::env::var(TASK), std::env::var(PATH)) else { return };
    let ep = ShmFabric::open(path, false)
        .expect("open")
        .endpoint(u64::from(std::process::id()))
        .expect("endpoint");
    let pool = block_on(&ep, Pool::attach(&ep, options())).expect("attach");
    match task.as_str() {
        "dies" => {
            block_on(&ep, pool.alloc(&ep, Placement::LeastLoaded, 1024)).expect("room");
            std::process::exit(0);
        }
        "a" => exchange(&ep, &pool, "a", "b"),
        _ => exchange(&ep, &pool, "b", "a"),
    }
}

/// Allocates a list of blocks, stores its head in the catalog, and frees the list of the other process.
fn exchange(ep: &LocalEndpoint, pool: &Pool, mine: &str, theirs: &str) {
    let mut head = GlobalAddr::NULL;
    for _ in 0..BLOCKS {
        let block = block_on(ep, pool.alloc(ep, Placement::LeastLoaded, 1024)).expect("room");
        block_on(ep, ep.write_word(block, head.raw())).expect("write");
        head = block;
    }
    block_on(ep, pool.create_index(ep, spec(mine, head))).expect("room");
    block_on(ep, pool.claim_partitions(ep, mine, &[0])).expect("free");
    let mut block = loop {
        match block_on(ep, pool.open_index(ep, theirs)) {
            Ok(record) => break record.root,
            Err(PoolError::UnknownIndex { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    let (mut freed, mut own) = (0, Vec::new());
    while !block.is_null() {
        let next = block_on(ep, ep.read_word(block)).expect("read");
        block_on(ep, pool.free(ep, block, 1024)).expect("allocated");
        block = GlobalAddr::from_raw(next).expect("an address");
        freed += 1;
        if let Ok(block) = block_on(ep, pool.alloc(ep, Placement::LeastLoaded, 4096)) {
            own.push(block);
        }
    }
    assert_eq!(freed, BLOCKS);
    for block in own {
        block_on(ep, pool.free(ep, block, 4096)).expect("allocated");
    }
    block_on(ep, pool.detach(ep)).expect("detach");
    assert_eq!(pool.stray_frees().0, 0);
}

#[test]
fn two_processes_free_each_others_blocks() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("pool");
    let (ep, pool) = create(&path);
    for mut child in [start(&path, "a"), start(&path, "b")] {
        assert!(child.wait().expect("runs").success());
    }
    for record in block_on(&ep, pool.list_indexes(&ep)).expect("list") {
        assert_eq!(record.owners, [None, None]);
        block_on(&ep, pool.drop_index(&ep, &record.name)).expect("known");
    }
    let mut catalog = Vec::new();
    block_on(&ep, pool.visit_catalog_blocks(&ep, |addr, _| catalog.push(addr))).expect("catalog");
    let mut allocated = Vec::new();
    block_on(&ep, pool.visit_allocated(&ep, |addr, _| allocated.push(addr))).expect("visit");
    assert_eq!(allocated, catalog);
}

#[test]
fn a_process_that_ends_without_detaching_leaves_an_unclean_pool() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("pool");
    let (ep, pool) = create(&path);
    assert!(start(&path, "dies").wait().expect("runs").success());
    block_on(&ep, pool.detach(&ep)).expect("detach");
    let refused = block_on(&ep, Pool::attach(&ep, options())).err().expect("unclean");
    assert!(matches!(refused, PoolError::NotClosedCleanly { .. }), "{refused}");

    let read_only = ShmFabric::open(&path, true).expect("open").endpoint(1).expect("endpoint");
    let looking = options().mode(AttachMode::ReadOnlyUnclean);
    let looking = block_on(&read_only, Pool::attach(&read_only, looking)).expect("may look");
    assert!(block_on(&read_only, looking.list_indexes(&read_only)).expect("list").is_empty());
    block_on(&read_only, looking.usage(&read_only)).expect("usage");

    let repair = options().mode(AttachMode::Repair);
    let repaired = block_on(&ep, Pool::attach(&ep, repair)).expect("alone");
    let report = block_on(&ep, repaired.rebuild_allocation(&ep, [])).expect("rebuilt");
    assert_eq!((report.blocks, report.chunks_freed, report.processes_cleared), (0, 1, 1));
    block_on(&ep, repaired.detach(&ep)).expect("detach");
    block_on(&ep, Pool::attach(&ep, options())).expect("clean");
}
