//! Frames as the tree sees them: a latch, an address, the words of a node (DEX §5.1), and pins.
//!
//! The latch also protects state outside the words. A frame's parent changes under the parent's latch, or, if
//! it has none, under its own. Pins and write-backs have words of their own: each is set before the version
//! is checked, and checked after the latch was taken, with a full fence in between.

use pando_fabric::{Endpoint, GlobalAddr, PageBuf};

use crate::arena::Arena;
use crate::error::{Conflict, Result};
use crate::latch::{ExclusiveGuard, FrameState, HybridLatch, Version};
use crate::swip::{FrameId, Swip};
use crate::sync::{AtomicU32, AtomicU64, Ordering, Word, fence};

/// Index of the word that holds the node's own global address.
pub(crate) const ADDR_WORD: usize = 1;

/// The cache's view of tree nodes. The methods are called on pages that other threads may be changing, so
/// every answer must stay inside the page, whatever its words say.
#[allow(async_fn_in_trait, reason = "the futures of an endpoint belong to one thread")]
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

    /// Whether a log has all changes of a node that is written back. Should this process die meanwhile, its heir writes the
    /// node again, so nobody reads what only some copies have.
    fn is_logged(&self) -> bool {
        false
    }

    /// Called before a write-back of `page`, which the node in `frame` was at `version`; the hook of a log.
    /// Returns whether it may be written now.
    ///
    /// # Errors
    /// The node then stays hot and dirty.
    async fn before_write<E: Endpoint>(
        &self,
        endpoint: &E,
        frame: FrameRef<'_>,
        version: Version,
        page: &PageBuf,
    ) -> Result<bool> {
        let _ = (endpoint, frame, version, page);
        Ok(true)
    }
}

/// All frames of a cache.
pub(crate) struct Frames {
    pub arena: Arena,
    meta: Box<[FrameMeta]>,
    /// Hot frames whose parents were cooled before them.
    pub orphans: AtomicU32,
}

impl Frames {
    pub fn new(count: usize, node_size: usize) -> Result<Self> {
        let arena = Arena::new(count, node_size)?;
        let meta = (0..count).map(|_| FrameMeta::new()).collect();
        Ok(Self { arena, meta, orphans: AtomicU32::new(0) })
    }

    #[inline]
    pub fn get(&self, id: FrameId) -> FrameRef<'_> {
        FrameRef { frames: self, id, words: self.arena.words(id.0) }
    }

    #[inline]
    pub fn try_get(&self, id: FrameId) -> Option<FrameRef<'_>> {
        ((id.0 as usize) < self.arena.frames()).then(|| self.get(id))
    }
}

/// One frame of a cache.
#[derive(Clone, Copy)]
pub struct FrameRef<'c> {
    frames: &'c Frames,
    id: FrameId,
    words: &'c [Word],
}

impl<'c> FrameRef<'c> {
    #[inline]
    fn meta(self) -> &'c FrameMeta {
        &self.frames.meta[self.id.0 as usize]
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

    /// Frame of the parent in which this frame is swizzled.
    pub fn parent(self) -> Option<FrameId> {
        let raw = self.meta().parent.load(Ordering::Relaxed);
        (raw != NO_PARENT).then_some(FrameId(raw))
    }

    /// Sets the frame in which this one is swizzled. The caller holds this frame's latch; the latch of the
    /// old parent is enough to replace or clear it.
    pub fn set_parent(self, parent: Option<FrameId>) {
        let raw = parent.map_or(NO_PARENT, |id| id.0);
        self.meta().parent.store(raw, Ordering::Relaxed);
        if parent.is_some() {
            self.set_orphan(false);
        }
    }

    /// Sets whether the frame counts as an orphan: hot, with a parent that was cooled before it. The caller
    /// holds its latch or that of its parent, so two callers may race; only one of them changes the count.
    pub(crate) fn set_orphan(self, is_orphan: bool) {
        let (flag, wanted) = (&self.meta().orphan, u32::from(is_orphan));
        if flag.load(Ordering::Relaxed) == wanted || flag.swap(wanted, Ordering::SeqCst) == wanted {
            return;
        }
        match is_orphan {
            true => self.frames.orphans.fetch_add(1, Ordering::SeqCst),
            false => self.frames.orphans.fetch_sub(1, Ordering::SeqCst),
        };
    }

    pub(crate) fn is_hot(self) -> bool {
        self.optimistic().is_ok_and(|seen| seen.state() == FrameState::Hot)
    }

    pub(crate) fn is_orphan(self) -> bool {
        self.meta().orphan.load(Ordering::Relaxed) != 0
    }

    /// The child words.
    pub(crate) fn children(self, shape: impl NodeShape) -> impl Iterator<Item = &'c Word> {
        (0..shape.child_count(self.words)).map(move |i| &self.words[shape.child_word(self.words, i)])
    }

    /// The pointers to the children.
    pub(crate) fn swips(self, shape: impl NodeShape) -> impl Iterator<Item = Swip> {
        self.children(shape).map(|word| Swip::from_raw(word.load(Ordering::Relaxed)))
    }

    /// Index of the word in which `child` is swizzled here.
    pub fn slot_of(self, shape: impl NodeShape, child: FrameId) -> Option<usize> {
        let wanted = Swip::hot(child).raw();
        (0..shape.child_count(self.words))
            .map(|i| shape.child_word(self.words, i))
            .find(|&word| self.words[word].load(Ordering::Relaxed) == wanted)
    }

    /// What the log has of the node. A reader validates the frame's version afterwards.
    #[inline]
    pub fn mark(self) -> Mark {
        let word = self.meta().mark.load(Ordering::Relaxed);
        Mark { gsn: word >> 1, has_moved: word & 1 == 1 }
    }

    /// Notes what the log has of the node. The caller holds the latch.
    #[inline]
    pub fn set_mark(self, mark: Mark) {
        self.meta().mark.store(mark.gsn << 1 | u64::from(mark.has_moved), Ordering::Relaxed);
    }

    /// Notes under the latch that the node has been written.
    pub(crate) fn note_written(self) {
        self.set_mark(Mark { has_moved: false, ..self.mark() });
    }

    /// Keeps the node in its frame until the pin is dropped. `version` is one at which the caller saw the
    /// node there.
    pub fn pin(self, version: Version) -> Result<Pin<'c>, Conflict> {
        let pins = &self.meta().pins;
        pins.fetch_add(1, Ordering::SeqCst);
        // Pairs with the fence in `is_pinned`, called to cool the node: one of the two threads sees the
        // other.
        fence(Ordering::SeqCst);
        let pin = Pin { pins, id: self.id };
        self.validate(version)?;
        if version.state() == FrameState::Hot { Ok(pin) } else { Err(Conflict) }
    }

    /// Whether the node is pinned to this frame.
    pub fn is_pinned(self) -> bool {
        fence(Ordering::SeqCst);
        self.meta().pins.load(Ordering::SeqCst) != 0
    }

    /// Whether the node seems to be pinned; the answer may be out of date.
    pub(crate) fn seems_pinned(self) -> bool {
        self.meta().pins.load(Ordering::Relaxed) != 0
    }

    /// Sets the write-back flag; returns `false` if it is set already.
    pub(crate) fn begin_writing(self) -> bool {
        let flag = &self.meta().writing;
        let was_free = flag.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Pairs with the fence in `is_writing`, called under the latch to discard the node: one of the two
        // threads sees the other.
        fence(Ordering::SeqCst);
        was_free
    }

    pub(crate) fn end_writing(self) {
        self.meta().writing.store(0, Ordering::Release);
    }

    /// Whether a write-back of this frame is in flight. If none is, a caller that holds the exclusive latch
    /// may discard the node: a later write-back finds that the version changed.
    pub fn is_writing(self) -> bool {
        fence(Ordering::SeqCst);
        self.meta().writing.load(Ordering::Acquire) != 0
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
                let child = self.frames.try_get(child).ok_or(Conflict)?;
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

/// What a log has of a node; zeros without a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// Number of the last record about it.
    pub gsn: u64,
    /// Whether its entries have moved since the log got its last image, or since it was written.
    pub has_moved: bool,
}

/// Frame state that optimistic readers never need without a log.
pub(crate) struct FrameMeta {
    parent: AtomicU32,
    pins: AtomicU32,
    writing: AtomicU32,
    orphan: AtomicU32,
    /// [`Mark`]: the number above the flag.
    mark: AtomicU64,
}

impl FrameMeta {
    fn new() -> Self {
        Self {
            parent: AtomicU32::new(NO_PARENT),
            pins: AtomicU32::new(0),
            writing: AtomicU32::new(0),
            orphan: AtomicU32::new(0),
            mark: AtomicU64::new(0),
        }
    }
}

/// Keeps a node hot in its frame across awaits. A pin is not a latch: the node may still be read and changed,
/// and even merged away by an operation that knows of the pin. See [`FrameRef::pin`].
#[must_use]
pub struct Pin<'c> {
    pins: &'c AtomicU32,
    id: FrameId,
}

impl Pin<'_> {
    pub fn id(&self) -> FrameId {
        self.id
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.pins.fetch_sub(1, Ordering::SeqCst);
    }
}
