//! Locked shared nodes: how they are locked, written through, and unlocked (DEX §4, §7).
//!
//! The lock holder may die, or lose its memory servers for longer than any operation waits. Other processes
//! tell the state of the node by its digests (`layout/digest.rs`), and `recovery/dead_holders.rs` completes
//! or discards the change that it was part of.

use std::cell::OnceCell;
use std::sync::Arc;

use pando_cache::defect::Defect;
use pando_cache::sync::Word;
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, Nanos, PageBuf, WORD};
use pando_log::defect::{OfMoves, OfShared};
use pando_pool::{LOOKS_AT_HOLDER, PoolError, RemoteLock};

use crate::descent::{read, refresh};
use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::digest::{self, DIGESTS, own_copy};
use crate::layout::{Layout, header};
use crate::node::HasWords;
use crate::shared::record::Promised;
use crate::tree::journal;
use crate::tree::patience::Patience;
use crate::tree::{Ctx, Tree, clear, count};

/// A shared node that this worker has locked, with the bytes of remote memory.
pub(crate) struct LockedNode<'t> {
    lock: RemoteLock<'t>,
    /// Digest of the bytes in remote memory, if they were READ.
    before: Option<u64>,
    /// Whether it may be changed under this lock: it is shared, and this compute server has no owned copy
    /// that is ahead of these bytes.
    pub is_shared: bool,
    pub page: PageBuf,
    /// The record of its change, which the log must have before the page is written.
    promised: OnceCell<Arc<Promised>>,
}

impl<'t> LockedNode<'t> {
    /// A locked node whose `page` equals its remote copy.
    pub fn new(lock: RemoteLock<'t>, page: PageBuf) -> Self {
        let before = Some(digest::digest(page.words()));
        Self { lock, before, is_shared: true, page, promised: OnceCell::new() }
    }

    pub fn words(&self) -> &[Word] {
        self.page.words()
    }

    pub fn addr(&self) -> GlobalAddr {
        self.lock.at()
    }

    /// Version of the node once it is unlocked.
    pub fn next_version(&self) -> u64 {
        self.lock.next_version()
    }

    /// Requires that the page in its current state is written before the lock is given back, whatever
    /// happens.
    pub fn owe(&self) {
        self.note_digests();
        self.lock.owe(&self.page, self.promised.get().map(|promised| Arc::clone(promised) as _));
    }

    /// [`LockedNode::owe`], once the log has the record.
    pub fn owe_after(&self, promised: Arc<Promised>) {
        let _ = self.promised.set(promised);
        self.owe();
    }

    /// The page as it is to be written, behind the word of its lock.
    pub fn image(&self) -> Vec<u8> {
        self.note_digests();
        let mut bytes = journal::bytes_of(self.page.words());
        bytes[..WORD].copy_from_slice(&self.lock.locked_word().to_le_bytes());
        bytes
    }

    /// Puts the digests of the old and the new bytes into word 7.
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

/// Takes the remote lock of a shared node and READs it.
pub(crate) async fn lock_node<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
) -> Attempt<LockedNode<'t>> {
    let lock = lock_word(tree, ctx, addr).await?;
    match read::read_verified(tree, ctx, addr).await {
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

/// Takes the lock of a node. Restarts if the holder's process is gone: the caller may hold locks that keep
/// others from repairing the node.
async fn lock_word<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
) -> Attempt<RemoteLock<'t>> {
    let patience = Patience::default();
    let between_looks = tree.config.patience_ns / LOOKS_AT_HOLDER;
    loop {
        let next_look = ctx.ep.now().saturating_add(between_looks).min(patience.deadline(tree, ctx));
        match tree.pool.lock(ctx.ep, addr, next_look).await {
            Ok(lock) => {
                if !defect(OfMoves::LockUnpersisted) {
                    journal::persist_first(tree, ctx, addr, WORD).await?;
                }
                return Ok(lock);
            }
            Err(PoolError::LockTimedOut { at, holder }) => {
                let _ = tree.pool.give_back_left_locks(ctx.ep).await;
                if tree.pool.is_abandoned(ctx.ep, holder).await? {
                    tree.suspects.condemn(addr, holder);
                    return Err(Retry::Restart);
                }
                if patience.is_over(tree, ctx) {
                    return Err(DexError::from(PoolError::LockTimedOut { at, holder }).into());
                }
            }
            Err(PoolError::ReadOnly) => {
                return Err(DexError::Layout("a pool that is only read cannot be changed".into()).into());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Takes the remote lock of a node whose remote copy is behind the one of this compute server. The caller
/// fills in the bytes.
pub(crate) async fn lock_unread<'t, L: Layout, E: Endpoint>(
    tree: &'t Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
) -> Attempt<LockedNode<'t>> {
    let lock = lock_word(tree, ctx, addr).await?;
    let page = ctx.ep.buffer(tree.layout.node_size());
    clear(&page);
    Ok(LockedNode { lock, before: None, is_shared: false, page, promised: OnceCell::new() })
}

/// Whether a frame has an owned copy of the node, or that cannot be told.
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

/// Latest time a wait starting now may last.
pub(crate) fn deadline<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>) -> Nanos {
    ctx.ep.wait_until(ctx.ep.now(), tree.config.patience_ns)
}

/// Unlocks nodes that were not changed because this compute server's copies of them were stale, and replaces
/// the copies by the bytes READ under the locks. A refresh might never find a node unlocked if other servers
/// keep locking it in vain. All nodes are unlocked before the latch of a copy is waited for.
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

/// Writes a locked node, unlocks it in the same chain, and replaces this compute server's cached copy. If the
/// WRITE fails, the page is written when the left lock is given back, so the copy is right in either case.
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
    // If this fails, the dropped lock is left with the page.
    let settled = match node.promised.get() {
        _ if defect(OfShared::SharedBeforeLog) => Ok(()),
        Some(promised) => journal::settled(tree, ctx, promised.gsn).await,
        None => Ok(()),
    };
    let LockedNode { lock, page, .. } = node;
    let written = match settled {
        Ok(()) => lock.write_unlock(ctx.ep, &page, deadline(tree, ctx)).await.map_err(DexError::from),
        Err(error) => {
            drop(lock);
            Err(error)
        }
    };
    page.set(header::REMOTE_VERSION, version);
    refresh::install(tree, ctx, addr, &page).await?;
    ctx.ep.recycle(page);
    written?;
    count(&tree.smo_counters.shared_changes);
    Ok(())
}

/// Splits the bytes of a shared node; returns those of the new right half.
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
    // Both halves were reached through a node whose address other compute servers may remember.
    halves.iter().for_each(|half| half.set_flag(header::WAS_SHARED, true));
    right
}
