//! The former owner's half of a move of keys (DEX §8, repartitioning): its cached nodes of those keys are
//! written back and leave the cache, while operations on all other keys go on.
//!
//! 1. [`begin_leave`] shrinks the range at one moment and waits for all attempts that began before. From then
//!    on no descent goes to a node of the keys that leave; operations on cached leaves still succeed.
//! 2. [`Leaving::flush_share`], called by any number of workers, writes back and evicts the leaves of those
//!    keys, with parallel WRITEs, then the nodes above them.
//! 3. [`Leaving::finish`] splits the leaf at the new boundary, makes the nodes on the path to it shared, from
//!    the root down ([`share_path`]), and evicts the rest. If there is a log, it says then that the keys have left, so
//!    that redo leaves their pages alone from there on. After that the neighbour may take the keys over.
//!
//! Invariants: a node in a frame is shared only if its parent is. A node that becomes shared is written
//! through under its remote lock, so that no other compute server sees an outdated copy; its children are
//! unswizzled.

use std::sync::Arc;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};

use pando_cache::sync::Word;
use pando_cache::{Expelled, FrameId, FrameState};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, join_all};
use pando_log::defect::OfMoves;

use crate::descent::{read, refresh};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, Side, header};
use crate::migrate::acquire;
use crate::node::{Node, Target};
use crate::ownership::range::KeyRange;
use crate::ownership::view::{Mover, View};
use crate::recovery::restart::RestartPolicy;
use crate::recovery::{room, unfinished};
use crate::shared::locked::{self, LockedNode};
use crate::shared::record;
use crate::smo::split;
use crate::tree::journal::Room;
use crate::tree::patience::Patience;
use crate::tree::{self, Ctx, Tree, VersionedNode, gate};

/// Number of frames that a worker draws at a time.
const CHUNK: u64 = 64;

/// Number of nodes that a worker writes back in parallel.
const AT_ONCE: usize = 16;

/// Result of an attempt to make a node shared.
enum Shared {
    Done,
    /// The node has changed.
    Not,
    /// A write-back is in progress.
    NotYet,
}

/// Counts of nodes written back and evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    pub nodes_written: u64,
    pub bytes_written: u64,
    pub nodes_evicted: u64,
}

impl std::ops::AddAssign for Flushed {
    fn add_assign(&mut self, other: Self) {
        self.nodes_written += other.nodes_written;
        self.bytes_written += other.bytes_written;
        self.nodes_evicted += other.nodes_evicted;
    }
}

/// Ownership of a compute server before it began to give keys away.
struct Left<'t> {
    mover: Mover<'t>,
    before: Arc<View>,
    /// The view has shrunk, and no other compute server may take the keys over yet.
    is_to_be_restored: AtomicBool,
}

impl Left<'_> {
    /// Restores the view. Attempts of this compute server may still have a node locked that is owned again,
    /// so the view counts as growing until the next successful change.
    fn take_back(&self) {
        self.is_to_be_restored.store(false, Relaxed);
        self.mover.update_view(|_| View { is_growing: true, ..View::clone(&self.before) });
    }
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if self.is_to_be_restored.load(Relaxed) {
            self.take_back();
        }
    }
}

/// A compute server that is giving keys away. It has them again if this is dropped before [`Leaving::finish`]
/// succeeded.
#[must_use = "the keys have no owner until the hand-over is finished and another takes them over"]
pub struct Leaving<'t, L> {
    tree: &'t Tree<L>,
    left: Left<'t>,
    keep: KeyRange,
    /// New boundaries.
    ends: Vec<Vec<u8>>,
    /// Number of chunks of frames drawn: each is drawn once for its leaves, then once for other nodes.
    drawn: AtomicU64,
}

/// Gives up all keys except those of `keep`, which is empty or shares an end with the current range. Returns
/// when no attempt that began before is inside the gate. From now on, operations on the keys that leave fail
/// with [`DexError::NotOwned`], unless they find their leaf cached.
///
/// # Errors
/// A range that does not share an end with the current one; a boundary that is no key of this layout;
/// [`DexError::Moving`] during another move of keys; [`DexError::TimedOut`]. Nothing is given up then.
pub async fn begin_leave<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    keep: KeyRange,
) -> Result<Leaving<'t, L>> {
    let mover = gate::mover(tree)?;
    let old = tree.view(ctx);
    if old.nodes.without(&keep).is_none() {
        return Err(DexError::WrongRange("is no part with an end of the keys that are to be left"));
    }
    let keep = if keep.is_empty() { KeyRange::none() } else { keep };
    let mut ends = Vec::new();
    if !keep.is_empty() {
        let new = |end: &Option<Vec<u8>>, old: &Option<Vec<u8>>| end.clone().filter(|_| end != old);
        ends.extend(new(&keep.low, &old.nodes.low));
        ends.extend(new(&keep.high, &old.nodes.high));
    }
    for end in &ends {
        tree.layout.key(end)?;
    }
    let smaller = |view: &View| View { keys: keep.clone(), nodes: keep.clone(), ..view.clone() };
    let leaving = Leaving {
        tree,
        left: Left { mover, before: Arc::clone(&old), is_to_be_restored: AtomicBool::new(false) },
        keep: keep.clone(),
        ends,
        drawn: AtomicU64::new(0),
    };
    change_view(tree, ctx, smaller, &leaving.left.is_to_be_restored).await?;
    gate::update_view(tree, |view| View { is_growing: false, ..view.clone() });
    Ok(leaving)
}

/// Makes the nodes on the path to a new boundary shared, since their keys have two owners from now on.
async fn share_path<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>, boundary: &[u8]) -> Result<()> {
    let key = tree.layout.key(boundary)?;
    let tries = RestartPolicy::default();
    let mut ctx = ctx;
    loop {
        match try_share_path(tree, ctx, key).await {
            Ok(()) => return Ok(()),
            Err(retry) => ctx = tries.again(tree, ctx, retry, "a node that becomes shared").await?,
        }
    }
}

async fn try_share_path<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    key: L::Key<'_>,
) -> Attempt<()> {
    let (mut above, mut addr) = (tree.config.root, tree.config.root);
    loop {
        let next = match tree.cache.table().frame_of(addr) {
            None if tree.cache.table().is_in_flight(addr) => return Err(Retry::Restart),
            None => {
                // A READ of this node from now on finds that its parent is shared.
                let page = read::read_shared(tree, ctx, addr, &tree.view(ctx)).await?;
                let next = match reaches_boundary(tree, tree.node(&page), key) {
                    Some(false) => Ok(refresh::child_addr(tree, tree.node(&page), Target::of(key))?),
                    Some(true) => Ok(None),
                    None => Err(Retry::Restart),
                };
                ctx.ep.recycle(page);
                next
            }
            Some(id) => {
                let frame = tree.cache.frame(id);
                let hop = VersionedNode { frame, version: frame.optimistic()? };
                if !tree.holds(frame, hop.version, addr) {
                    return Err(Retry::Restart);
                }
                let content = tree.node(frame);
                let reaches = reaches_boundary(tree, content, key);
                let is_shared = content.is_shared();
                let next = refresh::child_addr(tree, content, Target::of(key))?;
                hop.validate()?;
                match reaches {
                    Some(true) => Ok(None),
                    Some(false) if is_shared => Ok(next),
                    Some(false) => {
                        share(tree, ctx, hop, addr).await?;
                        continue;
                    }
                    None => Err(Retry::Restart),
                }
            }
        };
        match next {
            Ok(Some(child)) => (above, addr) = (addr, child),
            Ok(None) => return Ok(()),
            Err(retry) => {
                // A stale copy led to a node that was split meanwhile.
                refresh::refresh(tree, ctx, above, Target::of(key)).await?;
                return Err(retry);
            }
        }
    }
}

/// Whether a node begins at a boundary, so that no node below it crosses that, or is a leaf; `None` if it is
/// not on the path to the boundary.
fn reaches_boundary<L: Layout>(tree: &Tree<L>, node: Node<'_, L>, key: L::Key<'_>) -> Option<bool> {
    if !node.covers(Target::of(key)) {
        return None;
    }
    let low = node.fence(Side::Low);
    Some(node.level() == 0 || low.as_deref() == Some(tree.layout.key_bytes(key)))
}

/// Makes a cached owned node shared: locks it and writes it through.
async fn share<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    node: VersionedNode<'_>,
    addr: GlobalAddr,
) -> Attempt<()> {
    if node.version.state() == FrameState::Cooling {
        let is_node = |words: &[Word]| tree.node(words).is_at(addr);
        tree.cache.expel(ctx.worker, ctx.ep, tree.shape(), node.frame.id(), is_node).await?;
        return Err(Retry::Restart);
    }
    let mut room = room::for_nodes(tree, ctx).await?;
    let _pin = node.frame.pin(node.version)?;
    own_lock_word(tree, ctx, node, addr).await?;
    let locked = locked::lock_unread(tree, ctx, addr).await?;
    let shared = share_locked(tree, ctx, node, &locked, &mut room).await;
    if !matches!(shared, Ok(true)) {
        locked::unlock_unchanged(tree, ctx, locked).await?;
        shared?;
        return Err(Retry::Restart);
    }
    // If this fails, the page is written when the lock is given back; no operation READs the node before.
    Ok(locked::write_unlock(tree, ctx, locked).await?)
}

/// Turns the first word of a node's remote copy into a lock word, which no write-back writes, since other
/// compute servers know the address from now on.
async fn own_lock_word<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    node: VersionedNode<'_>,
    addr: GlobalAddr,
) -> Attempt<()> {
    // Claim the write-back, which would write the word too. If this future is dropped midway, the claim rests
    // like any write-back, and no operation locks the node before.
    let Some(mut writing) = tree.cache.claim_write_back(ctx.ep, node.frame) else {
        return Err(Retry::Restart);
    };
    if !mark_lock_word(tree, node, addr, false)? {
        return Ok(());
    }
    writing.while_written(ctx.ep.write_word(addr, 0)).await?;
    mark_lock_word(tree, node, addr, true).map(drop)
}

/// Returns whether write-backs have written the first word of the node's remote copy until now. If `is_lock`,
/// they no longer do.
fn mark_lock_word<L: Layout>(
    tree: &Tree<L>,
    node: VersionedNode<'_>,
    addr: GlobalAddr,
    is_lock: bool,
) -> Attempt<bool> {
    let page = tree.node_mut(node);
    let mut guard = node.frame.exclusive()?;
    if node.frame.addr() != addr.raw() || guard.state() != FrameState::Hot {
        guard.release_unchanged();
        return Err(Retry::Restart);
    }
    let was_lock = page.was_shared();
    if was_lock || !is_lock {
        guard.release_unchanged();
    } else {
        page.set_flag(header::WAS_SHARED, true);
        guard.mark_dirty();
    }
    Ok(!was_lock)
}

/// Makes the frame of a locked node shared, and copies it to the page that is written through; `false` if the
/// node has changed.
async fn share_locked<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    node: VersionedNode<'_>,
    locked: &LockedNode<'_>,
    room: &mut Room<'_>,
) -> Attempt<bool> {
    let view = tree.view(ctx);
    let patience = Patience::default();
    loop {
        match share_latched(tree, &view, node, locked, room)? {
            Shared::Done => return Ok(true),
            Shared::Not => return Ok(false),
            Shared::NotYet => {}
        }
        // A write-back in progress would land after the write-through.
        patience.wait(tree, ctx, "the write-back of a node that becomes shared").await?;
    }
}

fn share_latched<L: Layout>(
    tree: &Tree<L>,
    view: &View,
    node: VersionedNode<'_>,
    locked: &LockedNode<'_>,
    room: &mut Room<'_>,
) -> Attempt<Shared> {
    let (frame, page) = (node.frame, tree.node_mut(node));
    let mut guard = frame.exclusive()?;
    let is_meant = frame.addr() == locked.addr().raw()
        && guard.state() == FrameState::Hot
        && !page.is_shared()
        && view.is_shared(*page);
    if !is_meant || frame.is_writing() {
        guard.release_unchanged();
        return Ok(if is_meant { Shared::NotYet } else { Shared::Not });
    }
    tree.cache.unswizzle_children(frame, tree.layout);
    page.set_flag(header::SHARED | header::WAS_SHARED, true);
    page.set_remote_version(locked.next_version());
    for (to, from) in locked.words().iter().zip(page.words()).skip(1) {
        to.store(from.load(Relaxed), Relaxed);
    }
    // Before it counts as clean: a checkpoint must not forget what the log had of the node.
    if !defect(OfMoves::ShareUnlogged) {
        record::note_shared(tree, room.take(), &[], [locked], &[]);
    }
    guard.mark_clean();
    drop(guard);
    Ok(Shared::Done)
}

/// Writes back the owned root of a compute server that has no keys left.
async fn leave_root<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    flushed: &mut Flushed,
) -> Result<()> {
    let frame = tree.cache.frame(tree.root);
    let patience = Patience::default();
    let mut written = 0;
    while !tree.node(frame).is_shared() {
        let clean = tree.cache.flush_frame(ctx.worker, ctx.ep, tree.shape(), frame, &mut written).await?;
        if clean && let Ok(guard) = frame.exclusive() {
            if !guard.is_dirty() && !frame.is_writing() {
                tree::make_placeholder(tree, tree.node_mut(frame));
                drop(guard);
                break;
            }
            guard.release_unchanged();
        }
        patience.wait(tree, ctx, "the root to be written back").await?;
    }
    flushed.nodes_written += written;
    flushed.bytes_written += written * tree.node_bytes();
    Ok(())
}

impl<L: Layout> Leaving<'_, L> {
    /// Keys that stay.
    pub fn keep(&self) -> &KeyRange {
        &self.keep
    }

    /// Keys that leave.
    pub fn leaves(&self) -> KeyRange {
        self.left.before.nodes.without(&self.keep).expect("checked when it began")
    }

    /// One worker's share of writing back and evicting. Any number of workers and slots may call it
    /// concurrently. Returns when no frame is left to draw.
    ///
    /// # Errors
    /// The first write-back that fails. Another call goes on, and [`Leaving::finish`] does the rest.
    pub async fn flush_share<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<Flushed> {
        let frames = self.tree.cache.frames() as u64;
        let chunks = frames.div_ceil(CHUNK);
        let mut flushed = Flushed::default();
        loop {
            let drawn = self.drawn.fetch_add(1, Relaxed);
            if drawn >= 2 * chunks {
                // Clamp, so that the counter cannot overflow.
                self.drawn.store(2 * chunks, Relaxed);
                return Ok(flushed);
            }
            let (start, leaves_only) = (drawn % chunks * CHUNK, drawn < chunks);
            let ids = start..(start + CHUNK).min(frames);
            let ids: Vec<_> = ids.map(|id| FrameId(id as u32)).collect();
            for some in ids.chunks(AT_ONCE) {
                self.expel_some(ctx, some, leaves_only, &mut flushed).await?;
            }
        }
    }

    /// Writes back and evicts those of the nodes that leave; returns the busy ones.
    async fn expel_some<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        ids: &[FrameId],
        leaves_only: bool,
        flushed: &mut Flushed,
    ) -> Result<Vec<FrameId>> {
        let tree = self.tree;
        let goes = |words: &[Word]| {
            let node = tree.node(words);
            !(leaves_only && node.level() > 0) && self.keep.is_apart_from_node(node)
        };
        let ids = || ids.iter().copied().filter(|&id| id != tree.root);
        let each = ids().map(|id| tree.cache.expel(ctx.worker, ctx.ep, tree.shape(), id, goes));
        let mut busy = Vec::new();
        let mut failed = None;
        for (id, expelled) in ids().zip(join_all(each).await) {
            match expelled {
                Ok(Expelled::Other) => {}
                Ok(Expelled::Busy) => busy.push(id),
                Ok(Expelled::Gone { written }) => {
                    flushed.nodes_evicted += 1;
                    flushed.nodes_written += u64::from(written);
                    flushed.bytes_written += u64::from(written) * tree.node_bytes();
                }
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(busy), |error| Err(error.into()))
    }

    /// Completes the release; not to be called concurrently. Cuts the leaf at the new boundary, makes the
    /// nodes that cross it shared, and evicts what [`Leaving::flush_share`] left. Then the new owner may take
    /// the keys over, and `self` may be dropped.
    ///
    /// # Errors
    /// Errors of the fabric, and [`DexError::TimedOut`]. Either this or [`Leaving::abandon`] may be called
    /// then.
    pub async fn finish<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Result<Flushed> {
        let tree = self.tree;
        let mut flushed = Flushed::default();
        for end in &self.ends {
            split::cut_at(tree, ctx, end).await?;
            share_path(tree, ctx, end).await?;
        }
        let patience = Patience::default();
        let mut left: Vec<_> = (0..tree.cache.frames() as u32).map(FrameId).collect();
        while !left.is_empty() {
            let mut busy = Vec::new();
            for some in left.chunks(AT_ONCE) {
                busy.extend(self.expel_some(ctx, some, false, &mut flushed).await?);
            }
            if busy.len() == left.len() {
                patience.wait(tree, ctx, "nodes of the keys that go").await?;
            }
            left = busy;
        }
        if self.keep.is_empty() {
            leave_root(tree, ctx, &mut flushed).await?;
        }
        debug_assert!(self.no_own_is_left(), "nobody comes for these nodes any more");
        room::note_left(tree, ctx, &self.leaves()).await?;
        self.left.is_to_be_restored.store(false, Relaxed);
        Ok(flushed)
    }

    /// Whether no frame has an owned node of the keys that leave. A copy of a shared node may still come to
    /// lie among them, when another compute server splits the node; it is stale, or will be, like any such
    /// copy.
    fn no_own_is_left(&self) -> bool {
        let tree = self.tree;
        (0..tree.cache.frames() as u32).map(FrameId).filter(|&id| id != tree.root).all(|id| {
            let frame = tree.cache.frame(id);
            let Ok(version) = frame.optimistic() else { return true };
            let node = tree.node(frame);
            let stays = node.is_shared() || !self.keep.is_apart_from_node(node);
            version.state() == FrameState::Free || stays || frame.validate(version).is_err()
        })
    }

    /// Keeps the keys after all. Evicted nodes are READ again when they are needed.
    ///
    /// # Errors
    /// Errors of the fabric, and [`DexError::TimedOut`]. The keys belong to this compute server again
    /// nevertheless, and all operations go on; some are slower until the next successful move of keys.
    pub async fn abandon<E: Endpoint>(self, ctx: Ctx<'_, E>) -> Result<()> {
        self.take_back();
        acquire::extend_to(self.tree, ctx, &self.keep, &self.left.before.nodes).await
    }

    /// Makes the keys belong to this compute server again, at once.
    pub(crate) fn take_back(&self) {
        self.left.take_back();
    }
}

/// Changes the view and waits until all attempts that began before have ended. Sets `changed` as soon as the
/// view is the new one.
///
/// # Errors
/// [`DexError::TimedOut`].
pub(crate) async fn change_view<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    change: impl Fn(&View) -> View,
    changed: &AtomicBool,
) -> Result<()> {
    let patience = Patience::default();
    while !tree.ownership.gate.turn_over(&change) {
        patience.wait(tree, ctx, "operations that began before an earlier move").await?;
    }
    changed.store(true, Ordering::Relaxed);
    let patience = Patience::default();
    while !tree.ownership.gate.is_drained() {
        patience.wait(tree, ctx, "operations that began before the move").await?;
    }
    // Leftovers of cut-off operations must not take effect once another compute server owns the keys.
    unfinished::finish_all(tree, ctx).await
}
