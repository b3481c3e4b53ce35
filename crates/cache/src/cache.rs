//! The cache as a whole: its parts, and the admission of pages (DEX §5.1, §5.4).
//!
//! A page needs a free frame and the ticket of its address. [`FreeFrame::admit`] publishes it hot below a hot
//! parent or, if the parent changed during the READ, as a cooling page that the next descent finds by its
//! address.

use std::cell::RefCell;
use std::sync::Arc;

use pando_fabric::{Endpoint, GlobalAddr, Nanos, PageBuf};

use crate::admission::Admission;
use crate::cooling_map::{CoolingFifo, CoolingMap};
use crate::error::{CacheError, Conflict, Result};
use crate::frame::{FrameMeta, FrameRef, Frames, Mark};
use crate::latch::{ExclusiveGuard, FrameState, Version};
use crate::mapping_table::{IoTicket, MappingTable};
use crate::stats::{CacheCounters, CacheCounts};
use crate::swip::{FrameId, Swip};
use crate::sync::{AtomicU32, Mutex, Ordering, lock};
use crate::turn_queue::Turns;
use crate::writing::{CutOff, Writing};

/// Smallest number of frames that suffices for trees of any height and any number of concurrent operations:
/// twice the four that one operation holds at most (the root, a node, its parent, and a free frame).
const MIN_FRAMES: u64 = 8;

/// Generous bound on the frames of one path, including merge neighbours and spare frames.
const PATH_FRAMES: usize = 16;

/// Policy for choosing victims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Cooling moves down to cached children until it reaches a node without any (DEX §5.3).
    PathAware,
    /// Any sampled node is evicted at once, even above cached children.
    Random,
}

/// Container of the cooling nodes.
pub enum Cooling {
    Map(CoolingMap),
    Fifo(CoolingFifo),
}

/// Configuration of a cache. The defaults are the paper's (DEX §8.1).
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Bytes of all frames together.
    pub bytes: u64,
    /// Bytes of a node: a power of two.
    pub node_size: usize,
    /// Fraction of the frames that may be cooling; 0.1 in the paper.
    pub cooling_share: f64,
    /// Admission of leaves once the cache is full.
    pub admission: Admission,
    pub eviction: Eviction,
    /// Uses one FIFO queue under a lock instead of the cooling map.
    pub fifo: bool,
    /// Whether pointers to cached children are swizzled.
    pub swizzle: bool,
}

impl CacheConfig {
    pub fn new(bytes: u64, node_size: usize) -> Self {
        Self {
            bytes,
            node_size,
            cooling_share: 0.1,
            admission: Admission::default(),
            eviction: Eviction::PathAware,
            fifo: false,
            swizzle: true,
        }
    }
}

/// The page cache of one compute server, shared by its workers.
pub struct Cache {
    pub(crate) frames: Frames,
    pub(crate) table: MappingTable,
    pub(crate) cooling: Cooling,
    pub(crate) eviction: Eviction,
    admission: Admission,
    swizzle: bool,
    node_size: usize,
    /// First frame that was never used.
    fresh: AtomicU32,
    free: Mutex<Vec<FrameId>>,
    /// Number of live workers when the last one was created.
    workers: AtomicU32,
    pub(crate) turns: Turns,
    cut_off: CutOff,
    counters: Mutex<Registry>,
}

/// Counters of all workers.
#[derive(Default)]
struct Registry {
    live: Vec<Arc<CacheCounters>>,
    /// Workers created so far.
    started: u32,
    /// Sum of the counters of ended workers.
    past: CacheCounts,
}

impl Registry {
    /// Moves the counters of ended workers into the sum.
    fn sweep(&mut self) {
        let Self { live, past, .. } = self;
        live.retain_mut(|counters| match Arc::get_mut(counters) {
            Some(ended) => {
                *past = *past + ended.snapshot();
                false
            }
            None => true,
        });
    }
}

/// State of one worker: a few free frames, and counters.
pub struct CacheWorker {
    stash: RefCell<Vec<FrameId>>,
    counters: Arc<CacheCounters>,
    /// Whether this worker belongs to an operation that has the turn.
    pub(crate) in_turn: bool,
    number: u32,
}

/// Maximum number of free frames that a worker keeps for itself.
const STASH: usize = 4;

impl CacheWorker {
    /// The same worker during a turn.
    pub(crate) fn for_turn(&self) -> Self {
        Self {
            stash: RefCell::default(),
            counters: Arc::clone(&self.counters),
            in_turn: true,
            number: self.number,
        }
    }

    #[inline]
    pub fn counters(&self) -> &CacheCounters {
        &self.counters
    }

    /// Number of workers created before this one.
    #[inline]
    pub fn number(&self) -> usize {
        self.number as usize
    }
}

impl Cache {
    /// # Errors
    /// [`CacheError::TooSmall`], [`CacheError::TooLarge`], [`CacheError::NoMemory`].
    pub fn new(config: &CacheConfig) -> Result<Self> {
        let frames = config.bytes / config.node_size as u64;
        if frames < MIN_FRAMES {
            let minimum_bytes = MIN_FRAMES * config.node_size as u64;
            let (bytes, node_size) = (config.bytes, config.node_size);
            return Err(CacheError::TooSmall { bytes, frames, node_size, minimum_bytes });
        }
        if frames >= u64::from(u32::MAX) {
            return Err(CacheError::TooLarge { bytes: config.bytes });
        }
        let frames = frames as usize;
        let cooling = ((frames as f64 * config.cooling_share.clamp(0.0, 0.9)) as usize).max(1);
        Ok(Self {
            frames: Frames::new(frames, config.node_size)?,
            table: MappingTable::new(frames),
            cooling: match config.fifo {
                true => Cooling::Fifo(CoolingFifo::new(cooling)),
                false => Cooling::Map(CoolingMap::new(cooling)),
            },
            eviction: config.eviction,
            admission: config.admission,
            swizzle: config.swizzle,
            node_size: config.node_size,
            fresh: AtomicU32::new(0),
            free: Mutex::new(Vec::new()),
            workers: AtomicU32::new(0),
            turns: Turns::new(),
            cut_off: CutOff::new(),
            counters: Mutex::new(Registry::default()),
        })
    }

    /// Creates a worker for the calling thread.
    pub fn worker(&self) -> CacheWorker {
        let counters = Arc::new(CacheCounters::default());
        let mut registry = lock(&self.counters);
        registry.sweep();
        registry.live.push(Arc::clone(&counters));
        self.workers.store(registry.live.len() as u32, Ordering::Relaxed);
        let number = registry.started;
        registry.started = number.wrapping_add(1);
        CacheWorker { stash: RefCell::new(Vec::with_capacity(STASH)), counters, in_turn: false, number }
    }

    fn workers(&self) -> usize {
        self.workers.load(Ordering::Relaxed).max(1) as usize
    }

    /// Whether the paths of all operations in flight, on workers with `slots` slots each, may exceed the
    /// cache, so that a page is likely evicted before the operation that read it can use it.
    pub fn is_tight(&self, slots: u32) -> bool {
        self.frames() < PATH_FRAMES * self.workers() * slots as usize
    }

    /// Returns the free frames of a worker that ends to the free list.
    pub fn retire(&self, worker: &CacheWorker) {
        lock(&self.free).append(&mut worker.stash.borrow_mut());
    }

    /// Sum of the counters of all workers so far.
    pub fn counts(&self) -> CacheCounts {
        let registry = lock(&self.counters);
        registry.past + registry.live.iter().map(|counters| counters.snapshot()).sum()
    }

    pub fn frames(&self) -> usize {
        self.frames.arena.frames()
    }

    pub fn node_size(&self) -> usize {
        self.node_size
    }

    /// Whether pointers to cached children are swizzled.
    #[inline]
    pub fn swizzles(&self) -> bool {
        self.swizzle
    }

    /// Whether only clean cooling copies can be cached below a missing child of a swizzling node (DEX §5.3).
    /// The caller holds the child's ticket and a pin on the node; the answer stays true while both are held.
    pub fn paths_are_whole(&self) -> bool {
        self.swizzle
            && self.eviction == Eviction::PathAware
            && self.frames.orphans.load(Ordering::SeqCst) == 0
    }

    pub fn admission(&self) -> Admission {
        self.admission
    }

    pub fn table(&self) -> &MappingTable {
        &self.table
    }

    /// Sets the longest time a verb may take, in nanoseconds, for which the flag of a cut-off write-back
    /// stays set. The default is 5 s.
    pub fn set_verbs_take(&self, verbs_take: Nanos) {
        self.cut_off.verbs_take.store(verbs_take, Ordering::Relaxed);
    }

    /// Claims the right to write a frame back, if it is free.
    pub fn claim_write_back<'c>(
        &'c self,
        endpoint: &impl Endpoint,
        frame: FrameRef<'c>,
    ) -> Option<Writing<'c>> {
        let claimed = self.cut_off.claim(frame);
        if claimed.is_none() {
            self.end_cut_off(endpoint.now());
        }
        claimed
    }

    /// Whether cut-off write-backs may still take effect.
    #[inline]
    pub fn has_cut_off(&self) -> bool {
        self.cut_off.any()
    }

    /// Ends the cut-off write-backs that must be over at `now`. Called by operations that wait for one.
    pub fn end_cut_off(&self, now: Nanos) {
        self.cut_off.end(now, &self.frames);
    }

    /// Ends the cut-off write-backs that must be over at `now`. Returns the time until which the others must
    /// be waited for, or the last one was.
    pub fn rests_until(&self, now: Nanos) -> Nanos {
        self.end_cut_off(now);
        self.cut_off.rests_until()
    }

    /// Memory besides the frames, in bytes: table, cooling map, frame states.
    pub fn overhead_bytes(&self) -> usize {
        let cooling = if let Cooling::Map(map) = &self.cooling { map.bytes() } else { 0 };
        self.table.bytes() + cooling + self.frames() * size_of::<FrameMeta>()
    }

    /// Frame with a number that this cache gave out.
    ///
    /// # Panics
    /// If there is no such frame.
    #[inline]
    pub fn frame(&self, id: FrameId) -> FrameRef<'_> {
        self.frames.get(id)
    }

    /// Frame with a number that may be torn; `None` if there is no such frame.
    #[inline]
    pub fn try_frame(&self, id: FrameId) -> Option<FrameRef<'_>> {
        self.frames.try_get(id)
    }

    /// Prefetches the first `bytes` of a frame.
    #[inline]
    pub fn prefetch(&self, id: FrameId, bytes: usize) {
        self.frames.arena.prefetch(id.0, bytes);
    }

    /// Whether a free frame is available without eviction.
    pub fn has_free(&self, worker: &CacheWorker) -> bool {
        !worker.stash.borrow().is_empty()
            || (self.fresh.load(Ordering::Relaxed) as usize) < self.frames()
            || !lock(&self.free).is_empty()
    }

    /// Takes a free frame without evicting anything.
    pub fn take_free<'c>(&'c self, worker: &'c CacheWorker) -> Option<FreeFrame<'c>> {
        let id = worker
            .stash
            .borrow_mut()
            .pop()
            .or_else(|| self.take_fresh())
            .or_else(|| lock(&self.free).pop())?;
        Some(FreeFrame { cache: self, worker, id: Some(id) })
    }

    fn take_fresh(&self) -> Option<FrameId> {
        if self.fresh.load(Ordering::Relaxed) as usize >= self.frames() {
            return None;
        }
        let id = self.fresh.fetch_add(1, Ordering::Relaxed);
        if (id as usize) < self.frames() {
            return Some(FrameId(id));
        }
        // Undo the increment, so that even 2^32 attempts do not wrap around.
        self.fresh.fetch_sub(1, Ordering::Relaxed);
        None
    }

    pub(crate) fn give_free(&self, worker: &CacheWorker, id: FrameId) {
        // In a tiny cache, or with many workers, stashes would withhold frames from operations that need
        // them.
        let keep = if worker.in_turn { 0 } else { STASH.min(self.frames() / (32 * self.workers())) };
        let mut stash = worker.stash.borrow_mut();
        if stash.len() < keep { stash.push(id) } else { lock(&self.free).push(id) }
    }

    /// Makes the unswizzled but cached child `addr`, in frame `child`, hot again. With `parent` (a swizzling
    /// node, its version, and the index of the word that holds the address) the child is swizzled; without
    /// it, the child is still found through the table.
    ///
    /// # Errors
    /// [`Conflict`] if the parent changed since its version, or the child left its frame.
    pub fn reheat(
        &self,
        worker: &CacheWorker,
        parent: Option<(FrameRef<'_>, Version, usize)>,
        child: FrameRef<'_>,
        addr: GlobalAddr,
    ) -> Result<Version, Conflict> {
        let parent_guard = parent.map(|(frame, version, _)| frame.upgrade(version)).transpose()?;
        let result = self.reheat_latched(worker, parent.map(|(frame, _, slot)| (frame, slot)), child, addr);
        if let Some(guard) = parent_guard {
            guard.release_unchanged();
        }
        result
    }

    fn reheat_latched(
        &self,
        worker: &CacheWorker,
        parent: Option<(FrameRef<'_>, usize)>,
        child: FrameRef<'_>,
        addr: GlobalAddr,
    ) -> Result<Version, Conflict> {
        let mut guard = child.exclusive()?;
        let was = guard.state();
        if child.addr() != addr.raw() || was == FrameState::Free || child.parent().is_some() {
            guard.release_unchanged();
            return Err(Conflict);
        }
        if let Some((parent, slot)) = parent {
            parent.words()[slot].store(Swip::hot(child.id()).raw(), Ordering::Relaxed);
            child.set_parent(Some(parent.id()));
        }
        guard.set_state(FrameState::Hot);
        if was == FrameState::Cooling {
            // Remove it under the latch: once released, the node may start cooling again.
            self.forget_cooling(addr, child.id());
            CacheCounters::bump(&worker.counters.reheats, 1);
        }
        Ok(guard.version_after())
    }

    /// Frees the frame of a node that is gone for good. The caller has latched the frame, found it hot,
    /// removed its address from the table, and unswizzled it.
    pub fn discard(&self, worker: &CacheWorker, frame: FrameRef<'_>, mut guard: ExclusiveGuard<'_>) {
        guard.mark_clean();
        guard.set_state(FrameState::Free);
        frame.set_parent(None);
        frame.set_orphan(false);
        frame.set_mark(Mark::default());
        drop(guard);
        self.give_free(worker, frame.id());
    }
}

/// A frame that holds no node and belongs to one worker. Dropping it frees it again.
#[must_use]
pub struct FreeFrame<'c> {
    cache: &'c Cache,
    worker: &'c CacheWorker,
    id: Option<FrameId>,
}

/// Outcome of admitting a page that was read from remote memory.
#[derive(Clone, Copy, Debug)]
pub enum Resolved {
    /// Hot at `version`, and swizzled in its parent, if one was given, which is at the version `parent`.
    Hot { version: Version, parent: Option<Version> },
    /// Cached, but the parent changed meanwhile: descend again.
    Detached,
}

impl<'c> FreeFrame<'c> {
    pub fn id(&self) -> FrameId {
        self.id.expect("taken only by the methods that consume the frame")
    }

    pub fn frame(&self) -> FrameRef<'c> {
        self.cache.frame(self.id())
    }

    /// Latches the frame for filling. It belongs to this worker until [`FreeFrame::release_to_cache`].
    pub fn latch(&self) -> ExclusiveGuard<'c> {
        loop {
            // Only stale readers touch a free frame, and none of them holds its latch for long.
            if let Ok(guard) = self.frame().exclusive() {
                return guard;
            }
        }
    }

    /// Ends this worker's ownership of the frame, which now holds a node. The caller holds the latch.
    pub fn release_to_cache(mut self) -> FrameRef<'c> {
        let frame = self.frame();
        self.id = None;
        frame
    }

    /// Copies words `1..` of `page` into the frame and publishes it under the ticket's address. With
    /// `parent`, the page becomes hot and swizzled if `still_parent`, called under the parent's latch,
    /// returns the index of the child word that holds the address, and cooling otherwise. Without a parent,
    /// the page becomes hot.
    pub fn admit(
        self,
        page: &PageBuf,
        ticket: IoTicket<'_>,
        parent: Option<(FrameRef<'c>, impl FnOnce() -> Option<usize>)>,
    ) -> Resolved {
        let (cache, worker, addr) = (self.cache, self.worker, ticket.addr());
        let mut guard = self.latch();
        let frame = self.release_to_cache();
        for (to, from) in frame.words().iter().zip(page.words()).skip(1) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        frame.set_parent(None);
        frame.set_mark(Mark::default());
        guard.mark_clean();
        CacheCounters::bump(&worker.counters.admissions, 1);
        let (mut state, mut parent_version) = (FrameState::Hot, None);
        if let Some((parent, still_parent)) = parent {
            // The usual order is parent first. This order is safe too: no other thread can wait for this
            // frame yet.
            match parent.exclusive() {
                Ok(parent_guard) => {
                    match still_parent().filter(|_| parent_guard.state() == FrameState::Hot) {
                        Some(slot) => {
                            parent.words()[slot].store(Swip::hot(frame.id()).raw(), Ordering::Relaxed);
                            frame.set_parent(Some(parent.id()));
                            parent_version = Some(parent_guard.version_before());
                        }
                        None => state = FrameState::Cooling,
                    }
                    parent_guard.release_unchanged();
                }
                Err(Conflict) => state = FrameState::Cooling,
            }
        }
        guard.set_state(state);
        let version = guard.version_after();
        ticket.publish(frame.id());
        drop(guard);
        if state == FrameState::Cooling {
            cache.push_cooling(worker, addr, frame.id());
            return Resolved::Detached;
        }
        Resolved::Hot { version, parent: parent_version }
    }
}

impl Drop for FreeFrame<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.cache.give_free(self.worker, id);
        }
    }
}
