//! The cached path: lookups and changes whose nodes are all cached and hot (DEX §7).
//!
//! Most operations never wait. Here they run as plain code, without futures and without errors. An operation
//! that meets a missing or cooling child, a changed version or a long value gives up before it changes
//! anything, and [`walk`](crate::descent::walk), which handles every case, goes on from the last node. A step
//! from a node to its child has two halves, so that callers can do other work while the child's cache lines
//! arrive: [`descend`] finds the child and prefetches it, [`arrive`] enters it.
//!
//! Optimistic lock coupling: a child's version is taken before its parent is validated, so the child belonged
//! to the parent while its version held. Children of nodes that do not swizzle, which are the shared ones,
//! are found through the mapping table, without a latch: the frame that it names must hold the child's
//! address at the version that was taken. The parent's copy may be stale, so the child must also have the
//! right level and cover the key (§4). The leaf that is reached is then owned by this compute server and
//! covers the key, whatever path led to it.

use pando_cache::defect::Defect;
use pando_cache::{CacheWorker, Conflict, FrameId, FrameState, Swip};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, Resource, Work};

use crate::layout::Layout;
use crate::node::Target;
use crate::tree::start::cached_start;
use crate::tree::{Ctx, Tree, VersionedNode, journal};

/// Nodes of this level and below are numerous and rarely in the processor's cache.
const FAR_LEVEL: u8 = 1;

/// First half of a step: a node, and a child that is being prefetched.
#[derive(Clone, Copy)]
pub(crate) struct Step<'t> {
    parent: VersionedNode<'t>,
    child: FrameId,
    /// The child's cache lines are worth yielding for.
    pub far: bool,
}

/// Node before the leaf at which the cached path ended and the descent that can wait goes on; the root by
/// default.
#[derive(Default)]
pub struct ResumePoint<'t>(pub(crate) Option<VersionedNode<'t>>);

impl std::fmt::Debug for ResumePoint<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "ResumePoint(a cached node)" } else { "ResumePoint(the root)" })
    }
}

/// Where a cached path that began at `start` and ended at `node` goes on. Below a shared node it may need a proof that
/// leads there from the root; a path that began elsewhere does not know whether the nodes in between are cached.
#[cold]
fn stuck_at<'t, L: Layout>(
    tree: &Tree<L>,
    start: VersionedNode<'_>,
    node: VersionedNode<'t>,
) -> ResumePoint<'t> {
    let is_proved = start.frame.id() == tree.root || !tree.node(node).is_shared();
    ResumePoint((is_proved && node.validate().is_ok()).then_some(node))
}

/// Result of [`descend`].
pub(crate) enum Descent<'t> {
    To(Step<'t>),
    /// The node is a leaf.
    Leaf,
    /// The child is not swizzled: see [`enter_listed`].
    Unswizzled(Swip),
}

impl<L: Layout> Tree<L> {
    /// [`Tree::get`] without waiting: `None` if cached nodes do not suffice, and `out` is unchanged then. It
    /// charges nothing, so simulated threads call [`Tree::get`].
    #[inline]
    pub fn get_now(&self, worker: &CacheWorker, key: &[u8], out: &mut Vec<u8>) -> Option<bool> {
        let key = self.layout.key(key).ok()?;
        let leaf = cached_leaf(self, key, |_| ()).ok()?;
        let start = out.len();
        let found = cached_value(self, worker, leaf, self.node(leaf).find(key), out);
        if found.is_none() {
            out.truncate(start);
        }
        found
    }
}

/// Number of inner nodes on the path to a leaf. Those above the node at which a cached path begins count too.
#[inline(always)]
pub(crate) fn inner_levels<L: Layout>(tree: &Tree<L>) -> u64 {
    u64::from(tree.height()) - 1
}

#[inline(always)]
pub(crate) fn descend<'t, L: Layout>(
    tree: &'t Tree<L>,
    node: VersionedNode<'t>,
    key: L::Key<'_>,
) -> Descent<'t> {
    let page = tree.node(node);
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
                tree.cache.prefetch(child, tree.layout.prefetch_bytes());
            }
            Descent::To(Step { parent: node, child, far })
        }
        None => Descent::Unswizzled(swip),
    }
}

#[inline(always)]
pub(crate) fn arrive<'t, L: Layout>(tree: &'t Tree<L>, step: Step<'t>) -> Option<VersionedNode<'t>> {
    enter(tree, step.parent, step.child).ok()
}

/// Enters a child that is not swizzled because its parent, a shared node, does not swizzle, if the mapping
/// table names a hot frame for it. `None` below other parents: such a child is missing, or must be swizzled
/// first.
#[inline(never)]
pub(crate) fn enter_listed<'t, L: Layout>(
    tree: &'t Tree<L>,
    parent: VersionedNode<'t>,
    swip: Swip,
    key: L::Key<'_>,
    charge: impl Fn(Work),
) -> Option<VersionedNode<'t>> {
    let node = tree.node(parent);
    if tree.swizzles(node) {
        return None;
    }
    let addr = swip.global().filter(|addr| !addr.is_null())?;
    let level = node.level().wrapping_sub(1);
    charge(Work::TableLookup);
    let child = enter(tree, parent, tree.cache.table().frame_of(addr)?).ok()?;
    // All checks hold as long as the child's version does.
    let is_there = child.version.state() == FrameState::Hot && child.frame.addr() == addr.raw();
    let node = tree.node(child);
    (is_there && node.is_meant(level) && node.covers(Target::of(key))).then_some(child)
}

/// Enters a swizzled child at a version at which the parent still pointed to it.
#[inline(always)]
pub(crate) fn enter<'t, L: Layout>(
    tree: &'t Tree<L>,
    parent: VersionedNode<'t>,
    child: FrameId,
) -> Result<VersionedNode<'t>, Conflict> {
    let frame = tree.cache.try_frame(child).ok_or(Conflict)?;
    let version = frame.optimistic()?;
    if !defect(Defect::SkipVersionCheck) {
        parent.validate()?;
    }
    Ok(VersionedNode { frame, version })
}

/// Charges the search of a cached node, and its transfer if another worker has changed it.
#[inline(always)]
pub(crate) fn charge_visit(node: VersionedNode<'_>, charge: impl Fn(Work)) {
    charge(Work::NodeSearch);
    charge(Work::Observe(Resource::Frame(node.frame.id().0)));
}

/// Leaf that covers `key`. Calls `charge` for every node on the path, including the leaf.
#[inline(always)]
fn cached_leaf<'t, L: Layout>(
    tree: &'t Tree<L>,
    key: L::Key<'_>,
    charge: impl Fn(Work),
) -> Result<VersionedNode<'t>, ResumePoint<'t>> {
    let start = cached_start(tree, key).map_err(|Conflict| ResumePoint::default())?;
    let mut node = start;
    loop {
        charge_visit(node, &charge);
        match descend(tree, node, key) {
            Descent::To(step) => node = arrive(tree, step).ok_or_else(|| stuck_at(tree, start, node))?,
            Descent::Leaf => return Ok(node),
            Descent::Unswizzled(swip) => {
                node = enter_listed(tree, node, swip, key, &charge)
                    .ok_or_else(|| stuck_at(tree, start, node))?;
            }
        }
    }
}

/// Appends the value of `key` to `out` if it is in `leaf`; returns whether it is. `None` if the leaf changed
/// or the value is long; `out` may have grown then.
#[inline(always)]
pub(crate) fn cached_value<L: Layout>(
    tree: &Tree<L>,
    worker: &CacheWorker,
    leaf: VersionedNode<'_>,
    found: Result<usize, usize>,
    out: &mut Vec<u8>,
) -> Option<bool> {
    let node = tree.node(leaf);
    if let Ok(i) = found
        && node.append_value(i, out).is_some()
    {
        return None;
    }
    let seen = journal::seen(tree, leaf.frame);
    leaf.validate().ok()?;
    if !journal::may_answer(tree, seen) {
        return None;
    }
    worker.counters().count_descent(inner_levels(tree));
    Some(found.is_ok())
}

/// [`cached_leaf`], but other slots of the worker run while the processor fetches nodes.
#[inline(always)]
pub(crate) async fn cached_leaf_in_turns<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'t, E>,
    key: L::Key<'_>,
) -> Result<VersionedNode<'t>, ResumePoint<'t>> {
    let charge = |work| ctx.ep.charge(work);
    if ctx.ep.slots() == 1 {
        return cached_leaf(tree, key, charge);
    }
    let start = cached_start(tree, key).map_err(|Conflict| ResumePoint::default())?;
    let mut node = start;
    loop {
        charge_visit(node, charge);
        match descend(tree, node, key) {
            Descent::To(step) => {
                if step.far {
                    ctx.ep.yield_now().await;
                }
                node = arrive(tree, step).ok_or_else(|| stuck_at(tree, start, node))?;
            }
            Descent::Leaf => return Ok(node),
            Descent::Unswizzled(swip) => {
                node =
                    enter_listed(tree, node, swip, key, charge).ok_or_else(|| stuck_at(tree, start, node))?;
            }
        }
    }
}

/// Looks `key` up among cached nodes.
#[inline(always)]
pub(crate) async fn cached_get<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'t, E>,
    key: L::Key<'_>,
    out: &mut Vec<u8>,
) -> Result<bool, ResumePoint<'t>> {
    let leaf = cached_leaf_in_turns(tree, ctx, key).await?;
    let found = tree.node(leaf).find(key);
    let start = out.len();
    let found = cached_value(tree, ctx.worker, leaf, found, out);
    ctx.ep.charge(Work::Copy { bytes: out.len() - start });
    found.ok_or(ResumePoint(None))
}
