//! Spreading an index over its memory servers while it grows (DEX §3 places subtrees, but only at a bulk
//! load).
//!
//! A new node is placed beside its neighbour, so an index that grows from nothing would stay on one memory
//! server. So an operation that splits a node also moves a few others, if one server holds too much: subtree
//! by subtree, leaf by leaf, from the fullest server to the emptiest, until they are even enough. Nothing
//! runs in the background. [`spread_all`] does the same at once, for an index that does not grow. A subtree
//! that is moving lies on two servers; nothing below it is offloaded meanwhile.

use pando_fabric::{Endpoint, MemoryServerId, Patience};
use pando_log::Log;

use crate::descent::walk;
use crate::error::{DexError, Result};
use crate::layout::{Layout, Side};
use crate::ownership::view::Purpose;
use crate::placement::relocate::{self, Fate, Goal, Order};
use crate::tree::spreading::{Busy, Move};
use crate::tree::{Ctx, Tree, gate, journal};

/// Largest number of nodes that a split moves.
const NODES_PER_SPLIT: usize = 4;

/// A server with more than this many times the mean holds too much.
const TOO_MUCH: f64 = 1.15;

/// Number of splits between two checks of the servers.
const SPLITS_PER_LOOK: u32 = 32;

/// Number of subtrees that a check considers, as long as none has to move.
const SUBTREES_PER_LOOK: usize = 8;

/// Result of a search for a subtree to move.
enum Choice {
    Move(Move),
    /// Not this subtree, but maybe another one.
    NotThis,
    /// No subtree: the servers are even enough, or the index is too small.
    Even,
}

/// Level of the subtrees that each lie on one memory server, in an index whose root has level `root`: M, or a
/// lower level in an index that has too few subtrees of level M for all servers.
pub fn placement_level(subtree_level: u8, root: u8) -> u8 {
    subtree_level.min(root.saturating_sub(2))
}

/// To be called after a split: continues the current move, or begins one if a check is due. With a log that is persisted,
/// nothing moves here, since an operation would wait for the disk several times.
///
/// # Errors
/// Errors of operations; the move continues with the next split.
pub(crate) async fn spread_some<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<()> {
    if tree.pool.servers() < 2 || journal::log_of(tree).is_some_and(Log::persists) {
        return Ok(());
    }
    let (moving, is_due) = {
        let mut state = tree.spread.state();
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
    let _busy = Busy(&tree.spread);
    let moving = match moving {
        None if is_due => look_for_move(tree, ctx).await?,
        moving => moving,
    };
    let Some(mut moving) = moving.filter(|moving| tree.pool.is_active(moving.target)) else {
        return Ok(());
    };
    for _ in 0..NODES_PER_SPLIT {
        match move_next(tree, ctx, &moving).await {
            Ok((_, Some(cursor))) => moving.cursor = cursor,
            // The rest of the subtree may belong to another compute server by now.
            Ok((_, None)) | Err(DexError::NotOwned) => return Ok(()),
            Err(error) => {
                tree.spread.state().moving = Some(moving);
                return Err(error);
            }
        }
    }
    tree.spread.state().moving = Some(moving);
    Ok(())
}

/// A subtree to move, if one is due.
async fn look_for_move<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Result<Option<Move>> {
    for _ in 0..SUBTREES_PER_LOOK {
        match choose_move(tree, ctx, tree.config.spread_above).await {
            Ok(Choice::Move(moving)) => return Ok(Some(moving)),
            Ok(Choice::NotThis) => {}
            Ok(Choice::Even) | Err(DexError::NotOwned) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Moves subtrees from servers that hold too much to others, until all are even enough or every subtree was
/// considered once, or `progress` returns `false`. Returns the number of nodes moved. For an index that does not grow, after a
/// memory server has joined. Splits may move nodes at the same time.
///
/// # Errors
/// Errors of operations. Nodes that were moved stay moved.
pub async fn spread_all<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    mut progress: impl FnMut(u64) -> bool,
) -> Result<u64> {
    tree.pool.learn(ctx.ep).await?;
    tree.pool.refresh_loads(ctx.ep).await?;
    let mut moved = 0;
    let patience = Patience::new(tree.config.patience_ns);
    loop {
        {
            let mut state = tree.spread.state();
            if !state.is_busy {
                state.is_busy = true;
                state.moving = None;
                state.next.clear();
                break;
            }
        }
        patience.wait(ctx.ep, "another worker that spreads the index").await?;
    }
    let _busy = Busy(&tree.spread);
    loop {
        match choose_move(tree, ctx, 0).await? {
            Choice::Even => return Ok(moved),
            Choice::NotThis => {}
            Choice::Move(mut moving) => loop {
                let (nodes, cursor) = move_next(tree, ctx, &moving).await?;
                moved += nodes;
                if !progress(moved) {
                    return Ok(moved);
                }
                match cursor {
                    Some(cursor) => moving.cursor = cursor,
                    None => break,
                }
            },
        }
        // The search has wrapped around to the first subtree.
        if tree.spread.state().next.is_empty() {
            return Ok(moved);
        }
    }
}

/// Moves the next leaf of a subtree, and the inner nodes that end with it. Returns the number of nodes moved,
/// and the key up to which all nodes have moved, or `None` if the whole subtree has.
async fn move_next<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    moving: &Move,
) -> Result<(u64, Option<Vec<u8>>)> {
    let (key, target) = (moving.cursor.as_slice(), moving.target);
    let leaf = relocate::relocate(tree, ctx, Order { key, level: 0, goal: Goal::To(target) }).await?;
    let mut moved = u64::from(leaf.fate == Fate::Moved);
    for level in 1..=moving.level {
        let goal = Goal::ToIfEndsAt(target, leaf.high.as_deref());
        let node = relocate::relocate(tree, ctx, Order { key, level, goal }).await?;
        if node.high != leaf.high {
            break;
        }
        moved += u64::from(node.fate == Fate::Moved);
    }
    let is_over = match (&leaf.high, &moving.end) {
        (None, _) => true,
        (Some(high), Some(end)) => high >= end,
        (Some(_), None) => false,
    };
    Ok((moved, leaf.high.filter(|_| !is_over)))
}

/// Memory server and high fence of the node of `level` on the path to `key`.
async fn fences<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: &[u8],
    level: u8,
) -> Result<(Option<MemoryServerId>, Option<Vec<u8>>)> {
    let key = tree.layout.key(key)?;
    let tries = crate::recovery::restart::RestartPolicy::default();
    let mut ctx = ctx;
    loop {
        let attempt = async {
            let _entered = gate::enter_for(tree, ctx, key, Purpose::Operation)?;
            let (node, _) = walk::walk_to(tree, ctx, key, level).await?;
            let (high, addr) = (tree.node(node).fence(Side::High), tree.node(node).addr());
            node.validate()?;
            Ok((addr.map(|addr| addr.server()), high))
        };
        match attempt.await {
            Ok(found) => return Ok(found),
            Err(retry) => ctx = tries.again(tree, ctx, retry, "a node to move").await?,
        }
    }
}

/// Considers the next subtree: it moves if it lies on the fullest server and that holds too much, and more
/// than `above` bytes. Checks the first leaf too: below a root that moved while the subtree grew, nodes may
/// still lie and grow on the former server.
async fn choose_move<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>, above: u64) -> Result<Choice> {
    let Some((from, target)) = uneven_servers(tree, above) else { return Ok(Choice::Even) };
    let height = tree.height();
    let level = spread_level(tree, height);
    if u32::from(level) + 1 >= height {
        return Ok(Choice::Even);
    }
    let own = tree.view(ctx);
    let own = &own.keys;
    let low = own.low.clone().unwrap_or_else(|| tree.layout.lowest_key());
    let start = {
        let mut state = tree.spread.state();
        let next = std::mem::take(&mut state.next);
        if next.is_empty() || next < low { low } else { next }
    };
    let (of_root, end) = fences(tree, ctx, &start, level).await?;
    let is_there = of_root == Some(from) || fences(tree, ctx, &start, 0).await?.0 == Some(from);
    let is_last = end.as_deref().is_none_or(|end| !own.contains(end));
    tree.spread.state().next = end.clone().filter(|_| !is_last).unwrap_or_default();
    // A shared node extends into the keys of other compute servers.
    let end = [end, own.high.clone()].into_iter().flatten().min();
    let moving = Move { cursor: start, end, level, target };
    Ok(if is_there { Choice::Move(moving) } else { Choice::NotThis })
}

/// Level of the subtrees that move; see [`placement_level`].
pub(crate) fn spread_level<L: Layout>(tree: &Tree<L>, height: u32) -> u8 {
    let root = height.saturating_sub(1) as u8;
    placement_level(tree.config.subtree_level, root)
}

/// The fullest memory server and the emptiest, if the fullest holds too much and more than `above` bytes.
fn uneven_servers<L: Layout>(tree: &Tree<L>, above: u64) -> Option<(MemoryServerId, MemoryServerId)> {
    let loads = tree.pool.loads();
    let mean = loads.iter().map(|&(_, bytes)| bytes as f64).sum::<f64>() / loads.len() as f64;
    let &(fullest, most) = loads.iter().max_by_key(|(_, bytes)| *bytes)?;
    let &(emptiest, _) = loads.iter().min_by_key(|(_, bytes)| *bytes)?;
    (most > above && most as f64 > mean * TOO_MUCH && fullest != emptiest).then_some((fullest, emptiest))
}
