//! Moving all that an index has on a memory server elsewhere, while operations run, so that the server can be taken away.
//!
//! Each compute server moves what is on the way to its own keys: its own nodes in their frames ([`relocate`]), shared nodes
//! under the locks of the shared protocol, and long values, which are put elsewhere and exchanged in
//! their entries as by a compare-and-swap. It goes from the top down, level by level, so that a subtree follows its root and what is split
//! meanwhile follows the parent; several nodes are in flight at once. Passes are made until one finds nothing.
//!
//! Why nobody is misled by an address on the drained server: the pool hands out no block there any more, so what was
//! moved away keeps its bytes. A node that others may remember is marked as moved there, before its block is freed.
//! Whoever comes by an old copy of a shared node reads the mark, or finds it when it has the lock, and reads the shared
//! nodes on its way again. So old copies need not be found out before the old node goes.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{Placement, PoolError, ServerState, ValueRef};

use crate::change::{Change, Expected};
use crate::descent::fetch_many::{self, join_all};
use crate::descent::walk;
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Side, Stored};
use crate::node::Node;
use crate::ops::point;
use crate::ownership::view::Purpose;
use crate::placement::relocate::{self, Fate, Goal, Order};
use crate::recovery::free;
use crate::recovery::restart::RestartPolicy;
use crate::tree::{Ctx, Tree, gate};

/// Nodes or values in flight at once, if the cache has frames for so many.
const AT_ONCE: usize = 8;

/// Passes after which what is left is left: others keep it from moving, or put it there.
const PASSES: u32 = 16;

/// What a drain has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Nodes moved to other memory servers.
    pub nodes: u64,
    /// Long values put elsewhere.
    pub values: u64,
    /// Nodes and values that the last pass left where they were: there is no room for them.
    pub left: u64,
}

/// The children of one node on the way of a pass.
struct Family {
    /// A key on the way to each child that is to move.
    keys: Vec<Vec<u8>>,
    /// Where the node ends.
    high: Option<Vec<u8>>,
}

/// A long value that is to move.
struct LongValue {
    key: Vec<u8>,
    value: ValueRef,
}

/// Moves everything on the way to this compute server's keys off `server`, which the pool is
/// [draining](pando_pool::Pool::drain_server). Operations may run meanwhile, here and on other compute servers, each
/// of which is to do the same. `progress` is told now and then how far it is. Afterwards, and after
/// [`Pool::leave_inactive`](pando_pool::Pool::leave_inactive) in each process,
/// [`Pool::finish_drain`](pando_pool::Pool::finish_drain) says whether anything is left.
///
/// The whole of it, with any number of compute servers and processes: one calls
/// [`Pool::drain_server`](pando_pool::Pool::drain_server); each compute server this, again if it fails or leaves something;
/// each process `leave_inactive`; one `finish_drain`, and if that says that something is left, they begin again. A server that
/// joins ([`Pool::add_server`](pando_pool::Pool::add_server)) fills with what grows, or by [`spread_all`](crate::spread_all).
///
/// # Errors
/// A server that is not being drained or has the root; those of operations. What was moved stays moved; it may be
/// called again.
pub async fn drain<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    server: MemoryServerId,
    mut progress: impl FnMut(Drained),
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
            drain_below(tree, ctx, above, server, &mut done, &mut progress).await?;
        }
        if tree.layout.holds_long_values() {
            drain_values(tree, ctx, server, &mut done, &mut progress).await?;
        }
        if (done.nodes, done.values) == (before.nodes, before.values) {
            break;
        }
    }
    free::free_left_behind(tree, ctx).await?;
    Ok(done)
}

/// Moves the children of all nodes of level `above`.
async fn drain_below<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    above: u8,
    server: MemoryServerId,
    done: &mut Drained,
    progress: &mut impl FnMut(Drained),
) -> Result<()> {
    let mut cursor = first_key(tree);
    loop {
        let Some(family) = children_on(tree, ctx, &cursor, above, server).await? else { return Ok(()) };
        for keys in family.keys.chunks(fetch_many::leaves_at_once(tree, AT_ONCE)) {
            let orders = keys.iter().map(|key| Order { key, level: above - 1, goal: Goal::Off(server) });
            for moved in join_all(orders.map(|order| relocate::relocate(tree, ctx, order))).await {
                match moved?.fate {
                    Fate::Moved => done.nodes += 1,
                    Fate::WasThere => {}
                    Fate::Stays => done.left += 1,
                }
            }
            progress(*done);
        }
        match family.high.filter(|high| tree.range().contains(high)) {
            Some(high) => cursor = high,
            None => return Ok(()),
        }
    }
}

/// The first key of this compute server.
fn first_key<L: Layout>(tree: &Tree<L>) -> Vec<u8> {
    tree.range().low.unwrap_or_else(|| tree.layout.lowest_key())
}

/// Those children on `server` of the node of `level` on the way to `key` that are on the way to own keys; `None` if
/// the tree is lower than that.
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
        // The separator belongs to the right: what ends at or before the first key has none from there on.
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

/// Puts the long values of own keys elsewhere.
async fn drain_values<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    server: MemoryServerId,
    done: &mut Drained,
    progress: &mut impl FnMut(Drained),
) -> Result<()> {
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
            progress(*done);
        }
        match high.filter(|high| tree.range().contains(high)) {
            Some(high) => cursor = high,
            None => return Ok(()),
        }
    }
}

/// The long values in the leaf of `key`, and where that ends.
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

/// Whether any block of the value is on `server`. One that was replaced meanwhile has none that matters.
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

/// Puts a value elsewhere and has its entry refer to that, if it still refers to the old one.
async fn move_value<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    long: &LongValue,
) -> Result<Fate> {
    let mut bytes = Vec::new();
    match tree.pool.get_value(ctx.ep, long.value, &mut bytes).await {
        Ok(()) => {}
        // What replaced it is not on a server that is being drained.
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
    let outcome = point::change_leaf(tree, ctx, &long.key, &mut change).await;
    let is_stored = match &outcome {
        Ok(outcome) => outcome.changed,
        // An entry may refer to it: rather leaked than freed under it.
        Err(error) => error.may_have_taken_effect(),
    };
    if !is_stored {
        tree.pool.free_value(ctx.ep, new).await?;
    }
    let outcome = point::settle(tree, ctx, &long.key, outcome?).await?;
    Ok(if outcome.changed { Fate::Moved } else { Fate::WasThere })
}
