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

use std::sync::atomic::{AtomicBool, Ordering};

use pando_cache::{Gate, Inside};

use crate::layout::{Layout, Toward};
use crate::node::Node;
use crate::ownership::range::KeyRange;

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
    pub gate: Gate<View>,
    pub is_moving: AtomicBool,
}

/// An attempt that is under way.
pub(crate) type Entered<'t> = Inside<'t, View>;

/// The exclusive right to change what a tree owns.
pub(crate) struct Mover<'t>(pub &'t Ownership);

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
