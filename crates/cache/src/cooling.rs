//! Sources of free frames: sampling, delegated cooling, write-back, eviction (DEX §5.1-§5.3).
//!
//! - A node that starts cooling is clean and unswizzled, so eviction only has to remove it from the mapping
//!   table.
//! - A cooling frame is in the cooling map, or held by the one worker that popped it.
//! - A node stays hot while a child is hot, or is being READ or changed by the holder of its ticket. So only
//!   cooling copies are cached below a missing node. The exceptions are orphans, which are counted.
//! - A write-back copies one version of a node, and marks the node clean only if that version is still
//!   current.

use std::cell::RefCell;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, Resource, Work, join_all};

use crate::cache::{Cache, CacheWorker, Cooling, Eviction, FreeFrame};
use crate::defect::Defect;
use crate::error::{Conflict, NoFrame, Result};
use crate::frame::{FrameRef, NodeShape};
use crate::latch::{ExclusiveGuard, FrameState, Version};
use crate::stats::CacheCounters;
use crate::swip::{FrameId, Swip};
use crate::sync::{Ordering, fence};
use crate::writing::Writing;

/// Frames sampled per round.
const SAMPLES: usize = 2;
/// Buckets of the cooling map searched for a frame to evict.
const PROBES: usize = 8;
/// Fruitless rounds before the first yield, and before nodes above cached children may be cooled.
const EAGER_ROUNDS: usize = 16;
/// Fruitless rounds after which an operation must release what it holds.
const ROUNDS: usize = 48;
/// WRITEs of a flush that are in flight at a time.
const FLUSHED_TOGETHER: usize = 16;
/// More levels than any tree has: bounds a walk over words that change concurrently.
const TREE_LEVELS_MAX: usize = 64;

/// Treatment of hot children when a node is to be cooled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Children {
    /// Hot children keep the node hot.
    Keep,
    /// Hot children stay hot and are found through the table from then on.
    Leave,
}

impl Cache {
    /// Returns a free frame, after evicting a page if necessary.
    ///
    /// # Errors
    /// [`NoFrame`]: the operation must release what it holds and restart, or a write-back failed.
    pub async fn allocate<'c, E: Endpoint>(
        &'c self,
        worker: &'c CacheWorker,
        endpoint: &E,
        shape: impl NodeShape,
    ) -> Result<FreeFrame<'c>, NoFrame> {
        for round in 0..ROUNDS {
            self.give_way(worker)?;
            if let Some(frame) = self.take_free(worker) {
                return Ok(frame);
            }
            endpoint.charge(Work::Evict);
            // All candidates may lie on the path to a pinned node.
            let keep = round < EAGER_ROUNDS && self.eviction == Eviction::PathAware;
            let children = if keep { Children::Keep } else { Children::Leave };
            for _ in 0..SAMPLES {
                if let Some(victim) = self.sample(endpoint.random(), shape) {
                    self.cool_with(worker, endpoint, shape, victim, children).await?;
                }
            }
            if let Some(frame) = self.take_free(worker) {
                return Ok(frame);
            }
            let random = endpoint.random();
            endpoint.charge(Work::Hold(match &self.cooling {
                Cooling::Map(map) => map.resource_of_pop(random),
                Cooling::Fifo(_) => Resource::CoolingQueue,
            }));
            if let Some(cold) = self.pop_cooling(random)
                && self.evict(worker, cold)
            {
                continue;
            }
            // The frames may be held by other slots of this worker.
            if round >= EAGER_ROUNDS {
                endpoint.yield_now().await;
            }
        }
        Err(NoFrame::Crowded)
    }

    /// Resource held to add node `addr` to the cooling nodes or to remove it.
    pub fn cooling_resource(&self, addr: GlobalAddr) -> Resource {
        match &self.cooling {
            Cooling::Map(map) => map.resource(addr.raw()),
            Cooling::Fifo(_) => Resource::CoolingQueue,
        }
    }

    pub(crate) fn pop_cooling(&self, random: u64) -> Option<FrameId> {
        match &self.cooling {
            Cooling::Map(map) => map.pop(random, PROBES),
            Cooling::Fifo(queue) => queue.pop(),
        }
    }

    pub(crate) fn forget_cooling(&self, addr: GlobalAddr, frame: FrameId) {
        match &self.cooling {
            Cooling::Map(map) => map.remove(addr.raw(), frame),
            Cooling::Fifo(queue) => queue.remove(frame),
        }
    }

    /// Adds `frame`, which has just started cooling, to the cooling map, and evicts the entry that this
    /// displaces.
    pub(crate) fn push_cooling(&self, worker: &CacheWorker, addr: GlobalAddr, frame: FrameId) {
        if let Some(oldest) = self.wait_cooling(addr.raw(), frame) {
            self.evict(worker, oldest);
        }
    }

    fn wait_cooling(&self, addr: u64, frame: FrameId) -> Option<FrameId> {
        match &self.cooling {
            Cooling::Map(map) => map.push(addr, frame),
            Cooling::Fifo(queue) => queue.push(frame),
        }
    }

    /// Picks a random hot frame or, if path-aware, the lowest unpinned one on a random hot path from there.
    fn sample(&self, random: u64, shape: impl NodeShape) -> Option<FrameId> {
        let start = ((u128::from(random) * self.frames() as u128) >> 64) as u32;
        let mut frame = self.try_frame(FrameId(start))?;
        if self.eviction == Eviction::Random {
            return Some(frame.id());
        }
        let mut lowest = None;
        for depth in 0..TREE_LEVELS_MAX as u32 {
            let version = frame.optimistic().ok()?;
            if version.state() != FrameState::Hot {
                return None;
            }
            if !frame.seems_pinned() {
                lowest = Some(frame.id());
            }
            match self.some_cached_child(frame, shape, random.rotate_left(depth * 7)) {
                None => return lowest,
                Some(child) => {
                    frame.validate(version).ok()?;
                    frame = self.try_frame(child)?;
                }
            }
        }
        None
    }

    /// A hot cached child of the node in `frame`; the search starts at a random child.
    fn some_cached_child(&self, frame: FrameRef<'_>, shape: impl NodeShape, random: u64) -> Option<FrameId> {
        let words = frame.words();
        let count = shape.child_count(words);
        let by_table = count > 0 && !(self.swizzles() && shape.swizzles(words));
        (0..count).find_map(|i| {
            let at = shape.child_word(words, (i + random as usize % count) % count);
            let swip = Swip::from_raw(words[at].load(Ordering::Relaxed));
            match swip.global() {
                None => swip.frame(),
                Some(addr) if by_table && !addr.is_null() => {
                    let child = self.try_frame(self.table.frame_of(addr)?)?;
                    child.is_hot().then_some(child.id())
                }
                Some(_) => None,
            }
        })
    }

    /// Whether the node in `frame` may leave the hot state: it is not pinned, and no cached child keeps it
    /// hot.
    fn may_cool(&self, frame: FrameRef<'_>, shape: impl NodeShape, children: Children) -> bool {
        !frame.is_pinned()
            && (children == Children::Leave || self.some_cached_child(frame, shape, 0).is_none())
    }

    /// Whether the ticket of a child of the latched node is taken. The pin of that ticket's holder may be on
    /// another frame, the one that this node was split from.
    fn has_child_in_flight(&self, frame: FrameRef<'_>, shape: impl NodeShape) -> bool {
        // Pairs with the fence in `MappingTable::begin`. A miss sets its mark and then checks the parent's
        // version; this latches the parent and then looks for marks. So one of the two sees the other.
        fence(Ordering::SeqCst);
        let mut missing = frame.swips(shape).filter_map(Swip::global).filter(|addr| !addr.is_null());
        missing.any(|addr| self.table.is_in_flight(addr))
    }

    /// Writes `victim` back if it is dirty and starts cooling it or, with [`Eviction::Random`], evicts it at
    /// once. Does nothing if the node is used meanwhile.
    ///
    /// # Errors
    /// Errors of the write-back; the node then stays hot and dirty.
    pub async fn cool<E: Endpoint>(
        &self,
        worker: &CacheWorker,
        endpoint: &E,
        shape: impl NodeShape,
        victim: FrameId,
    ) -> Result<()> {
        let children = if self.eviction == Eviction::Random { Children::Leave } else { Children::Keep };
        self.cool_with(worker, endpoint, shape, victim, children).await
    }

    async fn cool_with<E: Endpoint>(
        &self,
        worker: &CacheWorker,
        endpoint: &E,
        shape: impl NodeShape,
        victim: FrameId,
        children: Children,
    ) -> Result<()> {
        let Some(frame) = self.try_frame(victim) else { return Ok(()) };
        let Ok(version) = frame.optimistic() else { return Ok(()) };
        if version.state() != FrameState::Hot || !self.may_cool(frame, shape, children) {
            return Ok(());
        }
        // Held until the node is cooling.
        let mut claimed = None;
        if version.is_dirty() && !defect(Defect::LostWriteBack) {
            let Some(writing) = self.claim_write_back(endpoint, frame) else { return Ok(()) };
            if !self.write_back(worker, endpoint, shape, claimed.insert(writing), version).await? {
                return Ok(());
            }
        }
        self.finish_and_charge(worker, endpoint, shape, frame, version, children);
        Ok(())
    }

    /// Runs [`Cache::finish_cooling`] and charges the resources that it contends for.
    fn finish_and_charge<E: Endpoint>(
        &self,
        worker: &CacheWorker,
        endpoint: &E,
        shape: impl NodeShape,
        frame: FrameRef<'_>,
        version: Version,
        children: Children,
    ) {
        let (addr, parent) = (GlobalAddr::from_raw(frame.addr()), frame.parent());
        if self.finish_cooling(worker, shape, frame, version, children).is_err() {
            return;
        }
        for latched in [parent, Some(frame.id())].into_iter().flatten() {
            endpoint.charge(Work::Hold(Resource::Frame(latched.0)));
        }
        if let Some(addr) = addr.filter(|_| self.eviction == Eviction::PathAware) {
            endpoint.charge(Work::Hold(self.cooling_resource(addr)));
        }
    }

    /// Writes the node that was in the frame of `writing` at `version`. Returns `false`, without a WRITE, if
    /// the copy was torn, or may not be written yet.
    pub(crate) async fn write_back<E: Endpoint>(
        &self,
        worker: &CacheWorker,
        endpoint: &E,
        shape: impl NodeShape,
        writing: &mut Writing<'_>,
        version: Version,
    ) -> Result<bool> {
        let frame = writing.frame();
        let mut buf = endpoint.buffer(self.node_size());
        let leaves_first_word = shape.leaves_first_word(frame.words());
        let copied = frame.copy_out(shape, &buf).and_then(|()| frame.validate(version));
        let Some(addr) = GlobalAddr::from_raw(buf.get(1)).filter(|_| copied.is_ok()) else {
            endpoint.recycle(buf);
            return Ok(false);
        };
        if !shape.before_write(endpoint, frame, version, &buf).await? {
            endpoint.recycle(buf);
            return Ok(false);
        }
        endpoint.charge(Work::Copy { bytes: self.node_size() });
        let write = async {
            match leaves_first_word {
                true => {
                    buf.set_window(size_of::<u64>()..self.node_size());
                    endpoint.write(addr.add(size_of::<u64>() as u64), buf).await
                }
                false if shape.is_logged() => endpoint.write_unread(addr, buf).await,
                false => endpoint.write(addr, buf).await,
            }
        };
        let buf = writing.while_written(write).await?;
        endpoint.recycle(buf);
        CacheCounters::bump(&worker.counters().write_backs, 1);
        Ok(true)
    }

    /// Second half of [`Cache::cool`]: latches from the parent down, and cools the node if it is unchanged
    /// since `version`.
    fn finish_cooling(
        &self,
        worker: &CacheWorker,
        shape: impl NodeShape,
        frame: FrameRef<'_>,
        version: Version,
        children: Children,
    ) -> Result<(), Conflict> {
        let (mut guard, addr) = self.unswizzle(shape, frame, version, || {
            self.may_cool(frame, shape, children) && !self.has_child_in_flight(frame, shape)
        })?;
        if children == Children::Leave {
            self.unswizzle_each(frame, shape, |child| child.set_orphan(true));
        }
        frame.note_written();
        guard.mark_clean();
        guard.set_state(FrameState::Cooling);
        frame.set_orphan(false);
        drop(guard);
        CacheCounters::bump(&worker.counters().coolings, 1);
        if self.eviction == Eviction::Random {
            self.evict(worker, frame.id());
            return Ok(());
        }
        self.push_cooling(worker, addr, frame.id());
        Ok(())
    }

    /// Latches from the parent down and unswizzles a node, if it is unchanged since `version` and
    /// `may_leave`. Returns the latch of its frame and its address.
    pub(crate) fn unswizzle<'c>(
        &'c self,
        shape: impl NodeShape,
        frame: FrameRef<'c>,
        version: Version,
        may_leave: impl FnOnce() -> bool,
    ) -> Result<(ExclusiveGuard<'c>, GlobalAddr), Conflict> {
        let parent = self.latch_parent(frame, shape)?;
        let latched = frame.upgrade(version).and_then(|guard| {
            if may_leave() {
                return Ok(guard);
            }
            guard.release_unchanged();
            Err(Conflict)
        });
        let Ok(guard) = latched else {
            if let Some((parent_guard, ..)) = parent {
                parent_guard.release_unchanged();
            }
            return Err(Conflict);
        };
        let addr = GlobalAddr::from_raw(frame.addr()).expect("a frame's own address is not swizzled");
        if let Some((parent_guard, parent, slot)) = parent {
            parent.words()[slot].store(Swip::addr(addr).raw(), Ordering::Relaxed);
            drop(parent_guard);
            frame.set_parent(None);
        }
        Ok((guard, addr))
    }

    /// Latches the frame in which `frame` is swizzled; `None` if it is not swizzled.
    #[allow(clippy::type_complexity)]
    fn latch_parent<'c>(
        &'c self,
        frame: FrameRef<'c>,
        shape: impl NodeShape,
    ) -> Result<Option<(ExclusiveGuard<'c>, FrameRef<'c>, usize)>, Conflict> {
        let Some(parent) = frame.parent() else { return Ok(None) };
        let parent = self.try_frame(parent).ok_or(Conflict)?;
        let guard = parent.exclusive()?;
        // Under the parent's latch no child can lose or change its parent.
        let slot = match frame.parent() == Some(parent.id()) {
            true => parent.slot_of(shape, frame.id()),
            false => None,
        };
        match slot {
            Some(slot) => Ok(Some((guard, parent, slot))),
            None => {
                guard.release_unchanged();
                Err(Conflict)
            }
        }
    }

    /// Unswizzles all children of a latched node, which stay hot and are found through the table, and calls
    /// `each` with every one.
    pub(crate) fn unswizzle_each(
        &self,
        frame: FrameRef<'_>,
        shape: impl NodeShape,
        each: impl Fn(FrameRef<'_>),
    ) {
        for word in frame.children(shape) {
            if let Some(child) = Swip::from_raw(word.load(Ordering::Relaxed)).frame() {
                let child = self.frame(child);
                word.store(child.addr(), Ordering::Relaxed);
                child.set_parent(None);
                each(child);
            }
        }
    }

    /// Frees the frame of a cooling node, or of the next one in its bucket, and gives it to `worker`. Returns
    /// whether a frame was freed. `cold` was popped from the cooling map or was never in it.
    pub(crate) fn evict(&self, worker: &CacheWorker, mut cold: FrameId) -> bool {
        loop {
            match self.try_evict(worker, cold) {
                Ok(evicted) => return evicted,
                // The frame is latched. Push it back: a cooling frame outside the map would never be found
                // again.
                Err(Conflict) => match self.wait_cooling(self.frame(cold).addr(), cold) {
                    Some(oldest) => cold = oldest,
                    None => return false,
                },
            }
        }
    }

    /// Returns `false` if the frame is no longer cooling.
    fn try_evict(&self, worker: &CacheWorker, cold: FrameId) -> Result<bool, Conflict> {
        let frame = self.frame(cold);
        if frame.optimistic()?.state() != FrameState::Cooling {
            return Ok(false);
        }
        let mut guard = frame.exclusive()?;
        if guard.state() != FrameState::Cooling {
            guard.release_unchanged();
            return Ok(false);
        }
        let addr = GlobalAddr::from_raw(frame.addr()).expect("a frame's own address is not swizzled");
        let removed = self.table.remove(addr, cold);
        debug_assert!(removed, "a cooling frame is in the mapping table");
        guard.set_state(FrameState::Free);
        drop(guard);
        CacheCounters::bump(&worker.counters().evictions, 1);
        self.give_free(worker, cold);
        Ok(true)
    }

    /// Drops the cooling copy of a node, if there is one, after the node was changed in remote memory by the
    /// holder of its subtree (DEX §6.2).
    ///
    /// # Errors
    /// [`Conflict`] if the copy is in use: try again.
    pub fn invalidate(&self, worker: &CacheWorker, addr: GlobalAddr) -> Result<(), Conflict> {
        let Some(id) = self.table.frame_of(addr) else {
            return if self.table.is_in_flight(addr) { Err(Conflict) } else { Ok(()) };
        };
        let frame = self.frame(id);
        let mut guard = frame.exclusive()?;
        if frame.addr() != addr.raw() || guard.state() != FrameState::Cooling {
            guard.release_unchanged();
            return Err(Conflict);
        }
        self.table.remove(addr, id);
        self.forget_cooling(addr, id);
        guard.set_state(FrameState::Free);
        drop(guard);
        CacheCounters::bump(&worker.counters().evictions, 1);
        self.give_free(worker, id);
        Ok(())
    }

    /// Frames that are dirty, as far as can be seen without their latches.
    pub fn dirty_frames(&self) -> impl Iterator<Item = FrameRef<'_>> {
        let frames = (0..self.frames() as u32).map(|id| self.frame(FrameId(id)));
        frames.filter(|frame| frame.optimistic().is_ok_and(|version| version.is_dirty()))
    }

    /// Writes back every node that was dirty when the flush began; returns the number of WRITEs, of which some are in
    /// flight at a time. At a quiescent point no node stays dirty; under traffic, nodes changed since then may.
    ///
    /// # Errors
    /// The first failed write-back.
    pub async fn flush<E: Endpoint>(
        &self,
        worker: &CacheWorker,
        endpoint: &E,
        shape: impl NodeShape,
    ) -> Result<u64> {
        let ids = RefCell::new(0..self.frames() as u32);
        let share = async || {
            let mut written = 0;
            loop {
                let Some(id) = ids.borrow_mut().next() else { return Ok(written) };
                let frame = self.frame(FrameId(id));
                while !self.flush_frame(worker, endpoint, shape, frame, &mut written).await? {
                    endpoint.yield_now().await;
                }
            }
        };
        let shares = (0..self.frames().min(FLUSHED_TOGETHER)).map(|_| share());
        join_all(shares).await.into_iter().sum()
    }

    /// Writes a node back if it is dirty, and counts the WRITE. Returns `false` if another operation
    /// interfered.
    ///
    /// # Errors
    /// Errors of the write-back.
    pub async fn flush_frame<E: Endpoint>(
        &self,
        worker: &CacheWorker,
        endpoint: &E,
        shape: impl NodeShape,
        frame: FrameRef<'_>,
        written: &mut u64,
    ) -> Result<bool> {
        let Ok(version) = frame.optimistic() else { return Ok(false) };
        if !version.is_dirty() {
            return Ok(true);
        }
        let Some(mut writing) = self.claim_write_back(endpoint, frame) else { return Ok(false) };
        if !self.write_back(worker, endpoint, shape, &mut writing, version).await? {
            return Ok(false);
        }
        *written += 1;
        if let Ok(mut guard) = frame.upgrade(version) {
            frame.note_written();
            guard.mark_clean();
            guard.release_unchanged();
        }
        Ok(true)
    }
}
