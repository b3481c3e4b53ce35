//! A process stops for good between any two verbs of a catalog change, or within a WRITE. Others find the
//! catalog whole, in the state before or after the change, and can change it further.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::SeqCst;

use crate::support::{Ep, Host, Memory, block_on, lost};
use pando_fabric::{GlobalAddr, MemoryServerId};
use pando_pool::{AttachMode, IndexRecord, Placement, Pool, PoolOptions, Result as PoolResult};

/// Indexes of the catalog before the change.
const INDEXES: usize = 13;
/// Entries of one directory.
const DIRECTORY: usize = 29;

type Change = fn(&Pool, &Ep) -> PoolResult<()>;

const CHANGES: [(&str, Change); 8] = [
    ("create", |pool, ep| block_on(pool.create_index(ep, lost::spec("new", 2))).map(drop)),
    ("create in a new directory", |pool, ep| {
        for number in INDEXES..DIRECTORY {
            block_on(pool.create_index(ep, lost::spec(&format!("more {number}"), 1)))?;
        }
        block_on(pool.create_index(ep, lost::spec("new", 2))).map(drop)
    }),
    ("drop", |pool, ep| block_on(pool.drop_index(ep, "index 7")).map(drop)),
    ("move a root", |pool, ep| {
        let mut record = block_on(pool.open_index(ep, "index 3"))?;
        record.root = GlobalAddr::new(MemoryServerId(0), 1 << 16);
        block_on(pool.update_index(ep, &record)).map(drop)
    }),
    ("more partitions", |pool, ep| {
        let mut record = block_on(pool.open_index(ep, "index 3"))?;
        record.recut((1..60).map(|at| vec![at; 20]).collect(), None);
        block_on(pool.update_index(ep, &record)).map(drop)
    }),
    ("claim", |pool, ep| block_on(pool.claim_partitions(ep, "index 9", &[0, 2])).map(drop)),
    ("release", |pool, ep| block_on(pool.release_partitions(ep, "held", &[0])).map(drop)),
    ("release all and leave", |pool, ep| block_on(pool.detach(ep))),
];

/// The records as text; the version stands for the owners.
fn described(records: Vec<IndexRecord>) -> BTreeSet<String> {
    records.iter().map(|record| format!("{record:?}")).collect()
}

struct Life {
    memory: std::sync::Arc<Memory>,
    host: Host,
    first: Pool,
    second: Pool,
}

impl Life {
    fn new() -> Self {
        let (memory, host) = (Memory::new(&[1 << 20]), Host::new());
        let ep = &memory.endpoint(1);
        let first = block_on(Pool::create(ep, PoolOptions::new(host.options(1)))).expect("create");
        for number in 0..INDEXES {
            let name = if number == 0 { "held".into() } else { format!("index {number}") };
            block_on(first.create_index(ep, lost::spec(&name, 3))).expect("room");
        }
        block_on(first.claim_partitions(ep, "held", &[0, 1])).expect("no owner");
        let second = block_on(Pool::attach(ep, host.options(2))).expect("attach");
        Self { memory, host, first, second }
    }

    fn list(&self) -> BTreeSet<String> {
        let ep = &self.memory.endpoint(3);
        described(block_on(self.second.list_indexes(ep)).expect("a catalog that can be read"))
    }
}

/// The catalog before and after `change`, and the number of its verbs.
fn states(change: Change) -> ([BTreeSet<String>; 2], u64) {
    let life = Life::new();
    let ep = &life.memory.endpoint(1);
    let before = life.list();
    ep.lose(u64::MAX);
    change(&life.first, ep).expect("nothing stands in the way");
    ([before, life.list()], ep.answers.get())
}

/// How a writer stopped.
struct Stopped {
    had_done_all: bool,
    within_a_write: bool,
}

/// Stops the writer after `verbs` verbs and `torn` words of the next one.
fn stop(name: &str, change: Change, verbs: u64, torn: usize, states: &[BTreeSet<String>]) -> Stopped {
    let life = Life::new();
    let ep = &life.memory.endpoint(1);
    ep.torn.set(torn);
    ep.fail_after.set(verbs);
    let had_done_all = change(&life.first, ep).is_ok() && ep.fail_after.get() > 0;
    let within_a_write = ep.torn.take() == 0;
    ep.fail_after.set(0);
    life.host.kill(1);
    let what = || format!("{name}, after {verbs} verbs and {torn} words");
    // A reader of an unclean pool ignores the lock.
    let looking = life.host.options(5).mode(AttachMode::ReadOnlyUnclean);
    let other = &life.memory.endpoint(5);
    let looking =
        block_on(Pool::attach(other, looking)).unwrap_or_else(|error| panic!("{}: {error}", what()));
    let seen = block_on(looking.list_indexes(other)).unwrap_or_else(|error| panic!("{}: {error}", what()));
    let seen = described(seen);
    // Changes that consist of several steps are whole after each step.
    let steps = name.starts_with("create in") || name.starts_with("release all");
    assert!(steps || states.contains(&seen), "{}: neither the old state nor the new one", what());
    assert_eq!(life.list(), seen, "{}: taking the lock over changed something", what());
    go_on(&life, &what());
    Stopped { had_done_all, within_a_write }
}

/// Others change the catalog, and none of its blocks is free.
fn go_on(life: &Life, what: &str) {
    let ep = &life.memory.endpoint(2);
    let pool = &life.second;
    let mut taken = BTreeSet::new();
    for size in [64, 1024, 1280] {
        let at = block_on(pool.alloc(ep, Placement::LeastLoaded, size)).expect("room");
        (0..size / 8).for_each(|word| life.memory.word(at.add(word * 8)).store(0xabab, SeqCst));
        taken.insert(at);
    }
    block_on(pool.create_index(ep, lost::spec("next", 2))).expect("room");
    block_on(pool.claim_partitions(ep, "next", &[1])).expect("no owner");
    block_on(pool.release_partitions(ep, "next", &[1])).expect("own");
    block_on(pool.claim_partitions(ep, "index 11", &[2])).expect("no owner");
    block_on(pool.drop_index(ep, "index 12")).expect("no owner");
    let mut catalog = BTreeSet::new();
    block_on(pool.visit_catalog_blocks(ep, |addr, _| assert!(catalog.insert(addr)))).expect("a catalog");
    assert!(catalog.is_disjoint(&taken), "{what}: a block of the catalog was handed out");
    let indexes = block_on(pool.list_indexes(ep)).expect("a catalog").len();
    block_on(pool.detach(ep)).expect("detach");
    let repairing = life.host.options(4).mode(AttachMode::Repair);
    let repairing = block_on(Pool::attach(ep, repairing)).expect("no live process");
    let report = block_on(repairing.rebuild_allocation(ep, [])).expect("a catalog");
    assert_eq!(report.blocks, catalog.len() as u64, "{what}: a rebuild finds what the catalog has");
    block_on(repairing.detach(ep)).expect("detach");
    let again = block_on(Pool::attach(ep, life.host.options(6))).expect("clean");
    let records = block_on(again.list_indexes(ep)).expect("a catalog");
    assert!(records.len() == indexes && records.iter().all(|of| of.owners.iter().all(Option::is_none)));
}

#[test]
fn a_repair_reads_what_the_holder_of_the_lock_left() {
    let (name, change) = CHANGES[0];
    let (states, verbs) = states(change);
    for verb in 0..verbs {
        let life = Life::new();
        let ep = &life.memory.endpoint(1);
        ep.fail_after.set(verb);
        let _ = change(&life.first, ep);
        ep.fail_after.set(0);
        [1, 2].into_iter().for_each(|process| life.host.kill(process));
        let ep = &life.memory.endpoint(4);
        let repairing = life.host.options(4).mode(AttachMode::Repair);
        let repairing = block_on(Pool::attach(ep, repairing)).expect("no live process");
        let seen = described(block_on(repairing.list_indexes(ep)).expect("a catalog"));
        assert!(states.contains(&seen), "{name}, after {verb} verbs: neither the old state nor the new one");
    }
}

#[test]
fn a_writer_that_stops_leaves_the_old_state_or_the_new_one() {
    for (name, change) in CHANGES {
        let (states, verbs) = states(change);
        // Of many changes, only the last one matters.
        let first = verbs.saturating_sub(40);
        let mut stopped = 0;
        for verb in first..first + 200 {
            // One word, half of a copy, all but its end, and nothing.
            let mut how = stop(name, change, verb, 1, &states);
            for torn in [40, 90, 0] {
                if how.within_a_write {
                    how = stop(name, change, verb, torn, &states);
                }
            }
            stopped += 1;
            if how.had_done_all {
                break;
            }
        }
        assert!((6..200).contains(&stopped), "{name}: {stopped} verbs");
    }
}
