//! Range scans (DEX §7): leaf by leaf, from fence to fence, since leaves are not linked.
//!
//! A leaf is copied, the copy is validated, and only then are its entries handed out. So the entries of one
//! leaf were all present at one moment. The next leaf starts where the fences of the copy end. The cursor
//! remembers the last inner node: while that does not change, the next leaf is its next child, without a
//! descent. With a leaf that is not cached, the scan also READs the leaves that it certainly needs next (see
//! [`prefetch`](crate::ops::prefetch)).

use std::ops::Bound;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use pando_cache::defect::Defect;
use pando_cache::{FrameId, FrameRef};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Work, outlined};
use pando_pool::ValueRef;

use crate::descent::fetch_many::Missing;
use crate::descent::optimistic;
use crate::descent::walk::{self, Admit, Located, Miss, Reached, Slot};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Side, Toward};
use crate::node::Target;
use crate::ops::point;
use crate::ops::prefetch::{self, ReadAhead};
use crate::ownership::range::KeyRange;
use crate::ownership::scan_range::{ScanRange, Scanned};
use crate::recovery::restart::RestartPolicy;
use crate::tree::{Ctx, Tree, VersionedNode, gate, journal};

/// Position of a scan.
struct Cursor<'t> {
    /// Copy of the current leaf.
    page: PageBuf,
    /// The inner node above it, and the index of the leaf there; `None` if the leaf is the root.
    above: Option<(VersionedNode<'t>, usize)>,
    /// Number of the last record of the log about the leaf.
    seen: u64,
    /// Where the next leaf starts (ends, if descending).
    fence: Vec<u8>,
    /// Entries still to be handed out.
    wanted: usize,
    /// Leaves that were READ together with an earlier one.
    ahead: ReadAhead<'t>,
    /// Where another compute server continues, if keys in the middle of the leaf moved away.
    lost: Option<Bound<Vec<u8>>>,
}

/// Number of entries that most leaves have at least.
const SHORT: usize = 16;

impl<L: Layout> Tree<L> {
    /// Calls `visit` for the entries of `range` that this compute server owns, in order, each once, until it
    /// returns `false`. Visits every key that is present throughout the scan, and none that is absent
    /// throughout.
    ///
    /// READs the leaves that it touches and that are not cached, several at once. If the visitor stops early,
    /// up to [`TreeConfig::read_ahead`](crate::TreeConfig::read_ahead) - 1 leaves were READ in vain; a limit
    /// avoids that.
    ///
    /// # Errors
    /// Corruption; errors of the fabric. Entries that were visited before remain valid.
    pub async fn scan<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Scanned> {
        let own = self.view(ctx);
        match start_of(self, &own.keys, range).filter(|_| range.limit > 0) {
            Some((start, toward)) => scan_from(self, ctx, range, start, toward, visit).await,
            None => Ok(Scanned { entries: 0, complete: true, next: Bound::Unbounded }),
        }
    }

    /// [`Tree::scan`] for callers whose routing may be out of date: the first key of `range` must belong to
    /// this compute server. The scan ends early where the keys of this compute server end, and
    /// [`Scanned::next`] tells where another one continues.
    ///
    /// # Errors
    /// [`DexError::NotOwned`](crate::DexError::NotOwned), before any entry was visited; as for
    /// [`Tree::scan`].
    pub async fn scan_owned<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Scanned> {
        let own = self.view(ctx);
        if !range.starts_in(&own.keys) {
            return Err(DexError::NotOwned);
        }
        match start_of(self, &own.keys, range).filter(|_| range.limit > 0) {
            Some((start, toward)) => scan_from(self, ctx, range, start, toward, visit).await,
            // No key of this layout is in both ranges: the rest of `range` belongs to another compute server.
            None => {
                let end = if range.reverse { &own.keys.low } else { &own.keys.high };
                let mut scanned = Scanned { entries: 0, complete: true, next: Bound::Unbounded };
                if let Some(end) = end.as_ref().filter(|end| range.limit > 0 && !range.is_past(end)) {
                    scanned.end_at(range.bound_at(end));
                }
                Ok(scanned)
            }
        }
    }
}

async fn scan_from<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    range: &ScanRange<'_>,
    start: Vec<u8>,
    mut toward: Toward,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<Scanned> {
    let mut scanned = Scanned { entries: 0, complete: true, next: Bound::Unbounded };
    let mut cursor = Cursor {
        page: ctx.ep.buffer(tree.layout.node_size()),
        above: None,
        seen: 0,
        fence: start,
        wanted: range.limit,
        ahead: ReadAhead::default(),
        lost: None,
    };
    let mut is_first = true;
    loop {
        match next_leaf(tree, ctx, &mut cursor, range, toward).await {
            Err(DexError::NotOwned) if !is_first => {
                scanned.end_at(range.bound_at(&cursor.fence));
                break;
            }
            result => result?,
        }
        is_first = false;
        journal::durable(tree, ctx, cursor.seen).await?;
        let left = range.limit - scanned.entries;
        // The leaf was copied, and the first entry is searched for in the copy.
        ctx.ep.charge(Work::Copy { bytes: tree.layout.node_size() });
        ctx.ep.charge(Work::NodeSearch);
        let (entries, more) =
            visit_leaf(tree, ctx, &mut cursor, range, toward, left, |key, value| visit(key, value)).await?;
        ctx.ep.renew_time_limit();
        ctx.ep.charge(Work::Entries { count: entries });
        scanned.entries += entries;
        cursor.wanted = range.limit - scanned.entries;
        if let Some(next) = cursor.lost.take() {
            scanned.end_at(next);
            break;
        }
        if !more || !go_on(tree, &mut cursor, range, toward)? {
            break;
        }
        if range.is_end_of(&tree.view(ctx).keys, &cursor.fence) {
            scanned.end_at(range.bound_at(&cursor.fence));
            break;
        }
        toward = if range.reverse { Toward::Below } else { Toward::Key };
    }
    ctx.ep.recycle(cursor.page);
    cursor.ahead.recycle(ctx.ep);
    Ok(scanned)
}

/// Moves the cursor to the fence where the next leaf starts; `false` if the range has no further leaf.
///
/// # Errors
/// Corruption, if that fence is not beyond the one where this leaf was entered. The scan would cycle through
/// nodes that do not form one tree.
fn go_on<L: Layout>(
    tree: &Tree<L>,
    cursor: &mut Cursor<'_>,
    range: &ScanRange<'_>,
    toward: Toward,
) -> Result<bool> {
    let side = if range.reverse { Side::Low } else { Side::High };
    // Append the new fence to the old one: a second vector would cost every scan an allocation.
    let entered = cursor.fence.len();
    if !tree.node(&cursor.page).append_fence(side, &mut cursor.fence) {
        return Ok(false);
    }
    let (before, fence) = cursor.fence.split_at(entered);
    let goes_on = match (range.reverse, toward) {
        (false, _) => fence > before,
        (true, Toward::Below) => fence < before,
        (true, Toward::Key) => fence <= before,
    };
    if !goes_on {
        let addr = tree.node(&cursor.page).addr();
        let reason = "a leaf that is not where a scan came upon it";
        return Err(DexError::Corrupt { addr: addr.unwrap_or(GlobalAddr::NULL), reason });
    }
    cursor.fence.drain(..entered);
    Ok(!range.is_past(&cursor.fence))
}

/// Key at which a scan starts, inside this compute server's keys; `None` if these do not meet the range.
fn start_of<L: Layout>(tree: &Tree<L>, own: &KeyRange, range: &ScanRange<'_>) -> Option<(Vec<u8>, Toward)> {
    if range.reverse {
        let bound = match range.high {
            Bound::Unbounded => None,
            Bound::Included(high) => Some((high, Toward::Key)),
            Bound::Excluded(high) => Some((high, Toward::Below)),
        };
        return match (bound, own.high.as_deref()) {
            (Some((high, toward)), end) if end.is_none_or(|end| high < end) => {
                Some(tree.layout.scan_start(high, toward))
            }
            (_, Some(end)) => Some((end.to_vec(), Toward::Below)),
            (_, None) => Some((tree.layout.highest_key(), Toward::Key)),
        }
        .filter(|(start, toward)| {
            let at_low = |low: &Vec<u8>| low == start && *toward == Toward::Key;
            own.low.as_ref().is_none_or(|low| low < start || at_low(low))
        });
    }
    let low = match range.low {
        Bound::Unbounded => &[][..],
        Bound::Included(low) | Bound::Excluded(low) => low,
    };
    let low = own.low.as_deref().map_or(low, |own| own.max(low));
    let start = tree.layout.scan_start(low, Toward::Key);
    own.contains(&start.0).then_some(start)
}

/// Copies the leaf at the cursor's fence into the cursor.
async fn next_leaf<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    cursor: &mut Cursor<'t>,
    range: &ScanRange<'_>,
    toward: Toward,
) -> Result<()> {
    if take_ahead(tree, ctx, cursor, toward)? || step(tree, cursor, toward).is_some() {
        ctx.worker.counters().count_descent(1);
        return Ok(());
    }
    // In place: a box around what every scan does would cost more than it saves.
    outlined(pin!(find_leaf(tree, ctx, cursor, range, toward))).await
}

/// Copies the leaf at the cursor's fence into the cursor, by a descent.
async fn find_leaf<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    mut ctx: Ctx<'_, E>,
    cursor: &mut Cursor<'t>,
    range: &ScanRange<'_>,
    toward: Toward,
) -> Result<()> {
    let tries = RestartPolicy::default();
    loop {
        match descend_to_leaf(tree, ctx, cursor, range, toward).await {
            Ok(()) => return Ok(()),
            Err(retry) => ctx = tries.again(tree, ctx, retry, "a node that others use").await?,
        }
    }
}

/// Goes on with a copy that was READ together with an earlier leaf; `false` if there is none.
fn take_ahead<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    cursor: &mut Cursor<'t>,
    toward: Toward,
) -> Result<bool> {
    if cursor.ahead.is_empty() {
        return Ok(false);
    }
    let target = Target::new(tree.layout.key(&cursor.fence)?, toward);
    let Some(copy) = cursor.ahead.take(tree, ctx.ep, target) else { return Ok(false) };
    ctx.ep.recycle(std::mem::replace(&mut cursor.page, copy.page));
    cursor.seen = 0;
    // While that node is unchanged, the copy has the fences that the node gives this child.
    cursor.above = Some(copy.above);
    prefetch_next(tree, cursor, toward);
    Ok(true)
}

/// Goes on with the next child of the remembered inner node, if that is unchanged and the child is swizzled.
fn step<'t, L: Layout>(tree: &'t Tree<L>, cursor: &mut Cursor<'t>, toward: Toward) -> Option<()> {
    let (above, index) = cursor.above.take()?;
    let node = tree.node(above);
    let index = match toward {
        Toward::Key => index + 1,
        Toward::Below => index.checked_sub(1)?,
    };
    if index > node.count() {
        return None;
    }
    let swip = node.child(index);
    let frame = tree.cache.try_frame(swip.frame()?)?;
    let version = frame.optimistic().ok()?;
    if !defect(Defect::SkipStepCheck) {
        above.validate().ok()?;
    }
    cursor.above = Some((above, index));
    prefetch_next(tree, cursor, toward);
    copy_leaf(tree, frame, cursor);
    if frame.validate(version).is_err() {
        cursor.above = None;
        return None;
    }
    Some(())
}

async fn descend_to_leaf<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    cursor: &mut Cursor<'t>,
    range: &ScanRange<'_>,
    toward: Toward,
) -> Attempt<()> {
    let _entered = gate::enter_gate(tree, ctx, &cursor.fence, toward)?;
    let fence = std::mem::take(&mut cursor.fence);
    let result = match tree.layout.key(&fence) {
        Ok(key) => descend_by_parent(tree, ctx, cursor, range, Target::new(key, toward)).await,
        Err(error) => Err(error.into()),
    };
    cursor.fence = fence;
    result
}

/// Descends to the node above the leaf, and enters the leaf or READs it, together with some that follow.
async fn descend_by_parent<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    cursor: &mut Cursor<'t>,
    range: &ScanRange<'_>,
    target: Target<'_, L>,
) -> Attempt<()> {
    let Reached::Cached { node: above, .. } =
        walk::walk(tree, ctx, target, 1, Miss::fetched(Admit::Lazily)).await?
    else {
        unreachable!("inner nodes are always admitted");
    };
    let node = tree.node(above);
    if node.level() == 0 {
        cursor.above = None;
        copy_leaf(tree, above.frame, cursor);
        return above.validate().map_err(Retry::from);
    }
    ctx.worker.counters().count_inner();
    let index = node.child_toward(target);
    let leaf = match node.child(index).frame() {
        Some(id) => enter_leaf(tree, ctx, above, id).await?,
        None => {
            let slot = walk::slot(tree, above, index)?;
            // Boxed, to keep the futures of scans whose leaves are all in frames small.
            match outlined(Box::pin(bring_leaf(tree, ctx, cursor, range, slot, target))).await? {
                Some(leaf) => leaf,
                None => return Ok(()),
            }
        }
    };
    cursor.above = Some((above, index));
    prefetch_next(tree, cursor, target.toward);
    copy_leaf(tree, leaf.frame, cursor);
    leaf.validate().map_err(Retry::from)
}

/// Finds a leaf that is not swizzled. Returns its frame, or READs it into the cursor together with some that
/// follow and returns `None`.
async fn bring_leaf<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    cursor: &mut Cursor<'t>,
    range: &ScanRange<'_>,
    slot: Slot<'t>,
    target: Target<'_, L>,
) -> Attempt<Option<VersionedNode<'t>>> {
    match walk::locate(tree, ctx, slot, target).await? {
        Located::Cached(leaf) => Ok(Some(leaf)),
        Located::Offloaded => {
            tree.cache.table().close(slot.addr);
            Err(Retry::Restart)
        }
        Located::Missing(ticket) => {
            let (key, wanted) = (tree.layout.key_bytes(target.key).to_vec(), cursor.wanted);
            let first = Missing { slot, ticket, key, toward: target.toward };
            let page = prefetch::read_with_coming(tree, ctx, first, range, wanted, &mut cursor.ahead).await?;
            enter_copy(tree, ctx, cursor, slot, page, target).await?;
            Ok(None)
        }
    }
}

/// Enters a swizzled leaf.
async fn enter_leaf<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    above: VersionedNode<'t>,
    id: FrameId,
) -> Attempt<VersionedNode<'t>> {
    tree.cache.prefetch(id, tree.layout.node_size());
    if ctx.ep.slots() > 1 {
        ctx.ep.yield_now().await;
    }
    Ok(optimistic::enter(tree, above, id)?)
}

/// Goes on with the copy of a leaf that was READ. If the bytes were another node, an ordinary descent finds
/// the reason: a stale copy of the parent, or corruption.
async fn enter_copy<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    cursor: &mut Cursor<'t>,
    slot: Slot<'t>,
    page: Option<PageBuf>,
    target: Target<'_, L>,
) -> Attempt<()> {
    let page = match page {
        Some(page) => {
            cursor.above = Some((slot.parent, slot.index));
            page
        }
        None => {
            cursor.above = None;
            match walk::walk(tree, ctx, target, 0, Miss::fetched(Admit::Lazily)).await? {
                Reached::Private { leaf, .. } => leaf.page,
                Reached::Offloadable(_) => unreachable!("nothing was offered"),
                Reached::Cached { node, .. } => {
                    copy_leaf(tree, node.frame, cursor);
                    return node.validate().map_err(Retry::from);
                }
            }
        }
    };
    ctx.ep.recycle(std::mem::replace(&mut cursor.page, page));
    cursor.seen = 0;
    Ok(())
}

/// Visits the entries of the copied leaf. Returns their number and whether the scan goes on.
async fn visit_leaf<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'t, E>,
    cursor: &mut Cursor<'t>,
    range: &ScanRange<'_>,
    toward: Toward,
    limit: usize,
    mut visit: impl FnMut(&[u8], &[u8]) -> bool,
) -> Result<(usize, bool)> {
    let node = tree.node(&cursor.page);
    let count = node.count();
    let first = match node.find(tree.layout.key(&cursor.fence)?) {
        Ok(i) if range.reverse && toward == Toward::Key => i + 1,
        Ok(i) | Err(i) => i,
    };
    let indexes = if range.reverse { 0..first } else { first..count };
    let (mut visited, mut key, mut value) = (0, Vec::new(), Vec::new());
    // In an ascending scan with an inclusive start and no end, every entry from the first on is in the range.
    let all = !range.reverse && range.high == Bound::Unbounded && !matches!(range.low, Bound::Excluded(_));
    if all
        && (range.low == Bound::Unbounded || tree.layout.key(low_of(range)).is_ok())
        && node.entry_of_words(0).is_some()
    {
        for (i, _) in indexes.zip(0..limit) {
            let Some((key, value)) = node.entry_of_words(i) else { break };
            visited += 1;
            if !visit(&key, &value) {
                return Ok((visited, false));
            }
        }
        return Ok((visited, visited < limit));
    }
    for step in 0..indexes.len() {
        let i = if range.reverse { indexes.end - 1 - step } else { indexes.start + step };
        if visited == limit {
            return Ok((visited, false));
        }
        key.clear();
        value.clear();
        tree.node(&cursor.page).append_key(i, &mut key);
        let (skip, stop) = match range.reverse {
            false => (!range.above_low(&key), !range.below_high(&key)),
            true => (!range.below_high(&key), !range.above_low(&key)),
        };
        if stop {
            return Ok((visited, false));
        }
        if skip {
            continue;
        }
        if let Some(long) = tree.node(&cursor.page).append_value(i, &mut value) {
            match outlined(Box::pin(long_of(tree, ctx, &key, long, &mut value))).await {
                Ok(true) => {}
                // Removed since the leaf was copied, so it was not present throughout.
                Ok(false) => continue,
                Err(DexError::NotOwned) => {
                    cursor.lost = Some(Bound::Included(key));
                    return Ok((visited, false));
                }
                Err(error) => return Err(error),
            }
        }
        visited += 1;
        if !visit(&key, &value) {
            return Ok((visited, false));
        }
    }
    Ok((visited, visited < limit))
}

/// Appends the long value of a copied entry, or the key's current value if that one is gone; `false` if the
/// key is absent.
pub(crate) async fn long_of<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: &[u8],
    long: ValueRef,
    out: &mut Vec<u8>,
) -> Result<bool> {
    let start = out.len();
    match point::read_long(tree, ctx, long, out).await {
        Ok(()) => Ok(true),
        Err(Retry::Failed(error)) if error.unreached().is_none() => Err(error),
        // Also if it was on a memory server that is drained since the entry was copied.
        Err(_) => {
            out.truncate(start);
            tree.get(ctx, key, out).await
        }
    }
}

/// Prefetches the leaf after the current one, which is copied and visited meanwhile; does nothing if the scan
/// will likely end in the current one.
fn prefetch_next<L: Layout>(tree: &Tree<L>, cursor: &Cursor<'_>, toward: Toward) {
    if cursor.wanted < SHORT {
        return;
    }
    let Some((above, index)) = cursor.above else { return };
    let node = tree.node(above);
    let index = match toward {
        Toward::Key => index + 1,
        Toward::Below => index.wrapping_sub(1),
    };
    if index <= node.count() {
        let swip = node.child(index);
        if let Some(id) = swip.frame() {
            tree.cache.prefetch(id, tree.layout.node_size());
        }
    }
}

/// Copies a leaf into the cursor. The caller validates its version afterwards.
#[inline]
fn copy_leaf<L: Layout>(tree: &Tree<L>, leaf: FrameRef<'_>, cursor: &mut Cursor<'_>) {
    for (to, from) in cursor.page.words().iter().zip(leaf.words()) {
        to.store(from.load(Relaxed), Relaxed);
    }
    cursor.seen = journal::seen(tree, leaf);
}

fn low_of<'k>(range: &ScanRange<'k>) -> &'k [u8] {
    match range.low {
        Bound::Unbounded => &[],
        Bound::Included(low) | Bound::Excluded(low) => low,
    }
}

#[cfg(test)]
mod tests;
