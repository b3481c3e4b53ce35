//! A layout that runs a hook of its thread when it accesses a node. The hook can change the node between two
//! accesses, as another thread could.
//!
//! The nodes are those of the fixed layout. A hook runs once; it may use the tree, and may set the next hook.

use std::cell::RefCell;
use std::ops::Range;

use pando_cache::NodeShape;
use pando_cache::sync::Word;
use pando_pool::ValueRef;

use crate::error::Result;
use crate::layout::fixed::FixedLayout;
use crate::layout::{Layout, LayoutId, NodeInit, Side, Stored, Toward, header};

/// Kind of an access to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    ChildIndex,
    Count,
    Find,
    InnerInsert,
}

type Hook = Box<dyn FnOnce()>;

thread_local! {
    static HOOK: RefCell<Option<(Asked, u8, Hook)>> = const { RefCell::new(None) };
}

/// Runs `hook` once, right before this thread's next access of kind `asked` to a node of `level`.
pub fn when_asked(asked: Asked, level: u8, hook: impl FnOnce() + 'static) {
    HOOK.set(Some((asked, level, Box::new(hook))));
}

fn tell(asked: Asked, page: &[Word]) {
    let is_meant = |hook: &mut (Asked, u8, Hook)| hook.0 == asked && hook.1 == header::level(page);
    if let Some((_, _, hook)) = HOOK.with_borrow_mut(|hook| hook.take_if(is_meant)) {
        hook();
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Hooked(pub FixedLayout);

impl NodeShape for Hooked {
    fn child_count(&self, page: &[Word]) -> usize {
        self.0.child_count(page)
    }

    fn child_word(&self, page: &[Word], i: usize) -> usize {
        self.0.child_word(page, i)
    }

    fn swizzles(&self, page: &[Word]) -> bool {
        self.0.swizzles(page)
    }

    fn leaves_first_word(&self, page: &[Word]) -> bool {
        self.0.leaves_first_word(page)
    }
}

impl Layout for Hooked {
    type Key<'k> = <FixedLayout as Layout>::Key<'k>;

    fn key<'k>(&self, bytes: &'k [u8]) -> Result<Self::Key<'k>> {
        self.0.key(bytes)
    }

    fn key_bytes<'k>(&self, key: Self::Key<'k>) -> &'k [u8] {
        self.0.key_bytes(key)
    }

    fn value_is_inline(&self, value: &[u8]) -> Result<bool> {
        self.0.value_is_inline(value)
    }

    fn node_size(&self) -> usize {
        self.0.node_size()
    }

    fn place_of(&self, page: &[Word], i: usize, value: Stored<'_>) -> Option<Range<usize>> {
        self.0.place_of(page, i, value)
    }

    fn id(&self) -> LayoutId {
        self.0.id()
    }

    fn scan_start(&self, bound: &[u8], toward: Toward) -> (Vec<u8>, Toward) {
        self.0.scan_start(bound, toward)
    }

    fn lowest_key(&self) -> Vec<u8> {
        self.0.lowest_key()
    }

    fn highest_key(&self) -> Vec<u8> {
        self.0.highest_key()
    }

    fn prefetch_bytes(&self) -> usize {
        self.0.prefetch_bytes()
    }

    fn covers(&self, page: &[Word], key: Self::Key<'_>) -> bool {
        self.0.covers(page, key)
    }

    fn child_index(&self, page: &[Word], key: Self::Key<'_>) -> usize {
        tell(Asked::ChildIndex, page);
        self.0.child_index(page, key)
    }

    fn child_index_below(&self, page: &[Word], key: Self::Key<'_>) -> usize {
        self.0.child_index_below(page, key)
    }

    fn find(&self, page: &[Word], key: Self::Key<'_>) -> std::result::Result<usize, usize> {
        tell(Asked::Find, page);
        self.0.find(page, key)
    }

    fn count(&self, page: &[Word]) -> usize {
        tell(Asked::Count, page);
        self.0.count(page)
    }

    fn append_key(&self, page: &[Word], i: usize, out: &mut Vec<u8>) {
        self.0.append_key(page, i, out);
    }

    fn append_value(&self, page: &[Word], i: usize, out: &mut Vec<u8>) -> Option<ValueRef> {
        self.0.append_value(page, i, out)
    }

    fn long_value(&self, page: &[Word], i: usize) -> Option<ValueRef> {
        self.0.long_value(page, i)
    }

    fn append_fence(&self, page: &[Word], side: Side, out: &mut Vec<u8>) -> bool {
        self.0.append_fence(page, side, out)
    }

    fn verify(&self, page: &[Word]) -> std::result::Result<(), &'static str> {
        self.0.verify(page)
    }

    fn fullness(&self, page: &[Word]) -> f64 {
        self.0.fullness(page)
    }

    fn max_entries(&self) -> usize {
        self.0.max_entries()
    }

    fn max_children(&self) -> usize {
        self.0.max_children()
    }

    fn has_room(&self, page: &[Word], key: &[u8], value_len: usize) -> bool {
        self.0.has_room(page, key, value_len)
    }

    fn is_underfull(&self, page: &[Word]) -> bool {
        self.0.is_underfull(page)
    }

    fn can_merge(&self, left: &[Word], right: &[Word], separator: &[u8]) -> bool {
        self.0.can_merge(left, right, separator)
    }

    fn split_point(
        &self,
        page: &[Word],
        key: &[u8],
        value_len: usize,
        separator: &mut Vec<u8>,
    ) -> Option<usize> {
        self.0.split_point(page, key, value_len, separator)
    }

    fn position(&self, page: &[Word], separator: &[u8]) -> Option<usize> {
        self.0.position(page, separator)
    }

    fn init(&self, page: &[Word], init: &NodeInit<'_>) {
        self.0.init(page, init);
    }

    fn leaf_insert(&self, page: &[Word], i: usize, key: Self::Key<'_>, value: Stored<'_>) -> bool {
        self.0.leaf_insert(page, i, key, value)
    }

    fn leaf_replace(&self, page: &[Word], i: usize, value: Stored<'_>) -> bool {
        self.0.leaf_replace(page, i, value)
    }

    fn leaf_remove(&self, page: &[Word], i: usize) {
        self.0.leaf_remove(page, i);
    }

    fn inner_insert(&self, page: &[Word], i: usize, separator: &[u8], right_child: u64) -> bool {
        tell(Asked::InnerInsert, page);
        self.0.inner_insert(page, i, separator, right_child)
    }

    fn inner_remove(&self, page: &[Word], i: usize) {
        self.0.inner_remove(page, i);
    }

    fn split(&self, page: &[Word], right: &[Word], at: usize, separator: &[u8]) {
        self.0.split(page, right, at, separator);
    }

    fn merge(&self, left: &[Word], right: &[Word], separator: &[u8]) {
        self.0.merge(left, right, separator);
    }

    fn set_fences(&self, page: &[Word], low: Option<&[u8]>, high: Option<&[u8]>) -> bool {
        self.0.set_fences(page, low, high)
    }
}
