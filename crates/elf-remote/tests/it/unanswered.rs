//! Verbs of a publication that fail: after each of them in turn, readers see the old image or the new one, and no
//! block is lost or freed twice.

/// A fabric with injected faults, as in the tests of `pando-pool`.
#[path = "../../../pool/tests/it/support/mod.rs"]
#[allow(dead_code, reason = "not all of it is needed here")]
pub mod support;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::common::{allocated, build};
use pando_elf::{BuildOptions, CodeTable, Elf, LayoutKind, Predicate};
use pando_elf_remote::{PublishOptions, Published, Publisher, ReadOptions, Reader, RemoteError};
use pando_fabric::{DynEndpoint, Endpoint};
use pando_pool::{AttachOptions, Pool, PoolOptions};
use support::{Ep, Memory, block_on};

const OPTIONS: PublishOptions =
    PublishOptions { piece_bytes: 256, stripe_bytes: 1 << 12, home: None, grace_ns: 0, attempts_max: 4 };
/// Rows of the images.
const OLD: u32 = 1_000;
const NEW: u32 = 1_500;

fn elf(rows: u32) -> Elf {
    let column = |factor: u32| (0..rows).map(|i| i * factor % 97).collect();
    let table = CodeTable::new(vec![column(3), column(11), column(31)]).expect("even columns");
    build(&table, &[0, 1, 2], LayoutKind::Columnar, &BuildOptions::default())
}

struct Life {
    memory: Arc<Memory>,
    ep: DynEndpoint,
    pool: Pool,
    publisher: Publisher,
    /// Blocks that are not of images.
    others: BTreeSet<u64>,
}

impl Life {
    /// The faults of the endpoint.
    fn faults(&self) -> &Ep {
        self.ep.as_type()
    }

    fn new() -> Self {
        let memory = Memory::new(&[1 << 20, 1 << 20]);
        let ep = DynEndpoint::new(memory.endpoint(7));
        let options =
            PoolOptions::new(AttachOptions::embedded().wait_ns_max(500_000_000).verbs_take_ns(1_000_000));
        let pool = block_on(Pool::create(&ep, options)).expect("a pool");
        let publisher = block_on(Publisher::open(&ep, pool.clone(), "elf", OPTIONS)).expect("opened");
        let mut life = Self { memory, ep, pool, publisher, others: BTreeSet::new() };
        life.others = allocated(&life.ep, &life.pool);
        block_on(life.publisher.publish(&life.ep, &elf(OLD))).expect("room");
        life
    }

    /// Number of rows that a reader sees, which READs all of the image.
    fn rows(&self) -> u32 {
        let ep = DynEndpoint::new(self.memory.endpoint(8));
        let reader = Reader::new(self.pool.clone(), "elf", ReadOptions::default());
        let ids = block_on(reader.ids::<u32, _>(&ep, &Predicate::all())).expect("no error").value;
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        ids.len() as u32
    }

    /// Checks the outcome of a publication, of which `lossy` says whether blocks may be lost.
    fn check(&self, done: Option<&Result<Published, RemoteError>>, lossy: bool, what: &str) {
        let rows = self.rows();
        match done {
            Some(Ok(_)) => assert_eq!(rows, NEW, "{what}"),
            Some(Err(error)) if !error.may_have_taken_effect() => assert_eq!(rows, OLD, "{what}: {error}"),
            _ => assert!(rows == OLD || rows == NEW, "{what}: {rows}"),
        }
        let left = block_on(self.publisher.settle(&self.ep, 1_000_000_000)).expect("no error");
        assert_eq!((left, self.rows()), (0, rows), "{what}");
        let image = block_on(self.publisher.blocks(&self.ep)).expect("no error");
        let image: BTreeSet<u64> = image.iter().map(|(addr, _)| addr.raw()).collect();
        let all = allocated(&self.ep, &self.pool);
        assert!(image.is_subset(&all), "{what}: blocks of the image are free");
        let known = image.len() + self.others.len() + self.publisher.doubtful().len();
        assert!(lossy || all.len() == known, "{what}: {} blocks are allocated, {known} are known", all.len());
        // Everything works again.
        block_on(self.publisher.publish(&self.ep, &elf(NEW + 1))).expect("room");
        assert_eq!(self.rows(), NEW + 1, "{what}");
    }
}

#[test]
fn an_answer_is_lost() {
    for without_effect in [false, true] {
        for verb in 0.. {
            let life = Life::new();
            life.faults().without_effect.set(without_effect);
            life.faults().lose(verb);
            let done = block_on(life.publisher.publish(&life.ep, &elf(NEW)));
            if !life.faults().lose_no_more() {
                assert!(verb > 20, "only {verb} verbs");
                break;
            }
            life.check(Some(&done), false, &format!("verb {verb}, without effect: {without_effect}"));
        }
    }
}

#[test]
fn all_verbs_fail_from_one_on() {
    for verb in 0.. {
        let life = Life::new();
        life.faults().fail_after.set(verb);
        life.faults().torn.set(9);
        let done = block_on(life.publisher.publish(&life.ep, &elf(NEW)));
        let has_ended = life.faults().fail_after.replace(u64::MAX) > 0;
        life.check(Some(&done), false, &format!("verb {verb}"));
        if has_ended {
            assert!(verb > 20 && done.is_ok(), "only {verb} verbs");
            break;
        }
    }
}

/// The verb takes effect, but nothing tells whether it did before everything works again.
#[test]
pub fn an_answer_is_lost_and_all_verbs_fail_behind_it() {
    let mut unknown = 0;
    for verb in 0.. {
        let life = Life::new();
        life.faults().lose(verb);
        life.faults().fail_after.set(verb + 1);
        let done = block_on(life.publisher.publish(&life.ep, &elf(NEW)));
        life.faults().fail_after.set(u64::MAX);
        if !life.faults().lose_no_more() {
            assert!(verb > 20 && unknown > 0, "only {verb} verbs, {unknown} of them undecided");
            break;
        }
        unknown += u32::from(done.as_ref().is_err_and(RemoteError::may_have_taken_effect));
        life.check(Some(&done), false, &format!("verb {verb}"));
    }
}

#[test]
fn a_publication_is_dropped_anywhere() {
    for polls in 0.. {
        let life = Life::new();
        life.faults().always_yield.set(true);
        let new = elf(NEW);
        let has_ended = {
            let mut publication = pin!(life.publisher.publish(&life.ep, &new));
            let mut context = Context::from_waker(Waker::noop());
            (0..polls).any(|_| matches!(publication.as_mut().poll(&mut context), Poll::Ready(Ok(_))))
        };
        life.faults().always_yield.set(false);
        // The verbs of the dropped future rest before its lock is given back.
        while life.pool.has_left_locks() {
            block_on(life.pool.give_back_left_locks(&life.ep)).expect("no error");
            block_on(life.ep.yield_now());
        }
        // A long value of the pool that is dropped stays allocated.
        life.check(None, true, &format!("dropped after {polls} polls"));
        if has_ended {
            assert!(polls > 10);
            break;
        }
    }
}
