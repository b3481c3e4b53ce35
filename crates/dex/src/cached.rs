//! The cached path: lookups and changes that find every node of their way swizzled (DEX §7).
//!
//! Most operations never wait. Here they run as plain code, without futures and without errors to hand up: what
//! meets a child that is not swizzled, a version that changed or a long value gives up, has changed nothing, and
//! starts again in [`walk`](crate::walk), which can do everything. One step from a node to its child is in two
//! halves, so that callers can do other things while the child's lines come in: [`Tree::descend`] finds the child and
//! asks the processor for it, [`Tree::arrive`] enters it.
//!
//! The rule of optimistic lock coupling: a child's version is taken before its parent is validated, so the child was
//! the parent's while its version held.

use pando_cache::defect::{Defect, defect};
use pando_cache::{CacheWorker, Conflict, FrameId, Swip};
use pando_fabric::{Endpoint, Work};

use crate::layout::{Layout, header};
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

/// Where [`Tree::descend`] led.
pub(crate) enum Descent<'t> {
    To(Step<'t>),
    /// The node is a leaf.
    Leaf,
    /// Not for this path.
    Elsewhere,
}

impl<L: Layout> Tree<L> {
    #[inline(always)]
    pub(crate) fn descend<'t>(&'t self, node: Hop<'t>, key: L::Key<'_>) -> Descent<'t> {
        let words = node.frame.words();
        let level = header::level(words);
        if level == 0 {
            return Descent::Leaf;
        }
        let index = self.layout.child_index(words, key);
        match Swip::from_raw(header::get(words, self.layout.child_word(words, index))).frame() {
            Some(child) => {
                let far = level <= FAR_LEVEL + 1;
                if far {
                    self.cache.prefetch(child, self.layout.prefetch_bytes());
                }
                Descent::To(Step { parent: node, child, far })
            }
            None => Descent::Elsewhere,
        }
    }

    #[inline(always)]
    pub(crate) fn arrive<'t>(&'t self, step: Step<'t>) -> Option<Hop<'t>> {
        self.enter(step.parent, step.child).ok()
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

    /// The leaf that `key` belongs to. `searching` is called for every node on the way, the leaf included.
    #[inline(always)]
    fn cached_leaf(&self, key: L::Key<'_>, searching: impl Fn()) -> Option<Hop<'_>> {
        let mut node = self.root_hop().ok()?;
        loop {
            searching();
            match self.descend(node, key) {
                Descent::To(step) => node = self.arrive(step)?,
                Descent::Leaf => return Some(node),
                Descent::Elsewhere => return None,
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
        let words = leaf.frame.words();
        if let Ok(i) = found
            && self.layout.append_value(words, i, out).is_some()
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
    ) -> Option<Hop<'t>> {
        let searching = || ctx.ep.charge(Work::NodeSearch);
        if ctx.ep.slots() == 1 {
            return self.cached_leaf(key, searching);
        }
        let mut node = self.root_hop().ok()?;
        loop {
            searching();
            match self.descend(node, key) {
                Descent::To(step) => {
                    if step.far {
                        ctx.ep.yield_now().await;
                    }
                    node = self.arrive(step)?;
                }
                Descent::Leaf => return Some(node),
                Descent::Elsewhere => return None,
            }
        }
    }

    /// [`Tree::get`] without waiting for anything: `None` if that takes more than cached nodes. `out` is as before then.
    /// It charges nothing, so that simulated threads call [`Tree::get`].
    #[inline]
    pub fn get_now(&self, worker: &CacheWorker, key: &[u8], out: &mut Vec<u8>) -> Option<bool> {
        let key = self.layout.key(key).ok()?;
        let leaf = self.cached_leaf(key, || ())?;
        let start = out.len();
        let found = self.cached_value(worker, leaf, self.layout.find(leaf.frame.words(), key), out);
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
    ) -> Option<bool> {
        let leaf = self.cached_leaf_in_turns(ctx, key).await?;
        let found = self.layout.find(leaf.frame.words(), key);
        let start = out.len();
        let found = self.cached_value(ctx.worker, leaf, found, out);
        ctx.ep.charge(Work::Copy { bytes: out.len() - start });
        found
    }

    #[inline(always)]
    pub(crate) fn inner_levels(&self) -> u64 {
        u64::from(self.height()) - 1
    }
}
