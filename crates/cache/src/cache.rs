//! The cache as a whole: what it is made of, and how a page gets in (DEX §5.1, §5.4).
//!
//! A page comes in through a free frame and the ticket of its address: [`FreeFrame::admit`] publishes it hot below a
//! hot parent, or, if the parent changed during the READ, as a cooling page that the next descent finds by its address.

use std::cell::RefCell;
use std::sync::Arc;

use pando_fabric::{GlobalAddr, PageBuf};

use crate::admission::Admission;
use crate::arena::Arena;
use crate::cooling_map::{CoolingFifo, CoolingMap};
use crate::error::{CacheError, Conflict, Result};
use crate::frame::{FrameMeta, FrameRef, NodeShape};
use crate::latch::{ExclusiveGuard, FrameState, Version};
use crate::mapping_table::{IoTicket, MappingTable};
use crate::stats::{CacheCounters, CacheCounts};
use crate::swip::{FrameId, Swip};
use crate::sync::{AtomicU32, Mutex, Ordering};
use crate::turn::Turns;
use crate::writing::CutOff;

/// Frames with which a tree of any height can be walked and changed by any number of operations: twice what one of
/// them holds at most, which is the root, a node and its parent, and a free frame.
const MIN_FRAMES: u64 = 8;

/// Frames of a path, neighbours to be merged and spare ones included, as rarely a tree has more.
const PATH_FRAMES: usize = 16;

/// How victims are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Cooling is delegated to a cached child until a node without one is reached (DEX §5.3).
    PathAware,
    /// Any sampled node is evicted at once, whatever is cached below it.
    Random,
}

/// Where cooling nodes wait.
pub enum Cooling {
    Map(CoolingMap),
    Fifo(CoolingFifo),
}

/// What a cache is like. The defaults are the paper's (DEX §8.1).
#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Bytes of all frames together.
    pub bytes: u64,
    /// Bytes of a node: a power of two.
    pub node_size: usize,
    /// Share of the frames that may be cooling; the paper's is 0.1.
    pub cooling_share: f64,
    /// Admission of leaves once the cache is full.
    pub admission: Admission,
    pub eviction: Eviction,
    /// One FIFO queue under a lock in place of the cooling map.
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

/// A page cache of one compute server, shared by its workers.
pub struct Cache {
    arena: Arena,
    meta: Box<[FrameMeta]>,
    pub(crate) table: MappingTable,
    pub(crate) cooling: Cooling,
    pub(crate) eviction: Eviction,
    admission: Admission,
    swizzle: bool,
    node_size: usize,
    /// Frames that were never used start here.
    fresh: AtomicU32,
    free: Mutex<Vec<FrameId>>,
    /// Workers at the time of the latest one.
    workers: AtomicU32,
    pub(crate) turns: Turns,
    /// Hot frames whose parents were cooled before them.
    pub(crate) orphans: AtomicU32,
    pub(crate) cut_off: CutOff,
    counters: Mutex<Registry>,
}

/// The counters of all workers.
#[derive(Default)]
struct Registry {
    live: Vec<Arc<CacheCounters>>,
    /// Workers so far.
    started: u32,
    /// Sum of those of workers that ended.
    past: CacheCounts,
}

impl Registry {
    /// Moves the counters that nobody else has any more to the sum.
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

/// What a worker has of its own: a few free frames, and counters.
pub struct CacheWorker {
    stash: RefCell<Vec<FrameId>>,
    counters: Arc<CacheCounters>,
    /// Whether it stands for an operation that has the turn.
    pub(crate) in_turn: bool,
    number: u32,
}

/// Free frames that a worker keeps to itself at most.
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

    /// How many workers the cache had before this one.
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
            arena: Arena::new(frames, config.node_size)?,
            meta: (0..frames).map(|_| FrameMeta::new()).collect(),
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
            orphans: AtomicU32::new(0),
            cut_off: CutOff::new(),
            counters: Mutex::new(Registry::default()),
        })
    }

    /// The calling thread's share of this cache.
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

    /// Whether the cache may not hold the paths of all operations that workers of `slots` slots have in flight, so
    /// that what one of them has brought in is likely evicted by another before it is used.
    pub fn is_tight(&self, slots: u32) -> bool {
        self.frames() < PATH_FRAMES * self.workers() * slots as usize
    }

    /// Gives the free frames of a worker that ends back to all.
    pub fn retire(&self, worker: &CacheWorker) {
        lock(&self.free).append(&mut worker.stash.borrow_mut());
    }

    /// Sum of what all workers counted so far.
    pub fn counts(&self) -> CacheCounts {
        let registry = lock(&self.counters);
        registry.past + registry.live.iter().map(|counters| counters.snapshot()).sum()
    }

    pub fn frames(&self) -> usize {
        self.arena.frames()
    }

    pub fn node_size(&self) -> usize {
        self.node_size
    }

    /// Whether pointers to cached children are swizzled at all.
    #[inline]
    pub fn swizzles(&self) -> bool {
        self.swizzle
    }

    /// Whether below a missing child of a swizzling node nothing is cached but cooling, clean copies (DEX §5.3). The caller
    /// holds the child's ticket and has the node pinned; it stays so as long as he does.
    pub fn paths_are_whole(&self) -> bool {
        self.swizzle && self.eviction == Eviction::PathAware && self.orphans.load(Ordering::SeqCst) == 0
    }

    pub fn admission(&self) -> Admission {
        self.admission
    }

    pub fn table(&self) -> &MappingTable {
        &self.table
    }

    /// Bytes besides the frames: table, cooling map, frame states.
    pub fn overhead_bytes(&self) -> usize {
        let cooling = if let Cooling::Map(map) = &self.cooling { map.bytes() } else { 0 };
        self.table.bytes() + cooling + self.meta.len() * size_of::<FrameMeta>()
    }

    #[inline]
    pub(crate) fn meta(&self, id: FrameId) -> &FrameMeta {
        &self.meta[id.0 as usize]
    }

    pub(crate) fn meta_of_all(&self) -> impl Iterator<Item = &FrameMeta> {
        self.meta.iter()
    }

    /// The frame of a number that this cache gave out.
    ///
    /// # Panics
    /// If there is no such frame.
    #[inline]
    pub fn frame(&self, id: FrameId) -> FrameRef<'_> {
        FrameRef::new(self, id, self.arena.words(id.0))
    }

    /// The frame of an id that may be torn.
    #[inline]
    pub fn try_frame(&self, id: FrameId) -> Option<FrameRef<'_>> {
        ((id.0 as usize) < self.frames()).then(|| self.frame(id))
    }

    /// Asks the processor for the first `bytes` of a frame.
    #[inline]
    pub fn prefetch(&self, id: FrameId, bytes: usize) {
        self.arena.prefetch(id.0, bytes);
    }

    /// Whether frames are left that no node ever needed, or that became free.
    pub fn has_free(&self, worker: &CacheWorker) -> bool {
        !worker.stash.borrow().is_empty()
            || (self.fresh.load(Ordering::Relaxed) as usize) < self.frames()
            || !lock(&self.free).is_empty()
    }

    /// A free frame without evicting anything.
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
        // Undone, so that even 2^32 attempts do not wrap around.
        self.fresh.fetch_sub(1, Ordering::Relaxed);
        None
    }

    pub(crate) fn give_free(&self, worker: &CacheWorker, id: FrameId) {
        // The stashes of a tiny cache, or of many workers, would keep frames from those who need them.
        let keep = if worker.in_turn { 0 } else { STASH.min(self.frames() / (32 * self.workers())) };
        let mut stash = worker.stash.borrow_mut();
        if stash.len() < keep { stash.push(id) } else { lock(&self.free).push(id) }
    }

    /// Makes the unswizzled but cached child `addr`, in `child`, hot again. With `parent` (a swizzling node, and the
    /// word there that holds the address) the child is swizzled; without, it stays found through the table.
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
        let parent_guard = match parent {
            Some((frame, version, _)) => Some(frame.upgrade(version)?),
            None => None,
        };
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
            // Under the latch: afterwards it could be cooling again already.
            self.forget_cooling(addr, child.id());
            CacheCounters::bump(&worker.counters.reheats, 1);
        }
        Ok(guard.version_after())
    }

    /// The node in `frame` is gone for good: the frame becomes free. The caller latched it, found it hot, took its
    /// address out of the table, and unswizzled it.
    pub fn discard(&self, worker: &CacheWorker, frame: FrameRef<'_>, mut guard: ExclusiveGuard<'_>) {
        guard.mark_clean();
        guard.set_state(FrameState::Free);
        frame.set_parent(None);
        frame.set_orphan(false);
        drop(guard);
        self.give_free(worker, frame.id());
    }

    /// Checks the cache's own invariants at a quiescent point; each violation is one line.
    pub fn audit(&self, shape: impl NodeShape) -> Vec<String> {
        crate::frame::audit(self, shape)
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> + '_ {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// A frame that holds no node and belongs to one worker. Dropped, it becomes free again.
#[must_use]
pub struct FreeFrame<'c> {
    cache: &'c Cache,
    worker: &'c CacheWorker,
    id: Option<FrameId>,
}

/// How a page that was read from remote memory ended up.
#[derive(Clone, Copy, Debug)]
pub enum Resolved {
    /// Hot at this version, and swizzled in a parent, if one was given, that is at the other one.
    Hot { version: Version, parent: Option<Version> },
    /// In the cache, but its parent changed meanwhile: descend again.
    Detached,
}

impl<'c> FreeFrame<'c> {
    pub fn id(&self) -> FrameId {
        self.id.expect("taken only by the methods that consume the frame")
    }

    pub fn frame(&self) -> FrameRef<'c> {
        self.cache.frame(self.id())
    }

    /// Latches the frame for filling. It stays with this worker until [`FreeFrame::release_to_cache`].
    pub fn latch(&self) -> ExclusiveGuard<'c> {
        loop {
            // Only stale readers look at it, and they never latch a free frame for long.
            if let Ok(guard) = self.frame().exclusive() {
                return guard;
            }
        }
    }

    /// The frame now holds a node and no longer belongs to this worker. The caller holds its latch.
    pub fn release_to_cache(mut self) -> FrameRef<'c> {
        let frame = self.frame();
        self.id = None;
        frame
    }

    /// Copies words `1..` of `page` into the frame and publishes it under the ticket's address: hot below `parent`,
    /// if given, when `still_parent` says under the parent's latch that the child word at that index is the
    /// address; hot without a parent, if none is given; cooling otherwise.
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
        guard.mark_clean();
        CacheCounters::bump(&worker.counters.admissions, 1);
        let (mut state, mut parent_version) = (FrameState::Hot, None);
        if let Some((parent, still_parent)) = parent {
            // Top down would be parent first; nobody can wait for this frame yet, so this order is safe too.
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
