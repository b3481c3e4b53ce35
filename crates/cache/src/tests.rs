//! Steps of a frame's life that need access to internals: entries of the cooling map, the count of orphans,
//! and operations that arrive during a write-back. Each test catches a change of the code that the tests of
//! the public interface missed.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use pando_fabric::PageBuf;

use self::toy::{COUNTER, KIND, NODE, Remote, Shape, ToyEndpoint, block_on, kind, slot_toward};
use crate::sync::Ordering::Relaxed;
use crate::{
    Admission, Cache, CacheConfig, CacheWorker, Conflict, Expelled, FrameId, FrameRef, FrameState, Lookup,
    Resolved,
};

#[allow(dead_code, unused_imports, reason = "tests from outside use the rest")]
#[path = "../tests/it/toy/mod.rs"]
mod toy;

/// So few that a pop visits all buckets of the cooling map.
const FRAMES: u64 = 16;
const QUEUES: [bool; 2] = [false, true];

/// A cache and its remote memory, used step by step.
struct Bench {
    cache: Cache,
    worker: CacheWorker,
    ep: ToyEndpoint,
}

impl Bench {
    fn new(fifo: bool) -> Self {
        let config = CacheConfig { fifo, cooling_share: 0.5, ..CacheConfig::new(FRAMES * NODE as u64, NODE) };
        let cache = Cache::new(&config).expect("a cache");
        let worker = cache.worker();
        let ep = ToyEndpoint::new(&Remote::new(2 * FRAMES as usize), 3);
        Self { cache, worker, ep }
    }

    /// Admits node `i` as hot; below `parent`, if given, which is made to point to it first.
    fn admit(&self, i: usize, level: u8, parent: Option<FrameRef<'_>>) -> FrameRef<'_> {
        let (addr, slot) = (Remote::addr(i), slot_toward(0, level));
        let page = PageBuf::zeroed(NODE);
        page.set(1, addr.raw());
        page.set(KIND, kind(level, 0));
        let Lookup::Miss(ticket) = self.cache.table().begin(addr) else { panic!("{addr} is there already") };
        let free = self.cache.take_free(&self.worker).expect("a free frame");
        let frame = free.frame();
        let parent = parent.map(|parent| {
            parent.words()[slot].store(addr.raw(), Relaxed);
            (parent, move || Some(slot))
        });
        assert!(matches!(free.admit(&page, ticket, parent), Resolved::Hot { .. }));
        frame
    }

    fn cool(&self, frame: FrameRef<'_>) {
        block_on(self.cache.cool(&self.worker, &self.ep, Shape, frame.id())).expect("no WRITE fails");
    }

    fn expel(&self, frame: FrameRef<'_>) -> Expelled {
        let expelled = self.cache.expel(&self.worker, &self.ep, Shape, frame.id(), |_| true);
        block_on(expelled).expect("no WRITE fails")
    }

    /// Pops all frames from the cooling map.
    fn waiting(&self) -> Vec<FrameId> {
        std::iter::from_fn(|| self.cache.pop_cooling(0)).collect()
    }

    fn audit(&self) -> Vec<String> {
        self.cache.audit(Shape)
    }
}

fn state(frame: FrameRef<'_>) -> FrameState {
    frame.optimistic().expect("the latch is free").state()
}

#[test]
fn a_frame_that_is_reheated_waits_no_more() {
    for fifo in QUEUES {
        let bench = Bench::new(fifo);
        let [kept, reheated] = [0, 1].map(|i| bench.admit(i, 0, None));
        [kept, reheated].into_iter().for_each(|frame| bench.cool(frame));
        bench.cache.reheat(&bench.worker, None, reheated, Remote::addr(1)).expect("it is cooling");
        assert_eq!((state(reheated), bench.waiting()), (FrameState::Hot, vec![kept.id()]));
    }
}

#[test]
fn a_frame_whose_node_is_forgotten_or_expelled_waits_no_more() {
    for fifo in QUEUES {
        let bench = Bench::new(fifo);
        let [kept, forgotten, expelled] = [0, 1, 2].map(|i| bench.admit(i, 0, None));
        [kept, forgotten, expelled].into_iter().for_each(|frame| bench.cool(frame));
        bench.cache.invalidate(&bench.worker, Remote::addr(1)).expect("it is cooling");
        assert_eq!(bench.expel(expelled), Expelled::Gone { written: false });
        assert_eq!([forgotten, expelled].map(state), [FrameState::Free; 2]);
        assert_eq!(bench.waiting(), [kept.id()]);
        assert_eq!(bench.audit(), [""; 0]);
    }
}

#[test]
fn only_a_cooling_copy_is_forgotten() {
    let bench = Bench::new(false);
    let invalidate = |i| bench.cache.invalidate(&bench.worker, Remote::addr(i));
    assert_eq!(invalidate(0), Ok(()), "there is none");
    let ticket = bench.cache.table().begin(Remote::addr(0));
    assert!(matches!(ticket, Lookup::Miss(_)));
    // A reader may have read the node as it was before the change.
    assert_eq!(invalidate(0), Err(Conflict));
    drop(ticket);
    let hot = bench.admit(0, 0, None);
    assert_eq!((invalidate(0), state(hot)), (Err(Conflict), FrameState::Hot));
    bench.cool(hot);
    assert_eq!((invalidate(0), state(hot)), (Ok(()), FrameState::Free));
}

#[test]
fn a_node_whose_child_is_being_read_stays_hot() {
    let bench = Bench::new(false);
    let parent = bench.admit(0, 1, None);
    let child = Remote::addr(1);
    parent.words()[slot_toward(0, 0)].store(child.raw(), Relaxed);
    // The reader's pin is on the frame that this parent was split from.
    let ticket = bench.cache.table().begin(child);
    assert!(matches!(ticket, Lookup::Miss(_)));
    bench.cool(parent);
    assert_eq!(state(parent), FrameState::Hot);
    drop(ticket);
    bench.cool(parent);
    assert_eq!(state(parent), FrameState::Cooling);
}

#[test]
fn a_node_that_is_pinned_while_it_is_written_back_is_not_expelled() {
    let bench = Bench::new(false);
    let frame = bench.admit(0, 0, None);
    let mut guard = frame.exclusive().expect("the latch is free");
    COUNTER.into_iter().for_each(|word| frame.words()[word].store(1, Relaxed));
    guard.mark_dirty();
    drop(guard);
    let mut expelled = pin!(bench.cache.expel(&bench.worker, &bench.ep, Shape, frame.id(), |_| true));
    let mut context = Context::from_waker(Waker::noop());
    assert!(expelled.as_mut().poll(&mut context).is_pending() && frame.is_writing());
    let pinned = frame.pin(frame.optimistic().expect("not latched")).expect("it is hot");
    let ended = loop {
        if let Poll::Ready(ended) = expelled.as_mut().poll(&mut context) {
            break ended;
        }
    };
    assert_eq!(ended.expect("no WRITE fails"), Expelled::Busy);
    assert_eq!(bench.cache.table().frame_of(Remote::addr(0)), Some(frame.id()));
    drop(pinned);
    assert!(matches!(bench.expel(frame), Expelled::Gone { .. }));
    assert_eq!(bench.audit(), [""; 0]);
}

#[test]
fn orphans_are_the_hot_nodes_that_are_swizzled_nowhere() {
    let bench = Bench::new(false);
    let parent = bench.admit(0, 1, None);
    let child = bench.admit(1, 0, Some(parent));
    let [orphan, cold] = [2, 3].map(|i| bench.admit(i, 0, None));
    bench.cool(cold);
    let note = |i| bench.cache.note_orphan(Remote::addr(i)).expect("the latch is free");
    // One with a parent, one that is cooling, and one that is absent.
    [1, 3, 4].into_iter().for_each(note);
    assert!(bench.cache.paths_are_whole());
    assert_eq!(bench.audit(), [""; 0]);
    [2, 2].into_iter().for_each(note);
    assert!(!bench.cache.paths_are_whole());
    assert_eq!(bench.audit(), [""; 0]);
    assert_eq!(bench.expel(orphan), Expelled::Gone { written: false });
    assert!(bench.cache.paths_are_whole(), "an expelled node is no orphan");
    assert_eq!(bench.audit(), [""; 0]);
    assert_eq!(child.parent(), Some(parent.id()));
}

#[test]
fn the_audit_finds_a_hot_child_that_is_neither_swizzled_nor_counted() {
    let bench = Bench::new(false);
    let parent = bench.admit(0, 1, None);
    let child = bench.admit(1, 0, Some(parent));
    assert_eq!(bench.audit(), [""; 0]);
    parent.words()[slot_toward(0, 0)].store(Remote::addr(1).raw(), Relaxed);
    child.set_parent(None);
    let wrong = bench.audit();
    assert!(wrong.len() == 1 && wrong[0].contains("is not swizzled in frame"), "{wrong:?}");
    bench.cache.note_orphan(Remote::addr(1)).expect("the latch is free");
    assert_eq!(bench.audit(), [""; 0]);
}

#[test]
fn the_share_of_admitted_pages_is_what_was_asked_for() {
    for share in [0.0, 0.1, 0.5, 1.0] {
        assert!((Admission::lazy(share).share() - share).abs() < 1e-9, "{share}");
    }
    assert!((Admission::eager().share() - 1.0).abs() < 1e-9);
}
