//! Spreading an index over its memory servers while it grows (DEX §3 has subtrees there, but only from a bulk load).
//!
//! A new node stands where its neighbour stands, so an index that grows from nothing would stay on one memory server. Who
//! splits a node therefore also moves a few others, if one server holds too much: subtree by subtree, leaf by leaf, from
//! the fullest server to the emptiest, until they are even enough. Nothing runs in the background, and what moves is what
//! is being worked on by nobody else. While a subtree moves it stands on two servers; nothing of it is offloaded
//! meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::{Endpoint, MemoryServerId};

use crate::error::Result;
use crate::layout::{Layout, Side};
use crate::relocate::Moved;
use crate::tree::{Ctx, Tree};

/// Nodes that a split moves at most.
const NODES_PER_SPLIT: usize = 4;
/// A server that holds so many times the mean holds too much.
const TOO_MUCH: f64 = 1.15;
/// Splits between two looks at the servers.
const SPLITS_PER_LOOK: u32 = 32;

/// A subtree that moves.
#[derive(Clone, Debug)]
struct Move {
    /// Up to here everything has moved.
    cursor: Vec<u8>,
    /// Where the subtree ends, or this compute server's keys do; `None` is the end of all keys.
    end: Option<Vec<u8>>,
    /// Level of its root.
    level: u8,
    target: MemoryServerId,
}

/// What a compute server is moving.
#[derive(Debug, Default)]
pub(crate) struct Spread(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    moving: Option<Move>,
    /// Somebody moves nodes just now.
    is_busy: bool,
    /// Where to look for the next subtree.
    next: Vec<u8>,
    splits: u32,
}

impl Spread {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody may go on with the move when it goes.
struct Busy<'t>(&'t Spread);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state().is_busy = false;
    }
}

impl<L: Layout> Tree<L> {
    /// To be called after a split: goes on with the move that is under way, or begins one if that is due.
    ///
    /// # Errors
    /// Those of operations; the move goes on with the next split.
    pub(crate) async fn spread_some<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<()> {
        if self.pool.servers() < 2 {
            return Ok(());
        }
        let (moving, is_due) = {
            let mut state = self.spread.state();
            if state.is_busy {
                return Ok(());
            }
            state.splits = state.splits.wrapping_add(1);
            let is_due = state.splits.is_multiple_of(SPLITS_PER_LOOK);
            if state.moving.is_none() && !is_due {
                return Ok(());
            }
            state.is_busy = true;
            (state.moving.take(), is_due)
        };
        let _busy = Busy(&self.spread);
        let moving = match moving {
            None if is_due => self.choose_move(ctx).await?,
            moving => moving,
        };
        let Some(mut moving) = moving else { return Ok(()) };
        for _ in 0..NODES_PER_SPLIT {
            match self.move_next(ctx, &moving).await {
                Ok(Some(cursor)) => moving.cursor = cursor,
                Ok(None) => return Ok(()),
                Err(error) => {
                    self.spread.state().moving = Some(moving);
                    return Err(error);
                }
            }
        }
        self.spread.state().moving = Some(moving);
        Ok(())
    }

    /// Moves the next leaf of a subtree, and the inner nodes that end with it; how far everything has moved then, or
    /// `None` if all has.
    async fn move_next<E: Endpoint>(&self, ctx: Ctx<'_, E>, moving: &Move) -> Result<Option<Vec<u8>>> {
        let leaf = self.relocate(ctx, &moving.cursor, 0, moving.target).await?;
        for level in 1..=moving.level {
            if self.fences(ctx, &moving.cursor, level).await?.1.as_deref() != leaf.high() {
                break;
            }
            self.relocate(ctx, &moving.cursor, level, moving.target).await?;
        }
        let (Moved::There(high) | Moved::Stays(high)) = leaf;
        let is_over = match (&high, &moving.end) {
            (None, _) => true,
            (Some(high), Some(end)) => high >= end,
            (Some(_), None) => false,
        };
        Ok(high.filter(|_| !is_over))
    }

    /// Memory server, and fences, of the node of `level` on the way to `key`.
    async fn fences<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        level: u8,
    ) -> Result<(Option<MemoryServerId>, Option<Vec<u8>>)> {
        let key = self.layout.key(key)?;
        let tries = crate::tries::Tries::default();
        let mut ctx = ctx;
        loop {
            let attempt = async {
                let (node, _) = self.walk_to(ctx, key, level).await?;
                let mut high = Vec::new();
                let high =
                    self.layout.append_fence(node.frame.words(), Side::High, &mut high).then_some(high);
                let addr = pando_fabric::GlobalAddr::from_raw(node.frame.addr());
                node.validate()?;
                Ok((addr.map(|addr| addr.server()), high))
            };
            match attempt.await {
                Ok(found) => return Ok(found),
                Err(retry) => ctx = tries.again(self, ctx, retry, "a node to move").await?,
            }
        }
    }

    /// The next subtree of the fullest server, if that holds too much and the subtree is this compute server's own.
    async fn choose_move<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<Option<Move>> {
        let Some((from, target)) = self.uneven_servers() else { return Ok(None) };
        let height = self.height();
        let level = self.spread_level(height);
        if u32::from(level) + 1 >= height {
            return Ok(None);
        }
        let low = self.config.range.low.clone().unwrap_or_else(|| self.layout.lowest_key());
        let start = {
            let mut state = self.spread.state();
            let next = std::mem::take(&mut state.next);
            if next.is_empty() || next < low { low } else { next }
        };
        let (server, end) = self.fences(ctx, &start, level).await?;
        let is_last = end.as_deref().is_none_or(|end| !self.config.range.contains(end));
        self.spread.state().next = end.clone().filter(|_| !is_last).unwrap_or_default();
        // A shared node reaches into the keys of others.
        let end = [end, self.config.range.high.clone()].into_iter().flatten().min();
        let moving = Move { cursor: start, end, level, target };
        Ok((server == Some(from)).then_some(moving))
    }

    /// Level of the subtrees that move: M, or below in an index that has too few such subtrees for all servers.
    fn spread_level(&self, height: u32) -> u8 {
        let root = height.saturating_sub(1) as u8;
        self.config.subtree_level.min(root.saturating_sub(2))
    }

    /// The fullest memory server, if it holds too much, and the emptiest.
    fn uneven_servers(&self) -> Option<(MemoryServerId, MemoryServerId)> {
        let loads = self.pool.loads();
        let mean = loads.iter().map(|&(_, bytes)| bytes as f64).sum::<f64>() / loads.len() as f64;
        let &(fullest, most) = loads.iter().max_by_key(|(_, bytes)| *bytes)?;
        let &(emptiest, _) = loads.iter().min_by_key(|(_, bytes)| *bytes)?;
        (most > self.config.spread_above && most as f64 > mean * TOO_MUCH && fullest != emptiest)
            .then_some((fullest, emptiest))
    }
}
