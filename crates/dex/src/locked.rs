//! Shared nodes that are locked: how they are locked, written through, and given back (DEX §4, §7).
//!
//! Whoever holds the lock of a node may die, or lose his memory servers for longer than anybody waits. So that others can tell what
//! became of the node, each change that is written through leaves *digests* in word 7 of the remote copy, one of the bytes
//! before and one of those after. A node whose bytes have neither was being written when its writer died; in any other case
//! it is as before or as after, and `orphaned.rs` puts right what it was changed together with. Word 7 is in the first line of
//! the bytes that are written, and the words of a WRITE arrive in rising order, if not together.

use pando_cache::defect::Defect;
use pando_cache::sync::Word;
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, Nanos, PageBuf};
use pando_pool::{LOOKS_AT_HOLDER, PoolError, RemoteLock};

use crate::error::{Attempt, DexError, Result, Retry};
use crate::layout::{Layout, header};
use crate::node::HasWords;
use crate::orphaned::own_copy;
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
        Self { lock, before: Some(digest(page.words())), is_shared: true, page }
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
        let after = digest(self.page.words());
        self.page.set(header::REMOTE_VERSION, DIGESTS | self.before.unwrap_or(after) << 32 | after);
    }
}

impl<'p> HasWords<'p> for &'p LockedNode<'_> {
    fn words_of(self) -> &'p [Word] {
        self.page.words()
    }
}

/// Word 7 of a remote copy has digests: `[1:1][before:31][after:32]`, of 31 bits each.
const DIGESTS: u64 = 1 << 63;
const DIGEST_MASK: u64 = (1 << 31) - 1;

/// Of all words but the lock and the digests.
fn digest(words: &[Word]) -> u64 {
    let is_content = |&at: &usize| at != header::LOCK && at != header::REMOTE_VERSION;
    let hash = (0..words.len()).filter(is_content).fold(0u64, |hash, at| {
        (hash.rotate_left(5) ^ header::get(words, at)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (hash ^ hash >> 32) & DIGEST_MASK
}

/// Whether word 7 of an inner node has digests.
pub(crate) fn has_digests(words: &[Word]) -> bool {
    header::level(words) > 0 && header::get(words, header::REMOTE_VERSION) & DIGESTS != 0
}

/// Whether the bytes of a node that are in remote memory are all from before or all from after a change.
pub(crate) fn is_whole(words: &[Word]) -> bool {
    let noted = header::get(words, header::REMOTE_VERSION);
    let digest = digest(words);
    !has_digests(words) || digest == noted & DIGEST_MASK || digest == noted >> 32 & DIGEST_MASK
}

impl<L: Layout> Tree<L> {
    /// Takes the remote lock of a shared node and reads it.
    pub(crate) async fn lock_node<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
    ) -> Attempt<LockedNode<'_>> {
        let lock = self.lock_word(ctx, addr).await?;
        let page = ctx.ep.buffer(self.layout.node_size());
        match self.read_verified(ctx, addr, page).await {
            Ok(page) => {
                let mut node = LockedNode::new(lock, page);
                own_copy(node.page.words());
                self.mark_shared(&self.view(ctx), &node.page);
                node.is_shared = self.node(&node).is_shared() && !self.has_own_copy(addr);
                Ok(node)
            }
            Err(error) => {
                lock.unlock(ctx.ep, self.deadline(ctx)).await?;
                Err(error.into())
            }
        }
    }

    /// Takes the lock of a node. Restarts if a process has it that is gone: whoever waits may hold locks that are in the way of
    /// putting the node right.
    async fn lock_word<E: Endpoint>(&self, ctx: Ctx<'_, E>, addr: GlobalAddr) -> Attempt<RemoteLock<'_>> {
        let (mut deadline, mut waits_for_rest) = (self.deadline(ctx), false);
        let between_looks = self.config.patience_ns / LOOKS_AT_HOLDER;
        loop {
            let next_look = ctx.ep.now().saturating_add(between_looks).min(deadline);
            match self.pool.lock(ctx.ep, addr, next_look).await {
                Ok(lock) => return Ok(lock),
                Err(PoolError::LockTimedOut { at, holder }) => {
                    let _ = self.pool.give_back_left_locks(ctx.ep).await;
                    if self.pool.is_abandoned(ctx.ep, holder).await? {
                        self.suspects.condemn(addr, holder);
                        return Err(Retry::Restart);
                    }
                    let now = ctx.ep.now();
                    if now < deadline {
                        continue;
                    }
                    if waits_for_rest || !self.pool.has_left_locks() {
                        return Err(DexError::from(PoolError::LockTimedOut { at, holder }).into());
                    }
                    // An operation of this process left it, and it may rest for longer than one has patience.
                    let rest = self.config.patience_ns.saturating_add(self.pool.verbs_take());
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
    pub(crate) async fn lock_unread<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        addr: GlobalAddr,
    ) -> Attempt<LockedNode<'_>> {
        let lock = self.lock_word(ctx, addr).await?;
        let page = ctx.ep.buffer(self.layout.node_size());
        clear(&page);
        Ok(LockedNode { lock, before: None, is_shared: false, page })
    }

    /// Whether a frame has the node as this compute server's own, or nobody can tell.
    pub(crate) fn has_own_copy(&self, addr: GlobalAddr) -> bool {
        let Some(id) = self.cache.table().frame_of(addr) else { return false };
        let frame = self.cache.frame(id);
        let Ok(version) = frame.optimistic() else { return true };
        let own = self.holds(frame, version, addr) && !self.node(frame).is_shared();
        own || frame.validate(version).is_err()
    }

    pub(crate) async fn unlock_unchanged<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        node: LockedNode<'_>,
    ) -> Result<()> {
        node.lock.unlock(ctx.ep, self.deadline(ctx)).await?;
        ctx.ep.recycle(node.page);
        Ok(())
    }

    /// Until when an operation that begins to wait now waits for others.
    pub(crate) fn deadline<E: Endpoint>(&self, ctx: Ctx<'_, E>) -> Nanos {
        ctx.ep.wait_until(ctx.ep.now(), self.config.patience_ns)
    }

    /// Unlocks nodes that were not changed because this server's copies of them turned out to be stale: what was read
    /// under the locks becomes those copies. A refresh might never find a node unlocked, if others lock it as often and
    /// as fruitlessly. All are unlocked before the latch of a copy is waited for.
    pub(crate) async fn unlock_seen<E: Endpoint, const N: usize>(
        &self,
        ctx: Ctx<'_, E>,
        nodes: [LockedNode<'_>; N],
    ) -> Result<()> {
        let mut seen = Vec::with_capacity(N);
        for LockedNode { lock, page, .. } in nodes {
            page.set(header::REMOTE_VERSION, lock.next_version());
            seen.push((lock.at(), page));
            lock.unlock(ctx.ep, self.deadline(ctx)).await?;
        }
        for (addr, page) in seen {
            self.install(ctx, addr, &page).await?;
            ctx.ep.recycle(page);
        }
        Ok(())
    }

    /// Writes a locked node back, unlocks it in the same chain, and refreshes this server's cached copy. If it cannot be
    /// written now it is when the lock is given back, so that the copy is right in any case.
    pub(crate) async fn write_unlock<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        node: LockedNode<'_>,
    ) -> Result<()> {
        let (addr, version) = (node.addr(), node.next_version());
        if defect(Defect::EarlyUnlock) {
            ctx.ep.write_word(addr, version).await?;
        }
        node.note_digests();
        let LockedNode { lock, page, .. } = node;
        let written = lock.write_unlock(ctx.ep, &page, self.deadline(ctx)).await;
        page.set(header::REMOTE_VERSION, version);
        self.install(ctx, addr, &page).await?;
        ctx.ep.recycle(page);
        written?;
        count(&self.smo_counters.shared_changes);
        Ok(())
    }
}
