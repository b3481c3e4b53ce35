//! Moving all that an index has on a memory server elsewhere, while operations run, so that the server can be taken away.
//!
//! Each compute server moves what is on the way to its own keys: its own nodes in their frames (`relocate.rs`), shared nodes
//! under the locks of the shared protocol (`shared.rs`), and long values, which are put elsewhere and exchanged in
//! their entries as by a compare-and-swap. It goes from the top down, level by level, so that a subtree follows its root and what is split
//! meanwhile follows the parent; several nodes are in flight at once. Passes are made until one finds nothing.
//!
//! Why nobody is misled by an address on the drained server: the pool hands out no block there any more, so what was
//! moved away keeps its bytes. A node that others may remember is marked as moved there, before its block is freed.
//! Whoever comes by an old copy of a shared node reads the mark, or finds it when it has the lock, and reads the shared
//! nodes on its way again. So old copies need not be found out before the old node goes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{Placement, PoolError, ServerState, ValueRef};

use crate::change::{Change, Expected};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::fetch_many::join_all;
use crate::layout::{Layout, Side, Stored, header};
use crate::node::Node;
use crate::ownership::Purpose;
use crate::relocate::{Fate, Goal, Order};
use crate::tree::{Ctx, Tree};
use crate::tries::Tries;

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

/// Blocks that nothing leads to any more and that could not be freed at once; and whether others may remember them, so
/// that a note is to be left there first.
#[derive(Debug, Default)]
pub(crate) struct LeftBehind(Mutex<Vec<(GlobalAddr, bool)>>);

impl LeftBehind {
    fn list(&self) -> MutexGuard<'_, Vec<(GlobalAddr, bool)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, addr: GlobalAddr, needs_notice: bool) {
        self.list().push((addr, needs_notice));
    }
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

impl<L: Layout> Tree<L> {
    /// Moves everything on the way to this compute server's keys off `server`, which the pool is
    /// [draining](pando_pool::Pool::drain_server). Operations may run meanwhile, here and on other compute servers, each
    /// of which is to do the same. `progress` is told now and then how far it is. Afterwards, and after
    /// [`Pool::leave_inactive`](pando_pool::Pool::leave_inactive) in each process,
    /// [`Pool::finish_drain`](pando_pool::Pool::finish_drain) says whether anything is left.
    ///
    /// The whole of it, with any number of compute servers and processes: one calls
    /// [`Pool::drain_server`](pando_pool::Pool::drain_server); each compute server this, again if it fails or leaves something;
    /// each process `leave_inactive`; one `finish_drain`, and if that says that something is left, they begin again. A server that
    /// joins ([`Pool::add_server`](pando_pool::Pool::add_server)) fills with what grows, or by [`Tree::spread_all`].
    ///
    /// # Errors
    /// A server that is not being drained or has the root; those of operations. What was moved stays moved; it may be
    /// called again.
    pub async fn drain<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        server: MemoryServerId,
        mut progress: impl FnMut(Drained),
    ) -> Result<Drained> {
        self.pool.learn(ctx.ep).await?;
        if self.pool.server_state(server)? == ServerState::Active {
            return Err(PoolError::NotDraining { server }.into());
        }
        if self.config.root.server() == server {
            return Err(DexError::Layout(format!(
                "the root of the index is on memory server {server}, and a root never moves while the index is open"
            )));
        }
        let mut done = Drained::default();
        for _ in 0..PASSES {
            self.free_left_behind(ctx).await?;
            self.pool.leave_inactive(ctx.ep).await?;
            let before = done;
            done.left = 0;
            for above in (1..self.height() as u8).rev() {
                self.drain_below(ctx, above, server, &mut done, &mut progress).await?;
            }
            if self.layout.holds_long_values() {
                self.drain_values(ctx, server, &mut done, &mut progress).await?;
            }
            if (done.nodes, done.values) == (before.nodes, before.values) {
                break;
            }
        }
        self.free_left_behind(ctx).await?;
        Ok(done)
    }

    /// Moves the children of all nodes of level `above`.
    async fn drain_below<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        above: u8,
        server: MemoryServerId,
        done: &mut Drained,
        progress: &mut impl FnMut(Drained),
    ) -> Result<()> {
        let mut cursor = self.first_key();
        loop {
            let Some(family) = self.children_on(ctx, &cursor, above, server).await? else { return Ok(()) };
            for keys in family.keys.chunks(self.leaves_at_once(AT_ONCE)) {
                let orders = keys.iter().map(|key| Order { key, level: above - 1, goal: Goal::Off(server) });
                for moved in join_all(orders.map(|order| self.relocate(ctx, order))).await {
                    match moved?.fate {
                        Fate::Moved => done.nodes += 1,
                        Fate::WasThere => {}
                        Fate::Stays => done.left += 1,
                    }
                }
                progress(*done);
            }
            match family.high.filter(|high| self.range().contains(high)) {
                Some(high) => cursor = high,
                None => return Ok(()),
            }
        }
    }

    /// The first key of this compute server.
    fn first_key(&self) -> Vec<u8> {
        self.range().low.unwrap_or_else(|| self.layout.lowest_key())
    }

    /// Those children on `server` of the node of `level` on the way to `key` that are on the way to own keys; `None` if
    /// the tree is lower than that.
    async fn children_on<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
        level: u8,
        server: MemoryServerId,
    ) -> Result<Option<Family>> {
        let prepared = self.layout.key(key)?;
        let tries = Tries::default();
        let mut ctx = ctx;
        loop {
            let attempt = async {
                let _entered = self.enter_for(ctx, prepared, Purpose::Operation)?;
                let (node, _) = self.walk_to(ctx, prepared, level).await?;
                let is_it = self.node(node).level() == level;
                let family = if is_it { Some(self.family_on(self.node(node), key, server)?) } else { None };
                node.validate()?;
                Ok(family)
            };
            match attempt.await {
                Ok(family) => return Ok(family),
                Err(retry) => ctx = tries.again(self, ctx, retry, "a node whose children move").await?,
            }
        }
    }

    fn family_on(&self, node: Node<'_, L>, first: &[u8], server: MemoryServerId) -> Attempt<Family> {
        let (own, mut keys, mut low) = (self.range(), Vec::new(), first.to_vec());
        for (i, swip) in node.children().enumerate() {
            let is_last = i >= node.count();
            let high = if is_last { Vec::new() } else { node.key_at(i) };
            let raw = match swip.frame() {
                Some(id) => self.cache.try_frame(id).ok_or(Retry::Restart)?.addr(),
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
    async fn drain_values<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        server: MemoryServerId,
        done: &mut Drained,
        progress: &mut impl FnMut(Drained),
    ) -> Result<()> {
        let mut cursor = self.first_key();
        loop {
            let (values, high) = self.long_values(ctx, &cursor).await?;
            let mut moving = Vec::new();
            for long in values {
                if self.stands_on(ctx, long.value, server).await? {
                    moving.push(long);
                }
            }
            for long in moving.chunks(AT_ONCE) {
                for fate in join_all(long.iter().map(|long| self.move_value(ctx, long))).await {
                    match fate? {
                        Fate::Moved => done.values += 1,
                        Fate::WasThere => {}
                        Fate::Stays => done.left += 1,
                    }
                }
                progress(*done);
            }
            match high.filter(|high| self.range().contains(high)) {
                Some(high) => cursor = high,
                None => return Ok(()),
            }
        }
    }

    /// The long values in the leaf of `key`, and where that ends.
    async fn long_values<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        key: &[u8],
    ) -> Result<(Vec<LongValue>, Option<Vec<u8>>)> {
        let prepared = self.layout.key(key)?;
        let tries = Tries::default();
        let mut ctx = ctx;
        loop {
            let attempt = async {
                let _entered = self.enter_for(ctx, prepared, Purpose::Operation)?;
                let (leaf, _) = self.walk_to(ctx, prepared, 0).await?;
                let node = self.node(leaf);
                let entries = (0..node.count()).filter_map(|i| {
                    let value = node.long_value(i)?;
                    let key = node.key_at(i);
                    Some(LongValue { key, value })
                });
                let (entries, mut high) = (entries.collect(), Vec::new());
                let high = node.append_fence(Side::High, &mut high).then_some(high);
                leaf.validate()?;
                Ok((entries, high))
            };
            match attempt.await {
                Ok(found) => return Ok(found),
                Err(retry) => ctx = tries.again(self, ctx, retry, "a leaf whose values move").await?,
            }
        }
    }

    /// Whether any block of the value is on `server`. One that was replaced meanwhile has none that matters.
    async fn stands_on<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        value: ValueRef,
        server: MemoryServerId,
    ) -> Result<bool> {
        let mut is_there = value.addr.server() == server && !value.addr.is_null();
        if value.len <= self.pool.max_block() {
            return Ok(is_there);
        }
        let visit = |addr: GlobalAddr, _| is_there |= addr.server() == server;
        match self.pool.visit_value_blocks(ctx.ep, value, visit).await {
            Ok(()) => Ok(is_there),
            Err(PoolError::ValueChanged { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts a value elsewhere and has its entry refer to that, if it still refers to the old one.
    async fn move_value<E: Endpoint>(&self, ctx: Ctx<'_, E>, long: &LongValue) -> Result<Fate> {
        let mut bytes = Vec::new();
        match self.pool.get_value(ctx.ep, long.value, &mut bytes).await {
            Ok(()) => {}
            // What replaced it is not on a server that is being drained.
            Err(PoolError::ValueChanged { .. }) => return Ok(Fate::WasThere),
            Err(error) => return Err(error.into()),
        }
        let new = match self.pool.put_value(ctx.ep, Placement::LeastLoaded, &bytes).await {
            Ok(new) => new,
            Err(error) if error.is_full() => return Ok(Fate::Stays),
            Err(error) => return Err(error.into()),
        };
        let expected = Expected::Exactly(long.value);
        let mut change = Change::Swap { expected, new: Some(Stored::Long(new)) };
        let outcome = self.change_leaf(ctx, &long.key, &mut change).await;
        let is_stored = match &outcome {
            Ok(outcome) => outcome.changed,
            // An entry may refer to it: rather leaked than freed under it.
            Err(error) => error.may_have_taken_effect(),
        };
        if !is_stored {
            self.pool.free_value(ctx.ep, new).await?;
        }
        let outcome = self.settle(ctx, &long.key, outcome?).await?;
        Ok(if outcome.changed { Fate::Moved } else { Fate::WasThere })
    }

    /// Frees the block of a node that nothing leads to any more. What fails where blocks are not handed out again is tried
    /// again by [`Tree::free_left_behind`]; elsewhere the block may be somebody else's by then.
    ///
    /// # Errors
    /// Those of the pool, if the block may have leaked.
    pub(crate) async fn free_behind<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        needs_notice: bool,
    ) -> Result<()> {
        match self.try_free_behind(ctx, addr, needs_notice).await {
            Err(_) if !self.pool.is_active(addr.server()) => {
                self.left_behind.add(addr, needs_notice);
                Ok(())
            }
            done => done,
        }
    }

    /// Frees what could not be freed when it was left.
    pub(crate) async fn free_left_behind<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<()> {
        loop {
            // Not kept locked over an await.
            let next = self.left_behind.list().pop();
            let Some((addr, needs_notice)) = next else { return Ok(()) };
            match self.try_free_behind(ctx, addr, needs_notice).await {
                // A try before this one failed only to say that it had succeeded.
                Ok(()) | Err(DexError::Pool(PoolError::DoubleFree { .. })) => {}
                Err(error) => {
                    if !self.pool.is_active(addr.server()) {
                        self.left_behind.add(addr, needs_notice);
                    }
                    return Err(error);
                }
            }
        }
    }

    async fn try_free_behind<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
        needs_notice: bool,
    ) -> Result<()> {
        if needs_notice {
            // Nobody writes a node back there any more; only lock words may still change, beside this one.
            let kind_at = addr.add(header::KIND as u64 * 8);
            let kind = ctx.ep.read_word(kind_at).await?;
            ctx.ep.write_word(kind_at, kind | header::MOVED).await?;
        }
        Ok(self.pool.free(ctx.ep, addr, self.node_bytes()).await?)
    }
}
