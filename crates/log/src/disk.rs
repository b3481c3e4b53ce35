//! Persisting a log whose memory is a file, so that it survives a loss of power.
//!
//! What a WRITE stored is in the page cache of the kernel, which writes it to the disk at any time and in any
//! order, by sectors. [`Disk`] knows up to which record the log is persisted, and what else is to be: values
//! outside of pages, before a record refers to them. [`crate::Log::persist`] persists all of that by one range
//! of each memory server, since each range costs a flush of the disk.
//!
//! If a thread is there that persists ([`crate::Log::serve`]), one call is under way, and those who come meanwhile
//! share the next. An operation that blocks its thread makes this call itself, if none is under way; others wait
//! for the thread. Without such a thread, each operation that waits persists the log.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::OnceLock;
use std::task::{Poll, Waker};

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, Nanos};

use crate::error::{LogError, Result};
use crate::sync::{AtomicU64, Mutex, Ordering::SeqCst, lock};

/// When a log is persisted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Never. It survives the end of its process, but no loss of power.
    #[default]
    Never,
    /// By each call of [`crate::Log::persist`]. Records are persisted before pages that contain them are
    /// written, but operations answer before.
    Later,
    /// Before an operation answers.
    BeforeAnswer,
}

/// Longest time that a call waits for those whom the last one answered. They come back within a few microseconds each.
const GATHER_MAX: Nanos = 200_000;
/// It waits at most for this part of the last call's time.
const GATHER_PART: Nanos = 4;
/// After a call that took less than this, it does not wait.
const GATHER_FROM: Nanos = 50_000;

/// Called when the log is to be persisted.
type Wake = Box<dyn Fn() + Send + Sync>;

/// Something to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Everything up to this record is persisted.
    Record(u64),
    /// Everything up to this value is persisted.
    Value(u64),
}

/// What is persisted, and who waits for more.
pub(crate) struct Disk {
    /// All records and values up to these numbers are persisted.
    records: AtomicU64,
    values: AtomicU64,
    /// 1 once persisting has failed.
    failed: AtomicU64,
    written: Mutex<Written>,
    waiting: Mutex<Vec<(Goal, Waker)>>,
    /// Number of those who waited at the end of the last call.
    expected: AtomicU64,
    /// Time that the last [`Call`] took.
    took: AtomicU64,
    /// 1 while there is a [`Call`].
    called: AtomicU64,
    server: OnceLock<Wake>,
}

/// The right to persist for all who wait. At its end the server is woken if a task waits still; those who block their
/// threads see the end.
#[must_use]
pub(crate) struct Call<'d>(&'d Disk);

impl Call<'_> {
    /// Gives those whom the last call answered a moment to come back, so that they share this one.
    pub async fn gather<E: Endpoint>(&self, ep: &E) {
        let took = self.0.took.load(SeqCst);
        if took < GATHER_FROM {
            return;
        }
        let until = ep.now() + (took / GATHER_PART).min(GATHER_MAX);
        let expected = self.0.expected.load(SeqCst);
        while (lock(&self.0.waiting).len() as u64) < expected && ep.now() < until {
            ep.yield_now().await;
        }
    }

    pub fn end(self, took: Nanos) {
        self.0.took.store(took, SeqCst);
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.called.store(0, SeqCst);
        let waits = |(_, waker): &(Goal, Waker)| !is_of_no_task(waker);
        let is_awaited = lock(&self.0.waiting).iter().any(waits);
        if let Some(wake) = self.0.server.get().filter(|_| is_awaited) {
            wake();
        }
    }
}

/// Values that are written, but not known to be persisted.
#[derive(Default)]
pub(crate) struct Written {
    /// Number of the last one.
    last: u64,
    /// With the number of the value.
    blocks: Vec<(u64, (GlobalAddr, u64))>,
}

impl Disk {
    pub fn new(persisted: u64) -> Self {
        Self {
            records: AtomicU64::new(persisted),
            values: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            written: Mutex::default(),
            waiting: Mutex::default(),
            expected: AtomicU64::new(0),
            took: AtomicU64::new(0),
            called: AtomicU64::new(0),
            server: OnceLock::new(),
        }
    }

    #[inline]
    pub fn is_reached(&self, goal: Goal) -> bool {
        match goal {
            Goal::Record(gsn) => self.records.load(SeqCst) >= gsn,
            Goal::Value(number) => self.values.load(SeqCst) >= number,
        }
    }

    pub fn check(&self) -> Result<()> {
        if self.failed.load(SeqCst) == 1 { Err(LogError::NotPersisted) } else { Ok(()) }
    }

    /// Notes a value that is written to these blocks.
    pub fn note_value(&self, blocks: &[(GlobalAddr, u64)]) -> Goal {
        let mut written = lock(&self.written);
        written.last += 1;
        let last = written.last;
        written.blocks.extend(blocks.iter().map(|&block| (last, block)));
        Goal::Value(last)
    }

    /// Blocks to be persisted, and the number of the last value among them.
    pub fn values(&self) -> (u64, Vec<(GlobalAddr, u64)>) {
        let written = lock(&self.written);
        (written.last, written.blocks.iter().map(|(_, block)| *block).collect())
    }

    /// Notes that all records and values up to these numbers are persisted.
    pub fn note_persisted(&self, gsn: u64, value: u64) {
        lock(&self.written).blocks.retain(|(number, _)| *number > value);
        self.records.fetch_max(gsn, SeqCst);
        self.values.fetch_max(value, SeqCst);
        self.wake(|goal| self.is_reached(goal));
    }

    pub fn fail(&self) {
        self.failed.store(1, SeqCst);
        self.wake(|_| true);
    }

    fn wake(&self, is_ready: impl Fn(Goal) -> bool) {
        let mut waiting = lock(&self.waiting);
        self.expected.store(waiting.len() as u64, SeqCst);
        let ready: Vec<_> = waiting.extract_if(.., |(goal, _)| is_ready(*goal)).collect();
        drop(waiting);
        ready.into_iter().for_each(|(_, waker)| waker.wake());
    }

    pub fn serve(&self, wake: Wake) {
        // A second one is not needed.
        let _ = self.server.set(wake);
    }

    pub fn is_awaited(&self) -> bool {
        !lock(&self.waiting).is_empty()
    }

    /// `None` if there is a call already.
    pub fn call(&self) -> Option<Call<'_>> {
        (self.called.swap(1, SeqCst) == 0).then(|| Call(self))
    }

    /// Notes that the caller waits for this, if there is a server but no task to be woken: then the caller blocks its
    /// thread, and may as well make the [`Call`].
    pub async fn blocks(&self, goal: Goal) -> bool {
        poll_fn(|cx| {
            let blocks = is_of_no_task(cx.waker()) && self.server.get().is_some();
            let is_there = |(other, waker): &(Goal, Waker)| *other == goal && is_of_no_task(waker);
            let mut waiting = lock(&self.waiting);
            if blocks && !waiting.iter().any(is_there) {
                waiting.push((goal, cx.waker().clone()));
            }
            Poll::Ready(blocks)
        })
        .await
    }

    /// Waits, after [`Disk::blocks`], until this is persisted, the call of somebody else has ended, or the caller blocks no more.
    pub async fn await_others(&self, goal: Goal) {
        poll_fn(|cx| {
            // One call may follow the other faster than a waiting thread looks.
            let is_under_way = self.called.load(SeqCst) == 1 && !self.is_reached(goal);
            match is_under_way && is_of_no_task(cx.waker()) {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Waits until the server has persisted this; `false` if there is no server.
    pub async fn await_server(&self, goal: Goal) -> Result<bool> {
        let Some(wake) = self.server.get() else { return Ok(false) };
        poll_fn(|cx| {
            let mut waiting = lock(&self.waiting);
            // Under the lock: whoever persists looks for waiters afterwards.
            if self.is_reached(goal) || self.check().is_err() {
                return Poll::Ready(());
            }
            let is_there = |(other, waker): &(Goal, Waker)| *other == goal && waker.will_wake(cx.waker());
            if !waiting.iter().any(is_there) {
                waiting.push((goal, cx.waker().clone()));
                drop(waiting);
                wake();
            }
            Poll::Pending
        })
        .await;
        self.check().map(|()| true)
    }
}

/// Whether this is like [`Waker::noop`], with which a thread polls that waits for one operation. (The tables of two
/// such wakers may have two addresses, so `will_wake` does not tell.)
fn is_of_no_task(waker: &Waker) -> bool {
    waker.data().is_null()
}

/// Persists `ranges` by one range of each memory server.
///
/// # Errors
/// Errors of the fabric.
pub(crate) async fn persist<E: Endpoint>(ep: &E, ranges: &[(GlobalAddr, u64)]) -> pando_fabric::Result<()> {
    let mut of_servers: BTreeMap<MemoryServerId, (u64, u64)> = BTreeMap::new();
    for &(at, len) in ranges {
        let (start, end) = of_servers.entry(at.server()).or_insert((u64::MAX, 0));
        (*start, *end) = ((*start).min(at.offset()), (*end).max(at.offset() + len));
    }
    for (server, (start, end)) in of_servers {
        ep.persist(GlobalAddr::new(server, start), end - start).await?;
    }
    Ok(())
}

/// Persists all memory.
///
/// # Errors
/// Errors of the fabric.
pub async fn persist_all<E: Endpoint>(ep: &E) -> pando_fabric::Result<()> {
    for region in ep.regions() {
        ep.persist(GlobalAddr::new(region.server, 0), region.len).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
