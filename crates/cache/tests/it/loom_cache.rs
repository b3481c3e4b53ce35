//! Pairs of a flag and a latch in a real cache of one node under loom: pins against cooling, write-backs
//! against discarded nodes. In each pair, one of the two must see the other.

use crate::toy::{KIND, NODE, Remote, Shape, ToyEndpoint, block_on, kind};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use pando_cache::{Cache, CacheConfig, CacheWorker, Eviction, FrameId, FrameRef, FrameState, Lookup};
use pando_fabric::{Endpoint, PageBuf};

/// A cache with one hot leaf and no parent.
fn cache(dirty: bool, eviction: Eviction) -> (Cache, FrameId) {
    let mut config = CacheConfig::new(8 * NODE as u64, NODE);
    config.eviction = eviction;
    let cache = Cache::new(&config).unwrap();
    let worker = cache.worker();
    let id = admit(&cache, &worker, 0);
    if dirty {
        cache.frame(id).exclusive().unwrap().mark_dirty();
    }
    drop(worker);
    (cache, id)
}

/// Admits a leaf into a free frame.
fn admit(cache: &Cache, worker: &CacheWorker, leaf: usize) -> FrameId {
    let addr = Remote::addr(leaf);
    let page = PageBuf::zeroed(NODE);
    page.set(1, addr.raw());
    page.set(KIND, kind(0, leaf));
    let Lookup::Miss(ticket) = cache.table().begin(addr) else { panic!("it is not there yet") };
    let free = cache.take_free(worker).unwrap();
    let id = free.id();
    free.admit(&page, ticket, None::<(FrameRef<'_>, fn() -> Option<usize>)>);
    id
}

fn pin_against_cooling(eviction: Eviction) {
    loom::model(move || {
        let (cache, id) = cache(false, eviction);
        let cache = Arc::new(cache);
        let cooler = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                let (worker, ep) = (cache.worker(), ToyEndpoint::new(&Remote::new(1), 1));
                block_on(cache.cool(&worker, &ep, Shape, id)).unwrap();
            })
        };
        let frame = cache.frame(id);
        let pinned = frame.optimistic().and_then(|version| frame.pin(version)).map(std::mem::forget).is_ok();
        cooler.join().unwrap();
        let state = frame.optimistic().unwrap().state();
        assert!(!pinned || state == FrameState::Hot, "a pinned node is {state:?}");
    });
}

#[test]
fn a_pinned_node_stays_hot() {
    pin_against_cooling(Eviction::PathAware);
}

#[test]
fn a_pinned_node_is_not_evicted_at_random() {
    pin_against_cooling(Eviction::Random);
}

/// A reader finds a node through the mapping table, without a latch, while the node is evicted and its frame
/// gets another one. At a version at which the frame has the node's address, the reader sees nothing of the
/// other node.
#[test]
fn the_table_leads_to_the_right_node_or_to_none() {
    loom::model(|| {
        let (cache, id) = cache(false, Eviction::Random);
        let cache = Arc::new(cache);
        let worker = cache.worker();
        // Leave the evicted frame as the only free one.
        (1..cache.frames()).for_each(|_| std::mem::forget(cache.take_free(&worker).unwrap()));
        // The reader must be the thread that loom runs last: loom explores other orders where a load follows
        // a store.
        let reader = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                let addr = Remote::addr(0);
                let Some(frame) = cache.table().frame_of(addr).map(|found| cache.frame(found)) else {
                    return;
                };
                let Ok(version) = frame.optimistic() else { return };
                if version.state() == FrameState::Hot && frame.addr() == addr.raw() {
                    let seen = frame.words()[KIND].load(Ordering::Relaxed);
                    assert!(frame.validate(version).is_err() || seen == kind(0, 0), "another node");
                }
            })
        };
        block_on(cache.cool(&worker, &ToyEndpoint::new(&Remote::new(1), 1), Shape, id)).unwrap();
        assert_eq!(admit(&cache, &worker, 1), id);
        reader.join().unwrap();
    });
}

/// Last event of the node's space.
const FREED: u64 = 1;
const WRITTEN: u64 = 2;

/// A flush writes a node back while another thread discards it and frees its space. After that, nothing may
/// be written there.
#[test]
fn a_node_is_not_discarded_during_its_write_back() {
    loom::model(|| {
        let (cache, id) = cache(true, Eviction::PathAware);
        let cache = Arc::new(cache);
        let space = Arc::new(AtomicU64::new(0));
        let flusher = {
            let (cache, space) = (Arc::clone(&cache), Arc::clone(&space));
            thread::spawn(move || {
                let (worker, remote) = (cache.worker(), Remote::new(1));
                let ep = ToyEndpoint::new(&remote, 1);
                ep.on_write(move || {
                    space.swap(WRITTEN, Ordering::AcqRel);
                });
                block_on(cache.flush(&worker, &ep, Shape)).unwrap();
                assert_eq!(ep.counters().snapshot().reads, 0);
            })
        };
        let (frame, worker) = (cache.frame(id), cache.worker());
        let mut freed = false;
        if let Ok(guard) = frame.exclusive() {
            if frame.is_writing() || frame.is_pinned() {
                guard.release_unchanged();
            } else {
                let ticket = cache.table().frame_to_ticket(Remote::addr(0), id);
                cache.discard(&worker, frame, guard);
                drop(ticket);
                space.swap(FREED, Ordering::AcqRel);
                freed = true;
            }
        }
        flusher.join().unwrap();
        assert!(
            !freed || space.load(Ordering::Relaxed) == FREED,
            "a space was written to after it was freed"
        );
    });
}
