//! What a compute server owns at this moment, and who still works by what it owned before (DEX §4, §8 repartitioning).
//!
//! An attempt of an operation that needs more than cached leaves enters a [`Gate`] with its key and is in flight until it
//! ends; an operation that starts again enters again. Only operations that find their leaf in its frame pass by: they
//! take effect while the leaf is there, and a leaf leaves the cache before its keys have another owner.
//!
//! A [`View`] says two things. Its `keys` are those that attempts may begin for. Its `nodes` are the range by which a
//! node counts as this compute server's own or as shared. Both change at one moment for all workers. Whoever
//! judges a node by a view looked at the view *before* it READ the node and, if it locked the node, *after* it had the
//! lock. So an attempt that has a node locked by an old view had it locked when the view changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pando_cache::defect::Defect;
use pando_cache::{Gate, Inside};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, Patience};

use crate::error::{DexError, Result};
use crate::layout::{Layout, Toward};
use crate::node::Node;
use crate::partition::KeyRange;
use crate::tree::{Ctx, Tree};

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub keys: KeyRange,
    pub nodes: KeyRange,
    /// Some nodes are own that were shared a moment ago: attempts of this compute server that began then may have them locked.
    pub is_growing: bool,
}

impl View {
    /// Whether others use the index too.
    pub fn is_partitioned(&self) -> bool {
        !self.nodes.is_all()
    }

    /// Whether others use the node too. A leaf is always one compute server's; what was left behind of a moved node is
    /// nobody's own.
    pub fn is_shared<L: Layout>(&self, node: Node<'_, L>) -> bool {
        let is_crossed = node.level() > 0 && self.nodes.is_crossed_by(node);
        is_crossed || node.is_moved()
    }

    /// Whether child `i` of a shared node is shared too, by the separators around it.
    pub fn shares_child<L: Layout>(&self, parent: Node<'_, L>, i: usize) -> bool {
        parent.level() > 1 && !self.nodes.contains_bounds(&parent.bounds_of_child(i))
    }

    pub fn owns(&self, key: &[u8], toward: Toward) -> bool {
        match toward {
            Toward::Key => self.keys.contains(key),
            Toward::Below => self.keys.contains_below(key),
        }
    }
}

/// The gate of a tree, and whether its range is being moved.
pub(crate) struct Ownership {
    gate: Gate<View>,
    is_moving: AtomicBool,
}

/// An attempt that is under way.
pub(crate) type Entered<'t> = Inside<'t, View>;

/// The exclusive right to change what a tree owns.
pub(crate) struct Mover<'t>(&'t Ownership);

impl Mover<'_> {
    /// Changes the view at once, without waiting for anybody.
    pub fn update_view(&self, change: impl FnOnce(&View) -> View) {
        self.0.gate.update(change);
    }
}

impl Drop for Mover<'_> {
    fn drop(&mut self) {
        self.0.is_moving.store(false, Ordering::Release);
    }
}

/// On whose behalf nodes are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An operation, on keys that must be owned.
    Operation,
    /// A change of what is owned.
    Move,
}

impl Ownership {
    pub fn new(range: KeyRange) -> Self {
        let view = View { keys: range.clone(), nodes: range, is_growing: false };
        Self { gate: Gate::new(view), is_moving: AtomicBool::new(false) }
    }
}

impl<L: Layout> Tree<L> {
    /// The keys that this compute server owns now.
    pub fn range(&self) -> KeyRange {
        self.present_view().keys.clone()
    }

    /// The view, for those who are no worker.
    pub(crate) fn present_view(&self) -> Arc<View> {
        self.ownership.gate.view(0)
    }

    pub(crate) fn view<E>(&self, ctx: Ctx<'_, E>) -> Arc<View> {
        self.ownership.gate.view(ctx.worker.number())
    }

    /// Begins an attempt on a key.
    pub(crate) fn enter_gate<E>(&self, ctx: Ctx<'_, E>, key: &[u8], toward: Toward) -> Result<Entered<'_>> {
        let admits = |view: &View| view.owns(key, toward) || defect(Defect::StaleRoute);
        self.ownership.gate.enter(ctx.worker.number(), admits).ok_or(DexError::NotOwned)
    }

    /// Begins an attempt for `purpose`.
    pub(crate) fn enter_for<E>(
        &self,
        ctx: Ctx<'_, E>,
        key: L::Key<'_>,
        purpose: Purpose,
    ) -> Result<Option<Entered<'_>>> {
        match purpose {
            Purpose::Operation => self.enter_gate(ctx, self.layout.key_bytes(key), Toward::Key).map(Some),
            Purpose::Move => Ok(None),
        }
    }

    /// Begins an attempt on several keys, each of which is to be looked up in the [`View`] from then on.
    pub(crate) fn enter_any<E>(&self, ctx: Ctx<'_, E>) -> (Entered<'_>, Arc<View>) {
        let entered = self.ownership.gate.enter(ctx.worker.number(), |_| true).expect("all are admitted");
        (entered, self.view(ctx))
    }

    /// The right to change what is owned.
    ///
    /// # Errors
    /// [`DexError::Moving`] if somebody else has it.
    pub(crate) fn mover(&self) -> Result<Mover<'_>> {
        match self.ownership.is_moving.swap(true, Ordering::Acquire) {
            true => Err(DexError::Moving),
            false => Ok(Mover(&self.ownership)),
        }
    }

    /// Changes the view at once, without waiting for anybody. The caller is the mover.
    pub(crate) fn update_view(&self, change: impl FnOnce(&View) -> View) {
        self.ownership.gate.update(change);
    }

    /// Changes the view and waits until all attempts that began before are over. `changed` is set as soon as the view is
    /// the new one.
    ///
    /// # Errors
    /// [`DexError::TimedOut`].
    pub(crate) async fn change_view<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        change: impl Fn(&View) -> View,
        changed: &AtomicBool,
    ) -> Result<()> {
        let patience = Patience::new(self.config.patience_ns);
        while !self.ownership.gate.turn_over(&change) {
            patience.wait(ctx.ep, "operations that began before an earlier move").await?;
        }
        changed.store(true, Ordering::Relaxed);
        let patience = Patience::new(self.config.patience_ns);
        while !self.ownership.gate.is_drained() {
            patience.wait(ctx.ep, "operations that began before the move").await?;
        }
        // Nor may what those left that were cut off take effect once the keys are others'.
        self.finish_all(ctx).await
    }
}
