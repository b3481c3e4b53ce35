//! Entry of attempts into the gate of a tree, and changes of its view.
//!
//! An attempt is refused if the current view does not own its key. [`view`](crate::ownership::view) explains
//! views, and why a node is judged by a view that was taken before the READ.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pando_cache::defect::Defect;
use pando_fabric::defect::defect;

use crate::error::{DexError, Result};
use crate::layout::{Layout, Toward};
use crate::ownership::range::KeyRange;
use crate::ownership::view::{Entered, Mover, Purpose, View};
use crate::tree::{Ctx, Tree};

impl<L: Layout> Tree<L> {
    /// Keys that this compute server owns now.
    pub fn range(&self) -> KeyRange {
        present_view(self).keys.clone()
    }

    pub(crate) fn view<E>(&self, ctx: Ctx<'_, E>) -> Arc<View> {
        self.ownership.gate.view(ctx.worker.number())
    }
}

/// Current view, for callers without a worker.
pub(crate) fn present_view<L: Layout>(tree: &Tree<L>) -> Arc<View> {
    tree.ownership.gate.view(0)
}

/// Enters the gate for an attempt on `key`.
pub(crate) fn enter_gate<'t, L: Layout, E>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    key: &[u8],
    toward: Toward,
) -> Result<Entered<'t>> {
    let admits = |view: &View| view.owns(key, toward) || defect(Defect::StaleRoute);
    tree.ownership.gate.enter(ctx.worker.number(), admits).ok_or(DexError::NotOwned)
}

/// Enters the gate for `purpose`; `None` for a move of keys, which does not enter.
pub(crate) fn enter_for<'t, L: Layout, E>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
    purpose: Purpose,
) -> Result<Option<Entered<'t>>> {
    match purpose {
        Purpose::Operation => enter_gate(tree, ctx, tree.layout.key_bytes(key), Toward::Key).map(Some),
        Purpose::Move => Ok(None),
    }
}

/// Enters the gate for an attempt on several keys. The caller checks each key against the [`View`].
pub(crate) fn enter_any<'t, L: Layout, E>(tree: &'t Tree<L>, ctx: Ctx<'_, E>) -> (Entered<'t>, Arc<View>) {
    let entered = tree.ownership.gate.enter(ctx.worker.number(), |_| true).expect("all are admitted");
    (entered, tree.view(ctx))
}

/// Takes the exclusive right to change what is owned.
///
/// # Errors
/// [`DexError::Moving`] if that right is taken.
pub(crate) fn mover<'t, L: Layout>(tree: &'t Tree<L>) -> Result<Mover<'t>> {
    match tree.ownership.is_moving.swap(true, Ordering::Acquire) {
        true => Err(DexError::Moving),
        false => Ok(Mover(&tree.ownership)),
    }
}

/// Changes the view at once, without waiting for attempts. The caller is the mover.
pub(crate) fn update_view<L: Layout>(tree: &Tree<L>, change: impl FnOnce(&View) -> View) {
    tree.ownership.gate.update(change);
}
