//! READs of several missing leaves in one round trip, instead of one round trip for each.
//!
//! A scan learns the next leaves from the node above them ([`prefetch`](crate::ops::prefetch)), a lookup of
//! many keys from its keys. The operation gets a private copy of every leaf, whether or not the leaf also
//! gets a frame. The copy is right because of the order of steps: the leaf's ticket is taken first, then the
//! leaf is proved to be in the tree ([`prove_child`](crate::descent::prove::prove_child)). While the ticket
//! is held, no other operation of this compute server changes, merges or frees the leaf, and no other compute
//! server ever does. So the copy is the leaf at one moment of the operation.
//!
//! Tickets are taken without waiting, and leaves whose ticket is taken are left out. All tickets are dropped
//! before the operation waits for anything except frames. So two operations that want the same leaves never
//! wait for each other in a cycle. Frames are taken one at a time, and each is filled at once. A leaf gets no
//! frame if none is available or another operation has the turn.

use pando_cache::defect::Defect;
use pando_cache::{FreeFrame, IoTicket, Lookup, NoFrame};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, PageBuf, Resource, Work, join_all};

use crate::descent::walk::{self, Admit, Miss, Reached, Slot};
use crate::descent::{miss, prove, read};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Toward};
use crate::node::Target;
use crate::ownership::view::View;
use crate::tree::{Ctx, Tree, VersionedNode, gate};

/// Least number of cache frames for each leaf copy in flight.
const FRAMES_PER_LEAF: usize = 4;

/// A leaf that is about to be READ.
pub(crate) struct Missing<'t> {
    pub slot: Slot<'t>,
    pub ticket: IoTicket<'t>,
    /// A key that leads to the leaf from direction `toward`.
    pub key: Vec<u8>,
    pub toward: Toward,
}

/// Leaves that a lookup of many keys READ together, and the leaf of each key.
#[derive(Default)]
pub(crate) struct Fetched {
    leaf_of_key: Vec<Option<usize>>,
    pages: Vec<Option<PageBuf>>,
}

impl Fetched {
    /// Copy of the leaf that covers the `i`-th key.
    pub fn leaf_of(&self, i: usize) -> Option<&PageBuf> {
        self.pages[self.leaf_of_key.get(i).copied().flatten()?].as_ref()
    }

    pub fn recycle(self, ep: &impl Endpoint) {
        self.pages.into_iter().flatten().for_each(|page| ep.recycle(page));
    }
}

/// Number of leaves that an operation which wants `wanted` leaves may have in flight.
pub(crate) fn leaves_at_once<L: Layout>(tree: &Tree<L>, wanted: usize) -> usize {
    wanted.min(tree.cache.frames() / FRAMES_PER_LEAF).max(1)
}

/// READs leaves in parallel and returns copies in the order of `leaves`; `None` if the bytes are not the leaf
/// that the parent named. Admits leaves as any miss does.
pub(crate) async fn fetch_many<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    leaves: Vec<Missing<'t>>,
) -> Vec<Result<Option<PageBuf>>> {
    let reads = leaves.iter().map(|leaf| {
        ctx.worker.counters().count_miss(true);
        read::read_owned(tree, ctx, leaf.slot.addr)
    });
    let mut pages = Vec::with_capacity(leaves.len());
    let mut chosen = Vec::new();
    for (leaf, page) in leaves.iter().zip(join_all(reads).await) {
        pages.push(page.map(|page| {
            let is_leaf = tree.layout.key(&leaf.key).is_ok_and(|key| {
                tree.node(&page).level() == 0 && tree.node(&page).covers(Target::new(key, leaf.toward))
            });
            if is_leaf {
                return Some(page);
            }
            ctx.ep.recycle(page);
            None
        }));
    }
    // Drop the tickets of leaves that get no frame before the first wait.
    for (i, leaf) in leaves.into_iter().enumerate() {
        let Ok(Some(page)) = &pages[i] else { continue };
        if tree.cache.give_way(ctx.worker).is_err() {
            continue;
        }
        if let Some(free) = tree.cache.take_free(ctx.worker) {
            admit_copy(tree, ctx, free, page, leaf);
        } else if tree.cache.admission().admits(ctx.ep.random()) {
            chosen.push((i, leaf));
        }
    }
    for (i, leaf) in chosen {
        match (tree.cache.allocate(ctx.worker, ctx.ep, tree.shape()).await, &pages[i]) {
            (Ok(free), Ok(Some(page))) => admit_copy(tree, ctx, free, page, leaf),
            // No frame is needed: the copy serves the operation.
            (Ok(_) | Err(NoFrame::GiveWay | NoFrame::Crowded), _) => {}
            (Err(NoFrame::Failed(error)), _) => pages[i] = Err(error.into()),
        }
    }
    pages
}

fn admit_copy<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    free: FreeFrame<'_>,
    page: &PageBuf,
    leaf: Missing<'_>,
) {
    let key = tree.layout.key(&leaf.key).expect("the leaf was seen to cover this key");
    ctx.ep.charge(Work::Admit);
    ctx.ep.charge(Work::Hold(Resource::Frame(leaf.slot.parent.frame.id().0)));
    // The result, hot or cooling, does not matter: the operation does not enter the frame.
    let _ = miss::admit_below(tree, free, page, leaf.ticket, leaf.slot, Target::new(key, leaf.toward));
}

/// READs the leaves of those `keys` whose index `wanted` accepts, if the nodes above show that the leaves are
/// missing. The caller looks up the remaining keys one by one, and finds out so whether a memory server that does not answer is
/// a drained one.
///
/// # Errors
/// Corruption; errors of the fabric.
pub(crate) async fn fetch_leaves_of<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    keys: &[&[u8]],
    wanted: impl Fn(usize) -> bool,
) -> Result<Fetched> {
    let mut fetched = Fetched::default();
    // A single leaf gains nothing.
    if (0..keys.len()).filter(|&i| wanted(i)).nth(1).is_none() {
        return Ok(fetched);
    }
    fetched.leaf_of_key.resize(keys.len(), None);
    let (_entered, view) = gate::enter_any(tree, ctx);
    let mut slots: Vec<(Slot<'t>, usize)> = Vec::new();
    for (i, key) in keys.iter().enumerate().filter(|&(i, _)| wanted(i)) {
        let slot = match missing_leaf(tree, ctx, &view, key).await {
            Ok(Some(slot)) => slot,
            Ok(None) | Err(Retry::Restart | Retry::Crowded(_)) => continue,
            Err(Retry::Failed(error)) if error.unreached().is_some() => continue,
            Err(Retry::Failed(error)) => return Err(error),
        };
        let same = slots.iter().position(|(other, _)| other.addr == slot.addr);
        fetched.leaf_of_key[i] = Some(same.unwrap_or(slots.len()));
        if same.is_none() {
            slots.push((slot, i));
        }
    }
    for some in slots.chunks(leaves_at_once(tree, slots.len())) {
        let start = fetched.pages.len();
        fetched.pages.resize_with(start + some.len(), || None);
        let (places, leaves): (Vec<_>, Vec<_>) = some
            .iter()
            .enumerate()
            .filter_map(|(at, &(slot, i))| Some((start + at, claim(tree, slot, keys[i], Toward::Key)?)))
            .unzip();
        for (at, page) in places.into_iter().zip(fetch_many(tree, ctx, leaves).await) {
            fetched.pages[at] = match page {
                Err(error) if error.unreached().is_some() => None,
                page => page?,
            };
        }
    }
    Ok(fetched)
}

/// Slot of the leaf of `key` in its parent, if the leaf is in no frame. Admits missing nodes above it.
async fn missing_leaf<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    view: &View,
    key: &[u8],
) -> Attempt<Option<Slot<'t>>> {
    if !view.owns(key, Toward::Key) {
        return Err(DexError::NotOwned.into());
    }
    let key = tree.layout.key(key)?;
    let Reached::Cached { node: parent, .. } =
        walk::walk(tree, ctx, Target::of(key), 1, Miss::fetched(Admit::Lazily)).await?
    else {
        unreachable!("inner nodes are always admitted");
    };
    let page = tree.node(parent);
    if page.level() != 1 {
        return Ok(None);
    }
    let index = page.child_index(key);
    Ok(unswizzled_child(tree, view, parent, index)?
        .filter(|slot| tree.cache.table().frame_of(slot.addr).is_none()))
}

/// Slot `index` of `parent`; `None` if it is swizzled or the child is shared.
pub(crate) fn unswizzled_child<'t, L: Layout>(
    tree: &Tree<L>,
    view: &View,
    parent: VersionedNode<'t>,
    index: usize,
) -> Attempt<Option<Slot<'t>>> {
    let node = tree.node(parent);
    let shared = node.is_shared() && view.shares_child(node, index);
    let addr = node.child_addr(index).filter(|_| !shared);
    parent.validate()?;
    Ok(addr.map(|addr| Slot { parent, index, addr }))
}

/// Takes the ticket of a leaf that is in no frame; `None` if the ticket is taken or the leaf is not proved to
/// be in the tree.
pub(crate) fn claim<'t, L: Layout>(
    tree: &'t Tree<L>,
    slot: Slot<'t>,
    key: &[u8],
    toward: Toward,
) -> Option<Missing<'t>> {
    let Lookup::Miss(ticket) = tree.cache.table().begin(slot.addr) else { return None };
    if defect(Defect::StaleBatchBelieved) {
        slot.parent.validate().ok()?;
    } else {
        prove::prove_child(tree, slot, Target::new(tree.layout.key(key).ok()?, toward)).ok()?;
    }
    Some(Missing { slot, ticket, key: key.to_vec(), toward })
}
