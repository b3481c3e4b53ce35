//! Shared nodes that are locked: how they are locked, written through, and given back (DEX §4, §7).
//!
//! Whoever holds the lock of a node may die, or lose its memory servers for longer than any operation waits. What became of the node then,
//! others tell by its digests (`layout/digest.rs`), and `recovery/dead_holders.rs` puts right what it was changed together with.

use pando_cache::defect::Defect;
use pando_cache::sync::Word;
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, Nanos, PageBuf};
use pando_pool::{LOOKS_AT_HOLDER, PoolError, RemoteLock};

use crate::descent::{read, refresh};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::digest::{self, DIGESTS, own_copy};
use crate::layout::{Layout, header};
use crate::node::HasWords;
use crate::tree::{Ctx, Tree, clear, count};

/// A shared node that this worker has locked, as it is in remote memory.
pub(crate) struct LockedNode<'t> {
    lock: RemoteLock<'t>,
    /// Digest of what is in remote memory, if that was READ.
    before: Option<u64>,
    /// Whether it is to be changed like this: it is shared, and this compute server has no copy that is ahead of these bytes.
    pub is_shared: bool,
    pub page: PageBuf,
}

impl<'t> LockedNode<'t> {
    /// A node whose `page` is as it is in remote memory.
    pub fn new(lock: RemoteLock<'t>, page: PageBuf) -> Self {
        Self { lock, before: Some(digest::digest(page.words())), is_shared: true, page }
    }

    pub fn words(&self) -> &[Word] {
        self.page.words()
    }

    pub fn addr(&self) -> GlobalAddr {
        self.lock.at()
    }

    /// The version that it will have once it is unlocked.
    pub fn next_version(&self) -> u64 {
        self.lock.next_version()
    }

    /// Whatever happens, the page as it is now is to be written before the lock is given back.
    pub fn owe(&self) {
        self.note_digests();
        self.lock.owe(&self.page);
    }

    /// Makes word 7 say what was there before and what is to be there.
    fn note_digests(&self) {
        let after = digest::digest(self.page.words());
        self.page.set(header::REMOTE_VERSION, DIGESTS | self.before.unwrap_or(after) << 32 | after);
    }
}

impl<'p> HasWords<'p> for &'p LockedNode<'_> {
    fn words_of(self) -> &'p [Word] {
        self.page.words()
    }
}

/// Takes the remote lock of a shared node and reads it.
pub(crate) async fn lock_node<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
) -> Attempt<LockedNode<'t>> {
    let lock = lock_word(tree, ctx, addr).await?;
    let page = ctx.ep.buffer(tree.layout.node_size());
    match read::read_verified(tree, ctx, addr, page).await {
        Ok(page) => {
            let mut node = LockedNode::new(lock, page);
            own_copy(node.page.words());
            read::mark_shared(tree, &tree.view(ctx), &node.page);
            node.is_shared = tree.node(&node).is_shared() && !has_own_copy(tree, addr);
            Ok(node)
        }
        Err(error) => {
            lock.unlock(ctx.ep, deadline(tree, ctx)).await?;
            Err(error.into())
        }
    }
}

/// Takes the lock of a node. Restarts if a process has it that is gone: whoever waits may hold locks that are in the way of
/// putting the node right.
async fn lock_word<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
) -> Attempt<RemoteLock<'t>> {
    let (mut deadline, mut waits_for_rest) = (deadline(tree, ctx), false);
    let between_looks = tree.config.patience_ns / LOOKS_AT_HOLDER;
    loop {
        let next_look = ctx.ep.now().saturating_add(between_looks).min(deadline);
        match tree.pool.lock(ctx.ep, addr, next_look).await {
            Ok(lock) => return Ok(lock),
            Err(PoolError::LockTimedOut { at, holder }) => {
                let _ = tree.pool.give_back_left_locks(ctx.ep).await;
                if tree.pool.is_abandoned(ctx.ep, holder).await? {
                    tree.suspects.condemn(addr, holder);
                    return Err(Retry::Restart);
                }
                let now = ctx.ep.now();
                if now < deadline {
                    continue;
                }
                if waits_for_rest || !tree.pool.has_left_locks() {
                    return Err(DexError::from(PoolError::LockTimedOut { at, holder }).into());
                }
                // An operation of this process left it, and it may rest for longer than one has patience.
                let rest = tree.config.patience_ns.saturating_add(tree.pool.verbs_take());
                (deadline, waits_for_rest) = (ctx.ep.wait_until(now, rest), true);
            }
            Err(PoolError::ReadOnly) => {
                return Err(DexError::Layout("a pool that is only read cannot be changed".into()).into());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes the remote lock of a node whose remote copy is behind this compute server's: its bytes are the caller's to fill
/// in.
pub(crate) async fn lock_unread<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
) -> Attempt<LockedNode<'t>> {
    let lock = lock_word(tree, ctx, addr).await?;
    let page = ctx.ep.buffer(tree.layout.node_size());
    clear(&page);
    Ok(LockedNode { lock, before: None, is_shared: false, page })
}

/// Whether a frame has the node as this compute server's own, or nobody can tell.
pub(crate) fn has_own_copy<L: Layout>(tree: &Tree<L>, addr: GlobalAddr) -> bool {
    let Some(id) = tree.cache.table().frame_of(addr) else { return false };
    let frame = tree.cache.frame(id);
    let Ok(version) = frame.optimistic() else { return true };
    let own = tree.holds(frame, version, addr) && !tree.node(frame).is_shared();
    own || frame.validate(version).is_err()
}

pub(crate) async fn unlock_unchanged<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    node: LockedNode<'_>,
) -> Result<()> {
    node.lock.unlock(ctx.ep, deadline(tree, ctx)).await?;
    ctx.ep.recycle(node.page);
    Ok(())
}

/// Until when an operation that begins to wait now waits for others.
pub(crate) fn deadline<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Nanos {
    ctx.ep.wait_until(ctx.ep.now(), tree.config.patience_ns)
}

/// Unlocks nodes that were not changed because this server's copies of them turned out to be stale: what was read
/// under the locks becomes those copies. A refresh might never find a node unlocked, if others lock it as often and
/// as fruitlessly. All are unlocked before the latch of a copy is waited for.
pub(crate) async fn unlock_seen<L: Layout, E: Endpoint, const N: usize>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    nodes: [LockedNode<'_>; N],
) -> Result<()> {
    let mut seen = Vec::with_capacity(N);
    for LockedNode { lock, page, .. } in nodes {
        page.set(header::REMOTE_VERSION, lock.next_version());
        seen.push((lock.at(), page));
        lock.unlock(ctx.ep, deadline(tree, ctx)).await?;
    }
    for (addr, page) in seen {
        refresh::install(tree, ctx, addr, &page).await?;
        ctx.ep.recycle(page);
    }
    Ok(())
}

/// Writes a locked node back, unlocks it in the same chain, and refreshes this server's cached copy. If it cannot be
/// written now it is when the lock is given back, so that the copy is right in any case.
pub(crate) async fn write_unlock<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    node: LockedNode<'_>,
) -> Result<()> {
    let (addr, version) = (node.addr(), node.next_version());
    if defect(Defect::EarlyUnlock) {
        ctx.ep.write_word(addr, version).await?;
    }
    node.note_digests();
    let LockedNode { lock, page, .. } = node;
    let written = lock.write_unlock(ctx.ep, &page, deadline(tree, ctx)).await;
    page.set(header::REMOTE_VERSION, version);
    refresh::install(tree, ctx, addr, &page).await?;
    ctx.ep.recycle(page);
    written?;
    count(&tree.smo_counters.shared_changes);
    Ok(())
}

/// Splits the bytes of a shared node; gives back those of its new right half.
pub(crate) fn split_page<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    left: &PageBuf,
    addr: GlobalAddr,
    at: usize,
    separator: &[u8],
) -> PageBuf {
    let right = ctx.ep.buffer(tree.layout.node_size());
    clear(&right);
    let halves = [left, &right].map(|page| tree.node_mut(page));
    halves[0].split_off(halves[1], addr, at, separator);
    // Both halves were reached through a node that others remember.
    halves.iter().for_each(|half| half.set_flag(header::WAS_SHARED, true));
    right
}
