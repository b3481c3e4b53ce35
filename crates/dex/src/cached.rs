//! The cached path: lookups and changes that find every node of their way cached and hot (DEX §7).
//!
//! Most operations never wait. Here they run as plain code, without futures and without errors to hand up: what
//! meets a child that is missing or cooling, a version that changed or a long value gives up and has changed nothing.
//! [`walk`](crate::walk), which can do everything, goes on from the last node. One step from a node to its child is in
//! two halves, so that callers can do other things while the child's lines come in: [`Tree::descend`] finds the child and
//! asks the processor for it, [`Tree::arrive`] enters it.
//!
//! The rule of optimistic lock coupling: a child's version is taken before its parent is validated, so the child was
//! the parent's while its version held. Children of nodes that do not swizzle, which are the shared ones, are found
//! through the mapping table, without a latch: the frame that it names must hold the child's address at the version that
//! was taken. The parent's copy may be stale, so the child must also be of the right level and cover the key (§4).
//! The leaf that is reached is then this compute server's own and has the key, whatever way led to it.

use pando_cache::defect::Defect;
use pando_cache::{CacheWorker, Conflict, FrameId, FrameState, Swip};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, Work};

use crate::layout::Layout;
use crate::node::Target;
use crate::tree::{Ctx, Hop, Tree};

/// Nodes of this level and below are many, so they are seldom in the processor's own cache.
const FAR_LEVEL: u8 = 1;

/// Half a step down: from a node to a child that the processor was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Step<'t> {
    parent: Hop<'t>,
    child: FrameId,
    /// The child is worth waiting for.
    pub far: bool,
}

/// Where the cached path ended before a leaf, and [`walk`](crate::walk) is to go on; `None` if it has to begin at the root.
pub(crate) type Stuck<'t> = Option<Hop<'t>>;

#[cold]
fn stuck_at(node: Hop<'_>) -> Stuck<'_> {
    node.validate().is_ok().then_some(node)
}

/// Where [`Tree::descend`] led.
pub(crate) enum Descent<'t> {
    To(Step<'t>),
    /// The node is a leaf.
    Leaf,
    /// To a child that is not swizzled: see [`Tree::enter_listed`].
    Unswizzled(Swip),
}

impl<L: Layout> Tree<L> {
    #[inline(always)]
    pub(crate) fn descend<'t>(&'t self, node: Hop<'t>, key: L::Key<'_>) -> Descent<'t> {
        let page = self.node(node);
        let level = page.level();
        if level == 0 {
            return Descent::Leaf;
        }
        let index = page.child_index(key);
        let swip = page.child(index);
        match swip.frame() {
            Some(child) => {
                let far = level <= FAR_LEVEL + 1;
                if far {
                    self.cache.prefetch(child, self.layout.prefetch_bytes());
                }
                Descent::To(Step { parent: node, child, far })
            }
            None => Descent::Unswizzled(swip),
        }
    }

    #[inline(always)]
    pub(crate) fn arrive<'t>(&'t self, step: Step<'t>) -> Option<Hop<'t>> {
        self.enter(step.parent, step.child).ok()
    }

    /// A child that is not swizzled because its parent (a shared node) does not swizzle, as far as the mapping table has it
    /// in a frame, hot. Below other nodes it is missing, or to be swizzled first.
    #[inline(never)]
    pub(crate) fn enter_listed<'t>(
        &'t self,
        parent: Hop<'t>,
        swip: Swip,
        key: L::Key<'_>,
        charge: impl Fn(Work),
    ) -> Option<Hop<'t>> {
        let node = self.node(parent);
        if self.swizzles(node) {
            return None;
        }
        let addr = swip.global().filter(|addr| !addr.is_null())?;
        let level = node.level().wrapping_sub(1);
        charge(Work::TableLookup);
        let child = self.enter(parent, self.cache.table().frame_of(addr)?).ok()?;
        // All of this holds as long as the child's version does.
        let is_there = child.version.state() == FrameState::Hot && child.frame.addr() == addr.raw();
        let node = self.node(child);
        (is_there && node.is_meant(level) && node.covers(Target::of(key))).then_some(child)
    }

    /// A swizzled child, seen at a version at which the parent still pointed to it.
    #[inline(always)]
    pub(crate) fn enter<'t>(&'t self, parent: Hop<'t>, child: FrameId) -> Result<Hop<'t>, Conflict> {
        let frame = self.cache.try_frame(child).ok_or(Conflict)?;
        let version = frame.optimistic()?;
        if !defect(Defect::SkipVersionCheck) {
            parent.validate()?;
        }
        Ok(Hop { frame, version })
    }

    /// The leaf that `key` belongs to. `charge` is told the work of every node on the way, the leaf included.
    #[inline(always)]
    fn cached_leaf(&self, key: L::Key<'_>, charge: impl Fn(Work)) -> Result<Hop<'_>, Stuck<'_>> {
        let mut node = self.root_hop().map_err(|Conflict| None)?;
        loop {
            charge(Work::NodeSearch);
            match self.descend(node, key) {
                Descent::To(step) => node = self.arrive(step).ok_or_else(|| stuck_at(node))?,
                Descent::Leaf => return Ok(node),
                Descent::Unswizzled(swip) => {
                    node = self.enter_listed(node, swip, key, &charge).ok_or_else(|| stuck_at(node))?;
                }
            }
        }
    }

    /// Appends the value of `key` to `out` if it is in `leaf`; whether it is. `None`, and maybe something appended,
    /// if the leaf changed or the value is a long one.
    #[inline(always)]
    pub(crate) fn cached_value(
        &self,
        worker: &CacheWorker,
        leaf: Hop<'_>,
        found: Result<usize, usize>,
        out: &mut Vec<u8>,
    ) -> Option<bool> {
        let node = self.node(leaf);
        if let Ok(i) = found
            && node.append_value(i, out).is_some()
        {
            return None;
        }
        leaf.validate().ok()?;
        worker.counters().count_descent(self.inner_levels());
        Some(found.is_ok())
    }

    /// [`Tree::cached_leaf`], letting the other slots of the worker run while the processor fetches nodes.
    #[inline(always)]
    pub(crate) async fn cached_leaf_in_turns<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'t, E>,
        key: L::Key<'_>,
    ) -> Result<Hop<'t>, Stuck<'t>> {
        let charge = |work| ctx.ep.charge(work);
        if ctx.ep.slots() == 1 {
            return self.cached_leaf(key, charge);
        }
        let mut node = self.root_hop().map_err(|Conflict| None)?;
        loop {
            charge(Work::NodeSearch);
            match self.descend(node, key) {
                Descent::To(step) => {
                    if step.far {
                        ctx.ep.yield_now().await;
                    }
                    node = self.arrive(step).ok_or_else(|| stuck_at(node))?;
                }
                Descent::Leaf => return Ok(node),
                Descent::Unswizzled(swip) => {
                    node = self.enter_listed(node, swip, key, charge).ok_or_else(|| stuck_at(node))?;
                }
            }
        }
    }

    /// [`Tree::get`] without waiting for anything: `None` if that takes more than cached nodes. `out` is as before then.
    /// It charges nothing, so that simulated threads call [`Tree::get`].
    #[inline]
    pub fn get_now(&self, worker: &CacheWorker, key: &[u8], out: &mut Vec<u8>) -> Option<bool> {
        let key = self.layout.key(key).ok()?;
        let leaf = self.cached_leaf(key, |_| ()).ok()?;
        let start = out.len();
        let found = self.cached_value(worker, leaf, self.node(leaf).find(key), out);
        if found.is_none() {
            out.truncate(start);
        }
        found
    }

    /// Looks `key` up among cached nodes.
    #[inline(always)]
    pub(crate) async fn cached_get<'t, E: Endpoint>(
        &'t self,
        ctx: Ctx<'t, E>,
        key: L::Key<'_>,
        out: &mut Vec<u8>,
    ) -> Result<bool, Stuck<'t>> {
        let leaf = self.cached_leaf_in_turns(ctx, key).await?;
        let found = self.node(leaf).find(key);
        let start = out.len();
        let found = self.cached_value(ctx.worker, leaf, found, out);
        ctx.ep.charge(Work::Copy { bytes: out.len() - start });
        found.ok_or(None)
    }

    #[inline(always)]
    pub(crate) fn inner_levels(&self) -> u64 {
        u64::from(self.height()) - 1
    }
}
