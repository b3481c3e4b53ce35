//! Read-ahead of scans (DEX §7): the node above a missing leaf names the next leaves, and those that the scan
//! certainly needs are READ together with it.
//!
//! A leaf is certainly needed if it begins before the end of the range and of the compute server's keys, and
//! the limit exceeds the capacity of all leaves before it. So a scan READs no leaf that it would not READ one
//! by one, unless its visitor stops early or other operations change the index meanwhile.
//!
//! The copies are kept in the scan, not in the cache. Each was the leaf at one moment of the scan, which is
//! all that a scan promises of a leaf. A copy is used for the keys between its fences that were not handed
//! out yet, even if the leaf has changed since. A copy that the scan has passed, because a leaf before it
//! grew by a merge, is dropped.

use pando_fabric::{Endpoint, PageBuf};

use crate::descent::fetch_many::{self, Missing};
use crate::descent::walk::Slot;
use crate::error::Attempt;
use crate::layout::{Layout, Side, Toward, header};
use crate::node::Target;
use crate::ownership::scan_range::ScanRange;
use crate::ownership::view::View;
use crate::tree::{Ctx, Tree, VersionedNode};

/// Copy of a leaf that the scan has not reached yet.
pub(crate) struct Ahead<'t> {
    pub page: PageBuf,
    /// The inner node that named it, and its child index there.
    pub above: (VersionedNode<'t>, usize),
}

/// Leaves that were READ before the scan reached them, in no order.
#[derive(Default)]
pub(crate) struct ReadAhead<'t> {
    copies: Vec<Ahead<'t>>,
}

impl<'t> ReadAhead<'t> {
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Takes the copy that covers `target`. Drops the copies that the scan has passed.
    pub fn take<L: Layout, E: Endpoint>(
        &mut self,
        tree: &Tree<L>,
        ep: &E,
        target: Target<'_, L>,
    ) -> Option<Ahead<'t>> {
        let at = self.copies.iter().position(|copy| tree.node(&copy.page).covers(target));
        let bytes = tree.layout().key_bytes(target.key);
        let found = at.map(|at| self.copies.swap_remove(at));
        for passed in self.copies.extract_if(.., |copy| is_behind(tree, &copy.page, bytes, target.toward)) {
            ep.recycle(passed.page);
        }
        found
    }

    pub fn recycle(self, ep: &impl Endpoint) {
        self.copies.into_iter().for_each(|copy| ep.recycle(copy.page));
    }

    fn holds(&self, slot: &Slot<'_>) -> bool {
        self.copies.iter().any(|copy| header::addr(copy.page.words()) == slot.addr.raw())
    }
}

/// READs the leaf at `slot`, whose ticket was just taken, together with the next leaves that a scan certainly
/// needs to hand out `wanted` more entries of `range`. Returns the first leaf and keeps the others in
/// `ahead`; `None` if the bytes are not the leaf that the parent named.
///
/// # Errors
/// Corruption of the first leaf; errors of the fabric. An error of another leaf is reported when the scan
/// reaches it.
pub(crate) async fn read_with_coming<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    first: Missing<'t>,
    range: &ScanRange<'_>,
    wanted: usize,
    ahead: &mut ReadAhead<'t>,
) -> Attempt<Option<PageBuf>> {
    let slot = first.slot;
    tree.cache.give_way(ctx.worker)?;
    let coming = coming(tree, &tree.view(ctx), slot, range, wanted, ahead);
    // The pin validates the parent after the ticket was taken. A pinned parent stays hot, so that leaves are
    // swizzled below it and the scan can go on from it.
    let _pin = slot.parent.frame.pin(slot.parent.version)?;
    let mut leaves = vec![first];
    leaves
        .extend(coming.iter().filter_map(|(slot, key, toward)| fetch_many::claim(tree, *slot, key, *toward)));
    let hops: Vec<_> = leaves.iter().map(|leaf| (leaf.slot.parent, leaf.slot.index)).collect();
    let mut pages = hops.into_iter().zip(fetch_many::fetch_many(tree, ctx, leaves).await);
    let (_, first) = pages.next().expect("as many pages as leaves, and one at least");
    ahead.copies.extend(pages.filter_map(|(above, page)| Some(Ahead { page: page.ok()??, above })));
    Ok(first?)
}

/// Leaves after the one at `first`, under the same parent, that the scan certainly needs and that are in no
/// frame, each with a key that leads to it. The result counts only if the parent is validated afterwards.
fn coming<'t, L: Layout>(
    tree: &Tree<L>,
    view: &View,
    first: Slot<'t>,
    range: &ScanRange<'_>,
    wanted: usize,
    ahead: &ReadAhead<'t>,
) -> Vec<(Slot<'t>, Vec<u8>, Toward)> {
    // The leaf after `n` others is needed if those cannot hold all `wanted` entries.
    let needed = wanted.div_ceil(tree.layout.max_entries());
    let window = fetch_many::leaves_at_once(tree, tree.config.read_ahead).saturating_sub(ahead.copies.len());
    let node = tree.node(first.parent);
    let mut coming = Vec::new();
    for n in 1..needed.min(window) {
        let (index, separator) = match range.reverse {
            false => (first.index + n, first.index + n - 1),
            true if n > first.index => break,
            true => (first.index - n, first.index - n),
        };
        if index > node.count() {
            break;
        }
        let fence = node.key_at(separator);
        if range.is_past(&fence) || range.is_end_of(&view.keys, &fence) {
            break;
        }
        let Ok(slot) = fetch_many::unswizzled_child(tree, view, first.parent, index) else { break };
        let toward = if range.reverse { Toward::Below } else { Toward::Key };
        if let Some(slot) = slot.filter(|slot| !ahead.holds(slot)) {
            coming.push((slot, fence, toward));
        }
    }
    coming
}

/// Whether a scan at `key` has passed all of a leaf.
fn is_behind<L: Layout>(tree: &Tree<L>, page: &PageBuf, key: &[u8], toward: Toward) -> bool {
    match toward {
        Toward::Below => tree.node(page).fence(Side::Low).is_some_and(|low| low.as_slice() >= key),
        Toward::Key => tree.node(page).fence(Side::High).is_some_and(|high| high.as_slice() <= key),
    }
}
