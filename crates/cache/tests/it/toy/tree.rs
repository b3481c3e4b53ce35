//! The toy tree: descent, operations, and the final checks.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando_cache::{
    Cache, CacheConfig, CacheError, CacheWorker, Conflict, FrameId, FrameRef, FrameState, FreeFrame,
    IoTicket, Lookup, NoFrame, Resolved, Swip, Version,
};
use pando_fabric::{Endpoint, GlobalAddr, PageBuf};

use super::{
    COUNTER, FANOUT, KIND, LEAVES, NODE, NODES, Remote, Shape, ToyEndpoint, block_on, index_at, kind, number,
    slot_toward,
};

/// Spare node spaces, for moving leaves.
const SPARE: usize = 2;
/// Restarts of one operation after which the test fails.
const RESTARTS: usize = if cfg!(any(loom, shuttle)) { 5_000 } else { 10_000_000 };
const GARBAGE: u64 = 0x5555_5555_5555;

/// A frame, and the version at which it was seen.
#[derive(Clone, Copy)]
pub struct Hop<'c> {
    pub frame: FrameRef<'c>,
    pub version: Version,
}

/// End of a descent.
pub enum Reached<'c> {
    Cached { node: Hop<'c>, parent: Hop<'c> },
    Private { page: PageBuf, ticket: IoTicket<'c> },
}

/// Reason why one attempt of an operation failed.
#[derive(Debug)]
pub enum Retry {
    Restart,
    NoFrame(NoFrame),
}

impl From<Conflict> for Retry {
    fn from(_: Conflict) -> Self {
        Self::Restart
    }
}

impl From<NoFrame> for Retry {
    fn from(no_frame: NoFrame) -> Self {
        Self::NoFrame(no_frame)
    }
}

impl From<CacheError> for Retry {
    fn from(error: CacheError) -> Self {
        Self::NoFrame(NoFrame::Failed(error))
    }
}

type Attempt<T> = Result<T, Retry>;

/// The node of `level` on the path to leaf `key`; a leaf that misses is always cached with `admit`.
#[derive(Clone, Copy)]
struct Target {
    key: usize,
    level: u8,
    admit: bool,
}

impl Target {
    /// Index of the child word in the node above.
    fn word(self) -> usize {
        slot_toward(self.key, self.level)
    }
}

/// The tree, its cache, and the expected counters.
pub struct Toy {
    pub cache: Cache,
    pub remote: Arc<Remote>,
    pub root: FrameId,
    spare: Mutex<Vec<GlobalAddr>>,
    increments: [AtomicU64; NODES],
}

fn build(remote: &Remote) {
    for level in 0..=2_u8 {
        for index in 0..LEAVES / FANOUT.pow(u32::from(level)) {
            let addr = Remote::addr(number(level, index));
            let mut node = [0; NODE / 8];
            node[1] = addr.raw();
            node[KIND] = kind(level, index);
            if level > 0 {
                for child in 0..FANOUT {
                    let below = Remote::addr(number(level - 1, index * FANOUT + child));
                    node[3 + child] = below.raw();
                }
            }
            remote.set_node(addr, node);
        }
    }
}

impl Toy {
    /// A fresh tree with a cache of `frames` frames; its root is cached and pinned for good.
    pub fn new(frames: u64, configure: impl Fn(&mut CacheConfig)) -> Self {
        let remote = Remote::new(NODES + SPARE);
        build(&remote);
        let mut config = CacheConfig::new(frames * NODE as u64, NODE);
        configure(&mut config);
        let cache = Cache::new(&config).expect("enough frames");
        let worker = cache.worker();
        let root = Self::load_root(&cache, &worker, &remote);
        cache.retire(&worker);
        drop(worker);
        let spare = Mutex::new((NODES..NODES + SPARE).map(Remote::addr).collect());
        Self { cache, remote, root, spare, increments: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    fn load_root(cache: &Cache, worker: &CacheWorker, remote: &Arc<Remote>) -> FrameId {
        let ep = ToyEndpoint::new(remote, 1);
        let addr = Remote::addr(0);
        let page = block_on(ep.read(addr, ep.buffer(NODE))).expect("it does not fail");
        let Lookup::Miss(ticket) = cache.table().begin(addr) else { panic!("an empty cache") };
        let free = cache.take_free(worker).expect("an empty cache");
        let frame = free.frame();
        free.admit(&page, ticket, None::<(FrameRef<'_>, fn() -> Option<usize>)>);
        let version = frame.optimistic().expect("no other thread runs");
        std::mem::forget(frame.pin(version).expect("no other thread runs"));
        frame.id()
    }

    pub fn endpoint(&self, seed: u64) -> ToyEndpoint {
        ToyEndpoint::new(&self.remote, seed)
    }

    fn root_hop(&self) -> Result<Hop<'_>, Conflict> {
        let frame = self.cache.frame(self.root);
        Ok(Hop { frame, version: frame.optimistic()? })
    }

    /// Descends to the node of `level` on the path to leaf `key`.
    async fn walk<'t>(
        &'t self,
        worker: &CacheWorker,
        ep: &ToyEndpoint,
        key: usize,
        level: u8,
        admit: bool,
    ) -> Attempt<Reached<'t>> {
        let mut node = self.root_hop()?;
        for at in (level..2).rev() {
            let target = Target { key, level: at, admit };
            let swip = Swip::from_raw(node.frame.words()[target.word()].load(Relaxed));
            let child = if let Some(id) = swip.frame() {
                let frame = self.cache.try_frame(id).ok_or(Conflict)?;
                let version = frame.optimistic()?;
                node.frame.validate(node.version)?;
                Hop { frame, version }
            } else {
                node.frame.validate(node.version)?;
                let addr = swip.global().expect("not swizzled");
                match self.resolve(worker, ep, node, addr, target).await? {
                    Reached::Cached { node, .. } => node,
                    private => return Ok(private),
                }
            };
            if at == level {
                return Ok(Reached::Cached { node: child, parent: node });
            }
            node = child;
        }
        unreachable!("the loop ends at `level`")
    }

    async fn resolve<'t>(
        &'t self,
        worker: &CacheWorker,
        ep: &ToyEndpoint,
        parent: Hop<'t>,
        addr: GlobalAddr,
        target: Target,
    ) -> Attempt<Reached<'t>> {
        ep.lag().await;
        match self.cache.table().begin(addr) {
            Lookup::InFlight | Lookup::Common => Err(Retry::Restart),
            Lookup::Frame(id) => {
                let frame = self.cache.try_frame(id).ok_or(Conflict)?;
                let version = if self.cache.swizzles() {
                    self.cache.reheat(
                        worker,
                        Some((parent.frame, parent.version, target.word())),
                        frame,
                        addr,
                    )?
                } else {
                    self.use_unswizzled(worker, parent, frame, addr)?
                };
                Ok(Reached::Cached { node: Hop { frame, version }, parent })
            }
            Lookup::Miss(ticket) => {
                parent.frame.validate(parent.version)?;
                self.fetch(worker, ep, parent, ticket, target).await
            }
        }
    }

    fn use_unswizzled(
        &self,
        worker: &CacheWorker,
        parent: Hop<'_>,
        frame: FrameRef<'_>,
        addr: GlobalAddr,
    ) -> Result<Version, Conflict> {
        let mut version = frame.optimistic()?;
        if version.state() == FrameState::Free || frame.addr() != addr.raw() {
            return Err(Conflict);
        }
        if version.state() == FrameState::Cooling {
            version = self.cache.reheat(worker, None, frame, addr)?;
        }
        parent.frame.validate(parent.version)?;
        Ok(version)
    }

    async fn fetch<'t>(
        &'t self,
        worker: &CacheWorker,
        ep: &ToyEndpoint,
        parent: Hop<'t>,
        ticket: IoTicket<'t>,
        target: Target,
    ) -> Attempt<Reached<'t>> {
        let Target { key, level, admit } = target;
        let addr = ticket.addr();
        self.cache.give_way(worker)?;
        let _pin = parent.frame.pin(parent.version)?;
        let lazily = level == 0 && !admit && !self.cache.has_free(worker);
        let free = match !lazily || self.cache.admission().admits(ep.random()) {
            true => Some(self.cache.allocate(worker, ep, Shape).await?),
            false => None,
        };
        let page = ep.read(addr, ep.buffer(NODE)).await.map_err(CacheError::from)?;
        assert_eq!(page.get(KIND), kind(level, index_at(key, level)), "READ of a node that was freed");
        assert_eq!(page.get(1), addr.raw(), "READ of a node that belongs elsewhere");
        let Some(free) = free else {
            return Ok(Reached::Private { page, ticket });
        };
        let frame = self.cache.frame(free.id());
        let word = target.word();
        let parent_kind = kind(level + 1, index_at(key, level + 1));
        let still_parent = || {
            let words = parent.frame.words();
            let load = |i: usize| words[i].load(Relaxed);
            (load(KIND) == parent_kind && load(word) == addr.raw()).then_some(word)
        };
        let below = self.cache.swizzles().then_some((parent.frame, still_parent));
        match free.admit(&page, ticket, below) {
            Resolved::Hot { version, parent: above } => {
                let parent = Hop { version: above.unwrap_or(parent.version), ..parent };
                Ok(Reached::Cached { node: Hop { frame, version }, parent })
            }
            Resolved::Detached => Err(Retry::Restart),
        }
    }

    /// Retries until an attempt succeeds.
    async fn retry<T>(
        &self,
        worker: &CacheWorker,
        ep: &ToyEndpoint,
        mut attempt: impl AsyncFnMut(&CacheWorker) -> Attempt<T>,
    ) -> T {
        let (mut turn, mut place) = (None, None);
        for _ in 0..RESTARTS {
            let worker = turn.as_ref().map_or(worker, pando_cache::Turn::worker);
            match attempt(worker).await {
                Ok(value) => return value,
                Err(Retry::Restart | Retry::NoFrame(NoFrame::GiveWay)) => {}
                Err(Retry::NoFrame(NoFrame::Crowded)) if turn.is_some() => {}
                Err(Retry::NoFrame(NoFrame::Crowded)) => {
                    turn = place.get_or_insert_with(|| self.cache.wait_for_turn()).try_turn(worker);
                }
                Err(Retry::NoFrame(NoFrame::Failed(error))) => panic!("{error}"),
            }
            if turn.is_some() {
                place = None;
            }
            ep.yield_now().await;
        }
        panic!("{RESTARTS} restarts: {:#?}", self.cache.audit(Shape))
    }

    /// Increments the counter of the node of `level` above leaf `key`.
    pub async fn increment(&self, worker: &CacheWorker, ep: &ToyEndpoint, key: usize, level: u8) {
        self.retry(worker, ep, async |worker| match self.walk(worker, ep, key, level, false).await? {
            Reached::Cached { node, .. } => {
                ep.lag().await;
                let mut guard = node.frame.upgrade(node.version)?;
                for word in COUNTER.map(|word| &node.frame.words()[word]) {
                    word.store(word.load(Relaxed) + 1, Relaxed);
                }
                guard.mark_dirty();
                drop(guard);
                Ok(())
            }
            Reached::Private { page, ticket } => {
                COUNTER.into_iter().for_each(|word| page.set(word, page.get(word) + 1));
                ep.write(ticket.addr(), page).await.map_err(CacheError::from)?;
                drop(ticket);
                Ok(())
            }
        })
        .await;
        self.increments[number(level, index_at(key, level))].fetch_add(1, Relaxed);
    }

    /// Reads the counter of leaf `key`, which must not be torn.
    pub async fn read(&self, worker: &CacheWorker, ep: &ToyEndpoint, key: usize) -> u64 {
        self.retry(worker, ep, async |worker| {
            let (kind_word, counter) = match self.walk(worker, ep, key, 0, false).await? {
                Reached::Cached { node, .. } => {
                    let load = |word: usize| node.frame.words()[word].load(Relaxed);
                    let seen = (load(KIND), COUNTER.map(load));
                    node.frame.validate(node.version)?;
                    seen
                }
                Reached::Private { page, .. } => (page.get(KIND), COUNTER.map(|word| page.get(word))),
            };
            assert_eq!(kind_word, kind(0, key), "the descent ended in another node");
            assert_eq!(counter[0], counter[1], "a torn copy was accepted");
            Ok(counter[0])
        })
        .await
    }

    /// Keeps leaf `key` in its frame over a few pauses.
    pub async fn pin(&self, worker: &CacheWorker, ep: &ToyEndpoint, key: usize) {
        self.retry(worker, ep, async |worker| {
            let Reached::Cached { node, .. } = self.walk(worker, ep, key, 0, true).await? else {
                unreachable!("it was to be admitted")
            };
            ep.lag().await;
            let pin = node.frame.pin(node.version)?;
            for _ in 0..4 {
                ep.yield_now().await;
                let kind_word = node.frame.words()[KIND].load(Relaxed);
                assert_eq!(kind_word, kind(0, key), "a pinned node left its frame");
            }
            drop(pin);
            Ok(())
        })
        .await
    }

    /// Moves leaf `key` to a new address and a new frame; its old space is overwritten and reused.
    pub async fn relocate(&self, worker: &CacheWorker, ep: &ToyEndpoint, key: usize) {
        let Some(to) = self.spare.lock().expect("no panic").pop() else { return };
        let from = self
            .retry(worker, ep, async |worker| {
                let Reached::Cached { node, parent } = self.walk(worker, ep, key, 0, true).await? else {
                    unreachable!("it was to be admitted")
                };
                let free = self.cache.allocate(worker, ep, Shape).await?;
                self.relocate_latched(worker, node, parent, free, to, slot_toward(key, 0))
            })
            .await;
        let garbage = PageBuf::zeroed(NODE);
        (0..NODE / 8).for_each(|i| garbage.set(i, GARBAGE));
        let addr = from.addr();
        ep.write(addr, garbage).await.expect("it does not fail");
        drop(from);
        self.spare.lock().expect("no panic").push(addr);
    }

    fn relocate_latched<'t>(
        &'t self,
        worker: &CacheWorker,
        node: Hop<'t>,
        parent: Hop<'t>,
        free: FreeFrame<'_>,
        to: GlobalAddr,
        slot: usize,
    ) -> Attempt<IoTicket<'t>> {
        let mut parent_guard = parent.frame.upgrade(parent.version)?;
        let Ok(guard) = node.frame.upgrade(node.version) else {
            parent_guard.release_unchanged();
            return Err(Retry::Restart);
        };
        if node.frame.is_pinned() || node.frame.is_writing() {
            guard.release_unchanged();
            parent_guard.release_unchanged();
            return Err(Retry::Restart);
        }
        let Lookup::Miss(ticket) = self.cache.table().begin(to) else {
            // An operation with the old address is about to detect the change.
            guard.release_unchanged();
            parent_guard.release_unchanged();
            return Err(Retry::Restart);
        };
        let mut new_guard = free.latch();
        let new = free.release_to_cache();
        for (to, from) in new.words().iter().zip(node.frame.words()).skip(1) {
            to.store(from.load(Relaxed), Relaxed);
        }
        new.words()[1].store(to.raw(), Relaxed);
        let swizzled = self.cache.swizzles();
        new.set_parent(swizzled.then_some(parent.frame.id()));
        let swip = if swizzled { Swip::hot(new.id()) } else { Swip::addr(to) };
        parent.frame.words()[slot].store(swip.raw(), Relaxed);
        parent_guard.mark_dirty();
        new_guard.set_state(FrameState::Hot);
        new_guard.mark_dirty();
        ticket.publish(new.id());
        let from = GlobalAddr::from_raw(node.frame.addr()).expect("an address");
        let old = self.cache.table().frame_to_ticket(from, node.frame.id());
        self.cache.discard(worker, node.frame, guard);
        Ok(old)
    }

    /// Final checks, after all threads have ended; leaves only the root in the cache.
    pub fn check(&self) {
        let (worker, ep) = (self.cache.worker(), self.endpoint(77));
        block_on(self.cache.flush(&worker, &ep, Shape)).expect("it does not fail");
        assert_eq!(self.cache.audit(Shape), Vec::<String>::new());
        self.check_remote_copies();
        self.check_counters(Remote::addr(0), 2, 0);
        self.check_frames(&worker, &ep);
        self.cache.retire(&worker);
    }

    /// Every clean frame equals its remote copy, and after a flush every frame is clean.
    fn check_remote_copies(&self) {
        for id in 0..self.cache.frames() as u32 {
            let frame = self.cache.frame(FrameId(id));
            let version = frame.optimistic().expect("nothing runs");
            if version.state() == FrameState::Free {
                continue;
            }
            assert!(!version.is_dirty(), "frame {id} is dirty after a flush");
            assert!(!frame.is_pinned() || frame.id() == self.root, "frame {id} is still pinned");
            let buf = PageBuf::zeroed(NODE);
            frame.copy_out(Shape, &buf).expect("nothing runs");
            let remote = self.remote.node(GlobalAddr::from_raw(buf.get(1)).expect("an address"));
            let cached: Vec<_> = (0..NODE / 8).map(|i| buf.get(i)).collect();
            assert_eq!(cached[1..], remote[1..], "frame {id} differs from its remote copy");
        }
    }

    fn check_counters(&self, addr: GlobalAddr, level: u8, index: usize) {
        let node = self.remote.node(addr);
        assert_eq!((node[1], node[KIND]), (addr.raw(), kind(level, index)));
        let increments = self.increments[number(level, index)].load(Relaxed);
        assert_eq!(COUNTER.map(|word| node[word]), [increments; 2], "updates of {level}/{index} were lost");
        if level > 0 {
            for child in 0..FANOUT {
                let below = GlobalAddr::from_raw(node[3 + child]).expect("remote nodes hold addresses only");
                self.check_counters(below, level - 1, index * FANOUT + child);
            }
        }
    }

    /// All frames but the root's can be allocated at once: none leaked, none is out of reach of eviction.
    fn check_frames(&self, worker: &CacheWorker, ep: &ToyEndpoint) {
        let wanted = self.cache.frames() - 1;
        let free: Vec<_> = (0..wanted)
            .map(|i| {
                let tries = (0..RESTARTS).map(|_| block_on(self.cache.allocate(worker, ep, Shape)));
                let free = tries.filter_map(Result::ok).next();
                free.unwrap_or_else(|| panic!("only {i} of {wanted} frames can be had"))
            })
            .collect();
        let mut ids: Vec<_> = free.iter().map(FreeFrame::id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), wanted, "a frame was given out twice");
        assert!(!ids.contains(&self.root), "the root's frame was given out");
    }
}
