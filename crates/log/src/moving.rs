//! Moves of a log to other blocks while operations run: a memory server that has some of them is to leave.
//!
//! 1. No checkpoint is under way, and no batch leaves its lane. Records are appended meanwhile; who waits for them waits.
//! 2. What is in the log is copied, with the control blocks: only segments between the head of a lane and its tail have
//!    something. A new root names the new segments.
//! 3. The caller enters the new root where the old one was. Both lead to the same records, so a process that dies at
//!    any time leaves a log that is whole.
//! 4. Batches go to the new segments from then on. The old blocks are free once no WRITE can still arrive there.

use std::cell::Cell;
use std::sync::Arc;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, Patience, join_all};

use crate::commit::Commit;
use crate::defect::OfLogMoves;
use crate::disk;
use crate::error::{LogError, Result};
use crate::log::{Log, Truncating};
use crate::space::{self, Blocks, Space};

/// Segments that are copied at a time.
const AT_ONCE: usize = 16;

/// What became of an attempt to enter a new root.
#[derive(Debug)]
pub enum Entered<X> {
    Yes,
    /// The old root is still entered.
    No(X),
    /// Either root is. The log can take no more records.
    Unknown(X),
}

impl Log {
    /// Moves the log to `blocks`, some of which it may have already ([`Space::without`]); only the root must be new. `enter`
    /// is given the new root. Returns the addresses and sizes of the blocks that the log has no longer.
    ///
    /// # Errors
    /// [`LogError::Geometry`] for blocks of another shape; [`LogError::TimedOut`]; [`LogError::NotPersisted`]; errors of
    /// the fabric and of `enter`. The log is where it was then, unless `enter` does not know, and new blocks are free.
    pub async fn move_to<E: Endpoint, X: From<LogError>>(
        &self,
        ep: &E,
        blocks: Blocks,
        enter: impl AsyncFnOnce(GlobalAddr) -> Entered<X>,
    ) -> std::result::Result<Vec<(GlobalAddr, u64)>, X> {
        let old = self.space();
        let new = Arc::new(old.moved_to(blocks)?);
        new.expect_appends(ep);
        let _truncating = self.truncating(ep).await?;
        let frozen = Frozen::new(self.commit());
        if let Err(error) = self.copy_to(ep, &old, &new).await {
            // WRITEs of the copy may still arrive.
            self.rest(ep);
            ep.sleep_until(self.rests_until()).await;
            return Err(error.into());
        }
        frozen.thaws.set(false);
        let entered = enter(new.root).await;
        frozen.thaws.set(!matches!(entered, Entered::Unknown(_)));
        match entered {
            Entered::Yes => self.be_at(&new),
            Entered::No(error) | Entered::Unknown(error) => return Err(error),
        }
        drop(frozen);
        ep.sleep_until(self.rests_until()).await;
        let kept: Vec<_> = new.blocks().collect();
        Ok(old.blocks().filter(|block| !kept.contains(block)).collect())
    }

    /// The right to write the control blocks, once no checkpoint has it.
    async fn truncating<E: Endpoint>(&self, ep: &E) -> Result<Truncating<'_>> {
        let patience = Patience::new(self.patience_ns());
        loop {
            match self.try_truncating() {
                Some(truncating) => return Ok(truncating),
                None => patience.wait(ep, "a checkpoint").await?,
            }
        }
    }

    /// Writes the new root and the segments that are in use, all batches of which are in the log.
    async fn copy_to<E: Endpoint>(&self, ep: &E, old: &Space, new: &Space) -> Result<()> {
        let patience = Patience::new(self.patience_ns());
        for lane in 0..self.lanes() {
            while self.commit().is_in_flight(lane) {
                // Those whose WRITE failed are written again, by anybody.
                if !self.post(ep, lane).await? {
                    patience.wait(ep, "the log").await?;
                }
            }
        }
        if self.persists() {
            self.persist(ep).await?;
        }
        let mut copies = Vec::new();
        for (lane, (from, to)) in old.lanes.iter().zip(&new.lanes).enumerate() {
            let segments = from.segments_of(self.commit().used_in(lane));
            let moved = segments.map(|segment| (from.segment(segment), to.segment(segment)));
            copies.extend(moved.filter(|(from, to)| from != to));
        }
        let bytes = old.segment_bytes() as usize;
        for some in copies.chunks(AT_ONCE) {
            let copy = async |&(from, to): &(GlobalAddr, GlobalAddr)| {
                space::write_bytes(ep, to, &space::read_bytes(ep, from, bytes).await?).await
            };
            join_all(some.iter().map(copy)).await.into_iter().collect::<Result<()>>()?;
        }
        new.write_root(ep).await?;
        let copied = copies.iter().map(|&(_, to)| (to, bytes as u64)).chain(new.root_and_lists());
        match defect(OfLogMoves::CopyUnpersisted) {
            true => Ok(()),
            false => Ok(disk::persist(ep, &copied.collect::<Vec<_>>()).await?),
        }
    }
}

/// No batch leaves its lane as long as this lives, and after it if it does not thaw.
struct Frozen<'l> {
    commit: &'l Commit,
    thaws: Cell<bool>,
}

impl<'l> Frozen<'l> {
    fn new(commit: &'l Commit) -> Self {
        commit.freeze(!defect(OfLogMoves::Unfrozen));
        Self { commit, thaws: Cell::new(true) }
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if self.thaws.get() {
            self.commit.freeze(false);
        }
    }
}
