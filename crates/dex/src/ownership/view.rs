//! Current ownership of a compute server, and attempts that still use an earlier one (DEX §4, §8
//! repartitioning).
//!
//! An attempt that needs more than cached leaves enters a [`Gate`] with its key and is inside until it ends;
//! a restarted operation enters again. Operations that find their leaf in its frame bypass the gate: they
//! take effect while the leaf is there, and a leaf leaves the cache before its keys get another owner.
//!
//! A [`View`] has two ranges. Attempts may begin for `keys`. A node counts as owned or shared according to
//! `nodes`. Both change at one moment for all workers. An operation that judges a node takes the view
//! *before* it READs the node and, if it locks the node, *after* it has the lock. So an attempt that holds a
//! lock by an old view held it when the view changed.

use std::sync::atomic::{AtomicBool, Ordering};

use pando_cache::{Gate, Inside};

use crate::layout::{Layout, Toward};
use crate::node::Node;
use crate::ownership::range::KeyRange;

/// Ranges that are in force for attempts and nodes; see the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub keys: KeyRange,
    pub nodes: KeyRange,
    /// Some owned nodes were shared a moment ago: earlier attempts of this compute server may have them
    /// locked.
    pub is_growing: bool,
}

impl View {
    /// Whether other compute servers use the index too.
    pub fn is_partitioned(&self) -> bool {
        !self.nodes.is_all()
    }

    /// Whether other compute servers use the node too. A leaf always has one owner; a node that is marked as
    /// moved has none.
    pub fn is_shared<L: Layout>(&self, node: Node<'_, L>) -> bool {
        let is_crossed = node.level() > 0 && self.nodes.is_crossed_by(node);
        is_crossed || node.is_moved()
    }

    /// Whether child `i` of a shared node is shared too, according to the separators around it.
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
    pub gate: Gate<View>,
    pub is_moving: AtomicBool,
}

/// An attempt inside the gate.
pub(crate) type Entered<'t> = Inside<'t, View>;

/// The exclusive right to change what a tree owns.
pub(crate) struct Mover<'t>(pub &'t Ownership);

impl Mover<'_> {
    /// Changes the view at once, without waiting for attempts.
    pub fn update_view(&self, change: impl FnOnce(&View) -> View) {
        self.0.gate.update(change);
    }
}

impl Drop for Mover<'_> {
    fn drop(&mut self) {
        self.0.is_moving.store(false, Ordering::Release);
    }
}

/// Purpose of a descent or a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// An operation, on keys that must be owned.
    Operation,
    /// A move of keys.
    Move,
}

impl Ownership {
    pub fn new(range: KeyRange) -> Self {
        let view = View { keys: range.clone(), nodes: range, is_growing: false };
        Self { gate: Gate::new(view), is_moving: AtomicBool::new(false) }
    }
}
