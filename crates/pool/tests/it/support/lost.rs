//! Pool operations in which one verb gets no answer, whether it took effect or not, and the conditions that
//! must hold afterwards. Each is called for verb 0, 1, ... in turn, and returns `None` once it has no such
//! verb.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Waker};

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{IndexSpec, Placement, Pool, PoolError, PoolOptions, Result as PoolResult, ServerState};

use super::{Ep, Host, Memory, block_on};

/// `Err` describes the violation.
pub type Checked = Option<Result<(), String>>;

/// The verb that gets no answer.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    pub verb: u64,
    /// Whether it takes no effect either; the caller cannot tell.
    pub without_effect: bool,
}

impl Loss {
    fn of(self, ep: &Ep) {
        ep.without_effect.set(self.without_effect);
        ep.lose(self.verb);
    }
}

const HERE: Placement = Placement::Server(MemoryServerId(0));
const JOINED: Placement = Placement::Server(MemoryServerId(1));

pub fn spec(name: &str, partitions: u8) -> IndexSpec {
    IndexSpec {
        name: name.to_owned(),
        system: 1,
        node_size: 1024,
        subtree_level: 3,
        root: GlobalAddr::NULL,
        layout: vec![1],
        boundaries: (1..partitions).map(|at| vec![at]).collect(),
    }
}

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}

fn said<T>(what: &str, done: PoolResult<T>) -> Result<T, String> {
    done.map_err(|error| format!("{what}: {error}"))
}

/// A change of the catalog, and a check whether it was done.
pub struct Change {
    pub name: &'static str,
    run: fn(&Pool, &Ep) -> PoolResult<()>,
    is_done: fn(&Pool, &Ep) -> PoolResult<bool>,
}

fn has(pool: &Pool, ep: &Ep, name: &str) -> PoolResult<bool> {
    Ok(block_on(pool.list_indexes(ep))?.iter().any(|record| record.name == name))
}

fn owner_of(pool: &Pool, ep: &Ep, name: &str) -> PoolResult<bool> {
    Ok(block_on(pool.open_index(ep, name))?.owners[0].is_some())
}

pub const CHANGES: [Change; 5] = [
    Change {
        name: "create",
        run: |pool, ep| block_on(pool.create_index(ep, spec("new", 2))).map(drop),
        is_done: |pool, ep| has(pool, ep, "new"),
    },
    Change {
        name: "drop",
        run: |pool, ep| block_on(pool.drop_index(ep, "old")).map(drop),
        is_done: |pool, ep| has(pool, ep, "old").map(|has| !has),
    },
    Change {
        name: "update",
        run: |pool, ep| {
            let mut record = block_on(pool.open_index(ep, "old"))?;
            record.recut((1..60).map(|at| vec![at; 20]).collect(), None);
            block_on(pool.update_index(ep, &record)).map(drop)
        },
        is_done: |pool, ep| Ok(block_on(pool.open_index(ep, "old"))?.owners.len() == 60),
    },
    Change {
        name: "claim",
        run: |pool, ep| block_on(pool.claim_partitions(ep, "old", &[0, 1])).map(drop),
        is_done: |pool, ep| owner_of(pool, ep, "old"),
    },
    Change {
        name: "release",
        run: |pool, ep| block_on(pool.release_partitions(ep, "held", &[0])).map(drop),
        is_done: |pool, ep| owner_of(pool, ep, "held").map(|is_owned| !is_owned),
    },
];

/// Allocates and overwrites blocks as another user would.
fn scribble(pool: &Pool, ep: &Ep) -> Result<BTreeSet<GlobalAddr>, String> {
    let mut taken = BTreeSet::new();
    for size in [64, 640, 1024, 80, 1280] {
        let at = said("alloc", block_on(pool.alloc(ep, HERE, size)))?;
        (0..size / 8).for_each(|word| ep.memory.word(at.add(word * 8)).store(0xabab, SeqCst));
        ensure(taken.insert(at), || format!("{at} was handed out twice"))?;
    }
    Ok(taken)
}

/// Loses an answer to a change of the catalog.
pub fn change(change: &Change, loss: Loss) -> Checked {
    change_with_patience(change, loss, 20_000_000)
}

/// The same for all verbs, for a process without time to retry: the outcome stays unknown to it.
pub fn each_without_answers(change: &Change) -> Result<u64, String> {
    // Without retries, a verb that took no effect may rightly leave the lock set.
    let with_effect = |loss: Loss| (!loss.without_effect).then_some(loss);
    each(change.name, |loss| change_with_patience(change, with_effect(loss)?, 0))
}

fn change_with_patience(change: &Change, loss: Loss, wait_ns_max: u64) -> Checked {
    let memory = Memory::new(&[1 << 20]);
    let (ep, host) = (&memory.endpoint(1), Host::new());
    let options = host.options(1).wait_ns_max(wait_ns_max);
    let pool = &block_on(Pool::create(ep, PoolOptions::new(options))).expect("create");
    for name in ["old", "held"] {
        block_on(pool.create_index(ep, spec(name, 3))).expect("room");
    }
    block_on(pool.claim_partitions(ep, "held", &[0])).expect("no owner");
    loss.of(ep);
    let done = (change.run)(pool, ep);
    if !ep.lose_no_more() {
        return None;
    }
    Some((|| {
        let taken = scribble(pool, ep)?;
        let is_done = said("look", (change.is_done)(pool, ep))?;
        match done {
            Ok(()) => ensure(is_done, || "it says that it is done, and it is not".into())?,
            Err(error) if !is_done || error.may_have_taken_effect() => {}
            Err(error) => return Err(format!("it is done, and says: {error}")),
        }
        said("the next change", block_on(pool.create_index(ep, spec("next", 2))))?;
        let (mut catalog, mut allocated) = (BTreeSet::new(), BTreeSet::new());
        said("catalog", block_on(pool.visit_catalog_blocks(ep, |addr, _| catalog.extend([addr]))))?;
        said("bitmaps", block_on(pool.visit_allocated(ep, |addr, _| allocated.extend([addr]))))?;
        ensure(catalog.is_disjoint(&taken), || "a block of the catalog was handed out".into())?;
        ensure(catalog.is_subset(&allocated), || "a block of the catalog is free".into())?;
        said("detach", block_on(pool.detach(ep)))?;
        let again = said("attach", block_on(Pool::attach(ep, host.options(2))))?;
        said("list", block_on(again.list_indexes(ep))).map(drop)
    })())
}

fn with_room_for_another() -> Arc<Memory> {
    let memory = Memory::new(&[1 << 20; 2]);
    let one = memory.without_last(1);
    let pool = block_on(Pool::create(&one.endpoint(1), PoolOptions::embedded())).expect("create");
    block_on(pool.detach(&one.endpoint(1))).expect("detach");
    memory.copy_region(&one, 0);
    memory
}

/// All verbs of an addition fail from one of them on. Another process attaches and uses the server; then the
/// addition is repeated.
pub fn add_server(loss: Loss) -> Checked {
    let memory = with_room_for_another();
    let (ep, host) = (&memory.endpoint(1), Host::new());
    let pool = block_on(Pool::attach(ep, host.options(1).wait_ns_max(2_000_000))).expect("attach");
    ep.fail_after.set(loss.verb);
    let done = block_on(pool.add_server(ep, None));
    let was_cut = ep.fail_after.replace(u64::MAX) == 0;
    if !was_cut {
        return None;
    }
    Some((|| {
        let other_ep = &memory.endpoint(2);
        let late = host.options(2).wait_ns_max(2_000_000);
        let other = said("attach", block_on(Pool::attach(other_ep, late)))?;
        let theirs = match other.servers() {
            1 => None,
            _ => Some(said("alloc", block_on(other.alloc(other_ep, JOINED, 1024)))?),
        };
        if done.is_err() {
            let again = said("add_server again", block_on(pool.add_server(ep, None)))?;
            ensure(again == MemoryServerId(1), || format!("added as {again}"))?;
        }
        let ours = said("alloc", block_on(pool.alloc(ep, JOINED, 1024)))?;
        ensure(Some(ours) != theirs, || "one block was handed out to two processes".into())?;
        said("learn", block_on(other.learn(other_ep)))?;
        ensure(other.servers() == 2, || "others do not learn of the server".into())?;
        said("detach", block_on(pool.detach(ep)))?;
        said("detach", block_on(other.detach(other_ep)))
    })())
}

/// Loses the answers of joining and leaving, one at a time: each step is done, and others learn of it.
pub fn membership(loss: Loss) -> Checked {
    let memory = with_room_for_another();
    let (ep, host) = (&memory.endpoint(1), Host::new());
    let (pool, other) = (
        block_on(Pool::attach(ep, host.options(1))).expect("attach"),
        block_on(Pool::attach(ep, host.options(2))).expect("attach"),
    );
    let server = MemoryServerId(1);
    let mut was_lost = false;
    let mut step = |what: &str, run: &dyn Fn() -> PoolResult<()>, state| {
        loss.of(ep);
        let done = run();
        was_lost |= ep.lose_no_more();
        if done.is_err() {
            said(what, run())?;
        }
        said("learn", block_on(other.learn(ep)))?;
        let found = said("state", other.server_state(server))?;
        ensure(found == state, || format!("after {what} others see {found:?}"))
    };
    let done = (|| {
        step("add", &|| block_on(pool.add_server(ep, None)).map(drop), ServerState::Active)?;
        step("drain", &|| block_on(pool.drain_server(ep, server)), ServerState::Draining)?;
        step("finish", &|| block_on(pool.finish_drain(ep, server)), ServerState::Drained)?;
        step("readmit", &|| block_on(pool.readmit_server(ep, server)), ServerState::Active)
    })();
    was_lost.then_some(done)
}

/// Loses an answer to attaching, and then one to detaching.
pub fn attach(loss: Loss) -> Checked {
    let memory = Memory::new(&[1 << 20]);
    let (ep, host) = (&memory.endpoint(1), Host::new());
    let pool = block_on(Pool::create(ep, PoolOptions::new(host.options(1)))).expect("create");
    block_on(pool.create_index(ep, spec("an index", 2))).expect("room");
    block_on(pool.detach(ep)).expect("detach");
    loss.of(ep);
    let attached = block_on(Pool::attach(ep, host.options(2)));
    let was_lost = ep.lose_no_more();
    Some((|| {
        if let Ok(pool) = &attached {
            said("claim", block_on(pool.claim_partitions(ep, "an index", &[1])))?;
            let block = said("alloc", block_on(pool.alloc(ep, HERE, 1024)))?;
            loss.of(ep);
            let left = block_on(pool.detach(ep));
            let was_lost_too = ep.lose_no_more();
            if left.is_err() {
                said("detach again", block_on(pool.detach(ep)))?;
            }
            let other = said("attach", block_on(Pool::attach(ep, host.options(3))))?;
            said("free", block_on(other.free(ep, block, 1024)))?;
            said("detach", block_on(other.detach(ep)))?;
            if !was_lost && !was_lost_too {
                return Err("none".into());
            }
        }
        // A process that failed to attach has left nothing when it ends.
        host.kill(2);
        said("a clean pool", block_on(Pool::attach(ep, host.options(4)))).map(drop)
    })())
    .filter(|done| *done != Err("none".into()))
}

/// Loses an answer while a process without time to retry releases a partition and detaches. The next process,
/// in the same attach slot, can change the catalog.
pub fn detach(loss: Loss) -> Checked {
    let memory = Memory::new(&[1 << 20]);
    let (ep, host) = (&memory.endpoint(1), Host::new());
    let pool = block_on(Pool::create(ep, PoolOptions::new(host.options(1).wait_ns_max(0)))).expect("create");
    block_on(pool.create_own_index(ep, spec("an index", 2))).expect("room");
    loss.of(ep);
    let left = block_on(pool.detach(ep));
    if !ep.lose_no_more() {
        return None;
    }
    Some((|| {
        if left.is_err() {
            said("detach again", block_on(pool.detach(ep)))?;
        }
        let next = said("attach", block_on(Pool::attach(ep, host.options(2))))?;
        said("the next change", block_on(next.create_index(ep, spec("next", 2))))?;
        said("detach", block_on(next.detach(ep)))
    })())
}

/// Loses an answer while a process detaches. Another one allocates in the chunk that was released, or may
/// have been, before the first retries.
pub fn release(loss: Loss) -> Checked {
    let memory = Memory::new(&[1 << 20]);
    let (ep, host) = (&memory.endpoint(1), Host::new());
    let pool = block_on(Pool::create(ep, PoolOptions::new(host.options(1).wait_ns_max(0)))).expect("create");
    let other = block_on(Pool::attach(ep, host.options(2))).expect("attach");
    let mut taken: BTreeSet<_> =
        (0..3).map(|_| block_on(pool.alloc(ep, HERE, 1024)).expect("room")).collect();
    loss.of(ep);
    let left = block_on(pool.detach(ep));
    if !ep.lose_no_more() {
        return None;
    }
    Some((|| {
        said("look", block_on(other.refresh_loads(ep)))?;
        for _ in 0..3 {
            let at = said("alloc", block_on(other.alloc(ep, HERE, 1024)))?;
            ensure(taken.insert(at), || format!("{at} was handed out twice"))?;
        }
        said("detach", block_on(other.detach(ep)))?;
        if left.is_err() {
            said("detach again", block_on(pool.detach(ep)))?;
        }
        let again = said("attach", block_on(Pool::attach(ep, host.options(3))))?;
        let mut allocated = BTreeSet::new();
        said("bitmaps", block_on(again.visit_allocated(ep, |addr, _| allocated.extend([addr]))))?;
        ensure(allocated == taken, || "other blocks are allocated than those that were taken".into())
    })())
}

/// Drops the future of a write to a locked page, then closes the pool.
pub fn detach_owing() -> Result<(), String> {
    let memory = Memory::new(&[1 << 20]);
    let (ep, host) = (&memory.endpoint(1), Host::new());
    let pool = block_on(Pool::create(ep, PoolOptions::new(host.options(1)))).expect("create");
    let at = block_on(pool.alloc(ep, HERE, 256)).expect("room");
    (0..32).for_each(|word| memory.word(at.add(word * 8)).store(u64::from(word > 0), SeqCst));
    let deadline = ep.now() + 1_000_000_000;
    let lock = said("lock", block_on(pool.lock(ep, at, deadline)))?;
    let page = ep.buffer(256);
    (0..32).for_each(|word| page.set(word, 2));
    ep.always_yield.set(true);
    {
        let mut unlocking = pin!(lock.write_unlock(ep, &page, deadline));
        let mut context = Context::from_waker(Waker::noop());
        assert!(unlocking.as_mut().poll(&mut context).is_pending());
    }
    ep.always_yield.set(false);
    said("detach", block_on(pool.detach(ep)))?;
    let (word, content) = (memory.word(at).load(SeqCst), memory.word(at.add(8)).load(SeqCst));
    ensure(word >> 63 == 0 && content == 2, || "closed cleanly, with a page that is owed".into())
}

/// Loses an answer while a long value is stored, read and freed, in several blocks and in chunks of two
/// processes.
pub fn value(loss: Loss) -> Checked {
    let memory = Memory::new(&[1 << 20]);
    let (ep, host) = (&memory.endpoint(1), Host::new());
    let pool = block_on(Pool::create(ep, PoolOptions::new(host.options(1)))).expect("create");
    let other = block_on(Pool::attach(ep, host.options(2))).expect("attach");
    let bytes: Vec<u8> = (0..40_000).map(|at| (at * 7) as u8).collect();
    let theirs = block_on(other.put_value(ep, HERE, &bytes)).expect("room");
    loss.of(ep);
    let put = block_on(pool.put_value(ep, HERE, &bytes));
    let freed = block_on(pool.free_value(ep, theirs));
    let mut read = Vec::new();
    let got = put.as_ref().ok().map(|&value| block_on(pool.get_value(ep, value, &mut read)));
    if !ep.lose_no_more() {
        return None;
    }
    Some((|| {
        let taken = scribble(&pool, ep)?;
        ensure(freed.as_ref().err().is_none_or(PoolError::may_have_taken_effect), || {
            "a value that is not free".into()
        })?;
        if let Some(Ok(())) = got {
            ensure(read == bytes, || "other bytes were read".into())?;
        }
        let mut blocks = BTreeSet::new();
        if let Ok(value) = put {
            said("get", block_on(pool.get_value(ep, value, &mut read)))?;
            ensure(read == bytes, || "the value has other bytes".into())?;
            said("visit", block_on(pool.visit_value_blocks(ep, value, |addr, _| blocks.extend([addr]))))?;
            ensure(blocks.is_disjoint(&taken), || "a block of the value was handed out".into())?;
        }
        said("detach", block_on(other.detach(ep)))?;
        said("detach", block_on(pool.detach(ep)))?;
        let again = said("attach", block_on(Pool::attach(ep, host.options(3))))?;
        let mut allocated = BTreeSet::new();
        said("bitmaps", block_on(again.visit_allocated(ep, |addr, _| allocated.extend([addr]))))?;
        ensure(blocks.is_subset(&allocated), || "a block of the value is free".into())?;
        let left = allocated.len() - blocks.len() - taken.len();
        ensure(left == 0 || freed.is_err(), || format!("{left} blocks belong to nothing"))
    })())
}

/// Runs all verbs, with and without effect; returns the first violation.
pub fn each(what: &str, check: impl Fn(Loss) -> Checked) -> Result<u64, String> {
    for verb in 0.. {
        let mut is_over = true;
        for without_effect in [false, true] {
            let loss = Loss { verb, without_effect };
            if let Some(done) = check(loss) {
                is_over = false;
                done.map_err(|error| format!("{what}, {loss:?}: {error}"))?;
            }
        }
        if is_over {
            return Ok(verb);
        }
    }
    unreachable!("operations end")
}
