//! Verbs of changes of a table that fail: after each of them in turn, readers see the table before or after the
//! change, and no block is lost or freed twice.

use pando_fabric::DynEndpoint;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::common::allocated;
use crate::tables::{encoded, spec};
use crate::unanswered::support::{Ep, Memory, block_on};
use pando_elf::LayoutKind;
use pando_elf_remote::{
    Condition, PublishOptions, ReadOptions, RemoteError, TableOptions, TableReader, TableWriter, table_blocks,
};
use pando_pool::{AttachOptions, Pool, PoolError, PoolOptions};

const PUBLISH: PublishOptions =
    PublishOptions { piece_bytes: 256, stripe_bytes: 1 << 12, home: None, grace_ns: 0, attempts_max: 4 };
/// Rows before and after each change.
const OLD: u64 = 300;

#[derive(Clone, Copy, Debug)]
enum Change {
    Insert,
    Delete,
    Merge,
    Drop,
    Create,
}

struct Life {
    memory: Arc<Memory>,
    ep: DynEndpoint,
    pool: Pool,
    writer: TableWriter,
    /// Blocks that are not of the table.
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
        let attach = AttachOptions::embedded().wait_ns_max(500_000_000).verbs_take_ns(1_000_000);
        let pool = block_on(Pool::create(&ep, PoolOptions::new(attach))).expect("a pool");
        let options = TableOptions { join_rows: 0, ..TableOptions::default() };
        let writer = TableWriter::new(pool.clone(), "t", PUBLISH, options).expect("valid options");
        block_on(writer.create(&ep, &spec(LayoutKind::Columnar, 8), None, false)).expect("room");
        let mut life = Self { memory, ep, pool, writer, others: BTreeSet::new() };
        for first in [0, 1] {
            let rows: Vec<_> = (0..OLD as i64 / 2).map(|i| (i % 7, Some(first), i as i32)).collect();
            block_on(life.writer.insert(&life.ep, &encoded(&rows))).expect("room");
        }
        block_on(life.writer.settle(&life.ep, 1_000_000_000)).expect("no error");
        life.others = allocated(&life.ep, &life.pool);
        let table = life.of_table();
        life.others.retain(|addr| !table.contains(addr));
        life
    }

    fn of_table(&self) -> BTreeSet<u64> {
        match block_on(self.pool.open_index(&self.ep, "t")) {
            Err(PoolError::UnknownIndex { .. }) => BTreeSet::new(),
            record => {
                let record = record.expect("no error");
                let blocks = block_on(table_blocks(&self.ep, &self.pool, &record)).expect("no error");
                blocks.iter().map(|(addr, _)| addr.raw()).collect()
            }
        }
    }

    /// Number of rows that a reader sees, and of parts; `None` without a table.
    fn seen(&self) -> Option<(u64, usize)> {
        let ep = DynEndpoint::new(self.memory.endpoint(8));
        let reader = TableReader::new(self.pool.clone(), "t", ReadOptions::default());
        let ids = match block_on(reader.ids(&ep, &Condition::all())) {
            Err(RemoteError::Pool(PoolError::UnknownIndex { .. })) => return None,
            ids => ids.expect("no error").value,
        };
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
        let parts = block_on(reader.info(&ep)).expect("no error").value.parts.len();
        Some((ids.len() as u64, parts))
    }

    fn run(&self, change: Change) -> Result<(), RemoteError> {
        let (ep, writer) = (&self.ep, &self.writer);
        let new: Vec<_> = (0..100).map(|i| (i % 7, Some(9), i as i32)).collect();
        match change {
            Change::Insert => block_on(writer.insert(ep, &encoded(&new))).map(drop),
            Change::Delete => {
                let reader = TableReader::new(self.pool.clone(), "t", ReadOptions::default());
                block_on(writer.delete(ep, &reader, &Condition::sql("n = 3"))).map(drop)
            }
            Change::Merge => block_on(writer.merge(ep, true)).map(drop),
            Change::Drop => block_on(writer.drop_table(ep)).map(drop),
            Change::Create => block_on(writer.create(ep, &spec(LayoutKind::Linear, 1), None, true)).map(drop),
        }
    }

    /// What a reader sees after the change.
    fn expected(change: Change) -> Option<(u64, usize)> {
        match change {
            Change::Insert => Some((OLD + 100, 3)),
            Change::Delete => Some((OLD - 42, 2)),
            Change::Merge => Some((OLD, 1)),
            Change::Drop => None,
            Change::Create => Some((0, 0)),
        }
    }

    fn check(&self, change: Change, done: &Result<(), RemoteError>, what: &str) {
        let (old, new, seen) = (Some((OLD, 2)), Self::expected(change), self.seen());
        match done {
            Ok(()) => assert_eq!(seen, new, "{what}"),
            Err(error) if !error.may_have_taken_effect() => assert_eq!(seen, old, "{what}: {error}"),
            Err(_) => assert!(seen == old || seen == new, "{what}: {seen:?}"),
        }
        let left = block_on(self.writer.settle(&self.ep, 1_000_000_000)).expect("no error");
        assert_eq!((left, self.seen()), (0, seen), "{what}");
        let (table, all) = (self.of_table(), allocated(&self.ep, &self.pool));
        assert!(table.is_subset(&all), "{what}: blocks of the table are free");
        let given_up: BTreeSet<u64> = self.writer.doubtful().iter().map(|(addr, _)| addr.raw()).collect();
        let lost: Vec<_> = all
            .iter()
            .filter(|addr| !table.contains(addr) && !self.others.contains(addr) && !given_up.contains(addr))
            .collect();
        assert!(lost.is_empty(), "{what}: {lost:x?} are lost");
    }
}

const CHANGES: [Change; 5] = [Change::Insert, Change::Delete, Change::Merge, Change::Drop, Change::Create];

#[test]
pub fn an_answer_of_a_change_is_lost() {
    for change in CHANGES {
        for without_effect in [false, true] {
            for verb in 0.. {
                let life = Life::new();
                life.faults().without_effect.set(without_effect);
                life.faults().lose(verb);
                let done = life.run(change);
                if !life.faults().lose_no_more() {
                    assert!(verb > 10, "only {verb} verbs");
                    break;
                }
                life.check(
                    change,
                    &done,
                    &format!("{change:?}, verb {verb}, without effect: {without_effect}"),
                );
            }
        }
    }
}

#[test]
fn all_verbs_of_a_change_fail_from_one_on() {
    for change in CHANGES {
        for verb in 0.. {
            let life = Life::new();
            life.faults().fail_after.set(verb);
            life.faults().torn.set(9);
            let done = life.run(change);
            let has_ended = life.faults().fail_after.replace(u64::MAX) > 0;
            life.check(change, &done, &format!("{change:?}, verb {verb}"));
            if has_ended {
                assert!(verb > 10 && done.is_ok(), "only {verb} verbs");
                break;
            }
        }
    }
}
