//! Draining: moves all blocks of an index off a memory server, while operations run, so that the server can
//! be removed.
//!
//! Each compute server handles the paths to its own keys. It moves owned nodes in their frames
//! ([`relocate`]), and shared nodes under the locks of the shared protocol. It puts long values elsewhere and
//! exchanges them in their entries, as by a compare-and-swap. It goes from the top down, level by level, so
//! that a subtree follows its root and new nodes follow their parents. Several nodes are in flight at once.
//! Passes are repeated until one finds nothing.
//!
//! Old addresses on the draining server are harmless. The pool hands out no block there, so an old copy keeps
//! its bytes. A node that others may remember is marked as moved before its block is freed. An operation that
//! reaches an old copy of a shared node reads the mark, or finds it under the lock, and refreshes the shared
//! nodes on its path. So old copies need not be found before the old node is freed. Once the server is drained,
//! each compute server forgets them ([`forget_drained`](crate::forget_drained)); an operation that still has one restarts.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, join_all};
use pando_pool::{Placement, PoolError, ServerState, ValueRef};

use crate::change::{Change, Expected};
use crate::descent::{fetch_many, walk};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Side, Stored};
use crate::node::Node;
use crate::ops::point;
use crate::ownership::view::Purpose;
use crate::placement::relocate::{self, Fate, Goal, Order};
use crate::recovery::free;
use crate::recovery::restart::RestartPolicy;
use crate::tree::{Ctx, Tree, gate, journal};

/// Largest number of nodes or values in flight, if the cache has enough frames.
const AT_ONCE: usize = 8;

/// Largest number of passes. What is left then cannot move, or other operations keep allocating there.
const PASSES: u32 = 16;

/// Progress of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Number of nodes moved to other memory servers.
    pub nodes: u64,
    /// Number of long values put elsewhere.
    pub values: u64,
    /// Number of nodes and values that the last pass left in place because there is no room for them.
    pub left: u64,
    /// Whether the last pass found nothing on the server: there is nothing of this compute server there any more.
    pub is_complete: bool,
}

/// Children of one node, for a pass.
struct Family {
    /// For each child that has to move, a key whose path contains it.
    keys: Vec<Vec<u8>>,
    /// High fence of the node.
    high: Option<Vec<u8>>,
}

/// A long value that has to move.
struct LongValue {
    key: Vec<u8>,
    value: ValueRef,
}

/// Moves all nodes and values on the paths to this compute server's keys off `server`, which the pool is
/// [draining](pando_pool::Pool::drain_server). Operations may run meanwhile, on all compute servers, and each
/// compute server must do the same. `progress` is called from time to time, and ends the drain by returning `false`.
///
/// A complete drain, with any number of compute servers and processes: one process calls
/// [`Pool::drain_server`](pando_pool::Pool::drain_server); each compute server calls this function, again if
/// it fails or leaves something; each process calls
/// [`Pool::leave_inactive`](pando_pool::Pool::leave_inactive); one process calls
/// [`Pool::finish_drain`](pando_pool::Pool::finish_drain), and if that reports that something is left, all
/// start over. A server that joins ([`Pool::add_server`](pando_pool::Pool::add_server)) fills by growth, or
/// by [`spread_all`](crate::spread_all).
///
/// # Errors
/// A server that is not draining or has the root; errors of operations. Nodes that were moved stay moved, and
/// the call may be repeated.
pub async fn drain<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    server: MemoryServerId,
    mut progress: impl FnMut(Drained) -> bool,
) -> Result<Drained> {
    tree.pool.learn(ctx.ep).await?;
    if tree.pool.server_state(server)? == ServerState::Active {
        return Err(PoolError::NotDraining { server }.into());
    }
    if tree.config.root.server() == server {
        return Err(DexError::Layout(format!(
            "the root of the index is on memory server {server}, and a root never moves while the index is open"
        )));
    }
    let mut done = Drained::default();
    for _ in 0..PASSES {
        free::free_left_behind(tree, ctx).await?;
        tree.pool.leave_inactive(ctx.ep).await?;
        let before = done;
        done.left = 0;
        for above in (1..tree.height() as u8).rev() {
            if !drain_below(tree, ctx, above, server, &mut done, &mut progress).await? {
                return Ok(done);
            }
        }
        if tree.layout.holds_long_values()
            && !drain_values(tree, ctx, server, &mut done, &mut progress).await?
        {
            return Ok(done);
        }
        if (done.nodes, done.values) == (before.nodes, before.values) {
            done.is_complete = done.left == 0;
            break;
        }
    }
    free::free_left_behind(tree, ctx).await?;
    Ok(done)
}

/// Moves the children of all nodes of level `above`. Returns `false` if `progress` ended that.
async fn drain_below<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    above: u8,
    server: MemoryServerId,
    done: &mut Drained,
    progress: &mut impl FnMut(Drained) -> bool,
) -> Result<bool> {
    let mut cursor = first_key(tree);
    loop {
        let Some(family) = children_on(tree, ctx, &cursor, above, server).await? else { return Ok(true) };
        for keys in family.keys.chunks(fetch_many::leaves_at_once(tree, AT_ONCE)) {
            let orders = keys.iter().map(|key| Order { key, level: above - 1, goal: Goal::Off(server) });
            for moved in join_all(orders.map(|order| relocate::relocate(tree, ctx, order))).await {
                match moved?.fate {
                    Fate::Moved => done.nodes += 1,
                    Fate::WasThere => {}
                    Fate::Stays => done.left += 1,
                }
            }
            if !progress(*done) {
                return Ok(false);
            }
        }
        match family.high.filter(|high| tree.range().contains(high)) {
            Some(high) => cursor = high,
            None => return Ok(true),
        }
    }
}

/// The first key of this compute server.
fn first_key<L: Layout>(tree: &Tree<L>) -> Vec<u8> {
    tree.range().low.unwrap_or_else(|| tree.layout.lowest_key())
}

/// Children on `server` of the node of `level` that covers `key`, as far as they cover owned keys; `None` if
/// the tree has no such level.
async fn children_on<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: &[u8],
    level: u8,
    server: MemoryServerId,
) -> Result<Option<Family>> {
    let prepared = tree.layout.key(key)?;
    let tries = RestartPolicy::default();
    let mut ctx = ctx;
    loop {
        let attempt = async {
            let _entered = gate::enter_for(tree, ctx, prepared, Purpose::Operation)?;
            let (node, _) = walk::walk_to(tree, ctx, prepared, level).await?;
            let is_it = tree.node(node).level() == level;
            let family = if is_it { Some(family_on(tree, tree.node(node), key, server)?) } else { None };
            node.validate()?;
            Ok(family)
        };
        match attempt.await {
            Ok(family) => return Ok(family),
            Err(retry) => ctx = tries.again(tree, ctx, retry, "a node whose children move").await?,
        }
    }
}

fn family_on<L: Layout>(
    tree: &Tree<L>,
    node: Node<'_, L>,
    first: &[u8],
    server: MemoryServerId,
) -> Attempt<Family> {
    let (own, mut keys, mut low) = (tree.range(), Vec::new(), first.to_vec());
    for (i, swip) in node.children().enumerate() {
        let is_last = i >= node.count();
        let high = if is_last { Vec::new() } else { node.key_at(i) };
        let raw = match swip.frame() {
            Some(id) => tree.cache.try_frame(id).ok_or(Retry::Restart)?.addr(),
            None => swip.raw(),
        };
        let is_there =
            GlobalAddr::from_raw(raw).is_some_and(|addr| !addr.is_null() && addr.server() == server);
        // A separator belongs to the child on its right: a child that ends at or before `first` covers no key
        // from there on.
        let is_ahead = is_last || high.as_slice() > first;
        if is_ahead && own.contains(&low) && is_there {
            keys.push(low.clone());
        }
        if is_ahead {
            low = high;
        }
    }
    let high = node.fence(Side::High);
    Ok(Family { keys, high })
}

/// Puts the long values of owned keys elsewhere. Returns `false` if `progress` ended that.
async fn drain_values<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    server: MemoryServerId,
    done: &mut Drained,
    progress: &mut impl FnMut(Drained) -> bool,
) -> Result<bool> {
    let mut cursor = first_key(tree);
    loop {
        let (values, high) = long_values(tree, ctx, &cursor).await?;
        let mut moving = Vec::new();
        for long in values {
            if stands_on(tree, ctx, long.value, server).await? {
                moving.push(long);
            }
        }
        for long in moving.chunks(AT_ONCE) {
            for fate in join_all(long.iter().map(|long| move_value(tree, ctx, long))).await {
                match fate? {
                    Fate::Moved => done.values += 1,
                    Fate::WasThere => {}
                    Fate::Stays => done.left += 1,
                }
            }
            if !progress(*done) {
                return Ok(false);
            }
        }
        match high.filter(|high| tree.range().contains(high)) {
            Some(high) => cursor = high,
            None => return Ok(true),
        }
    }
}

/// Long values in the leaf of `key`, and the leaf's high fence.
async fn long_values<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: &[u8],
) -> Result<(Vec<LongValue>, Option<Vec<u8>>)> {
    let prepared = tree.layout.key(key)?;
    let tries = RestartPolicy::default();
    let mut ctx = ctx;
    loop {
        let attempt = async {
            let _entered = gate::enter_for(tree, ctx, prepared, Purpose::Operation)?;
            let (leaf, _) = walk::walk_to(tree, ctx, prepared, 0).await?;
            let node = tree.node(leaf);
            let entries = (0..node.count()).filter_map(|i| {
                let value = node.long_value(i)?;
                let key = node.key_at(i);
                Some(LongValue { key, value })
            });
            let (entries, high) = (entries.collect(), node.fence(Side::High));
            leaf.validate()?;
            Ok((entries, high))
        };
        match attempt.await {
            Ok(found) => return Ok(found),
            Err(retry) => ctx = tries.again(tree, ctx, retry, "a leaf whose values move").await?,
        }
    }
}

/// Whether any block of the value is on `server`; `false` if the value was replaced meanwhile.
async fn stands_on<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    value: ValueRef,
    server: MemoryServerId,
) -> Result<bool> {
    let mut is_there = value.addr.server() == server && !value.addr.is_null();
    if value.len <= tree.pool.max_block() {
        return Ok(is_there);
    }
    let visit = |addr: GlobalAddr, _| is_there |= addr.server() == server;
    match tree.pool.visit_value_blocks(ctx.ep, value, visit).await {
        Ok(()) => Ok(is_there),
        Err(PoolError::ValueChanged { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Puts a value elsewhere, and makes its entry refer to the copy, if it still refers to the old one.
async fn move_value<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    long: &LongValue,
) -> Result<Fate> {
    let mut bytes = Vec::new();
    match tree.pool.get_value(ctx.ep, long.value, &mut bytes).await {
        Ok(()) => {}
        // The new value is not on a draining server.
        Err(PoolError::ValueChanged { .. }) => return Ok(Fate::WasThere),
        Err(error) => return Err(error.into()),
    }
    let new = match tree.pool.put_value(ctx.ep, Placement::LeastLoaded, &bytes).await {
        Ok(new) => new,
        Err(error) if error.is_full() => return Ok(Fate::Stays),
        Err(error) => return Err(error.into()),
    };
    let expected = Expected::Exactly(long.value);
    let mut change = Change::Swap { expected, new: Some(Stored::Long(new)) };
    let outcome = match journal::persist_value(tree, ctx, new).await {
        Ok(()) => point::change_leaf(tree, ctx, &long.key, &mut change).await,
        Err(error) => Err(error),
    };
    let is_stored = match &outcome {
        Ok(outcome) => outcome.changed,
        // An entry may refer to the value. Leak it rather than free it under the entry.
        Err(error) => error.may_have_taken_effect(),
    };
    if !is_stored {
        tree.pool.free_value(ctx.ep, new).await?;
    }
    let outcome = point::settle(tree, ctx, &long.key, outcome?).await?;
    Ok(if outcome.changed { Fate::Moved } else { Fate::WasThere })
}
