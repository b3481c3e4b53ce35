//! Reading an index that this process does not own: [`crate::Config::read_only`].
//!
//! A reader opens an index while no process owns any of it, so that remote memory is up to date, and caches
//! its nodes. Other processes do not know of readers. A writer owns partitions before it changes a node, and
//! gives them up after it has written everything back; both steps change the index's catalog record. So an
//! answer is current if *after* the reading the record is still the one that the nodes belong to. Every
//! operation checks this before it answers; while the catalog does not change, the check is a READ of one
//! word. If the record changed, the answer is discarded, even if it is an error, and the operation starts
//! again with new caches once no process owns the index.
//!
//! A scan runs in batches, each of which is checked and continues after the last key.

use std::cell::Cell;
use std::future::poll_fn;
use std::ops::Bound;
use std::pin::pin;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use pando_dex::ScanRange;
use pando_fabric::{Endpoint, Nanos};
use pando_pool::{IndexRecord, PoolError};

use super::range::Entry;
use super::{Answers, AsyncSession, Session, on_tree};
use crate::error::{Error, Result};
use crate::local::open::{record_at_rest, reopen_trees};
use crate::place::AnyEndpoint;
use crate::shared::Shared;

/// Time between two checks whether the writer has closed the index.
const PAUSE: Duration = Duration::from_millis(1);
/// Nanoseconds between two checks whether the nodes that a waiting attempt uses are outdated.
const LOOK_NS: Nanos = 10_000_000;
/// Limits of a batch of a scan: entries, and bytes after which it takes no further entry.
const BATCH: usize = 1024;
const BATCH_BYTES: usize = 1 << 20;

/// Version of an index that cached nodes belong to: the number of the index, and the version of its record.
pub(super) type RecordId = (u32, u64);

/// A session's last check of the record.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// Version of the catalog, and the record that was current at it.
    at: Cell<Option<(u64, RecordId)>>,
}

/// [`record_at_rest`], after a wait for writers.
fn record_once_at_rest(shared: &Shared, ep: &AnyEndpoint, name: &str) -> Result<IndexRecord> {
    let until = Instant::now() + Duration::from_nanos(shared.config.operation_ns());
    loop {
        match record_at_rest(shared, ep, name) {
            Err(Error::OpenForWriting { .. }) if Instant::now() < until => thread::sleep(PAUSE),
            found => return found,
        }
    }
}

/// Whether the nodes that the session reads belong to the current version of the index.
async fn is_current(session: &Session, opened: RecordId) -> Result<bool> {
    let (shared, looked) = (&session.index().shared, &session.looked);
    let version = shared.pool.catalog_version(&session.ep).await?;
    if session.opened.get() != opened {
        return Ok(false);
    }
    if version.is_some_and(|version| looked.at.get() == Some((version, opened))) {
        return Ok(true);
    }
    let name = session.index().name();
    let record = match shared.pool.open_index(&session.ep, name).await {
        Err(PoolError::UnknownIndex { .. }) => return Err(gone(name)),
        found => found?,
    };
    let is_current = (record.id, record.version) == opened && session.opened.get() == opened;
    if is_current {
        // The record was read after the version, so it was current at this version.
        looked.at.set(version.map(|version| (version, opened)));
    }
    Ok(is_current)
}

fn gone(name: &str) -> Error {
    let reason = "it was dropped since it was opened for reading".to_owned();
    Error::BadIndex { name: name.to_owned(), reason }
}

/// Opens the index anew, unless another thread has done so since version `opened`.
fn renew(session: &Session, opened: RecordId) -> Result<()> {
    let (shared, data) = (&session.index().shared, &session.index().data);
    let _only = data.begin_move()?;
    let before = data.servers()?;
    if (before.record.id, before.record.version) == opened {
        let renewed = shared.with_endpoint(|ep| {
            let mut record = record_once_at_rest(shared, ep, &data.name)?;
            if record.id != opened.0 {
                return Err(gone(&data.name));
            }
            record.boundaries.clear();
            reopen_trees(shared, ep, record, &before)
        })?;
        data.replace(renewed);
    }
    session.learn();
    Ok(())
}

/// Waits until the nodes that the session reads are outdated, or the check fails.
async fn outdated(session: &Session, opened: RecordId) {
    loop {
        let next = session.ep.now() + LOOK_NS;
        while session.ep.now() < next {
            session.ep.yield_now().await;
        }
        if !matches!(is_current(session, opened).await, Ok(true)) {
            return;
        }
    }
}

/// Result of `attempt`; `None` if it waits while its nodes are outdated.
async fn while_current<T>(
    session: &Session,
    opened: RecordId,
    attempt: impl Future<Output = Result<T>>,
) -> Option<Result<T>> {
    let (mut attempt, mut outdated) = (pin!(attempt), pin!(outdated(session, opened)));
    poll_fn(|cx| match attempt.as_mut().poll(cx) {
        Poll::Ready(answer) => Poll::Ready(Some(answer)),
        Poll::Pending => outdated.as_mut().poll(cx).map(|()| None),
    })
    .await
}

/// Repeats `attempt` until its answer is current.
async fn answer<T>(session: &Session, mut attempt: impl AsyncFnMut() -> Result<T>) -> Result<T> {
    let until = Instant::now() + session.index().shared.config.patience();
    loop {
        session.learn();
        let opened = session.opened.get();
        let answer = while_current(session, opened, attempt()).await;
        // Also checked without an answer: `outdated` may have ended because its check failed.
        if is_current(session, opened).await?
            && let Some(answer) = answer
        {
            return answer;
        }
        if Instant::now() >= until {
            let what = "a moment at which no process writes to the index";
            return Err(PoolError::WaitedTooLong { what }.into());
        }
        renew(session, opened)?;
    }
}

/// [`Session::get_into`] for a reader.
pub(super) async fn get_into(session: &Session, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
    let start = out.len();
    answer(session, async || {
        out.truncate(start);
        on_tree!(awaiting, session, key, |tree, ctx| tree.get(ctx, key, out))
    })
    .await
}

/// [`Session::multi_get`] for a reader.
pub(super) async fn multi_get<K: AsRef<[u8]>>(
    session: &Session,
    keys: &[K],
    answers: &mut Answers,
) -> Result<()> {
    answer(session, async || AsyncSession { session }.multi_get_routed(keys, answers).await).await
}

/// [`Session::scan`] for a reader.
pub(super) async fn scan(
    session: &Session,
    range: &ScanRange<'_>,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
) -> Result<usize> {
    let mut last: Option<Vec<u8>> = None;
    let mut visited = 0;
    loop {
        let mut part = ScanRange { limit: BATCH.min(range.limit - visited), ..*range };
        if let Some(last) = &last {
            *(if range.reverse { &mut part.high } else { &mut part.low }) = Bound::Excluded(last.as_slice());
        }
        let (entries, is_full) = answer(session, async || batch(session, &part).await).await?;
        for (key, value) in &entries {
            visited += 1;
            if !visit(key, value) {
                return Ok(visited);
            }
        }
        if !is_full || visited == range.limit {
            return Ok(visited);
        }
        last = entries.into_iter().next_back().map(|(key, _)| key);
    }
}

/// One batch of a range's entries, and whether there may be more.
async fn batch(session: &Session, part: &ScanRange<'_>) -> Result<(Vec<Entry>, bool)> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    let visit = |key: &[u8], value: &[u8]| {
        bytes += key.len() + value.len();
        entries.push((key.to_vec(), value.to_vec()));
        bytes < BATCH_BYTES
    };
    AsyncSession { session }.scan_routed(part, visit).await?;
    let is_full = entries.len() == part.limit || bytes >= BATCH_BYTES;
    Ok((entries, is_full))
}
