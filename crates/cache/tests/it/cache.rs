//! Life of a frame, one step at a time: admission, cooling, second chance, eviction, write-back, discarding.

use pando_cache::{
    Admission, Cache, CacheConfig, CacheError, CacheWorker, Conflict, Eviction, FrameRef, FrameState, Lookup,
    NoFrame, Pin, Resolved, Swip,
};
use pando_fabric::{GlobalAddr, PageBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::toy::{COUNTER, KIND, NODE, Remote, Shape, ToyEndpoint, block_on, kind, slot_toward};

/// A cache and its remote memory, used step by step.
struct Bench {
    cache: Cache,
    worker: CacheWorker,
    remote: Arc<Remote>,
    ep: ToyEndpoint,
}

impl Bench {
    fn new(frames: u64, configure: impl Fn(&mut CacheConfig)) -> Self {
        let mut config = CacheConfig::new(frames * NODE as u64, NODE);
        configure(&mut config);
        let cache = Cache::new(&config).unwrap();
        let worker = cache.worker();
        let remote = Remote::new(2 * frames as usize + 16);
        let ep = ToyEndpoint::new(&remote, 3);
        Self { cache, worker, remote, ep }
    }

    fn page(&self, i: usize, level: u8, index: usize) -> PageBuf {
        let page = PageBuf::zeroed(NODE);
        page.set(1, Remote::addr(i).raw());
        page.set(KIND, kind(level, index));
        page
    }

    /// Admits node `i`; below `parent`, if given, which is made to point to it first.
    fn admit(&self, i: usize, level: u8, index: usize, parent: Option<FrameRef<'_>>) -> FrameRef<'_> {
        let addr = Remote::addr(i);
        let Lookup::Miss(ticket) = self.cache.table().begin(addr) else { panic!("{addr} is there already") };
        let free = block_on(self.cache.allocate(&self.worker, &self.ep, Shape)).unwrap();
        let (frame, slot) = (free.frame(), slot_toward(index, level));
        let parent = parent.map(|parent| {
            parent.words()[slot].store(addr.raw(), Relaxed);
            (parent, move || Some(slot))
        });
        let resolved = free.admit(&self.page(i, level, index), ticket, parent);
        assert!(matches!(resolved, Resolved::Hot { version, .. } if version.state() == FrameState::Hot));
        frame
    }

    /// Inner node 0 at address 0 and a leaf below it at address 1.
    fn parent_and_leaf(&self) -> (FrameRef<'_>, FrameRef<'_>) {
        let parent = self.admit(0, 1, 0, None);
        (parent, self.admit(1, 0, 0, Some(parent)))
    }

    fn cool(&self, frame: FrameRef<'_>) {
        block_on(self.cache.cool(&self.worker, &self.ep, Shape, frame.id())).unwrap();
    }

    fn change(&self, frame: FrameRef<'_>) {
        let mut guard = frame.exclusive().unwrap();
        for word in COUNTER {
            frame.words()[word].store(frame.words()[word].load(Relaxed) + 1, Relaxed);
        }
        guard.mark_dirty();
    }

    fn state(&self, frame: FrameRef<'_>) -> FrameState {
        frame.optimistic().unwrap().state()
    }

    fn swip(&self, parent: FrameRef<'_>, index: usize) -> Swip {
        Swip::from_raw(parent.words()[slot_toward(index, 0)].load(Relaxed))
    }

    fn audit(&self) {
        assert_eq!(self.cache.audit(Shape), Vec::<String>::new());
    }
}

fn pin_for_good(frame: FrameRef<'_>) {
    std::mem::forget::<Pin<'_>>(frame.pin(frame.optimistic().unwrap()).unwrap());
}

#[test]
fn an_admitted_child_is_swizzled_and_found_in_the_table() {
    let bench = Bench::new(8, |_| {});
    let (parent, leaf) = bench.parent_and_leaf();
    assert_eq!(bench.swip(parent, 0).frame(), Some(leaf.id()));
    assert_eq!((leaf.parent(), parent.parent()), (Some(parent.id()), None));
    assert_eq!(bench.cache.table().frame_of(Remote::addr(1)), Some(leaf.id()));
    assert!(!leaf.optimistic().unwrap().is_dirty());
    bench.audit();
}

#[test]
fn a_child_whose_parent_changed_meanwhile_ends_up_cooling() {
    let bench = Bench::new(8, |_| {});
    let parent = bench.admit(0, 1, 0, None);
    let Lookup::Miss(ticket) = bench.cache.table().begin(Remote::addr(1)) else { panic!("an empty cache") };
    let free = bench.cache.take_free(&bench.worker).unwrap();
    let leaf = free.frame();
    let resolved = free.admit(&bench.page(1, 0, 0), ticket, Some((parent, || None)));
    assert!(matches!(resolved, Resolved::Detached));
    assert_eq!(bench.state(leaf), FrameState::Cooling);
    bench.audit();
}

#[test]
fn a_child_is_not_swizzled_in_a_parent_that_started_cooling() {
    let bench = Bench::new(8, |_| {});
    let parent = bench.admit(0, 1, 0, None);
    let Lookup::Miss(ticket) = bench.cache.table().begin(Remote::addr(1)) else { panic!("an empty cache") };
    bench.cool(parent);
    let free = bench.cache.take_free(&bench.worker).unwrap();
    let resolved = free.admit(&bench.page(1, 0, 0), ticket, Some((parent, || Some(slot_toward(0, 0)))));
    assert!(matches!(resolved, Resolved::Detached));
    bench.audit();
}

#[test]
fn cooling_unswizzles_and_a_second_chance_swizzles_again() {
    let bench = Bench::new(8, |_| {});
    let (parent, leaf) = bench.parent_and_leaf();
    let (parent_seen, leaf_seen) = (parent.optimistic().unwrap(), leaf.optimistic().unwrap());
    bench.cool(leaf);
    assert_eq!((bench.state(leaf), leaf.parent()), (FrameState::Cooling, None));
    assert_eq!(bench.swip(parent, 0).global(), Some(Remote::addr(1)));
    assert_eq!(parent.validate(parent_seen), Err(Conflict), "readers of the parent must notice");
    assert_eq!(leaf.validate(leaf_seen), Err(Conflict));
    bench.audit();

    let place = (parent, parent.optimistic().unwrap(), slot_toward(0, 0));
    let version = bench.cache.reheat(&bench.worker, Some(place), leaf, Remote::addr(1)).unwrap();
    assert_eq!(leaf.validate(version), Ok(()));
    assert_eq!((bench.swip(parent, 0).frame(), leaf.parent()), (Some(leaf.id()), Some(parent.id())));
    assert_eq!(parent.validate(place.1), Ok(()), "swizzling means the same to readers");
    let counts = bench.cache.counts();
    assert_eq!((counts.coolings, counts.reheats, counts.evictions, counts.write_backs), (1, 1, 0, 0));
    bench.audit();
}

#[test]
fn a_second_chance_needs_the_same_node_and_parent() {
    let bench = Bench::new(8, |_| {});
    let (parent, leaf) = bench.parent_and_leaf();
    let stale = (parent, parent.optimistic().unwrap(), slot_toward(0, 0));
    let reheat = |place, addr| bench.cache.reheat(&bench.worker, place, leaf, addr).map(drop);
    assert_eq!(reheat(None, Remote::addr(1)), Err(Conflict), "it is swizzled already");
    bench.cool(leaf);
    assert_eq!(reheat(Some(stale), Remote::addr(1)), Err(Conflict), "the parent changed");
    assert_eq!(reheat(None, Remote::addr(2)), Err(Conflict), "another node");
    assert_eq!(bench.state(leaf), FrameState::Cooling);
    assert_eq!(reheat(None, Remote::addr(1)), Ok(()));
    assert_eq!((bench.state(leaf), leaf.parent()), (FrameState::Hot, None));
}

#[test]
fn a_dirty_node_is_written_back_before_it_cools() {
    let bench = Bench::new(8, |_| {});
    let (_, leaf) = bench.parent_and_leaf();
    bench.change(leaf);
    assert!(leaf.optimistic().unwrap().is_dirty());
    bench.cool(leaf);
    let version = leaf.optimistic().unwrap();
    assert_eq!((version.state(), version.is_dirty()), (FrameState::Cooling, false));
    let remote = bench.remote.node(Remote::addr(1));
    assert_eq!((remote[0], remote[1], remote[COUNTER[0]]), (0, Remote::addr(1).raw(), 1));
    assert_eq!(bench.cache.counts().write_backs, 1);
}

#[test]
fn a_failed_write_back_leaves_the_node_hot_and_dirty() {
    let bench = Bench::new(8, |_| {});
    let (_, leaf) = bench.parent_and_leaf();
    bench.change(leaf);
    bench.remote.fail_writes(1);
    let cooled = block_on(bench.cache.cool(&bench.worker, &bench.ep, Shape, leaf.id()));
    assert!(matches!(cooled, Err(CacheError::Fabric(_))));
    assert!(leaf.optimistic().unwrap().is_dirty() && !leaf.is_writing());
    bench.audit();
    bench.cool(leaf);
    assert_eq!(bench.state(leaf), FrameState::Cooling);
}

#[test]
fn a_node_with_a_cached_child_or_a_pin_does_not_cool() {
    let bench = Bench::new(8, |_| {});
    let (parent, leaf) = bench.parent_and_leaf();
    bench.cool(parent);
    assert_eq!(bench.state(parent), FrameState::Hot);
    let pin = leaf.pin(leaf.optimistic().unwrap()).unwrap();
    bench.cool(leaf);
    assert_eq!(bench.state(leaf), FrameState::Hot);
    drop(pin);
    bench.cool(leaf);
    bench.cool(parent);
    assert_eq!((bench.state(leaf), bench.state(parent)), (FrameState::Cooling, FrameState::Cooling));
    assert!(leaf.pin(leaf.optimistic().unwrap()).is_err(), "a cooling node cannot be pinned");
    bench.audit();
}

#[test]
fn without_swizzling_a_cached_child_still_keeps_its_parent() {
    let bench = Bench::new(8, |config| config.swizzle = false);
    let parent = bench.admit(0, 1, 0, None);
    let leaf = bench.admit(1, 0, 0, None);
    parent.words()[slot_toward(0, 0)].store(Remote::addr(1).raw(), Relaxed);
    bench.cool(parent);
    assert_eq!(bench.state(parent), FrameState::Hot);
    bench.cool(leaf);
    bench.cool(parent);
    assert_eq!(bench.state(parent), FrameState::Cooling);
}

#[test]
fn random_eviction_detaches_cached_children_which_stay() {
    let bench = Bench::new(8, |config| config.eviction = Eviction::Random);
    let (parent, leaf) = bench.parent_and_leaf();
    bench.change(parent);
    bench.cool(parent);
    assert_eq!(bench.state(parent), FrameState::Free);
    assert_eq!((bench.state(leaf), leaf.parent()), (FrameState::Hot, None));
    assert_eq!(bench.cache.table().frame_of(Remote::addr(0)), None);
    assert_eq!(bench.cache.table().frame_of(Remote::addr(1)), Some(leaf.id()));
    let word = bench.remote.node(Remote::addr(0))[slot_toward(0, 0)];
    assert_eq!(GlobalAddr::from_raw(word), Some(Remote::addr(1)), "remote nodes hold addresses only");
    bench.audit();
}

#[test]
fn a_full_cache_goes_on_by_evicting() {
    for configure in [(|_| {}) as fn(&mut CacheConfig), |c| c.fifo = true, |c| c.eviction = Eviction::Random]
    {
        let bench = Bench::new(8, configure);
        let root = bench.admit(0, 1, 0, None);
        pin_for_good(root);
        for i in 1..20 {
            let leaf = bench.admit(i, 0, i, None);
            if i % 2 == 0 {
                bench.change(leaf);
            }
        }
        assert!(!bench.cache.has_free(&bench.worker));
        let counts = bench.cache.counts();
        assert!(counts.evictions >= 12 && counts.write_backs >= 4, "{counts:?}");
        assert_eq!(counts.admissions, 20);
        assert_eq!(bench.state(root), FrameState::Hot);
        bench.audit();
    }
}

#[test]
fn a_latched_cooling_frame_is_evicted_later() {
    for configure in [(|_| {}) as fn(&mut CacheConfig), |c| c.fifo = true] {
        let bench = Bench::new(8, configure);
        let leaf = bench.admit(0, 0, 0, None);
        (1..8).for_each(|i| pin_for_good(bench.admit(i, 0, i, None)));
        bench.cool(leaf);
        let guard = leaf.exclusive().unwrap();
        let mut allocation = Box::pin(bench.cache.allocate(&bench.worker, &bench.ep, Shape));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(allocation.as_mut().poll(&mut context).is_pending(), "the only candidate is latched");
        drop(allocation);
        guard.release_unchanged();
        let free = block_on(bench.cache.allocate(&bench.worker, &bench.ep, Shape)).unwrap();
        assert_eq!(free.id(), leaf.id());
    }
}

/// A hot path over all frames of the cache; the first one is pinned for good.
fn path_of_all_frames(bench: &Bench) -> Vec<FrameRef<'_>> {
    let mut path = vec![bench.admit(0, 2, 0, None)];
    pin_for_good(path[0]);
    for i in 1..bench.cache.frames() {
        let parent = path[i - 1];
        path.push(bench.admit(i, if i + 1 < bench.cache.frames() { 1 } else { 0 }, 0, Some(parent)));
    }
    path
}

#[test]
fn the_path_to_a_pinned_node_is_shortened_from_below() {
    for configure in [(|_| {}) as fn(&mut CacheConfig), |c| c.fifo = true] {
        let bench = Bench::new(8, configure);
        let path = path_of_all_frames(&bench);
        let pins = [6, 7].map(|i| path[i].pin(path[i].optimistic().unwrap()).unwrap());
        bench.change(path[5]);
        let free = block_on(bench.cache.allocate(&bench.worker, &bench.ep, Shape)).unwrap();
        assert_eq!(free.id(), path[5].id());
        let word = bench.remote.node(Remote::addr(5))[slot_toward(0, 0)];
        assert_eq!(
            GlobalAddr::from_raw(word),
            Some(Remote::addr(6)),
            "written back with the child's address"
        );
        assert_eq!((bench.state(path[6]), path[6].parent()), (FrameState::Hot, None));
        assert_eq!(bench.swip(path[6], 0).frame(), Some(path[7].id()));
        assert!(
            matches!(bench.cache.table().begin(Remote::addr(6)), Lookup::Frame(id) if id == path[6].id())
        );
        drop((free, pins));
        bench.audit();
    }
}

#[test]
fn without_a_frame_to_be_had_operations_take_turns() {
    let bench = Bench::new(8, |_| {});
    let path = path_of_all_frames(&bench);
    let mut pins: Vec<_> = path[1..].iter().map(|f| f.pin(f.optimistic().unwrap()).unwrap()).collect();
    let allocate =
        |worker: &CacheWorker| block_on(bench.cache.allocate(worker, &bench.ep, Shape)).map(|free| free.id());
    assert!(matches!(allocate(&bench.worker), Err(NoFrame::Crowded)));
    let turn = bench.cache.try_turn(&bench.worker).unwrap();
    assert!(turn.worker().has_turn() && bench.cache.try_turn(&bench.worker).is_none());
    assert!(matches!(allocate(turn.worker()), Err(NoFrame::Crowded)), "a turn frees no pins");
    pins.pop();
    assert!(matches!(allocate(&bench.worker), Err(NoFrame::GiveWay)));
    assert_eq!(allocate(turn.worker()).unwrap(), path[7].id());
    assert!(matches!(allocate(&bench.worker), Err(NoFrame::GiveWay)), "not even a free one");
    drop(turn);
    assert_eq!(allocate(&bench.worker).unwrap(), path[7].id());
    drop(pins);
    bench.audit();
}

#[test]
fn every_eighth_turn_goes_to_the_longest_waiter() {
    let bench = Bench::new(8, |_| {});
    let (cache, worker) = (&bench.cache, &bench.worker);
    let (oldest, gone, second) = (cache.wait_for_turn(), cache.wait_for_turn(), cache.wait_for_turn());
    let others = || (0..100).take_while(|_| cache.try_turn(worker).is_some()).count();
    assert_eq!(others(), 7);
    assert!(second.try_turn(worker).is_none() && !cache.turn_is_taken(), "kept for the oldest");
    assert!(oldest.try_turn(worker).is_some());
    drop((oldest, gone));
    assert_eq!(others(), 7, "a place that was given up delays no other");
    assert!(second.try_turn(worker).is_some());
    drop(second);
    assert_eq!(others(), 100, "there are no waiters");
    assert_eq!(cache.turns_ended(), 116);
}

#[test]
fn many_workers_keep_few_frames_to_themselves() {
    let bench = Bench::new(256, |_| {});
    let workers: Vec<_> = (0..600).map(|_| bench.cache.worker()).collect();
    let frames: Vec<_> = workers.iter().filter_map(|worker| bench.cache.take_free(worker)).collect();
    assert_eq!(frames.len(), 256);
    drop(frames);
    let frames: Vec<_> = std::iter::from_fn(|| bench.cache.take_free(&bench.worker)).collect();
    assert!(frames.len() >= 240, "{} of 256", frames.len());
}

#[test]
fn too_small_a_cache_is_refused_with_the_least_size() {
    let refused = |bytes| Cache::new(&CacheConfig::new(bytes, 1024)).map(drop);
    let message = refused(7 * 1024 + 1023).unwrap_err().to_string();
    assert!(message.contains("at least 8192 bytes"), "{message}");
    assert!(refused(8192).is_ok());
    assert!(matches!(refused(u64::MAX), Err(CacheError::TooLarge { .. })));
}

#[test]
fn a_discarded_frame_is_free_and_its_address_stays_reserved_as_long_as_the_ticket() {
    let bench = Bench::new(8, |_| {});
    let (parent, leaf) = bench.parent_and_leaf();
    let mut parent_guard = parent.exclusive().unwrap();
    let guard = leaf.exclusive().unwrap();
    parent.words()[slot_toward(0, 0)].store(0, Relaxed);
    parent_guard.mark_dirty();
    let ticket = bench.cache.table().frame_to_ticket(Remote::addr(1), leaf.id());
    bench.cache.discard(&bench.worker, leaf, guard);
    drop(parent_guard);
    assert!(matches!(bench.cache.table().begin(Remote::addr(1)), Lookup::InFlight));
    drop(ticket);
    assert_eq!((bench.state(leaf), leaf.parent()), (FrameState::Free, None));
    bench.audit();
    assert!(bench.cache.take_free(&bench.worker).is_some());
}

#[test]
fn a_flush_writes_parents_with_the_addresses_of_their_children() {
    let bench = Bench::new(8, |_| {});
    let (parent, leaf) = bench.parent_and_leaf();
    bench.change(parent);
    bench.change(leaf);
    let seen = parent.optimistic().unwrap();
    assert_eq!(block_on(bench.cache.flush(&bench.worker, &bench.ep, Shape)).unwrap(), 2);
    assert_eq!(block_on(bench.cache.flush(&bench.worker, &bench.ep, Shape)).unwrap(), 0);
    assert_eq!(bench.remote.node(Remote::addr(0))[slot_toward(0, 0)], Remote::addr(1).raw());
    assert_eq!(bench.swip(parent, 0).frame(), Some(leaf.id()), "the cached copy stays swizzled");
    assert!(seen.is_dirty() && !parent.optimistic().unwrap().is_dirty());
    bench.audit();
}

#[test]
fn frames_of_a_worker_that_ended_are_there_for_others_and_its_counts_stay() {
    let bench = Bench::new(256, |config| config.admission = Admission::eager());
    let other = bench.cache.worker();
    for i in 0..256 {
        bench.admit(i, 0, i, None);
    }
    for i in 0..3 {
        let frame = bench.cache.frame(bench.cache.table().frame_of(Remote::addr(i)).unwrap());
        let guard = frame.exclusive().unwrap();
        let ticket = bench.cache.table().frame_to_ticket(Remote::addr(i), frame.id());
        bench.cache.discard(&other, frame, guard);
        drop(ticket);
    }
    other.counters().count_descent(2);
    assert!(
        bench.cache.has_free(&other) && !bench.cache.has_free(&bench.worker),
        "the stash is the worker's own"
    );
    bench.cache.retire(&other);
    drop(other);
    assert!(bench.cache.has_free(&bench.worker));
    let _one_more = bench.cache.worker();
    let counts = bench.cache.counts();
    assert_eq!((counts.leaf_accesses, counts.inner_accesses, counts.admissions), (1, 2, 256));
    bench.audit();
}
