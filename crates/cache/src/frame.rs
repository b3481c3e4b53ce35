//! Frames as the tree sees them: a latch, an address, the words of a node (DEX §5.1), and pins.
//!
//! The latch also protects state outside the words. A frame's parent changes under the parent's latch, or, if
//! it has none, under its own. Pins and write-backs have words of their own: each is set before the version
//! is checked, and checked after the latch was taken, with a full fence in between.

use pando_fabric::{GlobalAddr, PageBuf};

use crate::cache::Cache;
use crate::error::Conflict;
use crate::latch::{ExclusiveGuard, FrameState, HybridLatch, SharedGuard, Version};
use crate::swip::{FrameId, Swip};
use crate::sync::{Ordering, Word, fence};

/// Index of the word that holds the node's own global address.
pub(crate) const ADDR_WORD: usize = 1;

/// The cache's view of tree nodes. The methods are called on pages that other threads may be changing, so
/// every answer must stay inside the page, whatever its words say.
pub trait NodeShape: Copy {
    /// Number of child words of the node: 0 for a leaf.
    fn child_count(&self, page: &[Word]) -> usize;

    /// Index of the `i`-th child word.
    fn child_word(&self, page: &[Word], i: usize) -> usize;

    /// Whether children of this node may be swizzled.
    fn swizzles(&self, page: &[Word]) -> bool;

    /// Whether word 0 of the remote copy may be in use by other compute servers, so that a write-back must
    /// not change it.
    fn leaves_first_word(&self, _page: &[Word]) -> bool {
        false
    }
}

/// One frame of a cache.
#[derive(Clone, Copy)]
pub struct FrameRef<'c> {
    pub(crate) cache: &'c Cache,
    id: FrameId,
    words: &'c [Word],
}

impl<'c> FrameRef<'c> {
    #[inline]
    pub(crate) fn new(cache: &'c Cache, id: FrameId, words: &'c [Word]) -> Self {
        Self { cache, id, words }
    }

    #[inline]
    pub fn id(self) -> FrameId {
        self.id
    }

    /// Words of the node; word 0 is the latch.
    #[inline]
    pub fn words(self) -> &'c [Word] {
        self.words
    }

    #[inline]
    pub fn latch(self) -> HybridLatch<'c> {
        HybridLatch::new(&self.words[0])
    }

    /// Address of the node in the frame; valid only under a latch or a validated version.
    #[inline]
    pub fn addr(self) -> u64 {
        self.words[ADDR_WORD].load(Ordering::Relaxed)
    }

    #[inline]
    pub fn optimistic(self) -> Result<Version, Conflict> {
        self.latch().optimistic()
    }

    #[inline]
    pub fn validate(self, version: Version) -> Result<(), Conflict> {
        self.latch().validate(version)
    }

    #[inline]
    pub fn upgrade(self, version: Version) -> Result<ExclusiveGuard<'c>, Conflict> {
        self.latch().upgrade(version)
    }

    pub fn exclusive(self) -> Result<ExclusiveGuard<'c>, Conflict> {
        self.latch().exclusive()
    }

    pub fn shared(self) -> Result<SharedGuard<'c>, Conflict> {
        self.latch().shared()
    }

    /// Frame of the parent in which this frame is swizzled.
    pub fn parent(self) -> Option<FrameId> {
        let raw = self.cache.meta(self.id).parent.load(Ordering::Relaxed);
        (raw != NO_PARENT).then_some(FrameId(raw))
    }

    /// Sets the frame in which this one is swizzled. The caller holds this frame's latch; the latch of the
    /// old parent is enough to replace or clear it.
    pub fn set_parent(self, parent: Option<FrameId>) {
        let raw = parent.map_or(NO_PARENT, |id| id.0);
        self.cache.meta(self.id).parent.store(raw, Ordering::Relaxed);
        if parent.is_some() {
            self.set_orphan(false);
        }
    }

    /// Sets whether the frame counts as an orphan: hot, with a parent that was cooled before it. The caller
    /// holds its latch or that of its parent, so two callers may race; only one of them changes the count.
    pub(crate) fn set_orphan(self, is_orphan: bool) {
        let (flag, wanted) = (&self.cache.meta(self.id).orphan, u32::from(is_orphan));
        if flag.load(Ordering::Relaxed) == wanted || flag.swap(wanted, Ordering::SeqCst) == wanted {
            return;
        }
        match is_orphan {
            true => self.cache.orphans.fetch_add(1, Ordering::SeqCst),
            false => self.cache.orphans.fetch_sub(1, Ordering::SeqCst),
        };
    }

    /// Index of the word in which `child` is swizzled here.
    pub fn slot_of(self, shape: impl NodeShape, child: FrameId) -> Option<usize> {
        let wanted = Swip::hot(child).raw();
        (0..shape.child_count(self.words))
            .map(|i| shape.child_word(self.words, i))
            .find(|&word| self.words[word].load(Ordering::Relaxed) == wanted)
    }

    /// Keeps the node in its frame until the pin is dropped. `version` is one at which the caller saw the
    /// node there.
    pub fn pin(self, version: Version) -> Result<Pin<'c>, Conflict> {
        let pins = &self.cache.meta(self.id).pins;
        pins.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `is_pinned`, called to cool the node: one of the two threads sees the
        // other.
        fence(Ordering::SeqCst);
        let pin = Pin { cache: self.cache, id: self.id };
        self.validate(version)?;
        if version.state() == FrameState::Hot { Ok(pin) } else { Err(Conflict) }
    }

    /// Whether the node is pinned to this frame.
    pub fn is_pinned(self) -> bool {
        fence(Ordering::SeqCst);
        self.cache.meta(self.id).pins.load(Ordering::SeqCst) != 0
    }

    /// Whether a write-back of this frame is in flight. If none is, a caller that holds the exclusive latch
    /// may discard the node: a later write-back finds that the version changed.
    pub fn is_writing(self) -> bool {
        fence(Ordering::SeqCst);
        self.cache.meta(self.id).writing.load(Ordering::Acquire) != 0
    }

    /// Copies words `1..` of the node to `buf`, with swizzled children as addresses. Word 0 becomes 0.
    ///
    /// # Errors
    /// [`Conflict`] if a child was evicted meanwhile. The caller must also validate the frame's version.
    pub fn copy_out(self, shape: impl NodeShape, buf: &PageBuf) -> Result<(), Conflict> {
        buf.set(0, 0);
        for (i, word) in self.words.iter().enumerate().skip(1) {
            buf.set(i, word.load(Ordering::Relaxed));
        }
        for i in 0..shape.child_count(self.words) {
            let at = shape.child_word(self.words, i);
            if let Some(child) = Swip::from_raw(buf.get(at)).frame() {
                let child = self.cache.try_frame(child).ok_or(Conflict)?;
                let version = child.optimistic()?;
                let addr = GlobalAddr::from_raw(child.addr()).ok_or(Conflict)?;
                child.validate(version)?;
                buf.set(at, addr.raw());
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for FrameRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FrameRef").field(&self.id.0).finish()
    }
}

const NO_PARENT: u32 = u32::MAX;

/// Frame state that optimistic readers never need.
pub(crate) struct FrameMeta {
    parent: crate::sync::AtomicU32,
    pub(crate) pins: crate::sync::AtomicU32,
    pub(crate) writing: crate::sync::AtomicU32,
    orphan: crate::sync::AtomicU32,
}

impl FrameMeta {
    pub(crate) fn new() -> Self {
        use crate::sync::AtomicU32;
        Self {
            parent: AtomicU32::new(NO_PARENT),
            pins: AtomicU32::new(0),
            writing: AtomicU32::new(0),
            orphan: AtomicU32::new(0),
        }
    }
}

/// Keeps a node hot in its frame across awaits. A pin is not a latch: the node may still be read and changed,
/// and even merged away by an operation that knows of the pin. See [`FrameRef::pin`].
#[must_use]
pub struct Pin<'c> {
    cache: &'c Cache,
    id: FrameId,
}

impl Pin<'_> {
    pub fn id(&self) -> FrameId {
        self.id
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.cache.meta(self.id).pins.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Checks the cache's own invariants; see the crate documentation.
pub(crate) fn audit(cache: &Cache, shape: impl NodeShape) -> Vec<String> {
    let mut wrong = Vec::new();
    for id in 0..cache.frames() as u32 {
        audit_frame(cache, shape, cache.frame(FrameId(id)), &mut wrong);
    }
    let mut entries = 0;
    cache.table.for_each(|addr, frame| match frame {
        None => wrong.push(format!("{addr} has an I/O mark, but nothing runs")),
        Some(frame) => {
            entries += 1;
            if cache.try_frame(frame).is_none_or(|frame| frame.addr() != addr.raw()) {
                wrong.push(format!("the table maps {addr} to frame {}, which holds another node", frame.0));
            }
        }
    });
    let held = (0..cache.frames() as u32)
        .filter_map(|id| cache.frame(FrameId(id)).optimistic().ok())
        .filter(|version| version.state() != FrameState::Free)
        .count();
    if held != entries {
        wrong.push(format!("{held} frames hold nodes, but the table knows {entries}"));
    }
    let orphans = cache.meta_of_all().filter(|meta| meta.orphan.load(Ordering::Relaxed) != 0).count();
    let counted = cache.orphans.load(Ordering::Relaxed);
    if orphans != counted as usize {
        wrong.push(format!("{orphans} frames are orphans, but {counted} are counted"));
    }
    wrong
}

fn audit_frame(cache: &Cache, shape: impl NodeShape, frame: FrameRef<'_>, wrong: &mut Vec<String>) {
    let id = frame.id().0;
    let Ok(version) = frame.optimistic() else {
        return wrong.push(format!("frame {id} is latched, but nothing runs"));
    };
    if frame.is_writing() {
        wrong.push(format!("frame {id} is being written back, but nothing runs"));
    }
    if version.state() == FrameState::Free {
        return;
    }
    let children: Vec<_> = (0..shape.child_count(frame.words()))
        .map(|i| Swip::from_raw(frame.words()[shape.child_word(frame.words(), i)].load(Ordering::Relaxed)))
        .collect();
    let swizzled: Vec<_> = children.iter().filter_map(|swip| swip.frame()).collect();
    if version.state() == FrameState::Cooling && (version.is_dirty() || !swizzled.is_empty()) {
        wrong.push(format!("cooling frame {id} is dirty or has swizzled children"));
    }
    for child in swizzled {
        let child = cache.try_frame(child).map(|frame| (frame.parent(), frame.optimistic()));
        match child {
            Some((Some(parent), Ok(seen))) if parent.0 == id && seen.state() == FrameState::Hot => {}
            _ => wrong.push(format!("frame {id} has a swizzled child that is not hot or not its own")),
        }
    }
    if cache.meta(frame.id()).orphan.load(Ordering::Relaxed) != 0
        && (version.state() != FrameState::Hot || frame.parent().is_some())
    {
        wrong.push(format!("frame {id} is an orphan, but cold or with a parent"));
    }
    // Nothing is offloaded below nodes that other compute servers may know.
    if cache.swizzles() && shape.swizzles(frame.words()) && !shape.leaves_first_word(frame.words()) {
        let is_hot =
            |id: &FrameId| cache.frame(*id).optimistic().is_ok_and(|seen| seen.state() == FrameState::Hot);
        let is_counted = |id: FrameId| cache.meta(id).orphan.load(Ordering::Relaxed) != 0;
        let listed = children.iter().filter_map(|swip| swip.global()).filter(|addr| !addr.is_null());
        let hot = listed.filter_map(|addr| cache.table.frame_of(addr)).filter(is_hot);
        for child in hot.filter(|&child| !is_counted(child)) {
            wrong.push(format!("hot frame {} is not swizzled in frame {id}, and no orphan", child.0));
        }
    }
    if let Some(parent) = frame.parent() {
        let hot = cache.frame(parent).optimistic().is_ok_and(|seen| seen.state() == FrameState::Hot);
        if version.state() != FrameState::Hot
            || !hot
            || cache.frame(parent).slot_of(shape, frame.id()).is_none()
        {
            wrong.push(format!(
                "frame {id} names frame {} as its parent, which does not point to it",
                parent.0
            ));
        }
    }
    let known = GlobalAddr::from_raw(frame.addr()).and_then(|addr| cache.table.frame_of(addr));
    if known != Some(frame.id()) {
        wrong.push(format!("frame {id} holds a node that the mapping table does not know"));
    }
}
