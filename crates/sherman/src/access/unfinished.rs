//! Unfinished work of operations: writes that others may have seen in part, and locks to be released.
//!
//! An operation may stop halfway: its memory server did not answer in time, or its future was dropped. The
//! next operation does the rest, with the locks still held: first the writes, in order, then the locks. A
//! verb whose future was dropped may still take effect for a while, so nothing is decided before that. The
//! first lock is released first, after all writes. So if it is no longer held, either all writes were done or
//! it was never taken.

use pando_fabric::Endpoint;
use pando_pool::{Due, Order};

use crate::error::Result;
use crate::lock::Unfinished;
use crate::tree::Sherman;

impl Sherman {
    /// Records the unfinished work of an operation.
    pub(crate) fn leave_unfinished(&self, mut left: Unfinished, due: Due) {
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
        self.unfinished.push(left, due);
        keys.into_iter().for_each(|key| self.queues.nudge(key));
    }

    /// Finishes leftovers of operations, and returns free nodes to the shared free list. No other call may be
    /// in progress; afterwards the pool may be detached.
    ///
    /// # Errors
    /// Errors of the fabric; it may be called again.
    pub async fn close<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.settle(ep).await?;
        self.leave_free_list(ep).await
    }

    /// Finishes the leftovers that are due. Does nothing while another call runs.
    ///
    /// # Errors
    /// Errors of the verbs; the rest stays left.
    pub(crate) async fn settle<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let Some(mut finishing) = self.unfinished.begin() else { return Ok(()) };
        while let Some(left) = finishing.next(ep.now(), self.config.patience_ns, Order::Any) {
            // Boxed: it is rare, and keeps the futures of operations small.
            if let Err(error) = Box::pin(self.finish_left(ep, &left)).await {
                finishing.failed();
                return Err(error);
            }
            finishing.done();
            left.locks.iter().filter_map(|lock| lock.queue).for_each(|key| self.queues.leave(key));
        }
        Ok(())
    }

    async fn finish_left<E: Endpoint>(&self, ep: &E, left: &Unfinished) -> Result<()> {
        let deadline = self.deadline(ep);
        let first = left.locks.first().and_then(|lock| lock.word.as_ref());
        let is_held = match first {
            Some(word) => self.is_held(ep, word, deadline).await?,
            None => true,
        };
        if is_held {
            for write in &left.writes {
                self.write_group(ep, std::slice::from_ref(write), None, deadline).await?;
            }
        }
        for word in left.locks.iter().filter_map(|lock| lock.word.as_ref()) {
            if self.is_held(ep, word, deadline).await? {
                self.write_group(ep, &[], Some(word), deadline).await?;
            }
        }
        Ok(())
    }
}
