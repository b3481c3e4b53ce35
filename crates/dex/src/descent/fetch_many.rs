//! Leaves that one operation misses together are READ together: one round trip for all of them, not one for each.
//!
//! A scan knows the leaves to come from the node above them ([`prefetch`](crate::ops::prefetch)), and a lookup of many
//! keys knows its own. What such an operation gets is a private copy of every leaf, whether or not the leaf also gets a
//! frame. A copy is right because of how it was read: the ticket of the leaf was taken first, then the leaf was proved to be
//! in the tree ([`prove_child`](crate::descent::prove::prove_child)); while the ticket is held, nobody in this compute server changes,
//! merges or frees it, and nobody else ever does. So the copy is the leaf as it was at one moment of the operation.
//!
//! Tickets are taken without waiting, those that others have are left out, and all are dropped before anything else is
//! waited for but frames. So two operations that want the same leaves never wait for each other in a circle. Frames
//! are taken one at a time, each filled at once; where there is none, or another operation has the turn, the leaf gets none.

use std::future::Future;
use std::task::Poll;

use pando_cache::defect::Defect;
use pando_cache::{FreeFrame, IoTicket, Lookup, NoFrame};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, PageBuf, Resource, Work};

use crate::descent::walk::{self, Admit, Miss, Reached, Slot};
use crate::descent::{miss, prove, read};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Toward};
use crate::node::Target;
use crate::ownership::view::View;
use crate::tree::{Ctx, Tree, VersionedNode, gate};

/// Share of a cache's frames that copies of leaves in flight may take besides.
const FRAMES_PER_LEAF: usize = 4;

/// A leaf that is about to be READ.
pub(crate) struct Missing<'t> {
    pub slot: Slot<'t>,
    pub ticket: IoTicket<'t>,
    /// A key that leads to the leaf, seen in this direction.
    pub key: Vec<u8>,
    pub toward: Toward,
}

/// Leaves that were missing for a lookup of many keys, and which key found its leaf among them.
#[derive(Default)]
pub(crate) struct Fetched {
    leaf_of_key: Vec<Option<usize>>,
    pages: Vec<Option<PageBuf>>,
}

impl Fetched {
    /// The copy of the leaf that the `i`-th key belongs to.
    pub fn leaf_of(&self, i: usize) -> Option<&PageBuf> {
        self.pages[self.leaf_of_key.get(i).copied().flatten()?].as_ref()
    }

    pub fn recycle(self, ep: &impl Endpoint) {
        self.pages.into_iter().flatten().for_each(|page| ep.recycle(page));
    }
}

/// How many leaves may be in flight for one operation that wants `wanted`.
pub(crate) fn leaves_at_once<L: Layout>(tree: &Tree<L>, wanted: usize) -> usize {
    wanted.min(tree.cache.frames() / FRAMES_PER_LEAF).max(1)
}

/// READs leaves side by side and gives back copies, in the order of `leaves`; `None` where the bytes are not the
/// leaf that the parent seemed to mean. Admits leaves as any miss does.
pub(crate) async fn fetch_many<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    leaves: Vec<Missing<'t>>,
) -> Vec<Result<Option<PageBuf>>> {
    let reads = leaves.iter().map(|leaf| {
        ctx.worker.counters().count_miss(true);
        read::read_checked(tree, ctx, leaf.slot.addr, ctx.ep.buffer(tree.layout.node_size()))
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
    // Tickets of leaves that get no frame go before anything is waited for.
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
        match (tree.cache.allocate(ctx.worker, ctx.ep, tree.layout).await, &pages[i]) {
            (Ok(free), Ok(Some(page))) => admit_copy(tree, ctx, free, page, leaf),
            // The copy serves as well.
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
    // Hot or cooling: nobody is on the way to it.
    let _ = miss::admit_below(tree, free, page, leaf.ticket, leaf.slot, Target::new(key, leaf.toward));
}

/// READs the leaves of those of `keys` that `wanted` says, as far as they are known to be missing by the nodes
/// above them. What it leaves out is to be looked up by itself.
///
/// # Errors
/// Corruption; errors of the fabric.
pub(crate) async fn fetch_leaves_of<'t, L: Layout, E: Endpoint, K: AsRef<[u8]>>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    keys: &[K],
    wanted: impl Fn(usize) -> bool,
) -> Result<Fetched> {
    let mut fetched = Fetched::default();
    // One alone gains nothing.
    if (0..keys.len()).filter(|&i| wanted(i)).nth(1).is_none() {
        return Ok(fetched);
    }
    fetched.leaf_of_key.resize(keys.len(), None);
    let (_entered, view) = gate::enter_any(tree, ctx);
    let mut slots: Vec<(Slot<'t>, usize)> = Vec::new();
    for (i, key) in keys.iter().enumerate().filter(|&(i, _)| wanted(i)) {
        let slot = match missing_leaf(tree, ctx, &view, key.as_ref()).await {
            Ok(Some(slot)) => slot,
            Ok(None) | Err(Retry::Restart | Retry::Crowded(_)) => continue,
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
            .filter_map(|(at, &(slot, i))| {
                Some((start + at, claim(tree, slot, keys[i].as_ref(), Toward::Key)?))
            })
            .unzip();
        for (at, page) in places.into_iter().zip(fetch_many(tree, ctx, leaves).await) {
            fetched.pages[at] = page?;
        }
    }
    Ok(fetched)
}

/// Where the parent of the leaf of `key` names it, if the leaf is in no frame. The nodes above are brought in.
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

/// The child word `index` of `parent`, unless it is swizzled or the child is another compute server's too.
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

/// Takes the ticket of a leaf that is in no frame, if nobody else has it and it proves to be in the tree.
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

/// Runs futures side by side to their ends; their outputs in the same order.
pub(crate) async fn join_all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.map(|future| (Some(Box::pin(future)), None)).collect();
    std::future::poll_fn(|cx| {
        let mut pending = false;
        for (slot, output) in &mut running {
            let Some(future) = slot else { continue };
            match future.as_mut().poll(cx) {
                Poll::Ready(done) => (*slot, *output) = (None, Some(done)),
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    running.into_iter().map(|(_, output)| output.expect("every future ran to its end")).collect()
}
