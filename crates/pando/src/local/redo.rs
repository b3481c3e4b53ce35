//! Redo of the log of a process that died: all pages of an index are brought to the end of its log
//! (`docs/durability.md`).
//!
//! This is done before anything else of the index is read, by the next process that opens the pool or, if others
//! are still attached to it, the index.

use std::time::{Duration, Instant};

use pando_dex::Redone;
use pando_log::{Contents, Log, Options, Persistence, Report};
use pando_pool::{AttachSlot, IndexRecord};
use pando_rt::block_on;

use super::logs::{begin_writing, drop_log, find, read_space, read_to_redo};
use super::open::node_layout_of;
use crate::error::Result;
use crate::layout::with_layout;
use crate::options::{Durability, RecoveryProgress};
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// What opening a pool, or an index whose owner died, had to recover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recovery {
    /// Indexes with logs.
    pub indexes: usize,
    /// Records that were applied.
    pub records: u64,
    /// Records behind a gap. No operation that made one was answered.
    pub dropped: u64,
    /// Pages that were written.
    pub pages: u64,
    /// Changes of entries that were applied to them.
    pub entries: u64,
    pub took: Duration,
}

impl Recovery {
    pub(crate) fn add(&mut self, log: &RedoneLog) {
        self.records += log.report.records;
        self.dropped += log.report.dropped;
        self.pages += log.redone.pages;
        self.entries += log.redone.entries;
    }
}

impl std::fmt::Display for Recovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { indexes, records, dropped, pages, entries, took } = *self;
        let took = took.as_secs_f64();
        if indexes == 0 {
            return write!(f, "recovered the pool in {took:.3} s: it has no log");
        }
        let indexes = many(indexes as u64, "index", "indexes");
        let [records, pages, entries] = [(records, "record"), (pages, "page"), (entries, "change")]
            .map(|(number, one)| many(number, one, &format!("{one}s")));
        write!(f, "recovered {indexes} in {took:.3} s: {records} of the log, {pages}, {entries}")?;
        if dropped > 0 {
            write!(f, "; dropped {} that nobody was told of", many(dropped, "record", "records"))?;
        }
        Ok(())
    }
}

fn many(number: u64, one: &str, more: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { more })
}

/// Redoes what the logs of partitions hold, which this process owns: the last owner died. Then the logs are empty, and
/// this process writes to them.
///
/// # Errors
/// A damaged log; errors of the fabric, after which it can be done again.
pub(super) fn settle(
    shared: &Shared,
    ep: &AnyEndpoint,
    record: &IndexRecord,
    partitions: &[usize],
) -> Result<Option<Recovery>> {
    let (started, mut recovered) = (Instant::now(), None);
    for &partition in partitions {
        let Some(place) = find(shared, ep, record, partition)? else { continue };
        let contents = read_to_redo(ep, read_space(ep, &place)?)?;
        if !contents.is_empty() {
            let pages = |done, total| shared.config.report_recovery(RecoveryProgress::Pages { done, total });
            let redone = redo(shared, ep, contents, record, pages)?;
            recovered.get_or_insert_with(Recovery::default).add(&redone);
            if let Some(dead) = place.writer {
                redone.mark_linked(shared, ep, record, dead)?;
            }
            redone.finish(ep)?;
        }
        if shared.config.durability == Durability::Off {
            drop_log(shared, ep, record.id, record.logs[partition])?;
        }
    }
    begin_writing(shared, ep, record, partitions)?;
    Ok(recovered.map(|recovery| Recovery { indexes: 1, took: started.elapsed(), ..recovery }))
}

/// What recovery did with one log.
pub(crate) struct RedoneLog {
    pub redone: Redone,
    pub report: Report,
    contents: Contents,
}

impl RedoneLog {
    /// Marks what the dead writer of the log allocated, so that its chunks can be [reclaimed](pando_pool::Pool::reclaim).
    fn mark_linked(
        &self,
        shared: &Shared,
        ep: &AnyEndpoint,
        record: &IndexRecord,
        dead: AttachSlot,
    ) -> Result<()> {
        with_layout!(node_layout_of(record)?, |layout| {
            block_on(ep, pando_dex::mark_linked(ep, &shared.pool, layout, &self.contents, dead))?
        });
        Ok(())
    }

    /// Empties the log, after the allocation was rebuilt.
    pub fn finish(self, ep: &AnyEndpoint) -> Result<()> {
        let options = Options { persistence: Persistence::BeforeAnswer, ..Options::default() };
        Ok(block_on(ep, Log::resume(ep, self.contents, options)).map(drop)?)
    }
}

/// Brings the pages of an index to the end of its log.
pub(crate) fn redo(
    shared: &Shared,
    ep: &AnyEndpoint,
    contents: Contents,
    record: &IndexRecord,
    progress: impl Fn(u64, u64),
) -> Result<RedoneLog> {
    block_on(ep, shared.pool.learn(ep))?;
    let in_use = |server| !shared.pool.has_drained(server);
    let redone = with_layout!(node_layout_of(record)?, |layout| {
        block_on(ep, pando_dex::redo(ep, layout, &contents, in_use, progress))?
    });
    Ok(RedoneLog { redone, report: contents.report(), contents })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_is_told_in_a_sentence() {
        let none = Recovery { took: Duration::from_millis(20), ..Recovery::default() };
        assert_eq!(none.to_string(), "recovered the pool in 0.020 s: it has no log");
        let one = Recovery { indexes: 1, records: 1, pages: 1, entries: 1, ..none };
        assert_eq!(one.to_string(), "recovered 1 index in 0.020 s: 1 record of the log, 1 page, 1 change");
        let more = Recovery { indexes: 2, records: 30, dropped: 1, pages: 4, entries: 0, ..none };
        assert_eq!(
            more.to_string(),
            "recovered 2 indexes in 0.020 s: 30 records of the log, 4 pages, 0 changes; \
             dropped 1 record that nobody was told of"
        );
    }
}
