//! Work that operations could not finish: writes that others may have seen in part, and locks to be given back.
//!
//! An operation may fail halfway, since a memory server did not answer for longer than anybody waits, or its future was dropped.
//! What it left is done by the next operation that comes, with the locks still held: first the writes, in order, then
//! the locks. A verb whose future was dropped may still take effect for a while; nothing is decided before that.
//! The first lock is given back first and after all writes. So if it is not held any more all were done, or it was never got.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::{Endpoint, Nanos};

use super::held::{Lock, Write};
use crate::error::Result;
use crate::tree::Sherman;

/// When it can be done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    Now,
    /// Once a verb must have ended whose future was dropped.
    Later,
    At(Nanos),
}

/// What one operation left.
#[derive(Clone, Debug)]
pub(crate) struct Unfinished {
    pub writes: Vec<Write>,
    pub locks: Vec<Lock>,
    pub due: Due,
}

/// What the operations of this process left.
#[derive(Default)]
pub(crate) struct UnfinishedList {
    list: Mutex<VecDeque<Unfinished>>,
    count: AtomicUsize,
    is_busy: AtomicBool,
}

impl UnfinishedList {
    fn list(&self) -> MutexGuard<'_, VecDeque<Unfinished>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    fn push(&self, unfinished: Unfinished) {
        let mut list = self.list();
        list.push_back(unfinished);
        self.count.store(list.len(), Relaxed);
    }

    /// The first that is due.
    fn due(&self, now: Nanos, verbs_take: Nanos) -> Option<Unfinished> {
        let mut list = self.list();
        for unfinished in list.iter_mut() {
            if let Due::Later = unfinished.due {
                unfinished.due = Due::At(now.saturating_add(verbs_take));
            }
        }
        let is_due = |unfinished: &Unfinished| !matches!(unfinished.due, Due::At(due) if now < due);
        let at = list.iter().position(is_due)?;
        // To the front: only who is busy with it takes it away.
        let unfinished = list.remove(at)?;
        list.push_front(unfinished.clone());
        Some(unfinished)
    }

    fn pop_first(&self) {
        let mut list = self.list();
        list.pop_front();
        self.count.store(list.len(), Relaxed);
    }
}

/// The right to finish what was left.
struct Busy<'t>(&'t UnfinishedList);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Release);
    }
}

impl Sherman {
    /// Takes note of what an operation did not finish.
    pub(crate) fn leave_unfinished(&self, mut left: Unfinished) {
        if left.writes.is_empty() {
            // A remote lock is enough to keep others out; without one there is nothing to finish.
            for lock in &mut left.locks {
                if let Some(key) = lock.queue.take() {
                    self.queues.leave(key);
                }
            }
            left.locks.retain(|lock| lock.word.is_some());
        }
        if left.writes.is_empty() && left.locks.is_empty() {
            return;
        }
        let keys: Vec<_> = left.locks.iter().filter_map(|lock| lock.queue).collect();
        self.unfinished.push(left);
        keys.into_iter().for_each(|key| self.queues.nudge(key));
    }

    /// Finishes what operations left, as far as it is due. Does nothing while another does.
    ///
    /// # Errors
    /// Those of the verbs; what was not done stays left.
    pub(crate) async fn settle<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let list = &self.unfinished;
        if !list.any() || list.is_busy.swap(true, Acquire) {
            return Ok(());
        }
        let _busy = Busy(list);
        while let Some(left) = list.due(ep.now(), self.config.patience_ns) {
            // Boxed: so rare that futures of operations are better without.
            Box::pin(self.finish_left(ep, &left)).await?;
            list.pop_first();
            left.locks.iter().filter_map(|lock| lock.queue).for_each(|key| self.queues.leave(key));
        }
        Ok(())
    }

    async fn finish_left<E: Endpoint>(&self, ep: &E, left: &Unfinished) -> Result<()> {
        let deadline = self.deadline(ep);
        let first = left.locks.first().and_then(|lock| lock.word);
        let is_held = match &first {
            Some(word) => self.is_held(ep, word, deadline).await?,
            None => true,
        };
        if is_held {
            for write in &left.writes {
                self.write_group(ep, std::slice::from_ref(write), None, deadline).await?;
            }
        }
        for word in left.locks.iter().filter_map(|lock| lock.word) {
            if self.is_held(ep, &word, deadline).await? {
                self.write_group(ep, &[], Some(&word), deadline).await?;
            }
        }
        Ok(())
    }
}
