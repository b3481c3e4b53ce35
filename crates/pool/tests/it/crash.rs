//! A machine crashes between any two verbs, and any pages may be on disk besides the persisted ones. The pool
//! is then seen to be unclean, or is whole, as it was last closed. The catalog of an unclean one is as it was
//! before or after a change.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::support::{Ep, Host, Memory, block_on};
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{AttachMode, IndexSpec, Placement, Pool, PoolError, PoolOptions, ValueRef};

const SEEDS: u64 = 12;
const ATTACHMENTS: usize = 3;
const BLOCKS: usize = 40;

/// Possible results of a crash at this moment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// No pool, a half-formatted one, or an empty one.
    Creating,
    /// Only an unclean pool.
    Attached,
    /// Everything of this number of attachments, or an unclean pool.
    AttachingOrDetaching(usize),
    /// Everything of this number of attachments.
    Clean(usize),
}

impl Phase {
    fn note(self, memory: &Memory) {
        let number = match self {
            Phase::Creating => 0,
            Phase::Attached => 1,
            Phase::AttachingOrDetaching(attachments) => 2 * attachments + 2,
            Phase::Clean(attachments) => 2 * attachments + 3,
        };
        memory.phase.store(number as u64, SeqCst);
    }

    fn of(number: u64) -> Phase {
        match number as usize {
            0 => Phase::Creating,
            1 => Phase::Attached,
            even if even % 2 == 0 => Phase::AttachingOrDetaching(even / 2 - 1),
            odd => Phase::Clean(odd / 2 - 1),
        }
    }
}

/// Objects that an attachment left behind.
struct Stored {
    name: String,
    value: ValueRef,
    bytes: Vec<u8>,
}

fn name(attachment: usize) -> String {
    format!("index {attachment}")
}

/// Creates a pool and attaches to it several times.
fn live(ep: &Ep, host: &Host) -> Vec<Stored> {
    let mut stored: Vec<Stored> = Vec::new();
    for attachment in 0..ATTACHMENTS {
        let options = host.options(1);
        let pool = match attachment {
            0 => block_on(Pool::create(ep, PoolOptions::new(options).chunk_size(1 << 14))),
            _ => block_on(Pool::attach(ep, options)),
        };
        let pool = pool.expect("nothing stands in the way");
        Phase::Attached.note(&ep.memory);
        stored.push(change(ep, &pool, attachment));
        Phase::AttachingOrDetaching(attachment + 1).note(&ep.memory);
        block_on(pool.detach(ep)).expect("detaches");
        Phase::Clean(attachment + 1).note(&ep.memory);
        // Verbs without changes let time pass.
        for _ in 0..4 {
            block_on(ep.read_word(GlobalAddr::new(MemoryServerId(0), 0))).expect("a READ");
        }
        Phase::AttachingOrDetaching(attachment + 1).note(&ep.memory);
    }
    stored
}

fn change(ep: &Ep, pool: &Pool, attachment: usize) -> Stored {
    for block in 0..BLOCKS {
        let at = block_on(pool.alloc(ep, Placement::LeastLoaded, 1024)).expect("room");
        if block % 3 == 0 {
            block_on(pool.free(ep, at, 1024)).expect("it is allocated");
        }
    }
    let bytes: Vec<u8> = (0..6_000).map(|at| (at * 7 + attachment) as u8).collect();
    let value = block_on(pool.put_value(ep, Placement::LeastLoaded, &bytes)).expect("room");
    let spec = IndexSpec {
        name: name(attachment),
        system: 1,
        node_size: 1024,
        subtree_level: 3,
        root: value.addr,
        layout: Vec::new(),
        boundaries: vec![b"m".to_vec()],
    };
    block_on(pool.create_index(ep, spec)).expect("room");
    Stored { name: name(attachment), value, bytes }
}

/// Attaches to the state after a crash and judges the result.
fn judge(phase: Phase, left: &Arc<Memory>, host: &Host, stored: &[Stored]) -> &'static str {
    let ep = left.endpoint(77);
    match (block_on(Pool::attach(&ep, host.options(2))), phase) {
        (
            Err(PoolError::NotClosedCleanly { .. }),
            Phase::Attached | Phase::AttachingOrDetaching(_) | Phase::Creating,
        ) => {
            legible(&ep, host, phase, stored);
            "unclean"
        }
        (
            Err(
                PoolError::NotAPool { .. }
                | PoolError::DamagedSuperblock { .. }
                | PoolError::ForeignRegion { .. },
            ),
            Phase::Creating,
        ) => "no pool",
        (Ok(pool), Phase::Creating) => {
            assert!(block_on(pool.list_indexes(&ep)).expect("a catalog").is_empty());
            "empty"
        }
        (Ok(pool), Phase::AttachingOrDetaching(_) | Phase::Clean(_)) => {
            whole(&ep, &pool, phase, stored);
            "whole"
        }
        (Ok(_), Phase::Attached) => panic!("a crash while a process was attached looks like a clean end"),
        (Err(error), _) => panic!("{phase:?}: {error}"),
    }
}

/// The catalog of an unclean pool can be read, and has a first part of the indexes.
fn legible(ep: &Ep, host: &Host, phase: Phase, stored: &[Stored]) {
    let pool = block_on(Pool::attach(ep, host.options(2).mode(AttachMode::ReadOnlyUnclean)));
    let mut names: Vec<_> = block_on(pool.expect("a complete pool").list_indexes(ep))
        .expect("a catalog")
        .into_iter()
        .map(|index| index.name)
        .collect();
    names.sort();
    assert!(stored.iter().map(|stored| &stored.name).take(names.len()).eq(&names), "{names:?}");
    if let Phase::AttachingOrDetaching(closed) = phase {
        assert_eq!(names.len(), closed, "each change was persisted when it was answered");
    }
}

/// Everything of some number of attachments is there, and the pool works.
fn whole(ep: &Ep, pool: &Pool, phase: Phase, stored: &[Stored]) {
    let indexes = block_on(pool.list_indexes(ep)).expect("a catalog");
    let attachments = indexes.len();
    let (Phase::AttachingOrDetaching(closed) | Phase::Clean(closed)) = phase else { unreachable!() };
    assert_eq!(attachments, closed, "what was closed is all there");
    let mut blocks = Vec::new();
    block_on(pool.visit_allocated(ep, |addr, _| blocks.push(addr))).expect("sound bitmaps");
    assert!(blocks.len() > attachments * BLOCKS * 2 / 3 && blocks.is_sorted_by(|a, b| a != b));
    for stored in &stored[..attachments] {
        assert!(indexes.iter().any(|index| index.name == stored.name));
        let mut bytes = Vec::new();
        block_on(pool.get_value(ep, stored.value, &mut bytes))
            .expect("it was stored before the pool was closed");
        assert_eq!(bytes, stored.bytes);
        block_on(pool.free_value(ep, stored.value)).expect("it is allocated");
    }
    block_on(pool.detach(ep)).expect("detaches");
}

#[test]
fn a_crash_leaves_an_unclean_pool_or_a_whole_one() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 1..=SEEDS {
        for crash_after in 0.. {
            let memory = Memory::new(&[256 << 10, 256 << 10]);
            memory.crash_after.store(crash_after, SeqCst);
            let host = Host::new();
            let stored = live(&memory.endpoint(seed), &host);
            let Some((left, phase)) = memory.crashed.lock().expect("no panic").take() else { break };
            host.kill(1);
            *seen.entry(judge(Phase::of(phase), &left, &host, &stored)).or_insert(0) += 1;
        }
    }
    println!("{seen:?}");
    for outcome in ["no pool", "unclean", "whole"] {
        assert!(seen.contains_key(outcome), "no crash ended in `{outcome}`: {seen:?}");
    }
}
